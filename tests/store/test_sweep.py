"""Sweeping: what cannot be removed now holds up nothing else, and is removed later."""

from decimal import Decimal
from pathlib import Path

from tests.store.support import NOW_MS, SetClock, opened, with_table

SOON = NOW_MS // 1000 + 5


def test_an_item_expires_however_its_second_was_written(tmp_path: Path) -> None:
    """F8: a Decimal is the number that it is; one that is no whole second means never."""
    clock = SetClock()
    with opened(tmp_path, clock) as db:
        with_table(db, ttl="until")
        for name, until in (("a", Decimal(SOON)), ("b", Decimal(f"{SOON}.5")), ("c", Decimal(-5))):
            db.put("t", {"id": name, "until": until})
        clock.pass_(10)
        assert [db.get("t", {"id": name}) is None for name in "abc"] == [True, False, False]
        assert db.sweep() == 1
