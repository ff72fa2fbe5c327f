"""Copies of a store: whole, made while it is written, and never mistaken for what went on."""

import shutil
import threading
from pathlib import Path

import pytest

from penstock import store
from penstock.errors import ConfigError
from penstock.store import (
    AheadOfStreamError,
    KeyType,
    Store,
    StreamChangedError,
    StreamError,
    StreamRecord,
    VersionMismatchError,
)
from tests.store.support import BOTH, SetClock, opened, with_table
from tests.store.test_crash import folded, items_of


def version(db: Store, key: str) -> int:
    """An item's version."""
    found = db.get_versioned("t", {"id": key})
    assert found is not None
    return found[1]


@pytest.mark.parametrize("compact", [True, False])
def test_a_copy_made_while_others_write_is_one_moment(tmp_path: Path, compact: bool) -> None:
    """Data and stream of the copy agree."""
    with opened(tmp_path / "store") as db:
        with_table(db)
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                db.write_batch(
                    puts=[("t", {"id": "a", "n": number}), ("t", {"id": "b", "n": number})]
                )

        thread = threading.Thread(target=write)
        thread.start()
        with store.open(tmp_path / "store", read_only=True) as reader:
            for number in range(3):
                reader.backup(tmp_path / f"{number}", compact=compact)
        stop.set()
        thread.join()
    for number in range(3):
        with opened(tmp_path / f"{number}") as copy:
            items = items_of(copy, "t")
            assert folded(copy, "t") == items
            assert len({item["n"] for item in items.values()}) <= 1


def test_versions_are_never_given_twice_by_a_store_and_its_copies(tmp_path: Path) -> None:
    """Not by the store after the copy, by the copy, or by a copy of the copy."""
    clock = SetClock()
    with opened(tmp_path / "store", clock) as db:
        with_table(db)
        db.put("t", {"id": "a", "n": 0})
        kept = version(db, "a")
        db.backup(tmp_path / "copy")
        given = set[int]()
        for number in range(1, 20):
            db.put("t", {"id": "a", "n": number})
            given.add(version(db, "a"))
    clock.pass_(1)
    with opened(tmp_path / "copy", clock) as copy:
        assert version(copy, "a") == kept
        copy.put("t", {"id": "a", "n": 100})
        assert version(copy, "a") not in given
        with pytest.raises(VersionMismatchError):
            copy.put("t", {"id": "a"}, expected_version=max(given))
        for number in range(101, 120):
            copy.put("t", {"id": "a", "n": number})
            given.add(version(copy, "a"))
        copy.backup(tmp_path / "copy of copy")
    clock.now_ms -= 10_000_000  # whatever the clock says
    with opened(tmp_path / "copy of copy", clock) as again:
        for number in range(200, 220):
            again.put("t", {"id": "a", "n": number})
            assert version(again, "a") not in given
        assert version(again, "a") < 2**53


def test_a_copy_is_told_apart_by_positions_and_by_consumers(tmp_path: Path) -> None:
    """F10: a consumer has handled what the restored store never had."""
    path = tmp_path / "store"
    handled, why = list[object](), list[StreamError]()

    def handle(records: list[StreamRecord]) -> None:
        handled.extend(record.keys["id"] for record in records)

    with opened(path) as db:
        with_table(db)
        db.put("t", {"id": "a"})
        db.consume("t", "c").run(handle, idle_seconds=0)
        db.backup(tmp_path / "copy")
        db.put("t", {"id": "lost"})
        db.consume("t", "c").run(handle, idle_seconds=0)
        position = db.get_stream_records("t").execute().position
    assert handled == ["a", "lost"]
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    with opened(path) as db:
        with pytest.raises(AheadOfStreamError):
            db.get_stream_records("t").after(position).execute()
        db.put("t", {"id": "b"})
        with pytest.raises(StreamChangedError):
            db.get_stream_records("t").after(position).execute()
        with pytest.raises(StreamChangedError, match="restored from a backup"):
            db.consume("t", "c").run(handle, idle_seconds=0)
        db.consume("t", "c", resync=why.append).run(handle, idle_seconds=0)
        assert [type(error) for error in why] == [StreamChangedError]
        db.put("t", {"id": "c"})
        db.consume("t", "c").run(handle, idle_seconds=0)
    assert handled == ["a", "lost", "c"]


def test_a_stream_that_a_restored_store_begins_is_no_stream_of_the_store_before(
    tmp_path: Path,
) -> None:
    """F10: though it has the number of one, and a reader of that one has read nothing yet."""
    with opened(tmp_path / "store") as db:
        with_table(db)
        db.backup(tmp_path / "copy")
        db.disable_stream("t")
        db.set_ttl("t", "until")
        db.enable_stream("t", BOTH)
        position = db.get_stream_records("t").trim_horizon().execute().position
    with opened(tmp_path / "copy") as db:
        db.disable_stream("t")
        db.enable_stream("t", BOTH)
        for number in range(4):
            db.put("t", {"id": str(number)})
        with pytest.raises(StreamChangedError):
            db.get_stream_records("t").after(position).execute()


def test_a_copy_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as db:
        with_table(db)
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "letter").write_text("kept")
        with pytest.raises(ConfigError, match="not an empty folder"):
            db.backup(tmp_path / "full")
        left = tmp_path / ".copy.unfinished"
        left.mkdir()
        (left / "data.mdb").write_text("of a backup that died")
        db.backup(tmp_path / "copy")
        assert not left.exists()
    assert sorted(file.name for file in (tmp_path / "copy").iterdir()) == ["data.mdb", "lock.mdb"]
    with store.open(tmp_path / "copy", read_only=True) as copy:
        assert copy.list_tables() == ["t"]


def test_a_copy_keeps_what_its_tables_are(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as db:
        db.create_table("t").partition_key("id", KeyType.STRING).ttl("until").stream(BOTH).execute()
        db.put("t", {"id": "x" * 2000})
        described = db.describe_table("t")
        db.backup(tmp_path / "copy")
    with opened(tmp_path / "copy") as copy:
        assert copy.describe_table("t") == described
        assert copy.count("t") == 1
