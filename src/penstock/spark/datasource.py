"""`format("penstock")`: the log as a Spark stream, or a range of it as a batch.

    spark.readStream.format("penstock").option("endpoint", "127.0.0.1:50052").load()

The driver plans: a batch is (start, end], both ends of commits (invariant 3), and is split at block
boundaries. Workers fetch Arrow batches over Flight and hand them to Spark as they are. The same
offsets give the same rows for as long as the log holds them; after that the query stops with
TRIMMED, unless `archive` says where the rest is, or `failOnDataLoss` is false. A log that was
replaced or restored stops it always.

Spark gives Python sources neither the columns that a query uses nor its filters. Whoever wants few
columns names them with `.schema("sequence BIGINT, ...")`; filters are options.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import structlog
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.archive.opening import log_client
from penstock.client.flight import LogClient, PipelineReport, Plan, ReadRequest
from penstock.errors import ConfigError, ForbiddenError, PenstockError, TrimmedError
from penstock.programs import end_with_parent
from penstock.progress import Progress
from penstock.spark.options import (
    Options,
    first_of,
    noted,
    offset_of,
    parse_options,
    place_of,
    resolve,
    unverified,
)
from penstock.spark.rows import RowFormat, gap_row, schema_of

log = structlog.get_logger()

_PARTITIONS_MAX: Final = 8
_PARTITION_EVENTS_MIN: Final = 20_000
"""A task costs tens of milliseconds, in which so many entries are read."""


class RangePartition(InputPartition):
    """The entries of (after, until]: one task."""

    def __init__(self, log_id: int, after: int, until: int) -> None:
        super().__init__((log_id, after, until))
        self.log_id = log_id
        self.after = after
        self.until = until


class PenstockDataSource(DataSource):
    """What `format("penstock")` means; options are described in `penstock.spark.options`."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType | str:
        return schema_of(parse_options(self.options, starting_default="earliest"))

    def reader(self, schema: StructType) -> "PenstockReader":
        options = parse_options(self.options, starting_default="earliest")
        if options.max_offsets_per_trigger is not None:
            raise ConfigError(
                "option maxOffsetsPerTrigger is for streams; a batch read has endingOffsets. "
                "Nothing was read."
            )
        return PenstockReader(options, schema)

    def streamReader(self, schema: StructType) -> "PenstockStreamReader":
        options = parse_options(self.options, starting_default="latest")
        if options.ending_offsets != "latest":
            raise ConfigError(
                "option endingOffsets is for batch reads; a stream has no end. Nothing was read."
            )
        return PenstockStreamReader(options, schema)


class _Planner:
    """Plans on the driver, with a client of its own, made when first needed."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._client: LogClient | None = None

    @property
    def client(self) -> LogClient:
        if self._client is None:
            shown = self.options.credentials
            self._client = log_client(
                self.options.endpoint, archive=self.options.archive, credentials=shown
            )
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def __getstate__(self) -> dict[str, Any]:
        # A connection stays in its process.
        return {"options": self.options, "_client": None}

    def place(self, asked: str) -> Progress:
        """As `resolve`; one that retention has passed is as it was said, if the options say so."""
        try:
            return resolve(self.client, asked)
        except TrimmedError:
            if self.options.fail_on_data_loss:
                raise
        # Whoever reads from here is told what is missing.
        return unverified(self.client, asked)

    def end(self, after: Progress, events_max: int | None, until: Progress | None) -> Progress:
        """Where the batch after `after` ends. Retention is passed only if the options say so."""
        try:
            return self.client.plan(after=after, events_max=events_max, until=until).to
        except TrimmedError:
            if self.options.fail_on_data_loss:
                raise
        oldest = resolve(self.client, "earliest")
        if until is not None and until.sequence <= oldest.sequence:
            return until
        return self.client.plan(after=oldest, events_max=events_max, until=until).to

    def partitions(self, after: Progress, until: Progress) -> list[InputPartition]:
        """The ranges that make up (after, until]; empty if there is nothing."""
        if until.sequence <= after.sequence:
            return []
        plan = self._split(after, until)
        edges = [after.sequence, *plan.splits, until.sequence]
        return [RangePartition(plan.to.log_id, low, high) for low, high in pairwise(edges)]

    def _split(self, after: Progress, until: Progress) -> Plan:
        wanted = self.options.partitions
        most, least = (wanted, 1) if wanted else (_PARTITIONS_MAX, _PARTITION_EVENTS_MIN)
        try:
            return self.client.plan(
                after=after, until=until, partitions_max=most, partition_events_min=least
            )
        except TrimmedError:
            if self.options.fail_on_data_loss:
                raise
        oldest = resolve(self.client, "earliest")
        if until.sequence <= oldest.sequence:
            return Plan(after=after, to=until, splits=[], head=oldest.sequence)
        plan = self.client.plan(
            after=oldest, until=until, partitions_max=most, partition_events_min=least
        )
        # The lost part is a range of its own, for which the worker writes the gap.
        return msgspec.structs.replace(plan, splits=[oldest.sequence, *plan.splits])


class _RangeReader:
    """Reads one range in a worker, and hands it to Spark."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._format = RowFormat(options, schema)

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        """The rows of the range, in order."""
        schema = self._format.arrow_schema()
        with noted():
            for batch in self._batches(partition):
                if batch.num_rows:
                    yield self._format.convert(batch, schema)

    def _batches(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        options, columns = self._options, self._format.columns
        covered, until, log_id = partition.after, partition.until, partition.log_id
        with log_client(
            options.endpoint, archive=options.archive, credentials=options.credentials
        ) as client:
            while covered < until:
                request = ReadRequest(
                    log_id=log_id,
                    after=covered,
                    until=until,
                    source=options.source,
                    collections=options.collections,
                    columns=columns,
                    control_events=options.control_events,
                )
                try:
                    for batch, covered in client.read_covered(request):  # noqa: B007
                        yield batch
                except TrimmedError:
                    if options.fail_on_data_loss:
                        raise
                    bounds = client.bounds()
                    lost = min(until, max(bounds.trimmed, covered + 1))
                    check = bounds.trimmed_check if lost == bounds.trimmed else 0
                    yield gap_row(
                        log_id=log_id, after=covered, until=lost, check=check, columns=columns
                    )
                    covered = lost


class PenstockReader(DataSourceReader):
    """A range of the log, read once."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._planner = _Planner(options)
        self._rows = _RangeReader(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._planner.options
        try:
            after = self._planner.place(options.starting_offsets)
            until = self._planner.place(options.ending_offsets)
            # Spark takes "no partitions" for "one without a value".
            nothing = RangePartition(after.log_id, after.sequence, after.sequence)
            return self._planner.partitions(after, until) or [nothing]
        finally:
            self._planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return self._rows.read(partition)


def _is_runner() -> bool:
    """Whether this is the process that Spark starts to plan one stream's batches."""
    spec = sys.modules["__main__"].__spec__
    return spec is not None and spec.name.endswith(".python_streaming_source_runner")


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as a stream of batches, each ending at the end of a commit."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if _is_runner():
            # It would notice that Spark is gone only after it has waited for the service.
            end_with_parent()
        self._options = options
        self._planner = _Planner(options)
        self._rows = _RangeReader(options, schema)
        self._first: Progress | None = None
        self._target: Progress | None = None
        self._reports = bool(options.pipeline)

    @noted()
    def initialOffset(self) -> dict[str, Any]:
        self._first = self._planner.place(self._options.starting_offsets)
        return offset_of(self._first)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @noted()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = resolve(self._planner.client, "latest")

    @noted()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        place = place_of(start)
        if isinstance(limit, ReadMaxRows):
            end = self._planner.end(place, limit.max_rows, self._target)
        elif isinstance(limit, ReadAllAvailable):
            end = self._planner.end(place, None, self._target)
        else:
            raise ConfigError(
                f"format 'penstock' cannot limit a batch by {type(limit).__name__}; it knows "
                f"maxOffsetsPerTrigger. Nothing was read."
            )
        if "first" not in start and place == self._first:
            return offset_of(end, first=place)
        return start if end == place else offset_of(end)

    def reportLatestOffset(self) -> dict[str, Any]:
        return offset_of(resolve(self._planner.client, "latest"))

    @noted()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._planner.partitions(first_of(end, start), place_of(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return self._rows.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        if not self._reports:
            return
        place = place_of(end)
        report = PipelineReport(
            pipeline=self._options.pipeline, log_id=place.log_id, sequence=place.sequence
        )
        # For `penstock status` only, and the next report says as much: no batch waits for it.
        try:
            with LogClient(
                self._options.endpoint,
                patience_seconds=0,
                call_seconds=1.0,
                credentials=self._options.credentials,
            ) as client:
                client.report(report)
        except ForbiddenError as error:
            # The next one would be refused too, and each refusal is a line of the service's record.
            self._reports = False
            log.warning(
                "service not told how far a query is, for its token does not see all of a source; "
                "leave out the option pipeline, or ask for a token of `penstock access create NAME "
                "--source SOURCE` with all verbs and nothing hidden",
                pipeline=self._options.pipeline,
                code=error.code,
            )
        except (PenstockError, fl.FlightError):
            pass

    def stop(self) -> None:
        self._planner.close()
