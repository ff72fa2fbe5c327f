"""The gRPC service, asked by real clients over loopback."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.errors import ConfigError
from penstock.event import Json
from penstock.progress import Progress, parse_progress
from penstock.serve.config import ServeConfig
from penstock.serve.consumers import Consumers
from penstock.serve.grpc import serve_grpc
from penstock.subscribe.resume import oldest
from tests.serve.calls import events_until, failure, subscribe, subscribe_batch, take
from tests.serve.conftest import Log, Serve
from tests.subscribe.events import change, commit, one_each, schema, system
from tests.waiting import until

pytestmark = pytest.mark.slow

Connect = Callable[[str], grpc.aio.Channel]


async def beginning(log: Log) -> str:
    """The marker before everything that the log holds."""
    return str(oldest(await log.bounds()))


# --- puller.proto's dialect ---------------------------------------------------------------------


async def test_stubs_made_from_puller_proto_get_every_event_with_its_fields(
    log: Log, serve: Serve, connect: Connect, puller_stubs: tuple[Any, Any]
) -> None:
    messages, stubs = puller_stubs
    big = change(1, document={"_id": 1, "small": 5, "text": "ä"})
    await log.append([commit(big), *one_each(2, 3)])
    server = await serve(log)
    stub = stubs.PullerServiceStub(connect(server.address))
    call = stub.Subscribe(messages.SubscribeRequest(after=await beginning(log)))
    events = await take(call, 3)
    assert [event.document_id for event in events] == ["1", "2", "3"]
    first = events[0]
    assert first.id == big.event_id
    assert (first.tenant, first.collection, first.operation_type) == ("db", "orders", "insert")
    assert (first.cluster_time.t, first.cluster_time.i) == (1_700_000_001, 1)
    assert first.timestamp == 1_700_000_001_000
    assert parse_progress(first.progress).sequence == 1


async def test_the_dialect_of_puller_proto_writes_a_small_int64_as_a_plain_number(
    log: Log, serve: Serve, connect: Connect, puller_stubs: tuple[Any, Any]
) -> None:
    messages, stubs = puller_stubs
    wrapped = change(1, document=Json(b'{"_id":1,"total":{"$numberLong":"5"}}'))
    await log.append([commit(wrapped)])
    server = await serve(log)
    channel = connect(server.address)
    after = await beginning(log)
    stub = stubs.PullerServiceStub(channel)
    plain = await stub.Subscribe(messages.SubscribeRequest(after=after)).read()
    ours = await subscribe(channel, after=after).read()
    assert plain.full_document == b'{"_id":1,"total":5}'
    assert ours.full_document == b'{"_id":1,"total":{"$numberLong":"5"}}'


async def test_a_client_of_puller_proto_may_use_our_fields_under_its_path(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append([*one_each(1, 2), *one_each(3, 3, collection="lines")])
    server = await serve(log)
    untyped: Any = connect(server.address)
    request = pb.SubscribeRequest(after=await beginning(log), collections=["lines"])
    call = untyped.unary_stream(
        "/PullerService/Subscribe", response_deserializer=pb.Event.FromString
    )(request.SerializeToString())
    assert (await call.read()).sequence == 3


async def test_health_and_reflection_tell_what_is_served(log: Log, serve: Serve) -> None:
    server = await serve(log)

    def ask() -> tuple[list[str], list[str], list[int]]:
        with grpc.insecure_channel(server.address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            services = sorted(database.get_services())
            pool = DescriptorPool(database)
            fields = [
                field.name
                for name in ("Event", "penstock.v1.Event")
                for field in pool.FindMessageTypeByName(name).fields
            ]
            health: Any = health_pb2_grpc.HealthStub(channel)
            states = [
                health.Check(health_pb2.HealthCheckRequest(service=name)).status
                for name in ("", "PullerService", "penstock.v1.PullerService")
            ]
            return services, fields, states

    services, fields, states = await asyncio.to_thread(ask)
    assert services == [
        "PullerService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "penstock.v1.PullerService",
    ]
    assert fields.count("progress") == 2
    assert fields.count("commit_rows") == 1
    assert states == [health_pb2.HealthCheckResponse.SERVING] * 3


# --- where a stream starts, and how it goes on --------------------------------------------------


async def test_an_empty_marker_gives_no_history_and_everything_from_then_on_p13(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append(one_each(1, 5))
    server = await serve(log)
    call = subscribe(connect(server.address))
    await call.initial_metadata()
    await log.append(one_each(6, 7))
    assert [event.sequence for event in await take(call, 2)] == [6, 7]


async def test_a_reader_that_came_with_an_empty_marker_can_come_back_before_its_first_event_p15(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append(one_each(1, 5))
    server = await serve(log)
    call = subscribe(connect(server.address))
    started = dict(await call.initial_metadata())["penstock-progress"]
    call.cancel()
    await log.append(one_each(6, 7))
    again = subscribe(connect(server.address), after=started)
    assert [event.sequence for event in await take(again, 2)] == [6, 7]


async def test_a_heartbeat_before_the_first_event_carries_a_marker_that_resumes_p15(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append(one_each(1, 5))
    server = await serve(log, heartbeat_interval=0.01)
    call = subscribe(connect(server.address))
    heartbeat = await call.read()
    assert [field.name for field, _ in heartbeat.ListFields()] == ["progress"]
    call.cancel()
    await log.append(one_each(6, 7))
    again = subscribe(connect(server.address), after=heartbeat.progress)
    assert [event.sequence for event in await take(again, 2)] == [6, 7]


@pytest.mark.parametrize("ask", [subscribe, subscribe_batch])
async def test_a_filter_that_matches_nothing_still_moves_the_marker_invariant_5(
    log: Log, serve: Serve, connect: Connect, ask: Callable[..., Any]
) -> None:
    await log.append(one_each(1, 50))
    server = await serve(log, heartbeat_interval=0.01)
    call = ask(connect(server.address), after=await beginning(log), collections=["nothing"])
    while parse_progress((await call.read()).progress).sequence < 50:
        pass


async def test_all_events_of_a_transaction_come_in_order_live_and_replayed_and_from_inside_p1(
    log: Log, serve: Serve, connect: Connect
) -> None:
    """They share one cluster time, so nothing may be told apart by it."""
    after = await beginning(log)
    server = await serve(log)
    live = subscribe(connect(server.address), after=after)
    await live.initial_metadata()
    events = [change(1, key=key, ordinal=key) for key in range(8)]
    await log.append([commit(*events)])
    seen = await take(live, 8)
    assert [event.ordinal for event in seen] == list(range(8))
    assert len({event.id for event in seen}) == 8
    assert len({event.cluster_time.t for event in seen}) == 1
    replayed = subscribe(connect(server.address), after=after)
    assert await take(replayed, 8) == seen
    for resumed_at in range(7):
        call = subscribe(connect(server.address), after=seen[resumed_at].progress)
        assert await take(call, 7 - resumed_at) == seen[resumed_at + 1 :]


async def test_one_marker_covers_all_sources_so_none_is_replayed_or_lost_p14(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append([*one_each(1, 2, source="shop"), *one_each(3, 4, source="erp")])
    server = await serve(log)
    first = await subscribe(connect(server.address), after=await beginning(log)).read()
    await log.append(one_each(5, 6, source="late"))
    call = subscribe(connect(server.address), after=first.progress)
    assert [event.source for event in await take(call, 5)] == [
        *["shop"],
        *["erp"] * 2,
        *["late"] * 2,
    ]


@pytest.mark.parametrize("events_max", [1, 7, 500])
async def test_batches_carry_the_same_bytes_in_the_same_order_as_single_events_p29(
    log: Log, serve: Serve, connect: Connect, events_max: int
) -> None:
    await log.append([commit(*(change(n, ordinal=n) for n in range(1, 40))), *one_each(40, 90)])
    after = await beginning(log)
    server = await serve(log, batch_events_max=events_max)
    single = await events_until(subscribe(connect(server.address), after=after), 90)
    call = subscribe_batch(connect(server.address), after=after)
    batched: list[pb.Event] = []
    while len(batched) < 90:
        batch = await call.read()
        assert 0 < len(batch.events) <= events_max
        assert batch.progress == batch.events[-1].progress
        batched.extend(batch.events)
    assert batched == single


async def test_a_batch_marker_passes_what_was_filtered_out_behind_its_last_event(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append([*one_each(1, 1), *one_each(2, 9, collection="lines")])
    server = await serve(log)
    call = subscribe_batch(
        connect(server.address), after=await beginning(log), collections=["orders"]
    )
    batch = await call.read()
    assert [event.sequence for event in batch.events] == [1]
    assert parse_progress(batch.progress).sequence == 9


# --- control events -----------------------------------------------------------------------------


async def test_schema_and_system_events_come_only_to_who_asks(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append([commit(system(1)), commit(schema(2)), commit(change(3)), commit(change(4))])
    server = await serve(log)
    after = await beginning(log)
    plain = await take(subscribe(connect(server.address), after=after), 2)
    asked = await take(subscribe(connect(server.address), after=after, control_events=True), 4)
    assert [event.sequence for event in plain] == [3, 4]
    assert [event.kind for event in asked] == [4, 3, 0, 0]


@pytest.mark.parametrize("ask", [subscribe, subscribe_batch])
async def test_a_gap_ends_the_stream_after_everything_before_it_with_the_marker_after_it(
    log: Log, serve: Serve, connect: Connect, ask: Callable[..., Any]
) -> None:
    await log.append([*one_each(1, 3), commit(system(4, "gap")), *one_each(5, 6)])
    server = await serve(log)
    call = ask(connect(server.address), after=await beginning(log))
    assert [event.sequence for event in await events_until(call, 3)] == [1, 2, 3]
    status, sentence, trailers = await failure(call)
    assert status is grpc.StatusCode.DATA_LOSS
    assert trailers["penstock-code"] == "GAP"
    assert "the oplog was cut" in sentence
    again = ask(connect(server.address), after=trailers["penstock-after"])
    assert [event.sequence for event in await events_until(again, 6)] == [5, 6]


# --- answers to a reader that cannot go on ------------------------------------------------------


async def test_a_trimmed_marker_is_out_of_range_with_the_oldest_that_resumes_p7(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append(one_each(1, 20))
    server = await serve(log)
    events = await take(subscribe(connect(server.address), after=await beginning(log)), 20)
    await log.trim(10)
    status, _, trailers = await failure(
        subscribe(connect(server.address), after=events[8].progress)
    )
    assert status is grpc.StatusCode.OUT_OF_RANGE
    assert trailers["penstock-code"] == "TRIMMED"
    assert trailers["penstock-oldest"] == events[9].progress
    # The boundary: the marker of the last trimmed entry has missed nothing.
    at_watermark = subscribe(connect(server.address), after=events[9].progress)
    assert (await at_watermark.read()).sequence == 11


async def test_each_marker_that_cannot_resume_has_its_own_status_p28(
    log: Log, serve: Serve, connect: Connect
) -> None:
    await log.append(one_each(1, 5))
    bounds = await log.bounds()
    server = await serve(log)
    cases = {
        "not a marker": (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED"),
        str(Progress(bounds.log_id ^ 1, 3, 0)): (
            grpc.StatusCode.FAILED_PRECONDITION,
            "STREAM_CHANGED",
        ),
        str(Progress(bounds.log_id, 3, 1)): (
            grpc.StatusCode.FAILED_PRECONDITION,
            "STREAM_CHANGED",
        ),
        str(Progress(bounds.log_id, 6, 0)): (grpc.StatusCode.ABORTED, "AHEAD"),
    }
    for marker, (status, code) in cases.items():
        found, sentence, trailers = await failure(subscribe(connect(server.address), after=marker))
        assert (found, trailers["penstock-code"]) == (status, code)
        assert sentence.endswith(".")


async def test_readers_of_different_shards_share_the_stream_and_all_advance(
    log: Log, serve: Serve, connect: Connect
) -> None:
    """Together they get everything once; who gets nothing for a while still moves on."""
    await log.append(one_each(1, 30))
    server = await serve(log, heartbeat_interval=0.01)
    after = str(oldest(await log.bounds()))
    got: list[int] = []
    for one in range(3):
        call = subscribe_batch(
            connect(server.address),
            after=after,
            shard_by=["documentId"],
            shard_count=3,
            shard_ids=[one],
        )
        own, marker = list[int](), 0
        while marker < 30:
            batch = await call.read()
            own += [event.sequence for event in batch.events]
            marker = parse_progress(batch.progress).sequence
        got += own
        call.cancel()
    assert sorted(got) == list(range(1, 31))


async def test_a_request_for_shards_that_cannot_be_meant_is_refused(
    log: Log, serve: Serve, connect: Connect
) -> None:
    server = await serve(log)
    for shards in ({"shard_count": 4}, {"shard_by": ["tenant"]}, {"shard_ids": [1]}):
        status, sentence, _ = await failure(subscribe(connect(server.address), **shards))
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert "shard" in sentence


async def test_bytes_that_are_no_request_are_refused(
    log: Log, serve: Serve, connect: Connect
) -> None:
    server = await serve(log)
    untyped: Any = connect(server.address)
    call = untyped.unary_stream("/penstock.v1.PullerService/Subscribe")(b"\xff\xff\xff")
    status, _, trailers = await failure(call)
    assert (status, trailers["penstock-code"]) == (grpc.StatusCode.INVALID_ARGUMENT, "request")


# --- many readers -------------------------------------------------------------------------------


async def test_two_readers_of_one_name_both_get_everything_and_neither_ends_the_other_p16(
    log: Log, serve: Serve, connect: Connect
) -> None:
    after = await beginning(log)
    server = await serve(log)
    calls = [
        subscribe(connect(server.address), after=after, consumer_id=name)
        for name in ("twin", "twin", "", "")
    ]
    for call in calls:
        await call.initial_metadata()
    await log.append(one_each(1, 3))
    for call in calls:
        assert [event.sequence for event in await take(call, 3)] == [1, 2, 3]
    calls[0].cancel()
    await log.append(one_each(4, 5))
    for call in calls[1:]:
        assert [event.sequence for event in await take(call, 2)] == [4, 5]


async def test_a_reader_above_max_connections_is_refused_with_a_sentence_and_may_come_back_p18(
    log: Log, serve: Serve, connect: Connect
) -> None:
    after = await beginning(log)
    consumers = Consumers()
    server = await serve(log, consumers, max_connections=2)
    admitted = [subscribe(connect(server.address), after=after) for _ in range(2)]
    for call in admitted:
        await call.initial_metadata()
    status, sentence, _ = await failure(subscribe(connect(server.address), after=after))
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "max_connections" in sentence
    admitted[0].cancel()
    await log.append(one_each(1, 1))
    await until(lambda: len(consumers.status().readers) == 1)
    later = subscribe(connect(server.address), after=after)
    assert (await later.read()).sequence == 1
    assert (await admitted[1].read()).sequence == 1


async def test_a_stalled_reader_waits_alone_and_loses_nothing_invariants_6_and_8(
    log: Log, serve: Serve, connect: Connect
) -> None:
    after = await beginning(log)
    consumers = Consumers()
    server = await serve(log, consumers, outbox_bytes_max=64 << 10)
    stalled = subscribe(connect(server.address), after=after, consumer_id="stalled")
    await stalled.initial_metadata()
    others = [
        subscribe_batch(connect(server.address), after=after, consumer_id="other") for _ in range(3)
    ]
    text = "x" * 4000
    last = 8000
    for first in range(1, last, 500):
        await log.append(
            [commit(change(n, document={"text": text})) for n in range(first, first + 500)]
        )
    for call in others:
        events = await events_until(call, last)
        assert [event.sequence for event in events] == list(range(1, last + 1))

    def standing(name: str) -> list[int]:
        readers = consumers.status().readers
        return [reader.sequence for reader in readers if reader.consumer_id == name]

    await until(lambda: standing("other") == [last] * 3)
    # gRPC's own window took some; the rest waits in the log, not in memory.
    assert standing("stalled")[0] < last // 2
    events = await events_until(stalled, last)
    assert [event.sequence for event in events] == list(range(1, last + 1))


async def test_retention_that_overtakes_a_reader_ends_its_stream_with_trimmed_p7(
    log: Log, serve: Serve, connect: Connect
) -> None:
    after = await beginning(log)
    server = await serve(log, outbox_bytes_max=64 << 10)
    call = subscribe(connect(server.address), after=after)
    await call.initial_metadata()
    text = "x" * 4000
    for first in range(1, 8000, 500):
        await log.append(
            [commit(change(n, document={"text": text})) for n in range(first, first + 500)]
        )
    await log.trim(7990)
    status, _, trailers = await failure(call)
    assert status is grpc.StatusCode.OUT_OF_RANGE
    assert parse_progress(trailers["penstock-oldest"]).sequence == 7990


async def test_stopping_tells_every_reader_to_come_back_even_one_that_is_stalled(
    log: Log, serve: Serve, connect: Connect
) -> None:
    after = await beginning(log)
    server = await serve(log)
    idle = subscribe(connect(server.address))
    await idle.initial_metadata()
    stalled = subscribe(connect(server.address), after=after)
    text = "x" * 4000
    await log.append([commit(change(n, document={"text": text})) for n in range(1, 4000)])
    await stalled.read()
    await events_until(idle, 3999)
    await server.stop(grace_seconds=0.05)
    status, sentence, _ = await failure(idle)
    assert status is grpc.StatusCode.UNAVAILABLE
    assert "connect again" in sentence
    status, _, _ = await failure(stalled)
    assert status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


# --- where it listens ---------------------------------------------------------------------------


async def test_a_port_in_use_is_refused_with_a_sentence(log: Log, serve: Serve) -> None:
    server = await serve(log)
    with pytest.raises(ConfigError, match="in use"):
        await serve_grpc(log, ServeConfig(grpc=server.address))


@pytest.mark.parametrize("address", ["0.0.0.0:50051", "10.0.0.1:1", "[::]:50051", "example.org:1"])
def test_an_address_that_other_machines_reach_is_refused_without_tls_and_tokens(
    address: str,
) -> None:
    with pytest.raises(ValueError, match="both TLS"):
        ServeConfig(grpc=address)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:0", "localhost:50051", "[::1]:50051", "127.8.9.1:1"]
)
def test_loopback_addresses_are_taken(address: str) -> None:
    assert ServeConfig(flight=address).flight == address


@pytest.mark.parametrize("address", ["127.0.0.1", ":50051", "127.0.0.1:http", "127.0.0.1:70000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address|reachable"):
        ServeConfig(grpc=address)
