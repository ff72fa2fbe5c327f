"""`penstock log restore`: a log made of its archive, entry by entry the same.

Sequences, commits, times and bytes are those that were archived; only where blocks begin is not.
What is made is a copy like a backup: when it is opened for writing it draws a new log id, and the
archived one becomes its ancestor.
"""

# The published types of pyarrow are partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock import kv
from penstock.archive.manifest import Range
from penstock.archive.reading import Archive
from penstock.errors import ArchiveDamagedError, ArchiveError
from penstock.folders import appearing
from penstock.kv import Env, Transaction
from penstock.log import maintenance
from penstock.log.assemble import Packed
from penstock.log.layout import (
    ANCESTORS_KEY,
    BASE_KEY,
    DATABASES,
    ENTRIES,
    FORMAT,
    FORMAT_KEY,
    LOG_ID_KEY,
    META,
    POSITIONS,
    RESTORED_KEY,
    STATE_KEY,
    State,
    entry_key,
    pack_ancestors,
    pack_source,
    pack_u64,
)
from penstock.log.maintenance import TellEntries
from penstock.log.repacking import Repacking

_TRANSACTION_BYTES: Final = 32 << 20
_BATCH_ROWS: Final = 20_000
"""Events of a row group that are made at once."""


class Restored(Struct, frozen=True, kw_only=True):
    """The log that was made."""

    log_id: int
    """Of the archive; the log draws its own when it is first written."""
    trimmed: int
    """It begins after this sequence, as its archive does."""
    head: int
    head_commit: int
    commits: int
    sources: int
    repeated: int
    """Entries at the end that capture may take once more: the sources stood before them."""
    unplaced: tuple[str, ...] = ()
    """Sources of entries that the archive does not say the place of."""

    @property
    def warnings(self) -> list[str]:
        """What whoever goes on with this log must know."""
        said: list[str] = []
        if not self.sources:
            said.append(
                "The archive does not say where the sources stood: they would begin as new ones, "
                "as their `start` says, and what happened since is in no log. Set their positions "
                "before you capture, or copy the data with `penstock snapshot`."
            )
        elif self.repeated:
            said.append(
                f"The sources stood before the last {self.repeated:,} entries. Capture takes these "
                f"once more, under new sequences: repeats, and no loss."
            )
        if self.sources and self.unplaced:
            said.append(
                f"The archive has entries of {', '.join(self.unplaced)}, but not where these "
                f"stood: they would begin as new sources, as their `start` says, and what happened "
                f"since is in no log. If you capture them still, set their positions before, or "
                f"copy the data with `penstock snapshot`."
            )
        if self.trimmed:
            said.append(
                f"The archive begins after entry {self.trimmed:,}; what came before is TRIMMED."
            )
        return said


def restore(
    archive: Archive,
    target: Path,
    *,
    on_restored: TellEntries | None = None,
    on_checked: TellEntries | None = None,
) -> Restored:
    """Make the log in the folder `target`, which appears whole or not at all.

    `on_restored` is told of what is written, and then `on_checked` of what is read again; they may
    neither fail nor wait.

    Every file is held against its digest, every entry against its check, every commit against its
    rows and digest. Raises ConfigError when `target` holds something, ArchiveDamagedError for
    what is not as it was archived, LogFullError when it does not fit.
    """
    manifest = archive.manifest
    if not manifest.ranges and archive.hidden:
        raise ArchiveError(
            f"all {archive.hidden} files of the archive at {archive.place.where} lie before its "
            f"last loss, which ends at entry {manifest.begin}; what follows is not archived yet. "
            f"Nothing was made. While the service runs, restore again in range_age. What lies "
            f"before a loss is no log any more, but stays: anything that reads Parquet reads it."
        )
    if not manifest.ranges:
        raise ArchiveError(
            f"the archive at {archive.place.where} holds no entries yet. Nothing was made."
        )
    found: set[str] = set()
    with appearing(target) as folder:
        env = kv.open_env(folder, create=True)
        try:
            env.databases(DATABASES, create=True)
            for one in manifest.ranges:
                _restore_range(env, archive, one, found, on_restored)
            with env.write() as txn:
                state = _finish(txn, env, archive)
        finally:
            env.close()
        report = maintenance.check(folder, on_checked)
        if report.problems or report.head != state.head:
            raise ArchiveDamagedError(archive.place.where, "; ".join(report.problems))
    return Restored(
        log_id=manifest.log_id,
        trimmed=state.trimmed,
        head=state.head,
        head_commit=state.head_commit,
        commits=report.commits,
        sources=len(manifest.standing.sources),
        repeated=state.head - max(manifest.standing.sequence, state.trimmed),
        unplaced=tuple(sorted(found - {one.source for one in manifest.standing.sources})),
    )


def _finish(txn: Transaction, env: Env, archive: Archive) -> State:
    """Write what makes it a log."""
    manifest = archive.manifest
    check = archive.check_at(manifest.until)
    assert check is not None
    state = State(
        head=manifest.until,
        head_commit=manifest.head_commit,
        head_check=check,
        trimmed=manifest.begin,
        trimmed_check=manifest.begin_check,
    )
    meta = env[META]
    txn.put(FORMAT_KEY, pack_u64(FORMAT), db=meta)
    txn.put(LOG_ID_KEY, pack_u64(manifest.log_id), db=meta)
    txn.put(STATE_KEY, state.pack(), db=meta)
    txn.put(ANCESTORS_KEY, pack_ancestors(manifest.ancestors), db=meta)
    if manifest.base:
        txn.put(BASE_KEY, pack_u64(manifest.base), db=meta)
    txn.put(RESTORED_KEY, b"1", db=meta)
    for source in manifest.standing.sources:
        txn.put(source.source.encode(), pack_source(source), db=env[POSITIONS])
    return state


def _restore_range(
    env: Env, archive: Archive, one: Range, found: set[str], tell: TellEntries | None
) -> None:
    begin, until = archive.manifest.begin, archive.manifest.until
    waiting: list[Packed] = []
    size = 0
    for block in _blocks(archive, one, found):
        waiting.append(block)
        size += len(block.data)
        if size >= _TRANSACTION_BYTES:
            _put(env, waiting)
            waiting, size = [], 0
        if tell is not None:
            tell(block.last - begin, until - begin)
    _put(env, waiting)


def _put(env: Env, blocks: list[Packed]) -> None:
    with env.write() as txn:
        for block in blocks:
            txn.put(entry_key(block.last, block.rows), block.data, db=env[ENTRIES])


def _blocks(archive: Archive, one: Range, found: set[str]) -> Iterator[Packed]:
    """The entries of a range as blocks; adds their sources to `found`, where none stood yet."""
    repacking = Repacking(archive, one.after)
    for batch in archive.whole(one):
        if one.until > archive.manifest.standing.sequence:
            found.update(str(name) for name in batch.column("source").unique().to_pylist())
        for at in range(0, batch.num_rows, _BATCH_ROWS):
            yield from repacking.add(one, batch.slice(at, _BATCH_ROWS))
