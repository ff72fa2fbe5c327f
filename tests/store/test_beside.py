"""What servers keep in a store: it means nothing to the store, and is part of its transactions."""

from pathlib import Path

import pytest

from penstock import kv
from penstock.store import KeyType, TableNotFoundError
from penstock.store.layout import DATABASES, Layout
from tests.store.support import SetClock, opened, with_table


def test_what_is_kept_with_a_table_leaves_the_disk_with_it(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        db.create_table("t").partition_key("id", KeyType.STRING).beside(b"kept").execute()
        table = db.describe_table("t")
        with db.view() as view:
            assert view.beside(table) == b"kept"
        db.drop_table("t")
    with kv.open_env(tmp_path, create=False) as env:
        env.databases(DATABASES, create=False)
        with env.read() as txn:
            assert Layout(env).beside(txn, table) is None


def test_it_is_changed_with_the_transaction_or_not_at_all(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db)

        def fail() -> None:
            with db.transact() as transaction:
                transaction.put_beside("t", b"new")
                transaction.use_token(b"token", b"for", seconds=60)
                transaction.put("none", {"id": "k"})

        with pytest.raises(TableNotFoundError):
            fail()
        with db.transact() as transaction:
            assert transaction.beside("t") is None
            assert transaction.use_token(b"token", b"for", seconds=60) is None


def test_a_token_is_remembered_for_its_time_and_then_forgotten(tmp_path: Path) -> None:
    clock = SetClock()
    with opened(tmp_path, clock) as db:

        def use(data: bytes) -> bytes | None:
            with db.transact() as transaction:
                return transaction.use_token(b"token", data, seconds=60)

        assert use(b"one") is None
        clock.pass_(59)
        assert use(b"two") == b"one"
        assert db.sweep() == 0
        clock.pass_(1)
        assert use(b"three") is None
        assert db.sweep() == 1, "its first use is over"
        assert use(b"four") == b"three"
        clock.pass_(60)
        assert db.sweep() == 1
        assert db.sweep() == 0
