"""Tumbling windows: a state over the records of each span of time, once each, whatever happens."""

import json
import random
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.errors import TriggerError, TriggerStreamEndedError
from penstock.store.shards import ShardLimits
from penstock.trigger.batches import InvalidAnswerError
from penstock.trigger.config import TriggerConfig
from penstock.trigger.records import Record
from penstock.trigger.streams import Page, Streams
from penstock.trigger.windows import STATE_BYTES_MAX, Window, Windows
from tests.children import Child
from tests.cli.service import COMMAND
from tests.seeds import seed_of
from tests.serve.dynamodb.support import Served, served
from tests.store.support import SetClock
from tests.trigger.support import Calls, configured, put, running
from tests.trigger.test_crash import LOCKED
from tests.trigger.test_stream_life import trim
from tests.waiting import wait_until

PAST_MS = 1_699_999_980_000
"""Begins a minute; all windows of then are over by now."""
FUTURE_MS = 33_000_000_020_000
"""Windows of then are never over."""


def records(*seconds: float) -> list[Record]:
    return [Record(f"{n}", one, b"k", b"{}") for n, one in enumerate(seconds, 1)]


def windows(window: Window | None = None, *, seconds: int = 60) -> Windows:
    return Windows(seconds=seconds, shard="s", stream="arn", window=window)


@given(st.lists(st.integers(0, 10_000), min_size=1), st.integers(1, 900))
def test_each_record_is_of_one_window_in_the_order_of_the_shard(
    times: list[int], seconds: int
) -> None:
    left, found, starts = records(*times), list[Record](), list[int]()
    shard = windows(seconds=seconds)
    while left:
        if shard.open is not None and not shard.has(left[0]):
            shard.close()
            shard.commit()
        count = shard.leading(left)
        assert count
        shard.begin(left[0])
        assert shard.open is not None
        assert shard.open.start % seconds == 0
        assert all(one.arrived_seconds < shard.open.end for one in left[:count])
        starts.append(shard.open.start)
        found, left = found + left[:count], left[count:]
    assert found == records(*times)
    if times == sorted(times):
        assert starts == sorted(set(starts))


def test_a_state_counts_once_its_records_are_finished() -> None:
    shard = windows()
    shard.begin(records(61)[0])
    shard.answered({"state": {"n": 1}}, is_final=False)
    assert shard.open == Window(60, 60)
    shard.commit()
    assert shard.open == Window(60, 60, msgspec.Raw(b'{"n":1}'))
    wrong: list[Any] = [None, {}, {"state": None}, {"state": [1]}, [{"state": {}}]]
    for lost in wrong:
        with pytest.raises(InvalidAnswerError, match="no state"):
            shard.answered(lost, is_final=False)
    shard.commit()
    assert shard.open == Window(60, 60, msgspec.Raw(b'{"n":1}'))
    shard.answered(None, is_final=True)
    shard.commit()
    assert shard.open is None


def test_a_quiet_shard_is_given_as_long_as_its_window_and_two_minutes_at_most() -> None:
    assert not windows().is_over(quiet_seconds=1e9, now_seconds=1e9)
    minute, quarter = windows(Window(60, 60)), windows(Window(0, 900))
    assert not minute.is_over(quiet_seconds=60, now_seconds=119.9)
    assert not minute.is_over(quiet_seconds=59.9, now_seconds=1e9)
    assert minute.is_over(quiet_seconds=60, now_seconds=120)
    assert not quarter.is_over(quiet_seconds=119.9, now_seconds=1e9)
    assert quarter.is_over(quiet_seconds=120, now_seconds=1e9)


@pytest.mark.parametrize(
    "wrong",
    [{"tumbling_window": 1.5}, {"tumbling_window": 901}, {"parallelization_factor": 2}],
)
def test_windows_that_cannot_be_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    told = {"function": "a:b", "name": "t", "state": tmp_path, "table": "t", "tumbling_window": 60}
    TriggerConfig.model_validate(told)
    with pytest.raises(ValidationError):
        TriggerConfig.model_validate({**told, **wrong})


# --- over a served store --------------------------------------------------------------------------


def said(calls: Calls) -> list[tuple[list[str], dict[str, int], bool, bool]]:
    """Of each call: its items, its state, and whether it ends the window, and early."""
    return [
        (
            call["items"],
            call["state"],
            call["isFinalInvokeForWindow"],
            call["isWindowTerminatedEarly"],
        )
        for call in calls.all()
        if "items" in call
    ]


def adding(everything: Served, folder: Path, **settings: Any) -> TriggerConfig:
    return configured(
        everything, folder, **{"function": "add_up", "tumbling_window": 60, **settings}
    )


def kept(folder: Path) -> Any:
    """The window of the only shard in the checkpoint."""
    found = json.loads((folder / "state" / "t" / "checkpoint.json").read_text())
    (place,) = found["shards"].values()
    return place.get("window")


async def test_a_function_adds_up_over_batches_and_is_told_of_each_windows_end(
    calls: Calls, tmp_path: Path
) -> None:
    clock = SetClock(PAST_MS)
    with served(tmp_path / "store", clock=clock) as everything:
        table = everything.table()
        put(table, ["k=1", "l=2", "k=3"])
        clock.pass_(1)
        put(table, ["k=4"])
        config = adding(everything, tmp_path, table=table.name, batch_size=2, tumbling_window=1)
        async with running(config) as trigger:
            await trigger.until(lambda: len(calls.all()) == 5)
            counts = await trigger.end()
        assert kept(tmp_path) is None
        arn = everything.arn(table)
    assert said(calls) == [
        (["k=1", "l=2"], {}, False, False),
        (["k=3"], {"k": 1, "l": 2}, False, False),
        ([], {"k": 4, "l": 2}, True, False),
        (["k=4"], {}, False, False),
        ([], {"k": 4}, True, False),
    ]
    first, last = calls.all()[0], calls.all()[-1]
    assert first["window"] == {"start": "2023-11-14T22:13:00Z", "end": "2023-11-14T22:13:01Z"}
    assert last["window"] == {"start": "2023-11-14T22:13:01Z", "end": "2023-11-14T22:13:02Z"}
    assert first["eventSourceARN"] == arn
    assert first["shardId"].startswith("shardId-")
    assert counts["handled"] == 4


async def test_a_trigger_that_stops_goes_on_with_the_state_and_a_failed_batch_adds_nothing(
    calls: Calls, tmp_path: Path
) -> None:
    with served(tmp_path / "store", clock=SetClock(FUTURE_MS)) as everything:
        table = everything.table()
        config = adding(everything, tmp_path, table=table.name)
        for item in ("k=1", "k=2"):
            put(table, [item])
            async with running(config) as trigger:
                await trigger.until(partial(is_last, calls, item))
        assert kept(tmp_path)["state"] == {"k": 3}
        calls.spoil("k=3")
        put(table, ["k=3"])
        async with running(config) as trigger:
            await trigger.until(lambda: calls.items().count("k=3") >= 2)
        assert kept(tmp_path)["state"] == {"k": 3}
        calls.spoil()
        async with running(config) as trigger:
            await trigger.until(lambda: kept(tmp_path)["state"] == {"k": 6})
        before = len(calls.all())
        plain = configured(everything, tmp_path, table=table.name)
        with pytest.raises(TriggerError, match=r"--tumbling-window 60s"):
            async with running(plain):
                pass
    assert len(calls.all()) == before
    assert {str(state) for items, state, _, _ in said(calls) if items == ["k=3"]} == {"{'k': 3}"}
    assert not any(ends for _, _, ends, _ in said(calls))


async def test_a_shard_that_ends_ends_its_window_and_the_next_begins_anew(
    calls: Calls, tmp_path: Path
) -> None:
    with served(tmp_path / "store", clock=SetClock(FUTURE_MS)) as everything:
        table = everything.table()
        put(table, ["k=1"])
        everything.db.disable_stream(table.name)
        config = adding(everything, tmp_path, table=table.name)
        calls.spoil("end")

        async def to_the_end() -> None:
            async with running(config) as trigger:
                await trigger.until(lambda: len(calls.all()) >= 3)
                assert kept(tmp_path)["state"] == {"k": 1}
                calls.spoil()
                await trigger.until(lambda: False)

        with pytest.raises(TriggerStreamEndedError):
            await to_the_end()
        assert kept(tmp_path) is None
    first, *ends = said(calls)
    assert first == (["k=1"], {}, False, False)
    assert all(end == ([], {"k": 1}, True, False) for end in ends)


async def test_records_that_nobody_wants_end_a_window_and_a_page_without_records_does_not(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = pages_read(monkeypatch)
    clock = SetClock(PAST_MS)
    with served(tmp_path / "store", clock=clock) as everything:
        table = everything.table()
        config = adding(
            everything,
            tmp_path,
            table=table.name,
            filters=('{"dynamodb": {"Keys": {"id": {"S": ["k"]}}}}',),
        )
        async with running(config) as trigger:
            put(table, ["k=1"])
            await trigger.until(lambda: len(calls.all()) == 1)
            # Of a time that is long past. Once it reads another one, it has acted on the first.
            del pages[:]
            await trigger.until(lambda: pages.count(0) >= 3)
            put(table, ["k=2"])
            await trigger.until(lambda: len(calls.all()) == 2)
            clock.pass_(60)
            put(table, ["l=3"])
            await trigger.until(lambda: len(calls.all()) == 3)
            clock.pass_(60)
            put(table, ["k=4"])
            await trigger.until(lambda: len(calls.all()) == 4)
    assert said(calls) == [
        (["k=1"], {}, False, False),
        (["k=2"], {"k": 1}, False, False),
        ([], {"k": 3}, True, False),
        (["k=4"], {}, False, False),
    ]


async def test_a_failure_in_a_batch_takes_nothing_of_what_the_function_did_behind_it(
    calls: Calls, tmp_path: Path
) -> None:
    with served(tmp_path / "store", clock=SetClock(FUTURE_MS)) as everything:
        table = everything.table()
        put(table, ["k=1", "k=2", "k=4", "k=8"])
        calls.spoil("k=2")
        config = adding(
            everything,
            tmp_path,
            table=table.name,
            function="add_up_all",
            report_batch_item_failures=True,
        )
        async with running(config) as trigger:
            await trigger.until(lambda: len(calls.all()) > 3)
            calls.spoil()
            await trigger.until(lambda: kept(tmp_path)["state"] == {"k": 15})
    assert said(calls)[:2] == [
        (["k=1", "k=2", "k=4", "k=8"], {}, False, False),
        (["k=1"], {}, False, False),
    ]
    assert {str(state) for items, state, _, _ in said(calls) if items[:1] == ["k=2"]} == {
        "{'k': 1}"
    }


async def test_a_shard_that_retention_took_still_ends_its_window(
    calls: Calls, tmp_path: Path
) -> None:
    clock = SetClock(FUTURE_MS)
    limits = ShardLimits(age_seconds=60)
    with served(tmp_path / "store", clock=clock, shards=limits) as everything:
        table = everything.table()
        put(table, ["k=1"])
        config = adding(everything, tmp_path, table=table.name, on_trimmed="horizon")
        async with running(config) as trigger:
            await trigger.until(lambda: calls.items() == ["k=1"])
        first = everything.shards(everything.arn(table))[0]["ShardId"]
        clock.pass_(3600)
        put(table, ["k=2"])
        clock.pass_(3600)
        put(table, ["k=3"])
        trim(everything, table, 1)
        shards = [one["ShardId"] for one in everything.shards(everything.arn(table))]
        assert first not in shards
        async with running(config) as trigger:
            await trigger.until(lambda: calls.items()[-1:] == ["k=3"])
    assert [(items, state, final) for items, state, final, _ in said(calls)] == [
        (["k=1"], {}, False),
        ([], {"k": 1}, True),
        (["k=3"], {}, False),
    ]


async def test_a_state_that_grows_too_large_ends_its_window_early(
    calls: Calls, tmp_path: Path
) -> None:
    with served(tmp_path / "store", clock=SetClock(FUTURE_MS)) as everything:
        table = everything.table()
        put(table, ["k=1", "big=2", "k=3"])
        config = adding(everything, tmp_path, table=table.name, batch_size=1)
        async with running(config) as trigger:
            await trigger.until(lambda: calls.items()[-1:] == ["k=3"])
        assert len(json.dumps(kept(tmp_path))) < STATE_BYTES_MAX
    assert said(calls) == [
        (["k=1"], {}, False, False),
        (["big=2"], {"k": 1}, False, False),
        ([], {"k": 1, "big": 2}, True, True),
        (["k=3"], {}, False, False),
    ]


async def test_an_answer_without_a_state_fails_and_the_letter_holds_what_was_added_up(
    calls: Calls, tmp_path: Path
) -> None:
    """Also that of a window whose end fails for good."""
    clock = SetClock(PAST_MS)
    with served(tmp_path / "store", clock=clock) as everything:
        table = everything.table()
        calls.spoil("k=2", "end")
        put(table, ["k=1", "k=2", "k=3"])
        bounded = {
            "maximum_retry_attempts": 1,
            "on_failure": "call:tests.trigger.functions:keep",
            "batch_size": 1,
            "tumbling_window": 1,
        }
        async with running(adding(everything, tmp_path, table=table.name, **bounded)) as trigger:
            await trigger.until(lambda: len(letters(calls)) == 2)
        assert kept(tmp_path) is None
        one, end = letters(calls)
        assert one["payload"]["state"] == {"k": 1}
        assert one["DDBStreamBatchInfo"]["batchSize"] == 1
        assert end["payload"]["state"] == {"k": 4}
        assert end["payload"]["isFinalInvokeForWindow"]
        assert end["DDBStreamBatchInfo"]["batchSize"] == 0
        assert end["requestContext"]["approximateInvokeCount"] == 2
        put(table, ["k=4"])
        config = adding(everything, tmp_path, table=table.name, function="handle", **bounded)
        async with running(config) as trigger:
            await trigger.until(lambda: len(letters(calls)) == 3)
        assert letters(calls)[-1]["responseContext"]["errorType"] == "InvalidAnswer"


@pytest.mark.slow
def test_kills_leave_every_record_in_the_state_once(tmp_path: Path, calls: Calls) -> None:
    """A batch may come again, and then with the state from before it."""
    chance = random.Random(seed_of("trigger-windows"))
    items = [f"k{chance.randrange(3)}={number}" for number in range(150)]
    total: Counter[str] = Counter()
    for item in items:
        key, _, value = item.partition("=")
        total[key] += int(value)
    with served(tmp_path / "store", clock=SetClock(FUTURE_MS)) as everything:
        table = everything.table()
        command = (
            *(*COMMAND, "trigger", "tests.trigger.functions:add_up", "--tumbling-window", "900s"),
            *("--endpoint", f"http://{everything.address}", "--table", table.name),
            *("--state", str(tmp_path / "state"), "--name", "t", "--batch-size", "4"),
            *("--poll-interval", "10ms", "--retry-delay", "5ms"),
        )
        written = 0
        for _ in range(5):
            some = chance.randint(5, 30)
            put(table, items[written : written + some])
            written += some
            target = len(calls.all()) + chance.randint(1, 2)  # of 4 records each
            with Child(*command) as process:
                # One that was killed may still be at its last call, which keeps the lock.
                while len(calls.all()) < target and not process.ended():
                    threading.Event().wait(0.005)
        put(table, items[written:])

        def adds_up() -> bool:
            with Child(*command) as process:
                wait_until(lambda: process.ended() or summed(tmp_path) == total)
                code = process.stop()
                assert code in {0, LOCKED}, process.tail()
            return code == 0

        wait_until(adds_up)
    assert summed(tmp_path) == total
    assert len(calls.items()) >= len(items)


def pages_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each page has that triggers read from here on."""
    pages, read = list[int](), Streams.records

    async def records(self: Streams, iterator: str) -> Page:
        page = await read(self, iterator)
        pages.append(len(page.records))
        return page

    monkeypatch.setattr(Streams, "records", records)
    return pages


def is_last(calls: Calls, item: str) -> bool:
    return calls.items()[-1:] == [item]


def summed(folder: Path) -> dict[str, int]:
    """The state that is kept."""
    path = folder / "state" / "t" / "checkpoint.json"
    window = kept(folder) if path.exists() else None
    return window.get("state", {}) if window else {}


def letters(calls: Calls) -> list[Any]:
    found = [call["letter"] for call in calls.all() if "letter" in call]
    return [{**one, "payload": json.loads(one["payload"])} for one in found]
