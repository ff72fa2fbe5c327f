"""Arrow Flight over the log: ranges as columns, for Spark and other bulk readers.

The protocol is told in `penstock.client.flight`. Requests are answered on gRPC's own threads, with
the log's sync methods; a read holds no transaction while it sends, and no more than one batch.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import socket
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import structlog
from msgspec import Struct, structs
from numpy.typing import NDArray

from penstock.client.flight import (
    ACTION_ACCESS,
    ACTION_BOUNDS,
    ACTION_DECLARED,
    ACTION_MARKER,
    ACTION_PLAN,
    ACTION_POSITION,
    ACTION_REPORT,
    DeclaredRequest,
    MarkerRequest,
    PipelineReport,
    Plan,
    PlanRequest,
    ReadRequest,
    RowsRequest,
    Seen,
    SourcePosition,
    to_wire,
)
from penstock.client.pipelines import (
    ACTION_LIST,
    ACTION_ORDER,
    ACTION_TELL,
    PipelineOrder,
    PipelineTold,
)
from penstock.errors import (
    AheadError,
    ConfigError,
    ForbiddenError,
    GapError,
    LogCorruptError,
    PartialViewError,
    PenstockError,
    RequestError,
    ServiceBusyError,
    StreamChangedError,
    TrimmedError,
    UnauthenticatedError,
)
from penstock.ports import Bounds, SourceState
from penstock.progress import Progress
from penstock.serve.access import Access, AccessConfig, Presented, Principal, TlsConfig
from penstock.serve.access.actions import action as action_of
from penstock.serve.access.flights import (
    MIDDLEWARE,
    Headers,
    presented_by,
    server_arguments,
)
from penstock.serve.access.limits import Places
from penstock.serve.addresses import is_loopback, refuse_open
from penstock.serve.broken import where
from penstock.serve.columns import batch_shown, needed
from penstock.serve.consumers import TOLD
from penstock.serve.gate import Gate, GateLimits
from penstock.serve.listen import bind
from penstock.serve.pipelines import PipelineBook
from penstock.serve.rows import current_batches
from penstock.serve.snapshot import kept
from penstock.subscribe.criteria import Criteria, Selection, select
from penstock.subscribe.current import CurrentState, Declared
from penstock.subscribe.resume import resume
from penstock.subscribe.scope import EVERYTHING, Scope
from penstock.telemetry import EVENTS_PUBLISHED, PUBLISH_ERRORS, READERS
from penstock.wire import ARROW_SCHEMA, Block, to_arrow

_SCAN_BYTES = 1 << 20
_SILENT_BYTES_MAX = 64 << 20
"""A filter that matches nothing says how far it has come after so many bytes."""
_BATCH_BYTES_MAX = 16 << 20
_GATHERS_MAX = 2
_PARTITIONS_MAX = 10_000
_CALL_BYTES = 4 << 20
"""What a client may send between two calls. Flight itself takes a request of any size."""

_Request = TypeVar("_Request")
OnReport = Callable[[PipelineReport, str], None]

log = structlog.get_logger()


class SyncLogReader(Protocol):
    """What Flight needs of a log: the methods of ports.LogReader, without a loop."""

    def bounds_now(self) -> Bounds: ...

    def read_now(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]: ...

    def check_at_now(self, sequence: int) -> int | None: ...

    def sources_now(self) -> list[SourceState]: ...

    def commit_end(self, *, after: int, events_max: int) -> int:
        """The last commit's end within `events_max` entries, or the end of the first commit."""
        ...

    def ranges(self, *, after: int, until: int, count: int) -> list[tuple[int, int]]:
        """(after, until] as at most `count` ranges that meet at the ends of blocks."""
        ...


# --- deciding ---------------------------------------------------------------------------------


def place_after(reader: SyncLogReader, marker: Progress) -> tuple[Progress, Bounds]:
    """The place that `marker` names in this log, and the log's bounds; as `subscribe.start`.

    Raises StreamChangedError, AheadError or TrimmedError as `subscribe.resume` does (P7, F10).
    """
    check = reader.check_at_now(marker.sequence)
    bounds = reader.bounds_now()
    if check is None and bounds.trimmed <= marker.sequence <= bounds.head:
        # The log took it between the two questions.
        check = reader.check_at_now(marker.sequence)
    return resume(marker, bounds=bounds, check=check), bounds


def located(reader: SyncLogReader, request: MarkerRequest) -> Progress:
    """The marker of an entry that is known by its sequence. Raises as `place_after` does."""
    check = reader.check_at_now(request.sequence)
    marker = Progress(request.log_id, request.sequence, check or 0)
    return resume(marker, bounds=reader.bounds_now(), check=check)


def position_of(reader: SyncLogReader, source: str, scope: Scope) -> SourcePosition:
    """Where a source stands, for who may see everything of it; PartialViewError for others."""
    if not scope.shows_all_of(source):
        raise PartialViewError(source=source)
    known = {one.source: one.position for one in reader.sources_now()}
    return SourcePosition(source=source, position=known.get(source))


def declared_of(
    current: CurrentState | None, request: DeclaredRequest, scope: Scope
) -> Sequence[Declared] | None:
    """What a source declares, for who may see everything of it; PartialViewError for others."""
    if not scope.shows_all_of(request.source):
        raise PartialViewError(source=request.source)
    return current.declared(request.source, at=request.sequence) if current is not None else ()


def plan(reader: SyncLogReader, request: PlanRequest) -> Plan:
    """Where the read may end, and how to split it. Raises what `place_after` raises."""
    after, bounds = place_after(reader, request.after)
    end = Progress(bounds.log_id, bounds.head, bounds.head_check)
    if request.until is not None:
        end, bounds = place_after(reader, request.until)
    if end.sequence <= after.sequence:
        return Plan(after=after, to=after, splits=[], head=bounds.head)
    if request.events_max is not None:
        limited = reader.commit_end(after=after.sequence, events_max=max(1, request.events_max))
        if limited < end.sequence:
            end = located(reader, MarkerRequest(log_id=bounds.log_id, sequence=limited))
    rows = end.sequence - after.sequence
    wanted = min(request.partitions_max, _PARTITIONS_MAX)
    count = max(1, min(wanted, rows // max(1, request.partition_events_min)))
    ranges = reader.ranges(after=after.sequence, until=end.sequence, count=count)
    return Plan(after=after, to=end, splits=[low for low, _ in ranges[1:]], head=bounds.head)


class _Gathering:
    """Blocks on their way into one batch."""

    def __init__(self, columns: Sequence[str], scope: Scope) -> None:
        self._columns = columns
        self._scope = None if scope.is_everything else scope
        self._read = columns if self._scope is None else needed(columns)
        self._clear()

    def _clear(self) -> None:
        self._blocks: list[Block] = []
        self._rows: list[NDArray[np.intp]] = []
        self.held_bytes = self.selected_bytes = self.scanned_bytes = 0

    def add(self, block: Block, entries: Sequence[int]) -> None:
        self.scanned_bytes += block.nbytes
        if entries:
            self._blocks.append(block)
            self._rows.append(np.asarray(entries, np.intp))
            self.held_bytes += block.nbytes
            # What is left of a narrowed or filtered block, taking its entries as equally long.
            self.selected_bytes += block.nbytes * len(entries) // len(block.places)

    def taken(self) -> pa.RecordBatch:
        """The rows so far, empty if there are none. The blocks are let go before they are sent."""
        if self._blocks:
            batch = to_arrow(self._blocks, self._read, self._rows)
            if self._scope is not None:
                batch = batch_shown(batch, self._columns, self._scope.mask)
        else:
            fields = [ARROW_SCHEMA.field(name) for name in self._columns]
            batch = pa.RecordBatch.from_pylist([], schema=pa.schema(fields))
        self._clear()
        return batch


def covered_batches(
    reader: SyncLogReader, request: ReadRequest, scope: Scope = EVERYTHING
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows of (after, until] in batches, each with the sequence up to which it covers; what
    `scope` does not show is left out.

    The last one covers `until`, even if it is empty. Raises as `LogClient.read` says.
    """
    criteria = Criteria(
        collections=frozenset(request.collections),
        sources=frozenset([request.source] if request.source else []),
        control_events=request.control_events,
        scope=scope,
    )
    columns = request.columns or ARROW_SCHEMA.names
    gathering, covered = _Gathering(columns, scope), request.after
    while covered < request.until:
        bounds = reader.bounds_now()
        if bounds.log_id != request.log_id:
            raise StreamChangedError("it was made by another log, or before this one was restored")
        if request.until > bounds.head:
            raise AheadError(sequence=request.until, head=bounds.head)
        blocks = reader.read_now(after=covered, until=request.until, bytes_max=_SCAN_BYTES)
        if not blocks:
            raise LogCorruptError(f"the log lists the entry {covered + 1} but does not hold it")
        for block in blocks:
            selection = select(criteria, block)
            if selection.gap is not None:
                yield from _before_gap(gathering, block, selection)
            gathering.add(block, selection.entries)
            covered = block.last_sequence
            if (
                gathering.selected_bytes >= request.batch_bytes
                or gathering.held_bytes >= 4 * request.batch_bytes
                or gathering.scanned_bytes >= _SILENT_BYTES_MAX
            ):
                yield gathering.taken(), covered
    if gathering.scanned_bytes:
        yield gathering.taken(), covered


def _before_gap(
    gathering: _Gathering, block: Block, selection: Selection
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """What stands before the gap, and then the gap as an error: nothing before it is withheld."""
    assert selection.gap is not None
    gathering.add(block, selection.entries)
    sequence = block.first_sequence + selection.gap
    yield gathering.taken(), sequence - 1
    raise GapError(
        after=block.progress(selection.gap),
        description=f"source {block.stream(selection.gap).source!r}, at sequence {sequence}",
    )


# --- serving ----------------------------------------------------------------------------------


@contextmanager
def _told() -> Generator[None]:
    """Let errors of the tree reach the client as themselves; tell of others only here."""
    try:
        yield
    except PenstockError as error:
        PUBLISH_ERRORS.labels("flight", error.code).inc()
        kind: Any = fl.FlightServerError
        if isinstance(error, UnauthenticatedError):
            kind = fl.FlightUnauthenticatedError
        elif isinstance(error, ForbiddenError):
            kind = fl.FlightUnauthorizedError
        # The stubs do not know `extra_info`.
        raise kind(str(error), extra_info=to_wire(error)) from None
    except (fl.FlightError, GeneratorExit):
        raise
    except Exception as error:
        PUBLISH_ERRORS.labels("flight", "broken").inc()
        # Its text may quote a document, so it stays out of the answer, and out of the log.
        log.error("flight request failed", error=type(error).__name__, at=where(error))  # noqa: TRY400
        raise fl.FlightInternalError(
            "the service failed to answer; its own log says why. Nothing was lost."
        ) from None


def _decoded(body: bytes, kind: type[_Request]) -> _Request:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise RequestError(f"not a {kind.__name__}: {error}. Nothing was sent.") from None


class _Ticket(Struct):
    """What tells one ticket from another."""

    get: str = ""


def _requested(ticket: bytes) -> ReadRequest | RowsRequest:
    if _decoded(ticket, _Ticket).get == "rows":
        return _decoded(ticket, RowsRequest)
    return _decoded(ticket, ReadRequest)


class _Flight(fl.FlightServerBase):
    def __init__(
        self,
        location: str,
        reader: SyncLogReader,
        on_report: OnReport | None,
        reads_max: int,
        wait_seconds: float,
        current: CurrentState | None,
        access: Access,
        tls: TlsConfig | None,
        book: PipelineBook | None,
        gate: Gate,
    ) -> None:
        self._access = access
        self._gate = gate
        self._book = book
        self._reader = reader
        self._current = current
        self._on_report = on_report
        self._reads_max = reads_max
        self._wait_seconds = wait_seconds
        self._reads = threading.BoundedSemaphore(reads_max)
        # A read waits for ever for a client that takes nothing: nobody may have all places.
        self._reads_of = Places(max(1, reads_max * 3 // 4))
        # Reads that only send hold one batch; making one takes three times that, so few do it.
        self._gathers = threading.BoundedSemaphore(_GATHERS_MAX)
        self.stopping = threading.Event()
        super().__init__(location, middleware={MIDDLEWARE: Headers()}, **server_arguments(tls))

    def _known(self, context: fl.ServerCallContext, what: str, body_bytes: int) -> Principal:
        """Who asks for `what`, if they may, with a request of so many bytes."""
        presented, endpoint = self._presented(context), f"flight {what}"
        principal = self._access.authenticate(presented, endpoint)
        asked = action_of(endpoint)
        self._access.require(principal, asked.needs, presented, endpoint)
        asked.refuse_size(body_bytes)
        self._gate.admit(str(context.peer()))
        return principal

    def _presented(self, context: fl.ServerCallContext) -> Presented:
        """What came with a call. Raises UnauthenticatedError for one past the gate."""
        address = self._gate.address_of(str(context.peer()))
        if address is None:
            raise UnauthenticatedError
        return presented_by(context, address)

    def do_action(
        self,
        context: fl.ServerCallContext,
        action: fl.Action,
    ) -> Iterator[Any]:
        with _told(), ExitStack() as visit:
            kind = action.type
            principal = self._known(context, kind, action.body.size)
            presented = self._presented(context)
            visit.enter_context(self._access.visiting(principal, presented, f"flight {kind}"))
            body = action.body.to_pybytes()
            if kind == ACTION_BOUNDS:
                reply: Any = self._reader.bounds_now()
            elif kind == ACTION_PLAN:
                reply = plan(self._reader, _decoded(body, PlanRequest))
            elif kind == ACTION_MARKER:
                reply = located(self._reader, _decoded(body, MarkerRequest))
            elif kind == ACTION_POSITION:
                asked = _decoded(body, SourcePosition)
                reply = position_of(self._reader, asked.source, principal.scope)
            elif kind == ACTION_DECLARED:
                reply = declared_of(self._current, _decoded(body, DeclaredRequest), principal.scope)
            elif kind == ACTION_REPORT:
                report = _decoded(body, PipelineReport)
                _require_place(self._reader, report)
                if self._on_report is not None:
                    self._on_report(report, principal.who)
                reply = None
            elif kind == ACTION_ACCESS:
                scope = principal.scope
                reply = Seen(
                    name=principal.name,
                    partial=not scope.is_everything,
                    whole_sources=tuple(sorted(scope.whole_sources)),
                )
            elif kind in _OF_PIPELINES and self._book is not None:
                reply = _of_pipelines(self._book, kind, body, principal)
                if kind == ACTION_TELL and self._on_report is not None:
                    told = _decoded(body, PipelineTold)
                    said = PipelineReport(
                        pipeline=told.pipeline,
                        sequence=told.place.sequence,
                        log_id=told.place.log_id,
                    )
                    self._on_report(said, TOLD)
            else:
                raise RequestError(f"this service has no action {kind!r}.")
        yield fl.Result(msgspec.json.encode(reply))

    def do_get(
        self,
        context: fl.ServerCallContext,
        ticket: fl.Ticket,
    ) -> fl.GeneratorStream:
        with _told():
            principal = self._known(context, "get", len(ticket.ticket))
            request = _requested(ticket.ticket)
            unknown = [name for name in request.columns if name not in ARROW_SCHEMA.names]
            if unknown or not 0 < request.batch_bytes <= _BATCH_BYTES_MAX:
                raise RequestError(
                    f"a read has the columns {', '.join(ARROW_SCHEMA.names)}, and batches of at "
                    f"most {_BATCH_BYTES_MAX} bytes; asked for {', '.join(unknown) or 'these'} "
                    f"in {request.batch_bytes} bytes. Nothing was sent."
                )
            names = request.columns or ARROW_SCHEMA.names
            schema = pa.schema([ARROW_SCHEMA.field(name) for name in names])
            presented = self._presented(context)
            if isinstance(request, RowsRequest):
                rows = partial(current_batches, kept(self._current), request, principal.scope)
                return fl.GeneratorStream(schema, self._visit(principal, presented, rows))
            covered = covered_batches(self._reader, request, principal.scope)
            entries = ((batch, str(sequence)) for batch, sequence in covered)
            return fl.GeneratorStream(schema, self._visit(principal, presented, lambda: entries))

    def _visit(
        self,
        principal: Principal,
        presented: Presented,
        begin: Callable[[], Generator[tuple[pa.RecordBatch, str]]],
    ) -> Iterator[Any]:
        """A stream, for as long as `principal` may stay."""
        with ExitStack() as visit:
            with _told():
                visit.enter_context(self._access.visiting(principal, presented, "flight get"))
                if principal.way != "nobody":
                    self._reads_of.enter(principal.who)
                    visit.callback(self._reads_of.leave, principal.who)
            stream = visit.enter_context(closing(self._stream(begin)))
            for one in stream:
                with _told():
                    self._access.check(principal)
                yield one

    def _stream(self, begin: Callable[[], Generator[tuple[pa.RecordBatch, str]]]) -> Generator[Any]:
        with _told():
            if not self._reads.acquire(timeout=self._wait_seconds):
                raise ServiceBusyError(readers_max=self._reads_max)
        READERS.labels("flight").inc()
        published = EVENTS_PUBLISHED.labels("flight")
        try:
            # Beginning may wait for the state's writer, so it takes no place of those who gather.
            with _told(), closing(begin()) as batches:
                while True:
                    with self._gathers:
                        made = next(batches, None)
                    if made is None:
                        return
                    if self.stopping.is_set():
                        raise fl.FlightUnavailableError("the service is stopping")
                    batch, said = made
                    yield (batch, said.encode()) if said else batch
                    published.inc(batch.num_rows)
        finally:
            READERS.labels("flight").dec()
            self._reads.release()


_OF_PIPELINES = frozenset({ACTION_TELL, ACTION_LIST, ACTION_ORDER})


def _of_pipelines(book: PipelineBook, kind: str, body: bytes, principal: Principal) -> Any:
    if kind == ACTION_TELL:
        # Where nobody is asked who they are, all are one caller, who may take all places.
        who = "" if principal.way == "nobody" else principal.who
        return book.tell(_decoded(body, PipelineTold), principal.scope, who)
    if kind == ACTION_ORDER:
        return book.order(_decoded(body, PipelineOrder), principal.scope)
    return book.status(principal.scope)


def _require_place(reader: SyncLogReader, report: PipelineReport) -> None:
    """Raises StreamChangedError or AheadError for a place that is not of this log. Nothing holds
    the log for a report, so retention may have passed its place."""
    with suppress(TrimmedError):
        located(reader, MarkerRequest(log_id=report.log_id, sequence=report.sequence))


class FlightServer:
    """Serves a log over Flight, on threads of its own, until stopped."""

    def __init__(
        self,
        reader: SyncLogReader,
        address: str = "127.0.0.1:0",
        *,
        on_report: OnReport | None = None,
        reads_max: int = 16,
        wait_seconds: float = 5.0,
        current: CurrentState | None = None,
        access: Access | None = None,
        tls: TlsConfig | None = None,
        book: PipelineBook | None = None,
        limits: GateLimits | None = None,
    ) -> None:
        """`address` is "host:port"; port 0 takes a free one. `on_report` is called on a server
        thread, with who reported, or with `TOLD` for a pipeline of the book. More than `reads_max`
        reads at once wait; after `wait_seconds` they are refused, and clients try again. `current`
        has the current rows; None: they are refused. `access` is asked who may do what; None:
        anybody everything. `book` has what pipelines say; None: they are refused. `limits` are
        those of connections.

        Raises ConfigError for an address that others could reach without TLS and tokens.
        """
        self._access = access or Access(AccessConfig())
        self._tls = tls
        try:
            is_loopback(address)
        except ValueError as error:
            raise ConfigError(f"serve.flight: {error}. Nothing was started.") from None
        refuse_open("flight", address, tls=tls is not None, guarded=self._access.is_guarded)
        self._address = address
        self._limits = structs.replace(limits or GateLimits(), call_bytes=_CALL_BYTES)
        self._reader = reader
        self._on_report = on_report
        self._reads_max = reads_max
        self._wait_seconds = wait_seconds
        self._current = current
        self._book = book
        self._flight: _Flight | None = None
        self._gate: Gate | None = None

    def start(self) -> None:
        """Bind and serve; returns at once. Raises ConfigError if the address is taken."""
        advice = "set flight under [serve] to another address"
        bound = bind(self._address, backlog=self._limits.in_all, advice=advice)
        gate = Gate("flight", bound, self._limits)
        try:
            # Constructing serves; `serve()` would only wait, and take over the signals.
            self._flight = _Flight(
                f"{'grpc' if self._tls is None else 'grpc+tls'}://127.0.0.1:0",
                self._reader,
                self._on_report,
                self._reads_max,
                self._wait_seconds,
                self._current,
                self._access,
                self._tls,
                self._book,
                gate,
            )
        except (OSError, pa.ArrowException) as error:
            gate.stop()
            raise ConfigError(
                f"Flight cannot be served on {self._address}: {error}. Nothing was started."
            ) from error
        except BaseException:
            gate.stop()
            raise
        self._gate = gate
        gate.start(self._flight.port)

    @property
    def address(self) -> str:
        """ "host:port", with the port that was taken. Only once started."""
        assert self._gate is not None, "not started"
        return f"{self._address.rpartition(':')[0]}:{self._gate.port}"

    def stop(self, *, grace_seconds: float = 2.0) -> None:
        """End reads at their next batch (clients go on from there) and give the port back.

        Blocks for little more than `grace_seconds`: whoever takes nothing for so long is hung up
        on.
        """
        if self._flight is None:
            return
        flight, self._flight = self._flight, None
        port = flight.port
        flight.stopping.set()
        closing = threading.Thread(target=flight.shutdown, name="penstock-flight-stop")
        closing.start()
        closing.join(grace_seconds)
        if closing.is_alive():
            _hang_up(port)
            closing.join()
        assert self._gate is not None
        self._gate.stop()


def _hang_up(port: int) -> None:
    """Break the connections that this process accepted on `port`.

    Flight's shutdown waits for every call and knows no deadline, and a call waits for ever for a
    client that takes nothing.
    """
    for descriptor in Path("/dev/fd").iterdir():
        try:
            connection = socket.socket(fileno=int(descriptor.name))
        except OSError:
            continue  # no socket, or closed meanwhile
        # Whatever is closed meanwhile is closed, which is what was wanted.
        with suppress(OSError):
            address = connection.getsockname()
            if isinstance(address, tuple) and address[1] == port:
                connection.shutdown(socket.SHUT_RDWR)
        connection.detach()  # gRPC closes what is its own
