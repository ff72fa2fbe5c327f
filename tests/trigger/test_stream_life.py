"""Shards roll, records are trimmed, streams end: as Lambda's users expect, and never in silence."""

import asyncio
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from penstock.errors import (
    TriggerError,
    TriggerStreamChangedError,
    TriggerStreamEndedError,
    TriggerStreamGoneError,
    TriggerTrimmedError,
)
from penstock.serve.dynamodb.names import read_sequence_number
from penstock.store.shards import ShardLimits
from penstock.trigger import mapping
from penstock.trigger.mapping import run_trigger
from penstock.trigger.streams import Described, Streams
from tests.serve.dynamodb.support import Served, served
from tests.store.support import SetClock
from tests.trigger.support import Calls, configured, put, running
from tests.waiting import patience, until

pytestmark = pytest.mark.slow

EACH_A_SHARD = ShardLimits(age_seconds=3600, bytes_max=1)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def rolling(tmp_path: Path, clock: SetClock) -> Iterator[Served]:
    """Each write begins a shard."""
    with served(tmp_path / "store", clock=clock, shards=EACH_A_SHARD) as everything:
        yield everything


async def finish(config: Any) -> None:
    """Run until the trigger ends by itself."""
    async with running(config) as trigger:
        await trigger.until(lambda: False)


async def test_shards_that_roll_are_read_parents_first(
    rolling: Served, calls: Calls, tmp_path: Path
) -> None:
    table = rolling.table()
    put(table, [f"k={number}" for number in range(5)])
    config = configured(rolling, tmp_path, table=table.name)
    async with running(config) as trigger:
        put(table, [f"k={number}" for number in range(5, 9)])
        await trigger.until(lambda: len(calls.items()) == 9)
    put(table, [f"k={number}" for number in range(9, 12)])
    async with running(config) as trigger:
        await trigger.until(lambda: len(calls.items()) == 12)
    assert calls.items() == [f"k={number}" for number in range(12)]
    assert len(rolling.shards(rolling.arn(table))) == 12
    assert msgspec.json.decode(kept(tmp_path))["stream"] == rolling.arn(table)


async def test_an_iterator_that_expires_while_a_batch_is_retried_is_replaced(
    calls: Calls, tmp_path: Path
) -> None:
    clock = SetClock()
    with served(tmp_path / "store", clock=clock) as everything:
        table = everything.table()
        config = configured(everything, tmp_path, table=table.name, batch_size=1)
        put(table, ["k=1"])
        calls.spoil("k=1")
        async with running(config) as trigger:
            await trigger.until(lambda: len(calls.items()) >= 2)
            clock.pass_(2000)
            put(table, ["k=2"])
            calls.spoil()
            await trigger.until(lambda: calls.items()[-1:] == ["k=2"])
        assert set(calls.items()) == {"k=1", "k=2"}


def kept(folder: Path) -> str:
    """The checkpoint, as it lies there."""
    return (folder / "state" / "t" / "checkpoint.json").read_text()


def trim(everything: Served, table: Any, place: int) -> None:
    """Have retention take the first records of a table's stream."""
    numbers = [
        int(one["dynamodb"]["SequenceNumber"]) for one in everything.records(everything.arn(table))
    ]
    until = read_sequence_number(str(numbers[place])).place
    everything.db.prune_stream(table.name, until_sequence=until)


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
async def test_what_was_trimmed_before_it_was_handled_stops_the_trigger(
    calls: Calls, tmp_path: Path, bytes_max: int
) -> None:
    """Within a shard, and with the shards gone; and `horizon` goes on with what is left."""
    limits = ShardLimits(age_seconds=3600, bytes_max=bytes_max)
    with served(tmp_path / "store", clock=SetClock(), shards=limits) as everything:
        table = everything.table()
        config = configured(everything, tmp_path, table=table.name)
        put(table, ["k=0"])
        async with running(config) as trigger:
            await trigger.until(lambda: calls.items() == ["k=0"])
        put(table, [f"k={number}" for number in range(1, 8)])
        trim(everything, table, 5)
        for _ in range(2):  # it does not pass the second time, either
            with pytest.raises(TriggerTrimmedError, match="nothing was skipped"):
                await finish(config)
        assert calls.items() == ["k=0"]
        horizon = config.model_copy(update={"on_trimmed": "horizon"})
        async with running(horizon) as trigger:
            await trigger.until(lambda: calls.items()[-1:] == ["k=7"])
            counts = await trigger.end()
        assert calls.items() == ["k=0", "k=6", "k=7"]
        assert counts["trimmed"] >= 1


@pytest.mark.parametrize("begun", [False, True])
async def test_a_shard_that_ended_otherwise_than_in_a_store_that_was_lost_is_told(
    clock: SetClock, calls: Calls, tmp_path: Path, begun: bool
) -> None:
    """The trigger had read it to its end, and had begun with its child or not; then the folder was
    put back, and what the shard has now came instead."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    limits = ShardLimits(age_seconds=60)
    with served(path, clock=clock, shards=limits) as everything:
        table = everything.table()
        put(table, ["k=0"])
    shutil.copytree(path, copy)
    checkpoint = tmp_path / "state" / "t" / "checkpoint.json"
    ended = b""
    with served(path, clock=clock, shards=limits) as everything:
        put(everything.resource.Table(table.name), ["k=1"])
        config = configured(everything, tmp_path, table=table.name)
        clock.pass_(61)
        everything.db.sweep()
        parent, child = (one["ShardId"] for one in everything.shards(everything.arn(table)))
        async with running(config) as trigger:
            await trigger.until(lambda: child in msgspec.json.decode(kept(tmp_path))["shards"])
            ended = checkpoint.read_bytes()
    if not begun:
        told = msgspec.json.decode(ended)
        del told["shards"][child]
        checkpoint.write_bytes(msgspec.json.encode(told))
    (copy / "data.mdb").replace(path / "data.mdb")
    with served(path, clock=clock, shards=limits) as everything:
        put(everything.resource.Table(table.name), ["k=2"])
        clock.pass_(61)
        everything.db.sweep()
        put(everything.resource.Table(table.name), ["k=3"])
        assert everything.shards(everything.arn(table))[0]["ShardId"] == parent
        config = configured(everything, tmp_path, table=table.name)
        for _ in range(2):
            with pytest.raises(TriggerTrimmedError, match="nothing was skipped"):
                await finish(config)
        assert calls.items() == ["k=0", "k=1"]
        horizon = config.model_copy(update={"on_trimmed": "horizon"})
        async with running(horizon) as trigger:
            await trigger.until(lambda: calls.items()[-1:] == ["k=3"])
        assert calls.items()[2:] == ["k=0", "k=2", "k=3"]


async def test_a_shard_that_ends_while_the_stream_is_looked_at_has_lost_nothing(
    rolling: Served, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its children are newer than the description that is then gone by."""
    table = rolling.table()
    put(table, ["k=0"])
    real, looks = Streams.describe, list[asyncio.Task[Any] | None]()

    async def describe(streams: Streams, stream: str) -> Described:
        described = await real(streams, stream)
        looks.append(asyncio.current_task())
        if looks.count(looks[0]) == 2 and looks[-1] is looks[0]:
            put(table, ["k=1"])
            await until(lambda: '"children"' in kept(tmp_path))
        return described

    monkeypatch.setattr(Streams, "describe", describe)
    monkeypatch.setattr(mapping, "LOOK_SECONDS", 0)
    config = configured(rolling, tmp_path, table=table.name)
    async with running(config) as trigger:
        await trigger.until(lambda: calls.items() == ["k=0", "k=1"])


async def test_horizon_goes_on_when_the_shard_under_way_is_gone(
    rolling: Served, calls: Calls, tmp_path: Path
) -> None:
    """Its last batch is tried for so long that retention takes the shard, and its children too."""
    table = rolling.table()
    put(table, ["k=0"])
    calls.spoil("k=0")
    config = configured(rolling, tmp_path, table=table.name, batch_size=1, on_trimmed="horizon")
    async with running(config) as trigger:
        await trigger.until(calls.items)
        put(table, [f"k={number}" for number in range(1, 8)])
        trim(rolling, table, 5)
        calls.spoil()
        await trigger.until(lambda: calls.items()[-1:] == ["k=7"])
        counts = await trigger.end()
    assert list(dict.fromkeys(calls.items())) == ["k=0", "k=6", "k=7"]
    assert counts["trimmed"] >= 1


@pytest.mark.parametrize("begins", ["whole", "trimmed", "empty"])
async def test_what_is_trimmed_before_the_first_record_was_handled_is_told_too(
    calls: Calls, tmp_path: Path, begins: str
) -> None:
    """A new trigger that is stopped for longer than the retention, with its first batch failing or
    still to come; whether the shard is whole when it begins or not."""
    with served(tmp_path / "store", clock=SetClock()) as everything:
        table = everything.table()
        items = ["k=0", "k=1", "k=2", "k=3"]
        config = configured(everything, tmp_path, table=table.name)
        if begins != "empty":
            put(table, items)
            calls.spoil(*items)
        if begins == "trimmed":
            trim(everything, table, 0)
        async with running(config) as trigger:
            if begins != "empty":
                await trigger.until(calls.items)
            else:
                await trigger.until(lambda: "AT_SEQUENCE_NUMBER" in kept(tmp_path))
        if begins == "empty":
            put(table, items)
        trim(everything, table, 0)
        with pytest.raises(TriggerTrimmedError):
            await finish(config)


async def test_a_new_trigger_begins_with_the_oldest_that_is_left(
    rolling: Served, calls: Calls, tmp_path: Path
) -> None:
    """Nothing was promised before: it is no loss, though an emptied shard comes first."""
    table = rolling.table()
    put(table, [f"k={number}" for number in range(6)])
    trim(rolling, table, 3)
    async with running(configured(rolling, tmp_path, table=table.name)) as trigger:
        await trigger.until(lambda: calls.items() == ["k=4", "k=5"])


async def test_at_timestamp_begins_within_a_later_shard(
    rolling: Served, clock: SetClock, calls: Calls, tmp_path: Path
) -> None:
    table = rolling.table()
    put(table, ["k=0", "k=1"])
    clock.pass_(100)
    at = datetime.fromtimestamp(clock.now_ms / 1000, UTC)
    put(table, ["k=2", "k=3"])
    config = configured(
        rolling,
        tmp_path,
        table=table.name,
        starting_position="AT_TIMESTAMP",
        starting_position_timestamp=at,
    )
    async with running(config) as trigger:
        await trigger.until(lambda: calls.items() == ["k=2", "k=3"])


async def test_a_stream_that_ended_is_drained_and_then_told(
    rolling: Served, calls: Calls, tmp_path: Path
) -> None:
    """F10: the stream that comes after it is not taken for it."""
    table = rolling.table()
    put(table, ["k=0", "k=1"])
    first = rolling.arn(table)
    config = configured(rolling, tmp_path, table=table.name)
    table.update(StreamSpecification={"StreamEnabled": False})
    with pytest.raises(TriggerStreamEndedError, match=re.escape(first)):
        await finish(config)
    assert calls.items() == ["k=0", "k=1"]
    table.update(StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"})
    put(table, ["k=2"])
    with pytest.raises(TriggerStreamEndedError):
        await finish(config)
    assert calls.items() == ["k=0", "k=1"]
    follow = config.model_copy(update={"on_stream_end": "follow"})
    async with running(follow) as trigger:
        await trigger.until(lambda: calls.items() == ["k=0", "k=1", "k=2"])
        table.update(StreamSpecification={"StreamEnabled": False})
        table.update(StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"})
        put(table, ["k=3"])
        await trigger.until(lambda: calls.items()[-1:] == ["k=3"])


async def test_a_stream_that_came_and_ended_meanwhile_is_followed_too(
    rolling: Served, calls: Calls, tmp_path: Path
) -> None:
    """What it holds is in no other; the newest stream is not the next one."""
    table = rolling.table()
    put(table, ["k=0"])
    config = configured(rolling, tmp_path, table=table.name, on_stream_end="follow")
    async with running(config) as trigger:
        await trigger.until(lambda: calls.items() == ["k=0"])
    for item in ("k=1", "k=2"):
        table.update(StreamSpecification={"StreamEnabled": False})
        table.update(StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"})
        put(table, [item])
    async with running(config) as trigger:
        await trigger.until(lambda: calls.items()[-1:] == ["k=2"])
    assert calls.items() == ["k=0", "k=1", "k=2"]


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
async def test_what_was_trimmed_of_the_next_stream_before_it_was_followed_is_told(
    calls: Calls, tmp_path: Path, bytes_max: int
) -> None:
    """With the shards gone, and within a shard: all of the stream was promised."""
    limits = ShardLimits(age_seconds=3600, bytes_max=bytes_max)
    with served(tmp_path / "store", clock=SetClock(), shards=limits) as everything:
        table = everything.table()
        put(table, ["k=0"])
        config = configured(everything, tmp_path, table=table.name, on_stream_end="follow")
        async with running(config) as trigger:
            await trigger.until(lambda: calls.items() == ["k=0"])
        table.update(StreamSpecification={"StreamEnabled": False})
        table.update(StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"})
        put(table, [f"k={number}" for number in range(1, 8)])
        trim(everything, table, 5)
        for _ in range(2):  # it does not pass the second time, either
            with pytest.raises(TriggerTrimmedError, match="nothing was skipped"):
                async with patience():
                    await finish(config)
        assert calls.items() == ["k=0"]
        horizon = config.model_copy(update={"on_trimmed": "horizon"})
        async with running(horizon) as trigger:
            await trigger.until(lambda: calls.items()[-1:] == ["k=7"])
            counts = await trigger.end()
        assert calls.items() == ["k=0", "k=7"]
        assert counts["trimmed"] >= 1


async def test_a_checkpoint_of_another_stream_is_refused(
    rolling: Served, calls: Calls, tmp_path: Path
) -> None:
    one, other = rolling.table(), rolling.table()
    async with running(configured(rolling, tmp_path, table=one.name)):
        pass
    for told in (
        {"table": other.name},
        {"stream": rolling.arn(other)},
        {"table": other.name, "on_stream_end": "follow"},
        {"stream": rolling.arn(other), "on_stream_end": "follow"},
    ):
        with pytest.raises(TriggerStreamChangedError, match="Nothing was read"):
            await finish(configured(rolling, tmp_path, **told))
    async with running(configured(rolling, tmp_path, stream=rolling.arn(one))):
        pass


async def test_a_stream_that_is_not_there_is_told(
    rolling: Served, calls: Calls, tmp_path: Path
) -> None:
    table = rolling.table(view=None)
    with pytest.raises(TriggerStreamGoneError):
        await finish(configured(rolling, tmp_path, table=table.name))
    arn = "arn:aws:dynamodb:us-east-1:000000000000:table/none/stream/2020-01-01T00:00:00.000"
    with pytest.raises(TriggerStreamGoneError):
        await finish(configured(rolling, tmp_path, stream=arn, name="u"))


async def test_a_checkpoint_that_cannot_be_read_is_no_new_beginning(
    rolling: Served, calls: Calls, tmp_path: Path
) -> None:
    table = rolling.table()
    config = configured(rolling, tmp_path, table=table.name)
    async with running(config):
        pass
    file = tmp_path / "state" / "t" / "checkpoint.json"
    for text in ("", "{}", file.read_text().replace('"format":1', '"format":2')):
        file.write_text(text)
        with pytest.raises(TriggerError, match="not a checkpoint"):
            await finish(config)


async def test_a_server_that_is_away_is_waited_for(calls: Calls, tmp_path: Path) -> None:
    with served(tmp_path / "store") as everything:
        table = everything.table()
        put(table, ["k=0"])
        address = everything.address
        config = configured(everything, tmp_path, table=table.name)
    stop = asyncio.Event()
    with capture_logs() as said:
        task = asyncio.create_task(run_trigger(config, stop=stop))
        await until(lambda: said, task=task)
        assert said[0]["event"] == "the stream's service cannot be asked, trying again"
        with served(tmp_path / "store", address=address):
            await until(calls.items, task=task)
            stop.set()
            await task
    assert calls.items() == ["k=0"]
