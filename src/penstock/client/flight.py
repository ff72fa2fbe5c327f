"""Read ranges of the log over Arrow Flight: the bulk door, for Spark and other batch readers.

The messages of the protocol stand here, because the server looks down at its client. Requests and
answers are JSON; rows are Arrow batches of `wire.ARROW_SCHEMA`, columns in the order asked for.

    action bounds  -                what the log holds                        -> Bounds
    action plan    PlanRequest      where a read may end, and how to split it -> Plan
    action marker  MarkerRequest    the marker of one entry                   -> Progress
    action report  PipelineReport   how far a pipeline has come               -> nothing
    action access  nothing          who asks, and whether they see everything -> Seen
    get            ReadRequest      the entries of one range                  -> RecordBatches
    get            RowsRequest      the current rows                          -> RecordBatches

Those of pipelines are told in `penstock.client.pipelines`.

Every batch of a range carries, as its metadata, the sequence up to which the range is covered; so a
read that broke off goes on from there, and a filter that matches nothing still moves (invariant 5).
The last batch of current rows is empty and carries the marker to follow from.
"""

import random
import time
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
from msgspec import Struct

from penstock import errors
from penstock.client.credentials import NOBODY, Credentials
from penstock.client.pipelines import (
    ACTION_LIST,
    ACTION_ORDER,
    ACTION_TELL,
    PipelineAnswer,
    PipelineOrder,
    PipelineStatus,
    PipelineTold,
)
from penstock.errors import (
    ForbiddenError,
    LogCorruptError,
    PenstockError,
    RequestError,
    ServiceUnavailableError,
)
from penstock.ports import Bounds
from penstock.progress import Progress, parse_progress
from penstock.subscribe.current import Declared

ACTION_BOUNDS: Final = "bounds"
ACTION_PLAN: Final = "plan"
ACTION_MARKER: Final = "marker"
ACTION_REPORT: Final = "report"
ACTION_ACCESS: Final = "access"
ACTION_POSITION: Final = "position"
ACTION_DECLARED: Final = "declared"

_declared: Final = msgspec.json.Decoder(list[Declared] | None)
_Reply = TypeVar("_Reply")


class PlanRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where may a read of the entries after `after` end?"""

    after: Progress
    events_max: int | None = None
    """The end is that of the last commit within so many entries, or of the first commit if that
    alone has more: a commit is never cut (invariant 3). None: no limit."""
    until: Progress | None = None
    """An end that is known already, or an upper bound; None: the head."""
    partitions_max: int = 1
    """Into how many ranges the read may be split."""
    partition_events_min: int = 1
    """A range is not split below so many entries."""


class MarkerRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is the marker of the entry at `sequence` of log `log_id`?"""

    log_id: int
    sequence: int


class Plan(Struct, frozen=True, kw_only=True, rename="camel"):
    """One read, planned."""

    after: Progress
    """The place asked for, as this log names it: a log restored from another one says so."""
    to: Progress
    """The end of a commit; equal to `after` when there is nothing to read."""
    splits: list[int]
    """Ascending sequences strictly inside (after, to), each the last of its block: where one
    range ends and the next begins."""
    head: int


class ReadRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """The entries of (after, until] in log `log_id`, filtered and projected."""

    log_id: int
    after: int
    until: int
    source: str = ""
    """Only this source's; empty = all."""
    collections: tuple[str, ...] = ()
    """Only these, as "collection" or "source/collection"; empty = all. An event that
    names no collection, such as a gap, concerns whoever may follow something of its source."""
    columns: tuple[str, ...] = ()
    """Names of ARROW_SCHEMA; empty = all."""
    control_events: bool = True
    """False leaves out schema and system events; a gap then ends the read with GAP."""
    batch_bytes: int = 2 << 20
    """Batches are gathered to about so many bytes."""


class RowsRequest(Struct, frozen=True, kw_only=True, rename="camel", tag_field="get", tag="rows"):
    """The current rows, projected. What only an entry has (commit, check, ...) is null."""

    source: str = ""
    collections: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    batch_bytes: int = 2 << 20
    """As in ReadRequest."""


class SourcePosition(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a source stands in the log; without a position a question, or that it has none."""

    source: str
    position: str | None = None


class DeclaredRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """What does a source declare of its collections at a place of the log?"""

    source: str
    sequence: int


class PipelineReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """How far a pipeline has come: all entries up to `sequence` are in its target."""

    pipeline: str
    sequence: int
    log_id: int
    batch_id: int | None = None


class Seen(Struct, frozen=True, kw_only=True, rename="camel"):
    """Who asks, as the service knows them."""

    name: str
    """Empty where nobody is asked."""
    partial: bool
    """They do not see everything: entries, or parts of them, are left out, and no commit can be
    proven complete (`check`, `commit_rows` and `commit_digest` are null)."""
    whole_sources: tuple[str, ...] = ()
    """The sources of which they see everything all the same."""

    def shows_all_of(self, source: str) -> bool:
        """Whether commits of `source` can be proven complete."""
        return not self.partial or source in self.whole_sources


class WireError(Struct, frozen=True, kw_only=True, rename="camel"):
    """An error of the tree on its way: what its class needs to be the same on the other side."""

    code: str
    sentence: str
    facts: dict[str, str] = {}


def _classes(root: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield root
    for child in root.__subclasses__():
        yield from _classes(child)


_CLASSES: Final = {one.code: one for one in _classes(errors.PenstockError)}


def to_wire(error: PenstockError) -> bytes:
    """What a Flight error carries as extra info."""
    facts = {name: value for name, value in vars(error).items() if isinstance(value, str)}
    return msgspec.json.encode(WireError(code=error.code, sentence=str(error), facts=facts))


def from_wire(extra: bytes) -> PenstockError | None:
    """The error that `to_wire` wrote, of the same class; None if it wrote none."""
    try:
        wire = msgspec.json.decode(extra, type=WireError)
    except msgspec.DecodeError:
        return None
    kind = _CLASSES.get(wire.code, PenstockError)
    # The constructors build sentences from facts; the sentence is here already.
    error = kind.__new__(kind)
    Exception.__init__(error, wire.sentence)
    vars(error).update(wire.facts)
    return error


class LogClient:
    """Follows nothing, holds nothing: asks a log for ranges, and asks again if the wire breaks.

    Sync, for workers. One client belongs to one thread; connecting is lazy and cheap. Each call
    retries a service that does not answer for `patience_seconds`, then raises
    ServiceUnavailableError. Errors of penstock.errors come as their own classes and are
    not retried unless transient.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        patience_seconds: float = 30.0,
        call_seconds: float = 30.0,
        credentials: Credentials = NOBODY,
    ) -> None:
        """`endpoint` is "host:port" of the service's Flight address. Raises ConfigError rather than
        send a token in the clear."""
        self.endpoint = endpoint
        self._patience_seconds = patience_seconds
        self._credentials = credentials
        # The stubs say text; pyarrow takes bytes.
        headers: list[Any] = [
            (name.encode(), value.encode()) for name, value in credentials.headers(endpoint)
        ]
        self._options = fl.FlightCallOptions(timeout=call_seconds, headers=headers)
        self._headers = fl.FlightCallOptions(headers=headers)
        self._seen: Seen | None = None
        self._client: fl.FlightClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back. The client may be used again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def bounds(self) -> Bounds:
        """What the log holds now."""
        return self._bounds()

    def live_bounds(self) -> Bounds:
        """What the log itself holds now, whatever is kept beside it."""
        return self._bounds()

    def head(self) -> Progress:
        """Where the log ends now."""
        bounds = self._bounds()
        return Progress(bounds.log_id, bounds.head, bounds.head_check)

    def _bounds(self) -> Bounds:
        return _decoded(self._action(ACTION_BOUNDS, None), Bounds)

    def plan(
        self,
        *,
        after: Progress,
        events_max: int | None = None,
        until: Progress | None = None,
        partitions_max: int = 1,
        partition_events_min: int = 1,
    ) -> Plan:
        """Where a read after `after` may end, always the end of a commit; see PlanRequest.

        Raises TrimmedError, StreamChangedError or AheadError if the log cannot go on from there.
        """
        request = PlanRequest(
            after=after,
            events_max=events_max,
            until=until,
            partitions_max=partitions_max,
            partition_events_min=partition_events_min,
        )
        return _decoded(self._action(ACTION_PLAN, request), Plan)

    def marker(self, *, log_id: int, sequence: int) -> Progress:
        """The marker of the entry at `sequence`, in the log as it is now. Raises as `plan` does.

        Ask while you read, and keep the marker: a sequence that was kept alone proves nothing of a
        log that was put back from an older copy meanwhile (record 0040).
        """
        request = MarkerRequest(log_id=log_id, sequence=sequence)
        return _decoded(self._action(ACTION_MARKER, request), Progress)

    def position(self, source: str) -> str | None:
        """The position up to which the log holds a source's changes; None before the first.

        The log's head, asked for afterwards, is at or behind all of them. Raises PartialViewError
        unless we may see everything of the source.
        """
        asked = SourcePosition(source=source)
        return _decoded(self._action(ACTION_POSITION, asked), SourcePosition).position

    def declared(self, source: str, *, at: int) -> list[Declared] | None:
        """What a source declares of its collections at a sequence, as far as that is known; None
        while the service's current rows have not come that far: see `CurrentState.declared`.
        Nothing is where the service keeps none, or is older.

        Raises PartialViewError unless we may see everything of the source.
        """
        asked = DeclaredRequest(source=source, sequence=at)
        try:
            found: list[Declared] | None = _declared.decode(self._action(ACTION_DECLARED, asked))
        except (RequestError, ForbiddenError):
            return []  # of a service that does not know the question
        return found

    def report(self, report: PipelineReport) -> None:
        """Tell the service how far a pipeline has come, for `penstock status`."""
        self._action(ACTION_REPORT, report)

    def tell(self, told: PipelineTold) -> PipelineAnswer:
        """Say how a pipeline is; its place holds the log once this returns.

        Raises PartialViewError unless we may see everything of its source, StreamChangedError or
        AheadError for a place that is not of this log.
        """
        return _decoded(self._action(ACTION_TELL, told), PipelineAnswer)

    def pipelines(self) -> list[PipelineStatus]:
        """How the pipelines are of whose sources we may see something; by name."""
        return _decoded(self._action(ACTION_LIST, None), list[PipelineStatus])

    def order(self, order: PipelineOrder) -> None:
        """Have a pipeline stopped or forgotten. Raises RequestError for one that is not known, or
        whose state does not allow it, and ForbiddenError without the verb admin."""
        self._action(ACTION_ORDER, order)

    def seen(self) -> Seen:
        """Who we are to the service, and whether we see everything."""
        return _decoded(self._action(ACTION_ACCESS, None), Seen)

    def read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        """The rows of a range, in log order; never an empty batch. Whole, or an error.

        A connection that breaks is taken up again behind the last batch. Raises TrimmedError if
        retention overtakes the read, StreamChangedError if the log is another one, AheadError if
        it ends before `until`, GapError for who leaves out control events.
        """
        for batch, _ in self.read_covered(request):
            if batch.num_rows:
                yield batch

    def read_covered(self, request: ReadRequest) -> Iterator[tuple[pa.RecordBatch, int]]:
        """As `read`, each batch with the sequence up to which it covers the range.

        A batch may be empty: the filter matched nothing up to there.
        """
        whole = not request.source and not request.collections and request.control_events
        if whole and self._credentials.are_shown:
            self._seen = self._seen or self.seen()
            whole = not self._seen.partial
        covered = request.after
        retry = _Retry(self.endpoint, self._patience_seconds)
        while covered < request.until:
            rest = msgspec.structs.replace(request, after=covered)
            stream: fl.FlightStreamReader | None = None
            try:
                stream = self._stream(rest)
                for chunk in stream:
                    batch = chunk.data
                    assert batch is not None
                    assert chunk.app_metadata is not None
                    before, covered = covered, int(chunk.app_metadata.to_pybytes())
                    if whole and batch.num_rows != covered - before:
                        raise LogCorruptError(
                            f"the service sent {batch.num_rows} rows for ({before}, "
                            f"{covered}], which holds {covered - before}. Please report it."
                        )
                    retry.succeeded()
                    yield batch, covered
                if covered < request.until:
                    raise LogCorruptError(
                        f"the service ended a read of ({request.after}, {request.until}] at "
                        f"{covered}. Nothing was skipped. Please report it."
                    )
            except fl.FlightError as error:
                self._failed(error, retry)
            finally:
                # Whoever stops early must not leave the service sending.
                if stream is not None:
                    stream.cancel()

    def _stream(self, request: ReadRequest | RowsRequest) -> fl.FlightStreamReader:
        ticket = msgspec.json.encode(request)
        if len(ticket) > _FIRST_BYTES_MAX:
            # A service takes little from a connection that it has let nothing in of.
            self.live_bounds()
        return self._connected().do_get(fl.Ticket(ticket), self._headers)

    def rows(self, request: RowsRequest) -> Generator[pa.RecordBatch, None, Progress]:
        """The current rows, each once, as of one place; returns that place, to follow from.

        A break on the way is an error (ServiceUnavailableError): what came is not whole. Raises
        StateIncompleteError if rows may be missing, RequestError if the service keeps none.
        """
        stream: fl.FlightStreamReader | None = None
        try:
            stream = self._stream(request)
            for chunk in stream:
                if chunk.app_metadata is not None:
                    return parse_progress(chunk.app_metadata.to_pybytes().decode())
                assert chunk.data is not None
                yield chunk.data
            raise LogCorruptError(
                "the service ended the current rows without a marker, so they are not whole. "
                "Please report it."
            )
        except fl.FlightError as error:
            known = from_wire(bytes(error.extra_info or b""))
            if known is None and isinstance(error, _TRANSIENT):
                known = ServiceUnavailableError(
                    f"the Penstock service at {self.endpoint} broke off ({type(error).__name__}). "
                    f"The rows that came are not whole: throw them away and begin anew."
                )
            raise known or error from None
        finally:
            if stream is not None:
                stream.cancel()

    def _action(self, name: str, request: Struct | None) -> bytes:
        body = b"" if request is None else msgspec.json.encode(request)
        retry = _Retry(self.endpoint, self._patience_seconds)
        while True:
            try:
                (result,) = self._connected().do_action(fl.Action(name, body), self._options)
                return result.body.to_pybytes()
            except fl.FlightError as error:
                self._failed(error, retry)

    def _connected(self) -> fl.FlightClient:
        if self._client is None:
            shown = self._credentials
            proof: dict[str, Any] = {"tls_root_certs": shown.ca} if shown.ca else {}
            if shown.certificate:
                proof |= {"cert_chain": shown.certificate, "private_key": shown.key}
            scheme = "grpc+tls" if shown.ca else "grpc"
            connect: Any = fl.connect
            self._client = connect(f"{scheme}://{self.endpoint}", generic_options=_CHANNEL, **proof)
        assert self._client is not None
        return self._client

    def _failed(self, error: fl.FlightError, retry: "_Retry") -> None:
        """Raise what is final; wait and return for what is worth another try."""
        known = from_wire(bytes(error.extra_info or b""))
        if known is not None and not known.transient:
            raise known from None
        if known is None and not isinstance(error, _TRANSIENT):
            raise error
        self.close()
        retry.wait(known or error)


_TRANSIENT: Final = (fl.FlightUnavailableError, fl.FlightTimedOutError, fl.FlightCancelledError)
_FIRST_BYTES_MAX: Final = 2 << 10
"""Of a request that may be a connection's first: with what is sent beside it, it is less than
[serve.connections] first_bytes, which is 4 KiB at least."""
_CHANNEL: Final[list[tuple[str, int | str]]] = [
    # A proxy is for the web; a log is a neighbour.
    ("grpc.enable_http_proxy", 0),
    # A peer that vanished without a word is noticed even by a read that only listens (S15).
    # gRPC servers hang up on whoever asks more often than every five minutes.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


def _decoded(body: bytes, kind: type[_Reply]) -> _Reply:
    return msgspec.json.decode(body, type=kind)


class _Retry:
    """Waits longer each time, with jitter, until patience ends; progress renews it."""

    def __init__(
        self, endpoint: str, patience_seconds: float, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._endpoint = endpoint
        self._patience_seconds = patience_seconds
        self._sleep = sleep
        self.succeeded()

    def succeeded(self) -> None:
        self._failed_at: float | None = None
        self._wait_seconds = 0.05

    def wait(self, error: Exception) -> None:
        """Wait a little. Once patience has ended, raises what the service said, or, if it said
        nothing, ServiceUnavailableError."""
        now = time.monotonic()
        if self._failed_at is None:
            self._failed_at = now
        if now - self._failed_at >= self._patience_seconds:
            if isinstance(error, PenstockError):
                raise error
            raise ServiceUnavailableError(
                f"the Penstock service at {self._endpoint} has not answered for "
                f"{self._patience_seconds:g} s ({type(error).__name__}). Nothing was lost: what "
                f"you saved is where the next read begins. Check that `penstock run` is up and "
                f"that the endpoint is its Flight address."
            ) from error
        self._sleep(self._wait_seconds * random.uniform(0.5, 1.0))
        self._wait_seconds = min(2.0, self._wait_seconds * 2)
