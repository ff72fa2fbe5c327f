"""What is counted of serving, after a workload whose numbers are known."""

import asyncio
from collections.abc import Callable

import grpc.aio

from penstock.subscribe.resume import oldest
from penstock.telemetry import SERVE_REGISTRY
from tests.serve.calls import Call, events_until, failure, subscribe, subscribe_batch
from tests.serve.conftest import Log, Serve
from tests.subscribe.events import one_each
from tests.waiting import until

Connect = Callable[[str], grpc.aio.Channel]


def value(name: str, **labels: str) -> float:
    return SERVE_REGISTRY.get_sample_value(name, labels) or 0.0


def growth(name: str, **labels: str) -> Callable[[], float]:
    """How much a metric has grown since this was called."""
    before = value(name, **labels)
    return lambda: value(name, **labels) - before


async def test_what_is_sent_is_counted_with_how_old_it_is(
    log: Log, serve: Serve, connect: Connect
) -> None:
    """P27. The latency is from durable to sent: one for each delivery, of its newest event."""
    published = growth("penstock_events_published_total", protocol="grpc")
    deliveries = growth("penstock_publish_latency_seconds_count", protocol="grpc")
    seconds = growth("penstock_publish_latency_seconds_sum", protocol="grpc")
    server = await serve(log)
    call = subscribe(connect(server.address))
    await call.initial_metadata()
    await log.append(one_each(1, 5))
    await events_until(call, 5)
    await until(lambda: published() == 5)
    assert 1 <= deliveries() <= 5
    assert seconds() >= 0
    call.cancel()


async def test_an_old_event_counts_with_its_age_and_a_heartbeat_not_at_all(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append(one_each(1, 2))
    after = str(oldest(await log.bounds()))
    soon = growth("penstock_publish_latency_seconds_bucket", protocol="grpc", le="0.05")
    deliveries = growth("penstock_publish_latency_seconds_count", protocol="grpc")
    server = await serve(log, heartbeat_interval=0.01)
    await asyncio.sleep(0.1)  # what it takes to be old
    call = subscribe(connect(server.address), after=after)
    await events_until(call, 2)
    for _ in range(3):
        assert (await call.read()).sequence == 0
    await until(lambda: deliveries() == 1)
    assert soon() == 0
    call.cancel()


async def test_a_reader_that_is_refused_is_an_error_by_its_code_and_one_that_leaves_is_none(
    log: Log, serve: Serve, connect: Connect
) -> None:
    """P34: who hangs up is no error of ours."""
    names = ("MALFORMED", "service.busy", "service.unavailable", "broken")
    errors = {
        code: growth("penstock_publish_errors_total", protocol="grpc", code=code) for code in names
    }
    server = await serve(log, max_connections=1)
    await failure(subscribe(connect(server.address), after="no marker"))
    assert errors["MALFORMED"]() == 1
    reader = subscribe(connect(server.address))
    await reader.initial_metadata()
    readers = "penstock_readers"
    assert value(readers, protocol="grpc") == 1
    await failure(subscribe(connect(server.address)))
    assert errors["service.busy"]() == 1
    reader.cancel()
    await until(lambda: value(readers, protocol="grpc") == 0)
    last = subscribe(connect(server.address))
    await last.initial_metadata()
    await server.stop()
    await failure(last)
    assert [errors[code]() for code in names] == [1, 1, 1, 0]


async def test_readers_of_shards_are_counted_with_what_they_were_spared(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append(one_each(1, 30))
    server = await serve(log)
    sent = {
        shard: growth("penstock_events_by_shard_total", shard_count="3", shard_id=shard)
        for shard in ("0", "several")
    }
    shards = {"shard_by": ["documentId"], "shard_count": 3}
    after = str(oldest(await log.bounds()))
    calls: list[Call] = []
    for ids in ([0], [1, 2]):
        call = subscribe_batch(connect(server.address), after=after, shard_ids=ids, **shards)
        calls.append(call)
        got = len((await call.read()).events)
        name = "0" if ids == [0] else "several"
        await until(lambda: sent[name]() > 0)  # noqa: B023
        assert sent[name]() == got
    assert sent["0"]() + sent["several"]() == 30
    assert value("penstock_consumers_by_shard_config", shard_count="3") == 2
    ratio = value("penstock_shard_filter_ratio")
    assert 0 < ratio < 1
    for call in calls:
        call.cancel()
    await until(lambda: value("penstock_consumers_by_shard_config", shard_count="3") == 0)
