"""The puller's protocol over gRPC: our service, puller.proto's, health and reflection.

Every stream is one reader of the log (see `penstock.subscribe.follow`) and waits in its own write
when its client is slow: gRPC's flow control is the outbox, nobody else notices, and nothing is
dropped. Messages are bytes that were encoded at capture; here they are only sliced.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from msgspec import structs

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.errors import (
    GapError,
    PenstockError,
    RenamedError,
    RequestError,
    RowsOvertakenError,
    ServiceBusyError,
    ServiceUnavailableError,
    StateIncompleteError,
    TrimmedError,
)
from penstock.ports import LogReader
from penstock.serve.access import Access, AccessConfig, calls
from penstock.serve.access.actions import GRPC_BYTES_MAX, NAME_LENGTH_MAX
from penstock.serve.access.tls import grpc_credentials
from penstock.serve.addresses import refuse_open
from penstock.serve.config import ServeConfig
from penstock.serve.consumers import Consumers, Reader
from penstock.serve.descriptors import SERVICES, descriptor_pool
from penstock.serve.gate import Gate, gate_limits
from penstock.serve.listen import bind
from penstock.serve.sharded import ShardCounts
from penstock.serve.shared import SharedMessages
from penstock.serve.snapshot import row_batches
from penstock.subscribe import (
    Coalescing,
    Criteria,
    Delivery,
    Subscription,
    Window,
    batches,
    follow,
    start,
)
from penstock.subscribe.current import CurrentState
from penstock.subscribe.scope import Scope
from penstock.subscribe.shards import Shards, shards_of
from penstock.telemetry import (
    EVENTS_PUBLISHED,
    PUBLISH_ERRORS,
    PUBLISH_LATENCY_SECONDS,
    READERS,
)
from penstock.wire import Block, batch_message, heartbeat_message

log = structlog.get_logger(__name__)

Context = grpc.aio.ServicerContext[bytes, bytes]
Send = Callable[[Delivery], Awaitable[int]]

PROGRESS_METADATA: Final = "penstock-progress"
"""Initial metadata: the marker that the stream starts after, so that a reader who came with an
empty one can come back to the same place before it got anything."""
PARTIAL_METADATA: Final = "penstock-partial"
"""Initial metadata of a reader who may not see everything: no commit can be proven complete."""

_STATUS: Final = {
    "MALFORMED": grpc.StatusCode.INVALID_ARGUMENT,
    "TRIMMED": grpc.StatusCode.OUT_OF_RANGE,
    "STREAM_CHANGED": grpc.StatusCode.FAILED_PRECONDITION,
    "AHEAD": grpc.StatusCode.ABORTED,
    "GAP": grpc.StatusCode.DATA_LOSS,
    "RENAMED": grpc.StatusCode.FAILED_PRECONDITION,
    StateIncompleteError.code: grpc.StatusCode.FAILED_PRECONDITION,
    RowsOvertakenError.code: grpc.StatusCode.OUT_OF_RANGE,
    ServiceBusyError.code: grpc.StatusCode.RESOURCE_EXHAUSTED,
    **calls.STATUS,
}

_REQUEST_BYTES: Final = 1 << 20
"""Of a request that lists collections or shards."""
_OPTIONS: Final = (
    # Otherwise a second server could share the port, and readers would meet either.
    ("grpc.so_reuseport", 0),
    # A reader that vanished without a word gives its place back.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Who connects and asks nothing, or shakes no hands, keeps nothing of ours for long.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.max_concurrent_streams", 1_024),
    ("grpc.max_receive_message_length", GRPC_BYTES_MAX),
)


def status_of(error: PenstockError) -> tuple[grpc.StatusCode, tuple[tuple[str, str], ...]]:
    """The gRPC status of an error and its trailers; the table is ARCHITECTURE.md, section 5."""
    trailers = [("penstock-code", error.code)]
    if isinstance(error, TrimmedError):
        trailers.append(("penstock-oldest", error.oldest))
    if isinstance(error, GapError | RenamedError):
        trailers.append(("penstock-after", error.after))
    fallback = grpc.StatusCode.UNAVAILABLE if error.transient else grpc.StatusCode.INTERNAL
    return _STATUS.get(error.code, fallback), tuple(trailers)


class _Stream:
    """One reader's call: who it is, and whether it may be interrupted without tearing a write."""

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        self.task = task
        self.reading = False


class Servicer(Protocol):
    """A service beside the puller's, on the same port."""

    name: str
    """As reflection and health tell it."""

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """As `PullerServicer.handlers`."""
        ...

    def interrupt(self) -> None:
        """As `PullerServicer.interrupt`."""
        ...


class PullerServicer:
    """Serves `log`; knows nothing of ports and processes."""

    def __init__(
        self,
        log: LogReader,
        config: ServeConfig,
        consumers: Consumers,
        current: CurrentState | None = None,
    ) -> None:
        self._log = log
        self._current = current
        self._config = config
        self._consumers = consumers
        self._shared = SharedMessages()
        self._sharded = ShardCounts()
        self._streams: set[_Stream] = set()
        self._stopping = asyncio.Event()

    def configure(self, config: ServeConfig) -> None:
        """Serve by the limits of `config` whoever connects from now on."""
        self._config = config

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The methods by their paths; requests and responses are bytes."""

        stream: Any = grpc.unary_stream_rpc_method_handler

        ours = {
            "Subscribe": stream(self.subscribe),
            "SubscribeBatch": stream(self.subscribe_batch),
            "Snapshot": stream(self.snapshot),
        }
        plain = {"Subscribe": stream(self.subscribe_plain)}
        return (
            grpc.method_handlers_generic_handler("penstock.v1.PullerService", ours),
            grpc.method_handlers_generic_handler("PullerService", plain),
        )

    async def subscribe(self, request: bytes, context: Context) -> None:
        """`penstock.v1.PullerService/Subscribe`: one Event a message."""
        send = _event_sender(context, self._shared.messages, Window.messages)
        await self._serve(request, context, send)

    async def subscribe_plain(self, request: bytes, context: Context) -> None:
        """`PullerService/Subscribe`: the same events with plain numbers."""
        send = _event_sender(context, Block.seed_messages, Window.seed_messages)
        await self._serve(request, context, send)

    async def subscribe_batch(self, request: bytes, context: Context) -> None:
        """`penstock.v1.PullerService/SubscribeBatch`: many Events a message."""
        await self._serve(request, context, _batch_sender(context, self._config, self._shared))

    async def snapshot(self, request: bytes, context: Context) -> None:
        """`penstock.v1.PullerService/Snapshot`: current rows, and where to follow from."""

        async def send(_: _Stream) -> None:
            criteria = _parse_snapshot(request, calls.principal().scope)
            published = EVENTS_PUBLISHED.labels("grpc")
            batches_of_rows = row_batches(
                self._current, criteria, bytes_max=self._config.batch_bytes_max
            )
            async with contextlib.aclosing(batches_of_rows):
                async for batch in batches_of_rows:
                    if self._stopping.is_set():
                        raise ServiceUnavailableError(
                            "this service is stopping before all rows were sent. Throw away what "
                            "came, and ask again."
                        )
                    await context.write(batch.message())
                    published.inc(len(batch.rows))

        await self._answered(context, send)

    def interrupt(self) -> None:
        """Let every stream end with a status that says so, at the next place where it can."""
        self._stopping.set()
        for stream in self._streams:
            if stream.reading:
                stream.task.cancel()

    async def _serve(self, request: bytes, context: Context, send: Send) -> None:
        """Follow the log as the request says."""

        async def follows(stream: _Stream) -> None:
            await self._follow(_parse(request), context, send, stream)

        await self._answered(context, follows)

    async def _answered(self, context: Context, run: Callable[[_Stream], Awaitable[None]]) -> None:
        """Run one stream to its end, and answer its error with the status of the table."""
        try:
            await self._run(run)
        except PenstockError as error:
            PUBLISH_ERRORS.labels("grpc", error.code).inc()
            code, trailers = status_of(error)
            await context.abort(code, str(error), trailers)
        except Exception:
            PUBLISH_ERRORS.labels("grpc", "broken").inc()
            raise

    async def _run(self, run: Callable[[_Stream], Awaitable[None]]) -> None:
        if len(self._streams) >= self._config.max_connections:
            raise ServiceBusyError(readers_max=self._config.max_connections)
        task = asyncio.current_task()
        assert task is not None  # gRPC runs every call in a task
        stream = _Stream(task)
        self._streams.add(stream)
        READERS.labels("grpc").inc()
        try:
            await run(stream)
        finally:
            READERS.labels("grpc").dec()
            self._streams.discard(stream)

    async def _follow(
        self, request: pb.SubscribeRequest, context: Context, send: Send, stream: _Stream
    ) -> None:
        criteria = Criteria(
            collections=frozenset(request.collections),
            control_events=request.control_events,
            shards=shards_of(request.shard_by, request.shard_count, request.shard_ids),
            scope=calls.principal().scope,
        )
        progress = await start(self._log, request.after)
        metadata = [(PROGRESS_METADATA, str(progress))]
        if not criteria.scope.is_everything:
            metadata.append((PARTIAL_METADATA, "1"))
        await context.send_initial_metadata(tuple(metadata))
        deliveries = follow(
            self._log,
            Subscription(criteria=criteria, progress=progress),
            bytes_max=self._config.outbox_bytes_max,
            heartbeat_seconds=self._config.heartbeat_interval,
            clock=time.monotonic,
            coalescing=_coalescing(self._config) if request.coalesce_on_catch_up else None,
        )
        with (
            self._consumers.connected(
                request.consumer_id, "grpc", sequence=progress.sequence
            ) as reader,
            self._sharded.connected(criteria.shards),
        ):
            async with contextlib.aclosing(deliveries):
                await self._deliver(deliveries, send, stream, reader, criteria.shards)

    async def _deliver(
        self,
        deliveries: AsyncGenerator[Delivery],
        send: Send,
        stream: _Stream,
        reader: Reader,
        shards: Shards | None,
    ) -> None:
        """Send until something raises: the log, the delivery's gap, or the end of the service."""
        published = EVENTS_PUBLISHED.labels("grpc")
        latency = PUBLISH_LATENCY_SECONDS.labels("grpc")
        while not self._stopping.is_set():
            stream.reading = True
            try:
                delivery = await anext(deliveries)
            except asyncio.CancelledError:
                if not self._stopping.is_set():
                    raise
                stream.task.uncancel()
                break
            finally:
                stream.reading = False
            events = await send(delivery)
            published.inc(events)
            if delivery.slices:
                durable_at = delivery.slices[-1].block.ingested_at / 1000
                latency.observe(max(0.0, time.time() - durable_at))
            passed = delivery.progress.sequence - reader.sequence
            self._sharded.moved(shards, passed=passed, sent=events)
            reader.moved(sequence=delivery.progress.sequence, events=events)
            if delivery.gap is not None:
                raise delivery.gap
        raise ServiceUnavailableError(
            "this service is stopping. What you processed is safe: connect again with the "
            "progress of the last event you processed."
        )


def _parse(request: bytes) -> pb.SubscribeRequest:
    """The request. That of puller.proto has the same numbers, so one message reads both."""
    try:
        parsed = pb.SubscribeRequest.FromString(request)
    except DecodeError as error:
        raise RequestError("the request is not a SubscribeRequest. Nothing was sent.") from error
    if len(parsed.consumer_id) > NAME_LENGTH_MAX:
        # It is kept and shown for as long as its reader is connected.
        raise RequestError(
            f"consumer_id has {len(parsed.consumer_id):,} characters, and may have "
            f"{NAME_LENGTH_MAX}. Nothing was sent."
        )
    return parsed


def _parse_snapshot(request: bytes, scope: Scope) -> Criteria:
    """The collections that a SnapshotRequest asks for."""
    try:
        asked = pb.SnapshotRequest.FromString(request)
    except DecodeError as error:
        raise RequestError("the request is not a SnapshotRequest. Nothing was sent.") from error
    return Criteria(
        collections=frozenset(asked.collections),
        shards=shards_of(asked.shard_by, asked.shard_count, asked.shard_ids),
        scope=scope,
    )


def _coalescing(config: ServeConfig) -> Coalescing:
    return Coalescing(
        threshold=config.catch_up_threshold,
        window_events=config.coalesce_window_events,
        window_bytes=config.coalesce_window_bytes,
        insert_delete=config.coalesce_insert_delete,
    )


def _event_sender(
    context: Context,
    messages: Callable[[Block, Sequence[int]], Iterable[bytes]],
    coalesced: Callable[[Window, Block, Sequence[int]], Iterable[bytes]],
) -> Send:
    """Send a delivery as single Events. What was filtered out shows in the next heartbeat."""

    async def send(delivery: Delivery) -> int:
        count = 0
        make = delivery.made(messages, coalesced)
        for block, entries in delivery.slices:
            for message in make(block, entries):
                await context.write(message)
            count += len(entries)
        if not count and delivery.gap is None:
            await context.write(heartbeat_message(str(delivery.progress)))
        return count

    return send


def _batch_sender(context: Context, config: ServeConfig, shared: SharedMessages) -> Send:
    """Send a delivery as EventBatches; a heartbeat is one without events."""

    async def send(delivery: Delivery) -> int:
        count = 0
        for batch in batches(
            delivery,
            events_max=config.batch_events_max,
            bytes_max=config.batch_bytes_max,
            messages=shared.messages,
        ):
            await context.write(batch_message(batch.messages, batch.progress))
            count += len(batch.messages)
        if not count and delivery.gap is None:
            await context.write(batch_message((), str(delivery.progress)))
        return count

    return send


class GrpcServer:
    """A running gRPC server. `address` is where it listens, with the port it really got."""

    def __init__(
        self,
        server: grpc.aio.Server,
        servicer: PullerServicer,
        beside: Sequence[Servicer],
        servicer_health: health.aio.HealthServicer,
        gate: Gate,
        address: str,
    ) -> None:
        self._server = server
        self._servicer = servicer
        self._beside = beside
        self._health = servicer_health
        self._gate = gate
        self.address = address

    def configure(self, config: ServeConfig) -> None:
        """Serve by the limits of `config` whoever connects from now on; its address stays."""
        self._servicer.configure(config)

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """End all streams with UNAVAILABLE, those stuck in a write after the grace; stop."""
        # It waits for those who watch, and who takes nothing would hold it up for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._health.enter_graceful_shutdown()
        self._servicer.interrupt()
        for servicer in self._beside:
            servicer.interrupt()
        await self._server.stop(grace_seconds)
        await asyncio.to_thread(self._gate.stop)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


async def serve_grpc(
    log: LogReader,
    config: ServeConfig,
    consumers: Consumers | None = None,
    *,
    current: CurrentState | None = None,
    access: Access | None = None,
    beside: Sequence[Servicer] = (),
) -> GrpcServer:
    """Serve `log` on `config.grpc` until `stop`; `consumers` learns who reads.

    `current` has the rows for Snapshot; None: it is refused. `access` is asked who may do what;
    None: anybody everything, on loopback. What is `beside` is served there too.

    Raises ConfigError if the port is taken, the files of [serve.tls] cannot be read, or others
    could reach what nobody guards.
    """
    access = access or Access(AccessConfig())
    refuse_open("grpc", config.grpc, tls=config.tls is not None, guarded=access.is_guarded)
    credentials = None if config.tls is None else grpc_credentials(config.tls)
    advice = "set grpc under [serve] to another address"
    limits = gate_limits(config)
    # gRPC bounds what a message unfolds to, so that a first one may be as large as any.
    limits = structs.replace(limits, first_bytes=limits.first_bytes + _REQUEST_BYTES)
    gate = Gate("grpc", bind(config.grpc, backlog=limits.in_all, advice=advice), limits)
    server = grpc.aio.server(options=_OPTIONS, interceptors=(calls.Guard(access, gate),))
    servicer = PullerServicer(log, config, consumers or Consumers(), current)
    server.add_generic_rpc_handlers(servicer.handlers())
    for one in beside:
        server.add_generic_rpc_handlers(one.handlers())
    services = (*SERVICES, *(one.name for one in beside))
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection(services, server, pool=descriptor_pool())
    port = (
        server.add_insecure_port("127.0.0.1:0")
        if credentials is None
        else server.add_secure_port("127.0.0.1:0", credentials)
    )
    await server.start()
    gate.start(port)
    for service in ("", *services):
        await health_servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
    address = f"{config.grpc.rpartition(':')[0]}:{gate.port}"
    return GrpcServer(server, servicer, beside, health_servicer, gate, address)
