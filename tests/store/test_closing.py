"""Opening and closing beside what is under way in the same process."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock import kv, store
from penstock.errors import LogCorruptError, LogError, LogFullError
from penstock.store import TransactionError, attr
from penstock.store.updates import Update
from tests.store.support import opened, with_table


def test_a_store_is_not_closed_inside_its_own_transaction_or_view(tmp_path: Path) -> None:
    """It would wait for itself; and the store stays open, with what the transaction writes."""
    with opened(tmp_path) as db:
        with_table(db)
        with db.transact() as transaction:
            with pytest.raises(TransactionError, match="would wait"):
                db.close()
            transaction.put("t", {"id": "a"})
        with db.view() as view, db.view():
            with pytest.raises(TransactionError, match="would wait"):
                db.close()
            assert view.table("t") is not None
        assert db.get("t", {"id": "a"}) == {"id": "a"}


def test_a_store_is_opened_beside_transactions_that_are_open_in_the_process(
    tmp_path: Path,
) -> None:
    """As a source of it is: those of a busy store never all end at once."""
    with opened(tmp_path) as db:
        with_table(db)
        with (
            db.view(),
            db.transact(),
            store.open(tmp_path, read_only=True, sweep_seconds=None) as reader,
        ):
            assert reader.list_tables() == ["t"]


def test_a_transaction_or_view_is_over_behind_its_block(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db)
        with db.transact() as transaction:
            transaction.put("t", {"id": "a"})
        with db.view() as view:
            table = view.table("t")
        uses: list[Callable[[], object]] = [
            lambda: transaction.get("t", {"id": "a"}),
            lambda: transaction.put("t", {"id": "a", "n": 1}),
            lambda: transaction.update("t", {"id": "a"}, Update()),
            lambda: transaction.delete("t", {"id": "a"}),
            lambda: transaction.check("t", {"id": "a"}, attr("id").exists()),
            lambda: transaction.query_index("u", "i").partition_key("a").execute(),
            lambda: transaction.use_token(b"token", b"", seconds=1.0),
            view.tables,
            lambda: view.changes(after=0),
            lambda: view.items(table, after=None, limit=1, bytes_max=1) if table else None,
        ]
        for use in uses:
            with pytest.raises(TransactionError, match="is over"):
                use()
        assert db.get("t", {"id": "a"}) == {"id": "a"}


def test_errors_of_its_files_tell_a_store_s_user_of_what_a_store_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not of the log's setting and of the log's check."""
    with pytest.raises(LogError, match="no store at") as missing:
        store.open(tmp_path / "none", read_only=True)
    monkeypatch.setattr(kv, "open_env", partial(kv.open_env, map_bytes=2 << 20))
    (tmp_path / "full").mkdir()
    with opened(tmp_path / "full") as db:
        with_table(db)
        with pytest.raises(LogFullError, match="Delete items") as full:
            db.write_batch(puts=[("t", {"id": f"{n}", "d": "d" * 300_000}) for n in range(20)])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "data.mdb").write_bytes(b"\x00" * 8192)
    with pytest.raises(LogCorruptError, match="Restore a backup") as bad:
        store.open(tmp_path / "bad")
    for error in (missing, full, bad):
        assert "log check" not in str(error.value)
        assert "map_bytes" not in str(error.value)
