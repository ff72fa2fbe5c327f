"""What happens to a batch before its destination (decision 0028).

Entries come out as they went in: the same ones, with the same sequence, commit, check and key, so
that whoever counts and proves commits goes on doing so. A row that is filtered out is deleted at
the destination; a change that is refused becomes one of which nothing is known but that it
happened, and is in the rejects before the destination sees the batch. Whatever is computed is kept
until the batch is written: a function that gives something else when asked twice does no harm.
What is computed means the same whatever the session is set to (`penstock.spark.meaning`): the
batch's own has these settings until the batch is written.
"""

# The stubs of Spark and pyarrow leave types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import threading
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import structlog
from msgspec import Struct

from penstock.errors import ConfigError, ExpectationError, PenstockError, TransformError
from penstock.event import Kind
from penstock.spark.config import (
    LakePipelineConfig,
    ReplicatePipelineConfig,
    SteppedPipelineConfig,
)
from penstock.spark.meaning import meant_the_same
from penstock.spark.raised import kind_of, known_error
from penstock.spark.table.collect import entries_of
from penstock.spark.table.lake import KeptTable, lake_of
from penstock.spark.table.rejecting import write_rejects
from penstock.spark.table.rejects import Reject, rejects_table
from penstock.spark.table.stamp import Stamp
from penstock.spark.table.upkeep import keep_up
from penstock.spark.target import TargetStoppedError
from penstock.spark.transform.computed import answer, unanswered
from penstock.spark.transform.plan import Plan, plan_of
from penstock.spark.transform.poison import Failure, failure, find_poison, unexplained
from penstock.spark.transform.worker import READ_COLUMNS, UNMET, VERDICT, Pass, Verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = structlog.get_logger()

_ATTEMPTS: Final = 2
"""So often a batch is computed before the changes are looked for on which that fails."""
_PAUSES_SECONDS: Final = (1.0, 2.0, 4.0, 8.0)
"""How long what the steps ask may be away before the pipeline stops, and not its changes are
refused."""


class Staged(Struct, frozen=True, kw_only=True):
    """A batch for its destination."""

    frame: "DataFrame"
    rejected: int = 0
    """Rejects that were written."""
    unmet: dict[str, int] = {}
    """By expectation: how many changes did not meet it."""
    refused: pa.Table | None = None
    """The rejects (REJECTS_SCHEMA) that the target writes itself, with its place; None if there are
    none, or if they are written."""


class Computed(Struct, frozen=True, kw_only=True):
    """A batch with all steps done, before anything is written of it."""

    frame: "DataFrame"
    refused: dict[int, Verdict]
    unmet: dict[str, int]


class Stage:
    """The steps and expectations of a pipeline, or none."""

    def __init__(
        self,
        pipeline: str,
        config: SteppedPipelineConfig,
        columns: Sequence[str],
        *,
        tells: bool = True,
        stopping: threading.Event | None = None,
    ) -> None:
        """`columns` are those that the target needs. `tells`: a line in the log says which
        expectations were not met. Once `stopping` is set nothing is waited for."""
        self._pipeline = pipeline
        self._config = config
        self._target_columns = tuple(columns)
        self._tells = tells
        self._stopping = stopping or threading.Event()
        self._plan: Plan | None = None

    @property
    def target_columns(self) -> tuple[str, ...]:
        """What comes out of an entry."""
        return self._target_columns

    @property
    def is_empty(self) -> bool:
        """Whether batches go through unread."""
        return not self._config.steps and not self._config.expect

    @property
    def columns(self) -> tuple[str, ...]:
        """What is read of an entry."""
        if self.is_empty:
            return self._target_columns
        return tuple(dict.fromkeys((*self._target_columns, *READ_COLUMNS)))

    def check(self, spark: "SparkSession") -> None:
        """Raise ConfigError for what Spark or Python do not understand; no change is read."""
        if self.is_empty:
            return
        from penstock.spark.rows import ENTRY_SCHEMA

        self._plan = plan_of(self._config.steps, self._config.expect)
        schema = ENTRY_SCHEMA.__class__([ENTRY_SCHEMA[name] for name in self.columns])
        # In a session of its own, for the names that it gives for a moment.
        session = spark.newSession()
        nothing = session.createDataFrame([], schema)
        try:
            with meant_the_same(session):
                self._frame(nothing, {}, lambda frame: frame)
        except PenstockError:
            raise
        except Exception as error:
            raise ConfigError(
                f"pipeline {self._pipeline}: its transforms fail on no changes at all "
                f"({kind_of(error)}). Nothing was written."
            ) from error

    @contextmanager
    def staged(self, batch: "DataFrame", batch_id: int, *, log_id: int | None) -> Generator[Staged]:
        """The batch as the target is to have it, while the block runs.

        Its rejects are written, where the pipeline has a table of them beside its target.

        Raises ExpectationError and TransformError, before anything is written; TargetStoppedError
        where the pipeline is told to stop while it waits for what its steps ask.
        """
        if self.is_empty:
            yield Staged(frame=batch)
            return
        with self.computed(batch) as computed:
            stops = [at for at, verdict in computed.refused.items() if verdict.stops]
            if stops:
                first = computed.refused[min(stops)]
                raise ExpectationError(
                    pipeline=self._pipeline,
                    sequence=min(stops),
                    expectation=first.expectation or "",
                )
            rejects = [_reject(at, verdict) for at, verdict in computed.refused.items()]
            entries_at = entries_of(batch)
            rejected, refused = 0, None
            if rejects and isinstance(self._config, LakePipelineConfig):
                table = lake_of(self._config, self._pipeline, batch.sparkSession).rejects()
                rejected = self._write(table, rejects, entries_at, batch_id, log_id)
                # The target finds these there, and writes nothing that would make it due.
                keep_up(self._pipeline, self._config, [table])
            elif rejects:
                entries = entries_at([one.sequence for one in rejects])
                refused = rejects_table(self._pipeline, rejects, entries, captured=True)
            if self._tells:
                self._tell(computed)
            yield Staged(
                frame=computed.frame.select(*self._target_columns),
                rejected=rejected,
                unmet=computed.unmet,
                refused=refused,
            )

    @contextmanager
    def computed(self, batch: "DataFrame", *, suspect: bool = False) -> Generator[Computed]:
        """The batch with all steps done, while the block runs. `suspect`: all of its changes may be
        to blame if they fail, for they were refused before. Raises TransformError."""
        with meant_the_same(batch.sparkSession), _holding() as hold:
            yield self._computed(batch, hold, suspect=suspect)

    def _computed(
        self, batch: "DataFrame", hold: "Callable[[DataFrame], DataFrame]", *, suspect: bool
    ) -> Computed:
        computes = any(segment.asks for segment in self._planned.segments)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._outcome(hold(self._frame(batch, {}, hold)))
            except Exception as error:
                known = known_error(error, pipeline=self._pipeline)
                if known is not None:
                    raise known from error
                if not computes:
                    raise
                log.warning(
                    "the transforms failed on a batch",
                    pipeline=self._pipeline,
                    attempt=attempt,
                    error=kind_of(error),
                )
        kept = hold(batch.select(*self.columns))
        warns = frozenset(one.name for one in self._config.expect if one.action == "warn")
        poison: Mapping[int, str] = {}
        # No change is to blame for what only counts: what is looked for fails without that.
        if not warns or self._fails(kept, poison, unasked=warns):
            poison = self._poison(kept, unasked=warns, suspect=suspect)
        unasked = frozenset(
            name for name in warns if self._fails(kept, poison, unasked=warns - {name})
        )
        if unasked:
            log.warning(
                "expectations fail on a batch: all of its changes count as not meeting them",
                pipeline=self._pipeline,
                expectations=sorted(unasked),
            )
        return self._outcome(hold(self._frame(batch, poison, hold, unasked=unasked)))

    def _poison(self, batch: "DataFrame", *, unasked: Set[str], suspect: bool) -> Mapping[int, str]:
        """By sequence: why the changes are refused on which `batch` fails, as it does.

        Raises TransformError where it fails on all, which is then nobody's fault among them; once
        that lasts, for it may pass.
        """
        poison, others = self._searched(batch, unasked=unasked, suspect=suspect)
        if others:
            log.warning(
                "the transforms fail on all changes that they are asked about: they are tried "
                "again before the pipeline stops",
                pipeline=self._pipeline,
                changes=len(others),
                error=poison[others[0]].why,
                seconds=sum(_PAUSES_SECONDS),
            )
            for pause in _PAUSES_SECONDS:
                if self._stopping.wait(pause):
                    raise TargetStoppedError
                if not self._fails(batch, {}, unasked=unasked):
                    return {}
            poison, others = self._searched(batch, unasked=unasked, suspect=suspect)
        if not others:
            return {at: f"the transforms fail on it: {one.why}" for at, one in poison.items()}
        names = self._failing_asks(batch, unasked=unasked)
        raise TransformError(
            f"pipeline {self._pipeline}: {names} fails on each of the {len(others)} changes of a "
            f"batch that it is asked about, first at sequence {others[0]}: "
            f"{poison[others[0]].why}. It was tried again for {sum(_PAUSES_SECONDS):.0f} s. "
            f"Nothing of the batch was written, and no change was rejected. See that what the step "
            f"asks can be reached, or correct the step; Spark's log has the error's text."
        )

    def _searched(
        self, batch: "DataFrame", *, unasked: Set[str], suspect: bool
    ) -> tuple[dict[int, Failure], list[int]]:
        """On which changes `batch` fails, by sequence; and those of them that are not to blame, for
        it fails on all."""
        tried = partial(self._tried, poison={}, unasked=unasked)
        poison = find_poison(batch, tried, pipeline=self._pipeline)
        others: list[int] = []
        if not suspect:
            others = unexplained(poison, self._asked_of(batch, unasked=unasked))
        # One alone may be to blame, unless it fails without it too.
        if len(others) == 1 and not self._fails(_none_of(batch), {}, unasked=unasked):
            return poison, []
        return poison, others

    def _asked_of(self, batch: "DataFrame", *, unasked: Set[str]) -> list[int]:
        """The sequences of the changes that Spark computes something of."""
        from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages call it

        asks = [ask for one in self._planned.segments for ask in one.asks]
        concerned = [ask.collections for ask in asks if ask.name not in unasked]
        told = batch.where(
            (F.col("kind") == int(Kind.DATA))
            & (F.col("operation_type") != "delete")
            & F.col("full_document").isNotNull()
        )
        if all(concerned):
            told = told.where(F.col("collection").isin(sorted(frozenset().union(*concerned))))
        return [int(row["sequence"]) for row in told.select("sequence").sort("sequence").collect()]

    def _failing_asks(self, batch: "DataFrame", *, unasked: Set[str]) -> str:
        """What fails on `batch`, by its names."""
        segments = self._planned.segments
        for count, segment in enumerate(segments, start=1):
            tried = partial(self._tried, poison={}, unasked=unasked, count=count)
            if segment.asks and failure(tried, batch, self._pipeline) is not None:
                return ", ".join(one.name for one in segment.asks if one.name not in unasked)
        return "its transforms, which"

    def _fails(self, batch: "DataFrame", poison: Mapping[int, str], *, unasked: Set[str]) -> bool:
        tried = partial(self._tried, poison=poison, unasked=unasked)
        return failure(tried, batch, self._pipeline) is not None

    def _tried(
        self,
        batch: "DataFrame",
        *,
        poison: Mapping[int, str],
        unasked: Set[str],
        count: int | None = None,
    ) -> None:
        """Compute `batch` and keep nothing. Raises whatever Spark does."""
        with _holding() as hold:
            frame = self._frame(batch, poison, hold, unasked=unasked, count=count)
            frame.write.format("noop").mode("overwrite").save()

    @property
    def _planned(self) -> Plan:
        if self._plan is None:
            self._plan = plan_of(self._config.steps, self._config.expect)
        return self._plan

    def _frame(
        self,
        batch: "DataFrame",
        poison: Mapping[int, str],
        hold: "Callable[[DataFrame], DataFrame]",
        *,
        unasked: Set[str] = frozenset(),
        count: int | None = None,
    ) -> "DataFrame":
        """All passes over `batch`, and what Spark computes between them; nothing runs yet.

        `unasked` are expectations that Spark is not asked about: nothing meets them. `count`: only
        the first passes, so many, with what Spark computes behind them.
        """
        from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages call it
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import ArrayType, StringType, StructField, StructType

        entry = batch.select(*self.columns).schema
        own = [StructField(VERDICT, StringType()), StructField(UNMET, ArrayType(StringType()))]
        frame = batch.select(
            *self.columns, *(F.lit(None).cast(field.dataType).alias(field.name) for field in own)
        )
        answered: tuple[Any, ...] = ()
        for number, segment in enumerate(self._planned.segments[:count]):
            asked = [StructField(ask.column, ask.schema) for ask in segment.asks]
            schema = StructType([*entry.fields, *own, *asked])
            work = Pass(
                answered=answered,
                steps=segment.steps,
                asks=segment.asks,
                hiding=self._planned.hiding_at(number),
                schema=to_arrow_schema(schema, timezone="UTC"),
                pipeline=self._pipeline,
                transforms=bool(self._config.steps),
                keyed=isinstance(self._config, ReplicatePipelineConfig),
                poison=poison if number == 0 else {},
            )
            frame = frame.mapInArrow(work.run, schema)
            for ask, text in zip(segment.asks, segment.texts, strict=True):
                if ask.kind == "expect" and ask.name in unasked:
                    frame = unanswered(frame, ask)
                    continue
                frame = answer(
                    frame, ask, text, pipeline=self._pipeline, entry=self.columns, hold=hold
                )
            answered = segment.asks
        return frame

    def _outcome(self, frame: "DataFrame") -> Computed:
        from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages call it

        refused = {
            row["sequence"]: msgspec.json.decode(row[VERDICT], type=Verdict)
            for row in frame.where(F.col(VERDICT).isNotNull()).select("sequence", VERDICT).collect()
        }
        unmet: dict[str, int] = {}
        for verdict in refused.values():
            if verdict.expectation is not None:
                unmet[verdict.expectation] = unmet.get(verdict.expectation, 0) + 1
        if any(one.action == "warn" for one in self._config.expect):
            counted = frame.select(F.explode(UNMET).alias("name")).groupBy("name").count()
            for row in counted.collect():
                unmet[row["name"]] = unmet.get(row["name"], 0) + row["count"]
        return Computed(frame=frame, refused=refused, unmet=unmet)

    def _write(
        self,
        table: KeptTable,
        rejects: Sequence[Reject],
        entries_at: "Callable[[Sequence[int]], pa.Table]",
        batch_id: int,
        log_id: int | None,
    ) -> int:
        sequences = [one.sequence for one in rejects]
        stamp = Stamp(
            pipeline=self._pipeline,
            log_id=log_id,
            after=min(sequences) - 1,
            until=max(sequences),
            batch=batch_id,
        )
        return write_rejects(table, rejects, stamp, entries_at=entries_at, captured=True)

    def _tell(self, computed: Computed) -> None:
        for name, count in sorted(computed.unmet.items()):
            log.warning(
                "an expectation was not met",
                pipeline=self._pipeline,
                expectation=name,
                changes=count,
            )


def _none_of(batch: "DataFrame") -> "DataFrame":
    """`batch` without a row, which Spark does not know beforehand."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages call it

    return batch.where(F.col("sequence") < 0)


def _reject(sequence: int, verdict: Verdict) -> Reject:
    return Reject(
        sequence=sequence,
        reason=verdict.reason,
        step=verdict.step,
        expectation=verdict.expectation,
        told=None if verdict.captured else (verdict.full_document, verdict.update_description),
    )


@contextmanager
def _holding() -> "Generator[Callable[[DataFrame], DataFrame]]":
    """Keeps what is computed of frames, while the block runs."""
    held: list[DataFrame] = []

    def hold(frame: "DataFrame") -> "DataFrame":
        held.append(frame.persist())
        return held[-1]

    try:
        yield hold
    finally:
        for frame in held:
            frame.unpersist()
