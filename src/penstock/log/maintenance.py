"""`penstock log check | backup | compact`.

A backup is a log like any other until it is opened for writing. Then it draws a new log id and
keeps the old one as an ancestor: a consumer's marker up to the backup's head still resumes, and one
beyond it is refused, because from there on the two logs say different things.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from penstock import kv
from penstock.errors import LogCorruptError, LogError
from penstock.folders import appearing, sync_folder
from penstock.kv import Env
from penstock.log.layout import DATABASES, META, RESTORED_KEY
from penstock.log.lmdb import lock_log, open_for_reading
from penstock.log.reading import BlockCache, Snapshot
from penstock.log.recovery import unfinished_extents
from penstock.ports import SourceState
from penstock.wire import Block, verify_block
from penstock.wire.layout import COMMIT_PACK

_STEP_BYTES: Final = 64 << 20
_PROBLEMS_MAX: Final = 20
_U64: Final = (1 << 64) - 1
_COMPACT_NAME: Final = "compact.tmp"


TellEntries = Callable[[int, int], None]
"""Is told how many entries are done, and of how many, as far as is known."""


class CheckReport(Struct, frozen=True, kw_only=True):
    """What `check` read, and what is wrong with it."""

    log_id: int
    trimmed: int
    head: int
    head_commit: int
    entries: int
    commits: int
    """Those that ended in what was read."""
    blocks: int
    bytes: int
    unfinished_extents: int
    """Commits being staged, or left by a writer that died; removed when the log is next written."""
    sources: list[SourceState]
    problems: list[str]
    """Empty for a sound log; at most the first few."""


def check(path: Path, tell: TellEntries | None = None) -> CheckReport:
    """Read the whole log at `path`, while others write it, and verify every byte.

    `tell` is called now and then; it may neither fail nor wait.

    Each entry's bytes against its check, each commit's rows and digest, and that sequences and
    commits are dense up to the head. Damage is reported, not raised. Raises LogError when there is
    no log, LogFormatError for one of a newer Penstock.
    """
    env = open_for_reading(path.resolve())
    try:
        return _check(env, tell)
    finally:
        env.close()


def _check(env: Env, tell: TellEntries | None) -> CheckReport:
    walk = _Walk(tell)
    try:
        # In steps: one long transaction would keep retention from giving pages back.
        while walk.step(env):
            pass
    except LogCorruptError as error:
        walk.problem(str(error))
    with env.read() as txn:
        snapshot = Snapshot(txn, env, BlockCache(0))
        unfinished, _ = unfinished_extents(txn, env)
        state = snapshot.state
        return CheckReport(
            log_id=snapshot.log_id,
            trimmed=state.trimmed,
            head=state.head,
            head_commit=state.head_commit,
            entries=walk.entries,
            commits=walk.commits,
            blocks=walk.blocks,
            bytes=walk.bytes,
            unfinished_extents=len(unfinished),
            sources=snapshot.sources(),
            problems=walk.problems,
        )


class _Walk:
    """Follows the log from its old end and adds up what it finds."""

    def __init__(self, tell: TellEntries | None) -> None:
        self._tell = tell
        self.entries = self.commits = self.blocks = self.bytes = 0
        self.problems: list[str] = []
        self._after: int | None = None
        self._check = 0
        """That of the place `_after`."""
        self._commit: _Commit | None = None

    def problem(self, what: str) -> None:
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(what)

    def step(self, env: Env) -> bool:
        """Walk on for a while; False at the head."""
        with env.read() as txn:
            snapshot = Snapshot(txn, env, BlockCache(0))
            state = snapshot.state
            if self._after is None or self._after < state.trimmed:
                self._after, self._check = state.trimmed, state.trimmed_check
                self._commit = None
            size = 0
            for block in snapshot.blocks(self._after):
                self._add(block.narrow(after=self._after))
                self._after = block.last_sequence
                size += block.nbytes
                if self._tell is not None:
                    # What follows is known now, whatever retention took or was written meanwhile.
                    self._tell(self.entries, self.entries + state.head - self._after)
                if size >= _STEP_BYTES:
                    return True
            last = self._commit.number if self._commit else state.head_commit
            if last != state.head_commit:
                self.problem(
                    f"the log says that it ends with commit {state.head_commit}, but its last "
                    f"entry is of commit {last}"
                )
            if self._check != state.head_check:
                self.problem(f"the check at the head, {state.head}, is not that of its entries")
            return False

    def _add(self, block: Block) -> None:
        self.blocks += 1
        self.bytes += block.nbytes
        self.entries += len(block)
        try:
            verify_block(block)
        except LogCorruptError as error:
            self.problem(str(error))
        for part in _parts(block):
            self._add_part(part)
        first, before = block.start, block.before
        if before is not None and (block.history(first - 1) if first else before) != self._check:
            self.problem(
                f"entry {block.first_sequence + first} does not follow the entries before it: "
                f"their check is another one"
            )
        self._check = block.history(block.stop - 1)

    def _add_part(self, part: "_Commit") -> None:
        """The part of a commit that one block holds, against the parts before it."""
        before = self._commit
        if before is not None:
            due = (before.number + 1, 0)
            if not before.ended:
                due = (before.number, before.ordinal + before.rows_seen)
            if (part.number, part.ordinal) != due:
                self.problem(
                    f"entry {part.sequence} is row {part.ordinal} of commit {part.number}, where "
                    f"row {due[1]} of commit {due[0]} was due"
                )
            elif not before.ended:
                part = before.followed_by(part)
        # Retention may have taken the first rows of the oldest commit; it proves nothing then.
        whole = part.ended and part.ordinal == 0
        if whole and (part.rows_seen, part.digest_seen) != (part.rows, part.digest):
            self.problem(
                f"commit {part.number}, from entry {part.sequence} on, is not what was captured: "
                f"{part.rows_seen} entries where {part.rows} were due, or another digest"
            )
        self.commits += part.ended
        self._commit = part


class _Commit(Struct, frozen=True, kw_only=True):
    """What has been seen of one commit."""

    number: int
    sequence: int
    """Of the first entry seen."""
    ordinal: int
    rows_seen: int
    digest_seen: int
    rows: int
    digest: int
    ended: bool

    def followed_by(self, part: "_Commit") -> "_Commit":
        return _Commit(
            number=self.number,
            sequence=self.sequence,
            ordinal=self.ordinal,
            rows_seen=self.rows_seen + part.rows_seen,
            digest_seen=(self.digest_seen + part.digest_seen) & _U64,
            rows=part.rows,
            digest=part.digest,
            ended=part.ended,
        )


def _parts(block: Block) -> Iterator[_Commit]:
    places = block.places[block.start : block.stop]
    checks = block.index["check"][block.start : block.stop]
    numbers = places["commit"]
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    table = block.summary_table
    for start, stop in pairwise(starts):
        rows, digest = COMMIT_PACK.unpack_from(table, COMMIT_PACK.size * int(numbers[start]))
        yield _Commit(
            number=block.first_commit + int(numbers[start]),
            sequence=block.first_sequence + block.start + start,
            ordinal=int(places["ordinal"][start]),
            rows_seen=stop - start,
            digest_seen=int(checks[start:stop].sum(dtype=np.uint64)),
            rows=rows,
            digest=digest,
            ended=bool(places["ends"][stop - 1]),
        )


def backup(path: Path, target: Path, *, compact: bool = True) -> None:
    """Copy the log at `path` to the new folder `target`, while others write it.

    The copy is one moment of the log; `compact` leaves free pages out. `target` appears whole, and
    marked as a copy, or not at all, whenever this process or the machine dies: until then the copy
    lies beside it, in a hidden folder that the next backup to `target` removes. Raises ConfigError
    when `target` holds something, LogFullError when it does not fit; then nothing is left there.
    """
    with appearing(target) as copy:
        env = open_for_reading(path.resolve())
        try:
            env.copy(copy, compact=compact)
        finally:
            env.close()
        _mark_restored(copy)


def _mark_restored(path: Path) -> None:
    """Have the copy draw a log id of its own when it is opened for writing."""
    env = kv.open_env(path, create=False)
    try:
        env.databases(DATABASES, create=False)
        with env.write() as txn:
            txn.put(RESTORED_KEY, b"1", db=env[META])
    finally:
        env.close()


class Compaction(Struct, frozen=True):
    """What `compact` gave back to the disk."""

    bytes_before: int
    bytes_after: int


def compact(path: Path) -> Compaction:
    """Rewrite the log at `path` without its free pages; nobody may have it open.

    It stays the same log: markers resume. Needs room for the copy. Raises LogLockedError while
    somebody writes or reads it; then nothing was changed.
    """
    path = path.resolve()
    if not kv.exists(path):
        raise LogError(f"there is no log at {path}")
    lock = lock_log(path)
    try:
        with kv.offline(path):
            pass  # asked before the work too
        data, copy = path / "data.mdb", path / _COMPACT_NAME
        if copy.exists():
            shutil.rmtree(copy)  # left by a compaction that died
        copy.mkdir(mode=0o700)
        before = data.stat().st_blocks * 512
        env = open_for_reading(path)
        try:
            env.copy(copy, compact=True)
        finally:
            env.close()
        with (copy / "data.mdb").open("rb") as copied:
            os.fsync(copied.fileno())
        with kv.offline(path):
            (copy / "data.mdb").replace(data)
        copy.rmdir()
        sync_folder(path)
        return Compaction(before, data.stat().st_blocks * 512)
    finally:
        os.close(lock)
