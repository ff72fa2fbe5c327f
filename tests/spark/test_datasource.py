"""`format("penstock")`: batches end at commits, and the same offsets give the same rows."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.client.flight import LogClient, PipelineReport
from penstock.errors import TrimmedError
from penstock.ports import Ancestor
from penstock.serve.flight import FlightServer
from penstock.spark.datasource import PenstockReader, PenstockStreamReader, RangePartition
from penstock.spark.options import parse_options
from penstock.spark.rows import ENTRY_SCHEMA
from penstock.wire import ARROW_SCHEMA, to_arrow
from tests.flight.blocks import BlockLog, gap, insert

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Batches = dict[int, list["Row"]]

SHAPES = {
    "single entries": [1] * 40,
    "one commit over everything": [40],
    "commits over several blocks": [15, 3, 20, 1, 1],
    "every size": [1, 9, 2, 7, 3, 8, 4, 6],
}


@pytest.fixture
def log() -> BlockLog:
    return BlockLog()


@pytest.fixture
def reports() -> list[PipelineReport]:
    return []


@pytest.fixture
def endpoint(log: BlockLog, reports: list[PipelineReport]) -> Iterator[str]:
    server = FlightServer(log, on_report=lambda said, _: reports.append(said))
    server.start()
    yield server.address
    server.stop()


Run = Callable[..., Batches]


@pytest.fixture
def run(spark: "SparkSession", endpoint: str, tmp_path: Path) -> Run:
    """Run the stream to the end of the log, on from its last run; the rows of each batch by id."""

    def run(
        *,
        checkpoint: str = "checkpoint",
        fail_in: int | None = None,
        schema: str | None = None,
        **options: Any,
    ) -> Batches:
        batches: Batches = {}

        def keep(rows: "DataFrame", batch_id: int) -> None:
            if batch_id == fail_in:
                raise RuntimeError("the sink fails")
            batches[batch_id] = rows.collect()

        reader = spark.readStream.format("penstock").option("endpoint", endpoint)
        if schema is not None:
            reader = reader.schema(schema)
        query = (
            reader.options(**({"startingOffsets": "earliest"} | options))
            .load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return batches

    return run


def append(log: BlockLog, sizes: list[int]) -> None:
    log.append([[insert(n) for n in range(size)] for size in sizes])


def sequences(batches: Batches) -> list[list[int]]:
    """Per batch that has rows, their sequences in order."""
    return [sorted(row.sequence for row in rows) for _, rows in sorted(batches.items()) if rows]


# --- what is read -------------------------------------------------------------------------------


def test_a_stream_reads_every_row_once_as_the_log_has_it(run: Run, log: BlockLog) -> None:
    append(log, [3] * 60)
    (batch,) = [rows for rows in run().values() if rows]
    expected = [row for block in log.blocks for row in to_arrow((block,)).to_pylist()]
    for row in expected:
        for name in ("check", "commit_digest", "key_hash"):
            # 64 bits, read as signed.
            row[name] -= (row[name] >> 63) << 64
    assert [row.asDict() for row in sorted(batch, key=lambda r: r.sequence)] == expected


@pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("most", [1, 8])
def test_a_batch_ends_at_a_commit_and_keeps_the_limit_where_it_can(
    run: Run, log: BlockLog, sizes: list[int], most: int
) -> None:
    if most == 1 and len(sizes) > 10:
        sizes = sizes[:5]
    append(log, sizes)
    batches = sequences(run(maxOffsetsPerTrigger=most, partitions=3))
    assert [n for batch in batches for n in batch] == list(range(1, sum(sizes) + 1))
    at = 0
    for batch in batches:
        whole: list[int] = []
        while sizes and (not whole or sum(whole) + sizes[0] <= most):
            whole.append(sizes[0])
            sizes = sizes[1:]
        at += sum(whole)
        assert batch[-1] == at


def test_a_restart_goes_on_exactly(run: Run, log: BlockLog) -> None:
    append(log, [2, 3])
    assert sequences(run()) == [[1, 2, 3, 4, 5]]
    assert sequences(run()) == []
    append(log, [4])
    assert sequences(run()) == [[6, 7, 8, 9]]


def test_a_batch_that_failed_is_replayed_with_the_same_rows(run: Run, log: BlockLog) -> None:
    append(log, [5] * 10)
    with pytest.raises(Exception, match="the sink fails"):
        run(maxOffsetsPerTrigger=10, fail_in=2)
    append(log, [5] * 10)
    batches = run(maxOffsetsPerTrigger=10_000)
    assert sorted(row.sequence for row in batches[2]) == list(range(21, 31))
    assert sorted(row.sequence for row in batches[3]) == list(range(31, 101))


def started(endpoint: str, **options: str) -> PenstockStreamReader:
    """A stream's reader as Spark makes it when a query starts, or starts again."""
    return PenstockStreamReader(
        parse_options({"endpoint": endpoint} | options, starting_default="latest"), ENTRY_SCHEMA
    )


def planned(reader: PenstockStreamReader, start: Any, end: Any) -> list[tuple[int, int]]:
    parts = [part for part in reader.partitions(start, end) if isinstance(part, RangePartition)]
    return [(part.after, part.until) for part in parts]


def test_a_first_batch_that_is_replayed_starts_where_it_started(
    log: BlockLog, endpoint: str
) -> None:
    """Spark asks again where a query starts, as long as its first batch is not done: by then
    "latest" is another place, and what lies between would be lost in silence."""
    append(log, [5])
    reader = started(endpoint)
    start = reader.initialOffset()
    append(log, [5])
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.stop()
    append(log, [5])
    again = started(endpoint)
    assert planned(again, again.initialOffset(), end) == [(5, 10)]
    assert again.latestOffset(end, ReadAllAvailable())["sequence"] == 15
    again.stop()


def test_available_now_ends_where_the_log_ended_when_it_began(log: BlockLog, endpoint: str) -> None:
    append(log, [5, 5])
    reader = started(endpoint, startingOffsets="earliest", maxOffsetsPerTrigger="7")
    reader.prepareForTriggerAvailableNow()
    append(log, [5, 5])
    limit = reader.getDefaultReadLimit()
    at, ends = reader.initialOffset(), list[int]()
    while (end := reader.latestOffset(at, limit)) != at:
        ends.append(end["sequence"])
        at = end
    reader.stop()
    assert ends == [5, 10]


def test_a_first_batch_whose_start_was_trimmed_is_an_error(run: Run, log: BlockLog) -> None:
    append(log, [5, 5])
    with pytest.raises(Exception, match="the sink fails"):
        run(fail_in=0)
    log.trim(5)
    with pytest.raises(Exception, match="removed by retention"):
        run()


def test_a_restored_log_is_followed_from_where_both_agree(run: Run, log: BlockLog) -> None:
    append(log, [5, 5])
    run()
    log.ancestors = (Ancestor(log_id=log.log_id, head=10),)
    log.log_id += 1
    append(log, [5])
    assert sequences(run()) == [[11, 12, 13, 14, 15]]


def test_a_stream_starts_where_it_is_told(run: Run, log: BlockLog) -> None:
    append(log, [2] * 5)
    marker = log.marker(4)
    named = json.dumps({"logId": f"{log.log_id:016x}", "sequence": 8})
    assert sequences(run(checkpoint="marker", startingOffsets=str(marker))) == [[5, 6, 7, 8, 9, 10]]
    assert sequences(run(checkpoint="named", startingOffsets=named)) == [[9, 10]]


def test_only_named_columns_are_read(run: Run, log: BlockLog) -> None:
    append(log, [2])
    (rows,) = run(schema="document_id STRING, sequence BIGINT").values()
    assert sorted((row.document_id, row.sequence) for row in rows) == [("0", 1), ("1", 2)]


def test_a_filter_gives_exactly_what_it_names(run: Run, log: BlockLog) -> None:
    log.append(
        [[insert(n, source=s, collection=c)] for n in range(5) for s in "ab" for c in ("x", "y")]
    )
    rows = [row for batch in run(source="a", collections="y, z").values() for row in batch]
    assert [(row.source, row.collection) for row in rows] == [("a", "y")] * 5


def test_a_pipeline_reports_how_far_it_has_come(
    run: Run, log: BlockLog, reports: list[PipelineReport]
) -> None:
    append(log, [5])
    run(pipeline="orders")
    append(log, [1])
    run(pipeline="orders")
    assert {(one.pipeline, one.log_id) for one in reports} == {("orders", log.log_id)}
    assert reports[0].sequence == 5


# --- what stops it --------------------------------------------------------------------------------


def test_p7_changes_that_retention_took_stop_the_stream_with_the_sentence(
    run: Run, log: BlockLog
) -> None:
    append(log, [2] * 10)
    run()
    append(log, [2] * 10)
    log.trim(30)
    with pytest.raises(Exception, match="the entries after this marker were removed by retention"):
        run()


def test_without_fail_on_data_loss_a_gap_row_stands_for_what_is_lost(
    run: Run, log: BlockLog
) -> None:
    append(log, [2] * 10)
    run()
    append(log, [2] * 10)
    log.trim(30)
    (rows,) = run(failOnDataLoss=False).values()
    first, *rest = sorted(rows, key=lambda row: row.sequence)
    assert (first.kind, first.operation_type, first.sequence) == (2, "gap", 30)
    assert first.check == log.trimmed_check, "a marker here must resume"
    assert json.loads(first.full_document)["from"] == 20
    assert [row.sequence for row in rest] == list(range(31, 41))


@pytest.mark.parametrize("asked", ["beginning", "marker", "sequence"])
def test_a_batch_read_from_before_what_is_left_says_what_is_missing(
    log: BlockLog, endpoint: str, asked: str
) -> None:
    append(log, [2] * 10)
    with LogClient(endpoint) as client:
        places = [client.marker(log_id=log.log_id, sequence=at) for at in (4, 8)]
    said = {
        "beginning": ["beginning", str(places[1])],
        "marker": [str(one) for one in places],
        "sequence": [json.dumps({"logId": f"{log.log_id:016x}", "sequence": at}) for at in (4, 8)],
    }[asked]
    first = 0 if asked == "beginning" else 4
    log.trim(10)

    def read(start: str, end: str, *, fails: bool) -> list[tuple[int, str]]:
        given = {"endpoint": endpoint, "startingOffsets": start, "endingOffsets": end}
        given["failOnDataLoss"] = str(fails)
        options = parse_options(given, starting_default="earliest")
        parts = PenstockReader(options, ENTRY_SCHEMA).partitions()
        reader = PenstockReader(options, ENTRY_SCHEMA)
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        lost = [row for row in rows if row["operation_type"] == "gap"]
        assert [json.loads(row["full_document"])["from"] for row in lost] == [first]
        return [(row["sequence"], row["operation_type"]) for row in rows]

    with pytest.raises(TrimmedError):
        read(said[0], "latest", fails=True)
    found = read(said[0], "latest", fails=False)
    assert found == [(10, "gap"), *((at, "insert") for at in range(11, 21))]
    assert read(said[0], said[1], fails=False) == [(8, "gap")]


def test_a_gap_stops_who_leaves_out_control_events(run: Run, log: BlockLog) -> None:
    log.append([[insert(1)], [gap()], [insert(2)]])
    with pytest.raises(Exception, match="changes were lost between the source and the log"):
        run(controlEvents=False)
    (rows,) = run(checkpoint="all").values()
    assert sorted(row.kind for row in rows) == [0, 0, 2]


def test_another_log_under_the_same_address_stops_the_stream(run: Run, log: BlockLog) -> None:
    append(log, [2] * 10)
    run()
    log.log_id += 1
    for one in ({}, {"failOnDataLoss": False}):
        with pytest.raises(Exception, match="this marker is not of this log"):
            run(**one)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endpont": "x"}, "has no option 'endpont'"),
        ({"maxOffsetsPerTrigger": "0"}, "must be a number above 0"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"startingOffsets": "yesterday"}, "not a progress marker"),
        ({"endingOffsets": "earliest"}, "a stream has no end"),
        ({"documents": "xml"}, "json, variant or struct"),
        ({"documents": "struct"}, "needs documentSchema"),
    ],
)
def test_an_option_that_says_nothing_possible_is_refused(
    run: Run, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Exception, match=sentence):
        run(**options)


def test_a_column_that_is_not_there_is_refused(run: Run, log: BlockLog) -> None:
    append(log, [1])
    with pytest.raises(Exception, match="no column 'colour'"):
        run(schema="colour STRING")
    with pytest.raises(Exception, match="column sequence is bigint, not int"):
        run(schema="sequence INT")


# --- batch, and how Spark finds it ----------------------------------------------------------------


def test_a_batch_read_has_both_ends(spark: "SparkSession", log: BlockLog, endpoint: str) -> None:
    append(log, [2] * 10)

    def between(**options: Any) -> list[int]:
        reader = spark.read.format("penstock").option("endpoint", endpoint).options(**options)
        return sorted(row.sequence for row in reader.load().select("sequence").collect())

    assert between() == list(range(1, 21))
    assert between(startingOffsets=str(log.marker(4)), endingOffsets=str(log.marker(8))) == [
        5, 6, 7, 8,
    ]  # fmt: skip
    assert between(startingOffsets="latest") == []
    assert between(partitions=5) == list(range(1, 21))


def test_spark_finds_the_source_by_itself_and_by_register(
    spark: "SparkSession", log: BlockLog, endpoint: str
) -> None:
    from penstock.spark import register

    append(log, [1])
    reader = spark.read.format("penstock").option("endpoint", endpoint)
    assert reader.load().columns == ARROW_SCHEMA.names
    register(spark)
    assert reader.load().count() == 1


def test_a_report_that_cannot_be_sent_is_no_error_of_the_query() -> None:
    """It is for `penstock status` only."""
    options = parse_options(
        {"endpoint": "127.0.0.1:1", "pipeline": "p"}, starting_default="earliest"
    )
    reader = PenstockStreamReader(options, ENTRY_SCHEMA)
    reader.commit({"logId": f"{1:016x}", "sequence": 5, "check": 0})
