"""Copies of a store, made while it is written.

A copy is the store as of one moment, and may be put in its place: restored. The two then write
different things under the same sequences and versions. Sequences are told apart by a position's
check of the record there, and sequence numbers of DynamoDB's protocol by the life that wrote it
(`Layout.begin_life`). Versions have no such check, so a copy's must be new: LMDB counts the
transactions of a compacted copy anew, and the other store gave out versions after the copy was
made. When a copy is first opened for writing its versions go on from the microseconds since the
epoch: more than any store of the family can have written by then.
"""

from pathlib import Path

import msgspec

from penstock import kv
from penstock.folders import appearing
from penstock.kv import Env, Transaction
from penstock.store import consumers
from penstock.store.layout import DATABASES, Layout
from penstock.store.shards import seal


def backup(env: Env, target: Path, *, compact: bool) -> None:
    """Copy a store to the new folder `target`; see `Engine.backup`."""
    with appearing(target) as copy:
        env.copy(copy, compact=compact)
        _mark(copy)


def _mark(path: Path) -> None:
    with kv.open_env(path, create=False, kind=kv.STORE) as env:
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
    # Who has read a shard to its end in the other store comes to what is written here by a child.
    for stream in layout.streams(txn):
        if stream.closed_ms is None and stream.shard_bytes:
            time_ms = max(stream.newest_ms, now_ms)
            ended = seal(layout, txn, stream, first=state.sequence + 1, time_ms=time_ms)
            layout.put_stream(txn, ended)
    consumers.mark_restored(layout, txn)
