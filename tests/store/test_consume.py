"""Waiting, following and consuming where the store is open itself."""

import asyncio
import queue
import sys
import threading
from pathlib import Path

import pytest

from penstock import store
from penstock.store import (
    AsyncClient,
    OutcomeUnknownError,
    Retention,
    StreamClosedError,
    StreamRecord,
    TransactionError,
)
from penstock.store.consumers import CONSUMERS_MAX
from penstock.store.errors import (
    CheckpointConflictError,
    RefusedError,
    StreamChangedError,
    StreamError,
)
from penstock.store.remote.server import serving
from tests.children import Child
from tests.store.support import BOTH, SetClock, opened, with_table

FOLLOWING = """
import sys
from penstock import store
with store.open(sys.argv[1], read_only=True) as reader:
    print("ready", flush=True)
    for record in reader.follow("t"):
        print(record.keys["id"], flush=True)
        if record.keys["id"] == "last":
            break
"""


@pytest.mark.slow
def test_a_reader_in_another_process_is_woken_by_each_write(tmp_path: Path) -> None:
    """F14."""
    with opened(tmp_path) as db:
        with_table(db)
        with Child(sys.executable, "-c", FOLLOWING, tmp_path) as reader:
            assert reader.line() == "ready", reader.tail()
            for name in ("a", "b", "last"):
                db.put("t", {"id": name})
                assert reader.line() == name, reader.tail()
            assert reader.wait() == 0


def test_a_reader_hears_the_writer_and_need_not_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F14."""
    monkeypatch.setattr("penstock.wake.POLL_SECONDS", 3600)
    with opened(tmp_path) as db:
        with_table(db)
        with store.open(tmp_path, read_only=True) as reader:
            told = queue.SimpleQueue[object]()

            def follow() -> None:
                for record in reader.follow("t"):
                    told.put(record.keys["id"])
                    if record.keys["id"] == "last":
                        return

            thread = threading.Thread(target=follow)
            thread.start()
            for name in [*map(str, range(60)), "last"]:
                # It waits by now, or has not begun to, which is as good.
                db.put("t", {"id": name})
                assert told.get() == name
            thread.join()


async def test_an_asynchronous_follower_gets_what_comes_and_hears_of_the_end(
    tmp_path: Path,
) -> None:
    """F14, F19."""
    with opened(tmp_path) as db:
        with_table(db)
        db.put("t", {"id": "a"})
        following = db.follow_async("t")
        assert (await anext(following)).keys == {"id": "a"}
        waiting = asyncio.ensure_future(anext(following))
        await asyncio.to_thread(db.put, "t", {"id": "b"})
        assert (await waiting).keys == {"id": "b"}
        assert [one async for one in db.follow_async("t", start="latest", idle_seconds=0)] == []
        await asyncio.to_thread(db.disable_stream, "t")
        with pytest.raises(StreamClosedError):
            await anext(following)


def test_a_consumer_stops_when_it_is_told_from_another_thread(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db)
        handled, heard = list[object](), threading.Event()

        def handle(records: list[StreamRecord]) -> None:
            handled.extend(record.keys["id"] for record in records)
            heard.set()

        consumer = db.consume("t", "c")
        thread = threading.Thread(target=consumer.run, args=(handle,))
        thread.start()
        db.put("t", {"id": "a"})
        heard.wait()
        consumer.stop()
        thread.join()
        assert handled == ["a"]


def test_what_is_no_consumer_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        with_table(db)
        for name in ("", "x" * 129):
            with pytest.raises(RefusedError, match="name"):
                db.register_consumer("t", name)
        with pytest.raises(RefusedError, match="hold_bytes_max"):
            db.register_consumer("t", "c", hold_bytes_max=0)
        with pytest.raises(CheckpointConflictError):
            db.save_checkpoint("t", "c", "s.1:3", expected=None)
        position = db.register_consumer("t", "c").position
        with pytest.raises(StreamChangedError, match="was not moved"):
            db.save_checkpoint("t", "c", "other.1:3", expected=position)
        with store.open(tmp_path, read_only=True) as reader, pytest.raises(TransactionError):
            reader.register_consumer("t", "d")


def test_consumers_of_a_table_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CONSUMERS_MAX == 1000
    monkeypatch.setattr("penstock.store.consumers.CONSUMERS_MAX", 2)
    with opened(tmp_path) as db:
        with_table(db)
        for name in ("a", "b"):
            db.register_consumer("t", name)
        with pytest.raises(RefusedError, match="no more are allowed"):
            db.register_consumer("t", "c")
        db.forget_consumer("t", "a")
        db.register_consumer("t", "c")


def test_names_of_tables_and_consumers_never_run_together(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        for name in ("t", "t\x00c", "tc"):
            db.create_table(name).partition_key("id", store.KeyType.STRING).stream(BOTH).execute()
        db.register_consumer("t\x00c", "x")
        db.register_consumer("tc", "\x00x")
        for table, names in (("t", []), ("t\x00c", ["x"]), ("tc", ["\x00x"])):
            assert [one.name for one in db.get_stream_info(table).consumers] == names


def test_a_hold_moves_to_the_next_stream_and_lets_the_last_one_go(tmp_path: Path) -> None:
    """F12: what a consumer will never read is not kept for it."""
    clock = SetClock()
    kept = Retention(age_seconds=100)
    with opened(tmp_path, clock) as db:
        with_table(db, view=None)
        db.enable_stream("t", BOTH, retention=kept)
        first = db.register_consumer("t", "c", hold_bytes_max=10_000).position
        db.put("t", {"id": "a"})
        clock.pass_(200)
        db.sweep()
        assert db.get_stream_info("t").records == 1
        db.disable_stream("t")
        db.enable_stream("t", BOTH, retention=kept)
        now = db.get_stream_records("t").latest().execute().position
        db.save_checkpoint("t", "c", now, expected=first)
        db.put("t", {"id": "b"})
        clock.pass_(200)
        while db.sweep():
            pass
        info = db.get_stream_info("t")
        assert (info.records, info.consumers[0].current, info.consumers[0].lag_records) == (
            1,
            True,
            1,
        )
        # The stream that ended is forgotten.
        with pytest.raises(StreamChangedError):
            db.get_stream_records("t").after(first).execute()


def _restored(path: Path) -> Path:
    """A backup of a store in which consumer `c` has handled everything of table `t`."""
    with opened(path / "store") as db:
        with_table(db)
        db.put("t", {"id": "a"})
        db.consume("t", "c").run(lambda _: None, idle_seconds=0)
        db.backup(path / "backup")
    return path / "backup"


def _never(records: list[StreamRecord]) -> None:
    raise AssertionError(f"{len(records)} records were handled")


def test_a_consumer_that_is_run_again_does_not_go_on_past_what_it_raised(tmp_path: Path) -> None:
    """F10: whoever retries what failed has the restored table copied first, or is told again."""
    copies = list[StreamError]()

    def copy(error: StreamError) -> None:
        copies.append(error)
        if len(copies) == 1:
            raise OSError("no room")

    with opened(_restored(tmp_path)) as db:
        db.put("t", {"id": "b"})
        consumer = db.consume("t", "c")
        for _ in range(2):
            with pytest.raises(StreamChangedError, match="restored"):
                consumer.run(_never, idle_seconds=0)
        consumer = db.consume("t", "c", resync=copy)
        with pytest.raises(OSError, match="no room"):
            consumer.run(_never, idle_seconds=0)
        consumer.run(_never, idle_seconds=0)
        consumer.run(_never, idle_seconds=0)
        assert len(copies) == 2, "once it is copied it goes on"


async def test_an_awaited_consumer_does_not_go_on_past_what_it_raised_either(
    tmp_path: Path,
) -> None:
    async def never(records: list[StreamRecord]) -> None:
        _never(records)

    with opened(_restored(tmp_path)) as db:
        db.put("t", {"id": "b"})
        async with serving(db, tmp_path / "s"), AsyncClient(tmp_path / "s") as client:
            consumer = client.consume("t", "c")
            for _ in range(2):
                with pytest.raises(StreamChangedError, match="restored"):
                    await consumer.run(never, idle_seconds=0)


def test_a_consumer_looks_where_it_stands_when_nobody_said_whether_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeat at the most, and no quarrel with itself."""
    with opened(tmp_path) as db:
        with_table(db)
        db.put("t", {"id": "a"})
        handled = list[object]()

        def handle(records: list[StreamRecord]) -> None:
            handled.extend(one.keys["id"] for one in records)

        consumer, save = db.consume("t", "c"), db.save_checkpoint

        def unanswered(table: str, name: str, position: str, *, expected: str | None) -> None:
            save(table, name, position, expected=expected)
            raise OutcomeUnknownError("the server broke off")

        with monkeypatch.context() as broken:
            broken.setattr(db, "save_checkpoint", unanswered)
            with pytest.raises(OutcomeUnknownError):
                consumer.run(handle, idle_seconds=0)
        db.put("t", {"id": "b"})
        consumer.run(handle, idle_seconds=0)
        assert handled == ["a", "b"]
