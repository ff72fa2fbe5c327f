"""A table without a stream pays nothing for streams."""

from pathlib import Path

import pytest

from penstock import kv
from penstock.store import Store
from penstock.store.layout import DATABASES, EXPIRY, META, RECORDS
from tests.store.support import BOTH, opened, with_table


def beside_items(path: Path) -> dict[bytes, list[tuple[bytes, bytes]]]:
    """All that lies in a store but its items."""
    with kv.open_env(path, create=False) as env:
        env.databases(DATABASES, create=False)
        with env.read() as txn:
            return {
                name: list(txn.cursor(env[name]).iternext()) for name in (META, EXPIRY, RECORDS)
            }


def write(db: Store) -> None:
    """Every way in which an item changes."""
    db.put("t", {"id": "a", "n": 1})
    db.put("t", {"id": "a", "n": 2})
    db.update("t", {"id": "a"}).set("n", 3).execute()
    db.write_batch(puts=[("t", {"id": "b"})], deletes=[("t", {"id": "a"})])
    db.delete("t", {"id": "b"})


@pytest.mark.parametrize("after_a_stream", [False, True])
def test_without_a_stream_an_items_change_writes_nothing_but_the_item(
    tmp_path: Path, after_a_stream: bool
) -> None:
    """F18: no record, no head, and not what the store counts; nor after a stream was disabled."""
    with opened(tmp_path) as db:
        with_table(db, view=None)
        if after_a_stream:
            db.enable_stream("t", BOTH)
            write(db)
            db.disable_stream("t")
        before = beside_items(tmp_path)
        write(db)
        assert beside_items(tmp_path) == before
