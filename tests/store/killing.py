"""Kills a process that works on a store at every call of LMDB that it makes.

    python -m tests.store.killing FOLDER SEED STEPS SYNC EVERY

It does each step of `tests.store.workload` once undisturbed, and keeps what the store holds after
each commit of it. Then it does the step again, in a process of its own, that kills itself with -9
before the first call of LMDB, before the second, and so on to the last; or at one of EVERY so many,
which SEED chooses anew for each step. What it leaves must be, row by row, what was there after as
many commits; and once for each of these `audit` looks whether data and streams agree. STEPS is how
many to do at random; 0: the script. It prints what it did as JSON.

Processes are forked here, while no thread runs and no store is open, as that is what makes a kill
cost milliseconds.
"""

import gc
import json
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

import lmdb
import structlog

from penstock import kv
from penstock.store.layout import DATABASES, META
from penstock.store.syncing import SyncMode
from tests.store.audit import audit
from tests.store.workload import Step, at_random, do, go_on, script

DATA = "data.mdb"
Rows = dict[bytes, list[tuple[bytes, bytes]]]
_COUNTS = struct.Struct("QQ")


class Counting:
    """Calls of LMDB, and commits; shared with the process that makes them."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _COUNTS.size)
        self.fatal = 0
        """The call before which the process is killed; 0: none."""
        self.committed: Callable[[int], None] = lambda _: None
        self.names = Counter[str]()

    def reset(self, fatal: int) -> None:
        self.fatal = fatal
        self._shared[:] = _COUNTS.pack(0, 0)

    @property
    def counts(self) -> tuple[int, int]:
        """Calls that were begun, and commits that are done."""
        calls, commits = _COUNTS.unpack(self._shared[:])
        return calls, commits

    def call(self, name: str) -> None:
        calls, commits = self.counts
        self._shared[:] = _COUNTS.pack(calls + 1, commits)
        self.names[name] += 1
        if calls + 1 == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def commit(self) -> None:
        calls, commits = self.counts
        self._shared[:] = _COUNTS.pack(calls, commits + 1)
        self.committed(commits + 1)


class Counted:
    """An environment, transaction or cursor of LMDB whose every call is counted."""

    def __init__(self, real: Any, counting: Counting, *, writes: bool = False) -> None:
        self._real = real
        self._counting = counting
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)

        def call(*args: Any, **options: Any) -> Any:
            self._counting.call(f"{type(self._real).__name__}.{name}")
            result = found(*args, **options)
            if name == "open_db" and options.get("create"):
                self._counting.commit()
            return self._wrapped(result, writes=bool(options.get("write")))

        return call

    def _wrapped(self, result: Any, *, writes: bool) -> Any:
        if isinstance(result, lmdb.Transaction | lmdb.Cursor):
            return Counted(result, self._counting, writes=writes)
        return result

    def __enter__(self) -> "Counted":
        self._real.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._counting.call(f"{type(self._real).__name__}.end")
        self._real.__exit__(*error)
        if self._writes and error[0] is None:
            self._counting.commit()


class CountedLmdb:
    """The module, as `penstock.kv` uses it."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting

    def __getattr__(self, name: str) -> Any:
        return getattr(lmdb, name)

    def Environment(self, *args: Any, **options: Any) -> Counted:  # noqa: N802 - LMDB's name
        self._counting.call("open")
        return Counted(lmdb.Environment(*args, **options), self._counting)


def rows(data: Path) -> Rows:
    """All that a file of LMDB holds, of its newest commit; nothing, where there is none."""
    if not data.exists() or not data.stat().st_size:
        return {}
    with (
        lmdb.open(
            str(data), subdir=False, readonly=True, lock=False, max_dbs=8, map_size=1 << 30
        ) as env,
        env.begin() as txn,
    ):
        found = Rows()
        for name in DATABASES:
            try:
                database = env.open_db(name, txn, create=False)
            except lmdb.NotFoundError:
                continue
            with txn.cursor(database) as cursor:
                found[name] = list(cursor)
        return found


class Killer:
    """Does one step after the other, each as often as it has calls, or one in `every` so many."""

    def __init__(self, folder: Path, seed: int, sync: SyncMode, every: int) -> None:
        self._folder = folder
        self._seed = seed
        self._sync: SyncMode = sync
        self._every = every
        self._dice = random.Random(seed)
        self._counting = Counting()
        self._before = folder / "before"
        self._work = folder / "work"
        self._before.mkdir()
        self.kills = self.commits = 0

    def kill_at_calls(self, step: Step, number: int) -> None:
        """Also at those by which the store is opened and closed."""
        golden = self._undisturbed(step, number)
        calls, _ = self._counting.counts
        after = self._folder / "after"
        shutil.copytree(self._work, after, ignore=shutil.ignore_patterns("*.sock"))
        states = [rows(self._before / DATA), *(rows(data) for data in golden)]
        for state, data in zip(states[1:], golden, strict=True):
            self._audit(state, data)
        gone_on = set[int]()
        fatal = range(self._dice.randint(1, self._every), calls + 1, self._every)
        for call in fatal:
            self._fresh()
            self._counting.reset(call)
            if self._forked(step, number) != -signal.SIGKILL:
                raise AssertionError(f"step {number} has no call {call} any more")
            done = self._counting.counts[1]
            if rows(self._work / DATA) != states[done]:
                raise AssertionError(f"step {number}, call {call}: not what {done} commits left")
            if done not in gone_on:
                gone_on.add(done)
                self._goes_on(number)
        self.kills += len(fatal)
        self.commits += len(golden)
        shutil.rmtree(self._before)
        after.rename(self._before)

    def _undisturbed(self, step: Step, number: int) -> list[Path]:
        """Do the step; returns the store's file as each commit left it."""
        self._fresh()
        self._counting.reset(0)
        kept, data = self._folder / "kept", self._work / DATA
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()

        def keep(commits: int) -> None:
            shutil.copyfile(data, kept / f"{commits}")

        self._counting.committed = keep
        if self._forked(step, number) != 0:
            raise AssertionError(f"step {number} failed")
        self._counting.committed = lambda _: None
        return [kept / f"{commits}" for commits in range(1, self._counting.counts[1] + 1)]

    def _audit(self, state: Rows, data: Path) -> None:
        if len(state) < len(DATABASES) or not state[META]:
            return  # the store is being made
        folder = self._folder / "audited"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copyfile(data, folder / DATA)
        audit(folder)

    def _fresh(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir()
        if (self._before / DATA).exists():
            shutil.copyfile(self._before / DATA, self._work / DATA)

    def _forked(self, step: Step, number: int, *, counted: bool = True) -> int:
        """Do the step in a process of its own; returns its status, negative for a signal."""
        child = os.fork()
        if not child:
            status = 1
            try:
                if counted:
                    kv.__dict__["lmdb"] = CountedLmdb(self._counting)
                names = count(1)
                uuid.uuid4 = lambda: uuid.UUID(int=(number << 64 | next(names)) << 32)
                do(self._work, step, number, self._seed, self._sync)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)

    def _goes_on(self, number: int) -> None:
        """Whoever opens the store next can write, and everything agrees."""
        if self._forked(go_on, number + 1, counted=False) != 0:
            raise AssertionError(f"after a kill in step {number} the store does not go on")
        audit(self._work)


def main(folder: Path, seed: int, steps: int, sync: SyncMode, every: int) -> None:
    """Kill, and say how often."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    # A child lives for milliseconds: it should not copy what the collector only looks at.
    gc.disable()
    gc.freeze()
    killer = Killer(folder, seed, sync, every)
    work = enumerate(at_random(seed, steps) if steps else script())
    for number, step in work:
        killer.kill_at_calls(step, number)
    print(json.dumps({"kills": killer.kills, "commits": killer.commits}))


if __name__ == "__main__":
    # The mode is one of two words, and the store refuses others.
    sync = cast("SyncMode", sys.argv[4])
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sync, int(sys.argv[5]))
