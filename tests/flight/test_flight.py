"""Flight: ranges of the log as columns, whole or with the error that says why not."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownVariableType=false

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.flight import LogClient, PipelineReport, PlanRequest, ReadRequest
from penstock.errors import (
    AheadError,
    ConfigError,
    GapError,
    RequestError,
    ServiceBusyError,
    ServiceUnavailableError,
    StreamChangedError,
    TrimmedError,
)
from penstock.ports import SourceState
from penstock.progress import Progress, parse_progress
from penstock.serve.flight import FlightServer, covered_batches, plan
from penstock.telemetry import SERVE_REGISTRY
from penstock.wire import ARROW_SCHEMA, Block, to_arrow
from tests.flight.blocks import BlockLog, gap, insert

Serve = Callable[..., FlightServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that the test's end stops."""
    servers: list[FlightServer] = []

    def start(log: BlockLog, address: str = "127.0.0.1:0", **options: Any) -> FlightServer:
        server = FlightServer(log, address, **options)
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


def numbered(sizes: Sequence[int], *, block_events: int = 7) -> BlockLog:
    """A log whose commits have these sizes."""
    log = BlockLog(block_events=block_events)
    log.append([[insert(i) for i in range(size)] for size in sizes])
    return log


def ends_of(sizes: Sequence[int]) -> list[int]:
    ends: list[int] = []
    for size in sizes:
        ends.append(size + (ends[-1] if ends else 0))
    return ends


def request(log: BlockLog, **fields: Any) -> ReadRequest:
    whole: dict[str, Any] = {"log_id": log.log_id, "after": 0, "until": log.head}
    return ReadRequest(**(whole | fields))


def read(log: BlockLog, client: LogClient, **fields: Any) -> pa.Table:
    batches = list(client.read(request(log, **fields)))
    assert all(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches) if batches else ARROW_SCHEMA.empty_table()


SIZES = st.lists(st.integers(1, 25), min_size=1, max_size=25)


@given(SIZES, st.integers(1, 40), st.integers(1, 9))
def test_a_plan_never_cuts_a_commit_and_keeps_the_limit_where_it_can(
    sizes: list[int], events_max: int, block_events: int
) -> None:
    log, ends = numbered(sizes, block_events=block_events), ends_of(sizes)
    at = log.marker(0)
    while at.sequence < log.head:
        to = plan(log, PlanRequest(after=at, events_max=events_max)).to
        fitting = [end for end in ends if at.sequence < end <= at.sequence + events_max]
        first = next(end for end in ends if end > at.sequence)
        assert to == log.marker(fitting[-1] if fitting else first)
        at = to
    assert plan(log, PlanRequest(after=at, events_max=events_max)).to == at


@given(SIZES, st.integers(1, 9), st.integers(1, 12), st.data())
def test_ranges_meet_at_block_ends_and_make_up_the_whole(
    sizes: list[int], block_events: int, partitions: int, data: st.DataObject
) -> None:
    log = numbered(sizes, block_events=block_events)
    after = data.draw(st.integers(0, log.head - 1))
    planned = plan(log, PlanRequest(after=log.marker(after), partitions_max=partitions))
    edges = [after, *planned.splits, planned.to.sequence]
    assert len(edges) - 1 <= partitions
    assert edges == sorted(set(edges))
    assert set(planned.splits) <= {block.last_sequence for block in log.blocks}
    rows: list[int | None] = [
        sequence
        for low, high in pairwise(edges)
        for batch, _ in covered_batches(log, request(log, after=low, until=high))
        for sequence in batch.column("sequence").to_pylist()
    ]
    assert rows == list(range(after + 1, log.head + 1))


@given(SIZES, st.integers(1, 9), st.integers(1, 1 << 16), st.data())
def test_any_range_in_any_batches_is_exact_and_says_how_far_it_covers(
    sizes: list[int], block_events: int, batch_bytes: int, data: st.DataObject
) -> None:
    log = numbered(sizes, block_events=block_events)
    after = data.draw(st.integers(0, log.head))
    until = data.draw(st.integers(after, log.head))
    wanted = request(log, after=after, until=until, batch_bytes=batch_bytes)
    covered = after
    for batch, to in covered_batches(log, wanted):
        assert batch.column("sequence").to_pylist() == list(range(covered + 1, to + 1))
        covered = to
    assert covered == until


def test_rows_are_the_entries(serve: Serve) -> None:
    log = numbered([3, 1, 40])
    with LogClient(serve(log).address) as client:
        table = read(log, client)
    assert table.schema == ARROW_SCHEMA
    assert table.equals(pa.Table.from_batches([to_arrow((block,)) for block in log.blocks]))


def test_columns_come_as_asked_for(serve: Serve) -> None:
    log = numbered([3])
    with LogClient(serve(log).address) as client:
        table = read(log, client, columns=("key", "sequence"))
    assert table.column_names == ["key", "sequence"]
    with LogClient(serve(log).address) as client, pytest.raises(RequestError, match="colour"):
        read(log, client, columns=("colour",))


MIXED = [
    ("shop", "orders"),
    ("shop", "customers"),
    ("crm", "orders"),
    ("crm", "notes"),
]


@pytest.mark.parametrize(
    ("source", "collections", "wanted"),
    [
        ("", (), MIXED),
        ("shop", (), MIXED[:2]),
        ("", ("orders",), [MIXED[0], MIXED[2]]),
        ("", ("crm/orders", "customers"), [MIXED[1], MIXED[2]]),
        ("shop", ("orders", "notes"), [MIXED[0]]),
        ("nobody", (), []),
    ],
)
def test_a_filter_gives_exactly_what_it_names(
    serve: Serve, source: str, collections: tuple[str, ...], wanted: list[tuple[str, str]]
) -> None:
    log = BlockLog(block_events=3)
    log.append([[insert(n, source=s, collection=c) for s, c in MIXED] for n in range(20)])
    with LogClient(serve(log).address) as client:
        table = read(log, client, source=source, collections=collections)
    streams = list(zip(table["source"].to_pylist(), table["collection"].to_pylist(), strict=True))
    assert streams == [stream for _ in range(20) for stream in MIXED if stream in wanted]


def test_a_filter_that_matches_nothing_still_covers_the_range(serve: Serve) -> None:
    log = numbered([10] * 10)
    with LogClient(serve(log).address) as client:
        covered = [to for _, to in client.read_covered(request(log, source="nobody"))]
    assert covered[-1] == log.head


def test_a_gap_passes_every_filter_of_its_source(serve: Serve) -> None:
    log = BlockLog()
    log.append([[insert(1)], [gap()], [insert(2)]])
    with LogClient(serve(log).address) as client:
        assert read(log, client, collections=("nothing",))["kind"].to_pylist() == [2]
        assert read(log, client, source="crm").num_rows == 0


def test_without_control_events_a_gap_ends_the_read_behind_what_stands_before_it(
    serve: Serve,
) -> None:
    log = BlockLog()
    log.append([[insert(1), insert(2)], [gap()], [insert(3)]])
    with LogClient(serve(log).address) as client:
        batches = client.read(request(log, control_events=False))
        assert next(batches).column("sequence").to_pylist() == [1, 2]
        with pytest.raises(GapError, match="changes were lost") as raised:
            next(batches)
        after = parse_progress(raised.value.after).sequence
        rest = read(log, client, control_events=False, after=after)
    assert rest["sequence"].to_pylist() == [4]


# --- what a reader that cannot go on is told ----------------------------------------------------


def test_p7_a_trimmed_place_is_an_error_with_the_oldest_marker_and_the_watermark_is_not(
    serve: Serve,
) -> None:
    log = numbered([2] * 30)
    before, at = log.marker(19), log.marker(20)
    log.trim(20)
    with LogClient(serve(log).address) as client:
        with pytest.raises(TrimmedError, match="removed by retention") as raised:
            client.plan(after=before)
        assert parse_progress(raised.value.oldest) == at
        assert client.plan(after=at).to == log.marker(60)
        with pytest.raises(TrimmedError):
            read(log, client, after=19)
        assert read(log, client, after=20).num_rows == 40


def test_a_marker_of_another_log_or_of_another_entry_is_stream_changed(serve: Serve) -> None:
    log = numbered([2] * 3)
    with LogClient(serve(log).address) as client:
        for marker in (Progress(99, 2, log.marker(2).check), Progress(log.log_id, 2, 1)):
            with pytest.raises(StreamChangedError, match="not of this log"):
                client.plan(after=marker)
        with pytest.raises(StreamChangedError):
            read(log, client, log_id=99)


def test_a_place_beyond_the_head_is_ahead(serve: Serve) -> None:
    log = numbered([2] * 3)
    with LogClient(serve(log).address) as client:
        with pytest.raises(AheadError, match="stands at sequence 7, but the log ends at 6"):
            client.plan(after=Progress(log.log_id, 7, 0))
        with pytest.raises(AheadError):
            read(log, client, until=7)
        with pytest.raises(AheadError):
            client.marker(log_id=log.log_id, sequence=7)


def test_a_request_that_is_none_is_refused(serve: Serve) -> None:
    client = fl.connect(f"grpc://{serve(numbered([1])).address}")
    for kind, body in (("plan", b"{}"), ("plan", b"{"), ("dance", b"")):
        with pytest.raises(fl.FlightServerError) as raised:
            list(client.do_action(fl.Action(kind, body)))
        assert b'"code":"request"' in bytes(raised.value.extra_info)
    client.close()


def test_a_fault_of_the_service_is_told_without_its_text(serve: Serve) -> None:
    class Broken(BlockLog):
        def read_now(self, **_: Any) -> list[Block]:
            raise ValueError("the card number is 4111")

    log = Broken()
    log.append([[insert(1)]])
    with LogClient(serve(log).address) as client:
        with pytest.raises(fl.FlightInternalError) as raised:
            read(log, client)
        assert "4111" not in str(raised.value)


# --- the wire breaks ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_read_goes_on_behind_the_last_batch_when_the_service_comes_back(serve: Serve) -> None:
    log = numbered([5] * 2000)
    first = serve(log)
    with LogClient(first.address) as client:
        rows = client.read(request(log, batch_bytes=1))
        got: list[int | None] = next(rows).column("sequence").to_pylist()
        first.stop()
        reads_before = log.reads
        serve(log, client.endpoint)
        for batch in rows:
            got += batch.column("sequence").to_pylist()
    assert log.reads > reads_before
    assert got == list(range(1, log.head + 1))


def test_a_service_that_stays_away_is_an_error_that_says_so(serve: Serve) -> None:
    server = serve(numbered([1]))
    with LogClient(server.address, patience_seconds=0) as client:
        client.bounds()
        server.stop()
        with pytest.raises(ServiceUnavailableError, match="Nothing was lost"):
            client.bounds()


@pytest.mark.slow
def test_reads_beyond_the_limit_are_refused_and_one_that_is_left_makes_room(serve: Serve) -> None:
    log = numbered([5] * 4000)
    server = serve(log, reads_max=1, wait_seconds=0)
    with LogClient(server.address) as one, LogClient(server.address, patience_seconds=0) as two:
        held = one.read(request(log, batch_bytes=1))
        next(held)
        with pytest.raises(ServiceBusyError):
            read(log, two)
        held.close()  # type: ignore[attr-defined]
        with LogClient(server.address, patience_seconds=30) as patient:
            assert read(log, patient).num_rows == log.head
    server.stop()
    assert SERVE_REGISTRY.get_sample_value("penstock_readers", {"protocol": "flight"}) == 0


def test_a_reader_that_takes_nothing_does_not_hold_the_stop(serve: Serve) -> None:
    log = BlockLog(block_events=50)
    document = {"text": "x" * 20_000}
    log.append([[insert(n, document=document) for n in range(50)] for _ in range(60)])
    server = serve(log)
    with LogClient(server.address, patience_seconds=0) as client:
        batches = client.read(request(log))
        next(batches)
        server.stop(grace_seconds=0.1)
        with pytest.raises(ServiceUnavailableError):
            list(batches)
    # What could not be sent was not read.
    assert log.reads < len(log.blocks)


@pytest.mark.slow
def test_a_read_asks_the_log_only_as_fast_as_it_is_taken() -> None:
    log = numbered([5] * 4000)
    batches = covered_batches(log, request(log, batch_bytes=1))
    next(batches)
    assert log.reads <= 1


# --- the door -------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.7:50052", "example.org:1", "50052", ""])
def test_an_address_that_others_could_reach_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1"):
        FlightServer(BlockLog(), address)


def test_a_taken_address_is_refused(serve: Serve) -> None:
    taken = serve(BlockLog()).address
    with pytest.raises(ConfigError, match="Nothing was started"):
        FlightServer(BlockLog(), taken).start()


def test_a_pipelines_report_reaches_the_service(serve: Serve) -> None:
    heard: list[PipelineReport] = []
    told = threading.Event()

    def on_report(report: PipelineReport, _: str) -> None:
        heard.append(report)
        told.set()

    log = numbered([7])
    with LogClient(serve(log, on_report=on_report).address) as client:
        log_id = client.bounds().log_id
        sent = PipelineReport(pipeline="orders", log_id=log_id, sequence=7, batch_id=3)
        client.report(sent)
    assert heard == [sent]


def test_where_a_source_stands_is_told(serve: Serve) -> None:
    log = BlockLog()
    told = {"commits": 1, "events": 1, "last_timestamp": 1, "moved_at": 1}
    log.sources = [SourceState(source="shop", position="p7", **told)]
    with LogClient(serve(log).address) as client:
        assert client.position("shop") == "p7"
        assert client.position("other") is None
