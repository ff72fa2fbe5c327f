"""Copies of a store, made while it is written.

A copy is the store as of one moment, and may be put in its place: restored. The two then write
different things under the same sequences and versions. Sequences are told apart by a position's
check of the record there. Versions have no such check, so a copy's must be new: LMDB counts the
transactions of a compacted copy anew, and the other store gave out versions after the copy was
made. When a copy is first opened for writing its versions go on from the microseconds since the
epoch: more than any store of the family can have written by then.
"""

import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock import kv
from penstock.errors import ConfigError
from penstock.kv import Env, Transaction
from penstock.store import consumers
from penstock.store.layout import DATABASES, Layout


def backup(env: Env, target: Path, *, compact: bool) -> None:
    """Copy a store to the new folder `target`; see `Engine.backup`."""
    target = target.resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir()) or target.is_mount()):
        raise ConfigError(
            f"{target} is not an empty folder, or a disk of its own. Nothing was copied. Name one "
            f"that does not exist."
        )
    with _unfinished(target) as copy:
        env.copy(copy, compact=compact)
        _mark(copy)
        for file in copy.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        _sync_folder(copy)
        copy.rename(target)
    _sync_folder(target.parent)


def _mark(path: Path) -> None:
    with kv.open_env(path, create=False) as env:
        env.databases(DATABASES, create=False)
        layout = Layout(env)
        with env.write() as txn:
            state = layout.state(txn)
            assert state is not None, "written when the store was made"
            layout.put_state(txn, msgspec.structs.replace(state, copied=True))


def begin_copy(layout: Layout, txn: Transaction, *, now_ms: int) -> None:
    """A copy is opened for writing for the first time: it becomes a store of its own."""
    state = layout.state(txn)
    assert state is not None, "written when the store was made"
    # Never below what it was, whatever the clock says.
    base = max(now_ms * 1000, state.version_base + (1 << 32))
    layout.put_state(txn, msgspec.structs.replace(state, copied=False, version_base=base))
    consumers.mark_restored(layout, txn)


@contextmanager
def _unfinished(target: Path) -> Generator[Path]:
    """A new folder beside `target` that nobody takes for a store; gone, or renamed, at the end."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = target.parent / f".{target.name}.unfinished"
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"another backup to {target} is under way. Nothing was copied. Wait for it, or "
                f"name another folder."
            ) from error
        for left in folder.iterdir():
            left.unlink()  # by a backup that died
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder)
            raise
    finally:
        os.close(lock)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
