"""What `penstock status` may know of readers, and from which process."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import grpc.aio
import pytest

from penstock.cli.status import Report, pipeline_reports, show
from penstock.client.pipelines import PipelineStatus
from penstock.errors import LogCorruptError, LogFullError
from penstock.serve import consumers as module
from penstock.serve.consumers import (
    TOLD,
    Consumers,
    ConsumersStatus,
    ReportedProgress,
    published,
    read_status,
    there_ms,
)
from penstock.subscribe.resume import oldest
from tests.serve.calls import subscribe, take
from tests.serve.conftest import Log, Serve
from tests.subscribe.events import one_each
from tests.waiting import until

NOW_MS = 1_700_000_000_000


async def test_a_reader_is_listed_with_its_place_and_count_while_it_is_connected(
    log: Log, serve: Serve, connect: Callable[[str], grpc.aio.Channel]
) -> None:
    await log.append([*one_each(1, 5), *one_each(6, 9, collection="lines")])
    consumers = Consumers()
    server = await serve(log, consumers)
    call = subscribe(
        connect(server.address),
        after=str(oldest(await log.bounds())),
        consumer_id="indexer",
        collections=["orders"],
    )
    await take(call, 5)
    await until(lambda: consumers.status().readers[0].events == 5)
    (reader,) = consumers.status().readers
    # What was filtered out behind the last event counts as passed.
    assert (reader.consumer_id, reader.protocol, reader.sequence) == ("indexer", "grpc", 9)
    call.cancel()
    await until(lambda: not consumers.status().readers)


async def test_status_is_read_by_another_handle_and_reports_survive_a_restart(
    tmp_path: Path,
) -> None:
    path = tmp_path / "consumers"
    assert read_status(path) is None
    async with published(path, interval_seconds=0.01) as consumers:
        with consumers.connected("indexer", "grpc", sequence=7) as reader:
            reader.moved(sequence=9, events=2)
            # Flight reports from threads of its own.
            reporter = Thread(target=consumers.report, args=("orders", "pipeline", 5))
            reporter.start()
            reporter.join()

            def written() -> ConsumersStatus:
                return read_status(path) or ConsumersStatus(written_at=0)

            await until(lambda: bool(written().readers and written().reported))
            assert written().readers[0].sequence == 9
            assert written().reported[0].name == "orders"
    assert written().readers == ()
    async with published(path) as consumers:
        assert consumers.status().reported[0].sequence == 5


async def test_a_full_disk_ends_no_stream_and_status_is_written_again_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "consumers"
    refusals = 3
    written = asyncio.Event()
    real = module._write  # pyright: ignore[reportPrivateUsage]
    loop = asyncio.get_running_loop()

    def full(*arguments: object) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise LogFullError("no space")
        real(*arguments)  # type: ignore[arg-type]
        loop.call_soon_threadsafe(written.set)

    monkeypatch.setattr(module, "_write", full)
    async with published(path, interval_seconds=0.001) as consumers:
        consumers.report("orders", "pipeline", 5)
        await written.wait()
        assert read_status(path) is not None


async def test_on_a_full_disk_the_process_is_still_seen_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "consumers"
    assert there_ms(path) == 0
    async with published(path, interval_seconds=0.001):
        os.utime(path / "data.mdb", (1, 1))
        await until(lambda: there_ms(path) > 1000, "it writes")

    def full(*_: object) -> None:
        raise LogFullError("no space")

    monkeypatch.setattr(module, "_write", full)
    async with published(path, interval_seconds=0.001):
        os.utime(path / "data.mdb", (1, 1))
        await until(lambda: there_ms(path) > 1000, "it is there")


async def test_serving_ends_well_on_a_disk_that_is_still_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise LogFullError("no space")

    monkeypatch.setattr(module, "_write", full)
    async with published(tmp_path / "consumers") as consumers:
        consumers.report("orders", "pipeline", 5)


async def test_any_other_error_of_the_status_ends_the_block_and_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silently, `penstock status` would show the readers of an hour ago as those of now."""

    def broken(*_: object) -> None:
        raise LogCorruptError("damaged")

    monkeypatch.setattr(module, "_write", broken)
    with pytest.raises(LogCorruptError, match="damaged"):
        async with published(tmp_path / "consumers"):
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling(), "whoever catches the error goes on"


async def test_an_error_of_the_block_and_its_cancellation_stay_what_they_are(
    tmp_path: Path,
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with published(tmp_path / "consumers"):
            raise ZeroDivisionError

    inside = asyncio.Event()

    async def block() -> None:
        async with published(tmp_path / "consumers"):
            inside.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(block())
    await inside.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert read_status(tmp_path / "consumers") is not None


def test_a_place_that_an_earlier_penstock_kept_is_of_who_says_it_now() -> None:
    """Else each query would be listed twice until the old place is forgotten."""
    kept = tuple(
        ReportedProgress(name=name, kind="pipeline", sequence=5, updated_at=NOW_MS)
        for name in ("query", "table")
    )
    status = PipelineStatus(
        pipeline="table",
        source="shop",
        to="table",
        state="running",
        progress="",
        sequence=5,
        lag_entries=0,
        lag_seconds=0.0,
        trimmed=False,
        held_bytes=0,
        held_until_ms=NOW_MS,
        told_at_ms=NOW_MS,
        began_at_ms=NOW_MS,
    )
    consumers = Consumers(kept, pipelines=lambda: [status], now_ms=lambda: NOW_MS)
    consumers.report("query", "pipeline", 7, "token:shop")
    consumers.report("table", "pipeline", 7, "token:shop")
    said = {(one.name, one.who) for one in consumers.status().reported}
    assert said == {("query", "token:shop"), ("table", TOLD), ("table", "token:shop")}


def test_queries_of_one_name_are_listed_with_who_says_where_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    consumers = Consumers(now_ms=lambda: NOW_MS)
    for name, who in (("both", "token:shop"), ("both", "token:crm"), ("one", "token:crm")):
        consumers.report(name, "pipeline", 7, who)
    report = Report(
        capture=True,
        serve=True,
        serve_told_ms=NOW_MS,
        age_retention_paused=False,
        archive=None,
        publishing=None,
        log=None,
        state=None,
        sources=[],
        consumers=[],
        unmatched={},
        pipelines=pipeline_reports(consumers.status(), 9, True),
        shards=[],
    )
    show(report)
    lines = capsys.readouterr().out.splitlines()
    assert sum("both (token:shop)" in line for line in lines) == 1
    assert sum("both (token:crm)" in line for line in lines) == 1
    assert sum("one" in line.split() and "token" not in line for line in lines) == 1


def test_a_pipeline_s_rate_is_from_its_last_two_places() -> None:
    first = ReportedProgress(name="p", kind="pipeline", sequence=100, updated_at=0, moved_at=1000)
    assert first.events_per_second is None
    second = first.then(sequence=600, now_ms=3000)
    assert second.events_per_second == 250
    # The service is told of a batch by the driver and by Spark: one place, one rate.
    again = second.then(sequence=600, now_ms=3500)
    assert (again.events_per_second, again.updated_at) == (250, 3500)
    assert again.then(sequence=700, now_ms=4000).events_per_second == 100
    assert again.then(sequence=5, now_ms=4000).events_per_second is None
