"""Where a pipeline stands: one row beside its tables, written after all tables of a batch.

This row, and nothing else, says where a pipeline goes on. Spark's offsets would outlive the tables
and change with none of what they belong to, so each run gives Spark new ones and starts here. The
row may be behind the tables, which ignore what they have; it is never ahead of them. Before a
pipeline goes on, the row must fit its configuration and its tables: what does not is refused.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
import structlog
from msgspec import Struct, structs

from penstock.errors import (
    HistoryTrimmedError,
    PipelineChangedError,
    ResetRefusedError,
    StreamChangedError,
)
from penstock.ports import Bounds
from penstock.progress import Progress, parse_progress
from penstock.spark.config import (
    ChangelogPipelineConfig,
    LakePipelineConfig,
    ReadingConfig,
    TablePipelineConfig,
)
from penstock.spark.table import progress_columns
from penstock.spark.table.arrow import arrow
from penstock.spark.table.delta import Table, secrets
from penstock.spark.table.lake import Folders, Lake
from penstock.spark.table.stamp import Stamp
from penstock.spark.table.upkeep import tidy_now_and_then
from penstock.spark.transform.digests import StepDigest, changed_in, digests_of

log = structlog.get_logger()

_QUIET_SECONDS: Final = 10.0
"""How often the row moves on while nothing is applied: it needs to only before retention."""


class Standing(Struct, frozen=True, kw_only=True):
    """What the row says."""

    pipeline: str
    source: str
    collections: tuple[str, ...]
    progress: Progress
    """Everything up to here is in the tables."""
    tables: dict[str, int]
    """By collection: the sequence that its table says it has, or more."""
    to: str | None = None
    """What its pipeline made of the changes; None in a row that was written before it was kept."""
    format: str | None = None
    """That of a changelog."""
    steps: tuple[StepDigest, ...] | None = None
    """Those that documents last went through; None as for `to`."""


class Start(Struct, frozen=True, kw_only=True):
    """Where a run begins."""

    after: Progress
    tables: dict[str, int]
    """As in Standing: those that are there."""


def decide_start(
    config: LakePipelineConfig,
    pipeline: str,
    *,
    standing: Standing | None,
    bounds: Bounds,
    applied: Callable[[str], int],
    whole: Callable[[], Bounds] | None = None,
) -> Start:
    """Where `pipeline` goes on, so that nothing is left out unless `start` says so. Pure.

    `applied` gives the sequence that a collection's table has; 0 if there is none. `whole` is as in
    `Target.start`.

    Raises HistoryTrimmedError for a new pipeline on a log whose beginning is gone,
    PipelineChangedError where the tables are not those of this configuration, StreamChangedError
    for another log.
    """
    whole = whole or (lambda: bounds)
    knowingly = config.start == "oldest"
    if standing is None and loads(config):
        # The row is written before any table is.
        if known := sorted(name for name in config.collections if applied(name)):
            raise PipelineChangedError(
                pipeline=pipeline,
                change=f"the row that says where it stands is gone, and its table of "
                f"{_names(known)} is there; what was deleted since would stay",
                remedy="or put the row back, and read rows again with penstock pipeline backfill",
                new=config.place_setting,
            )
        # All rows that there are now come from the source.
        return Start(after=Progress(bounds.log_id, bounds.head, bounds.head_check), tables={})
    if standing is None:
        held = whole()
        if held.trimmed and not knowingly:
            raise HistoryTrimmedError(pipeline=pipeline, trimmed=held.trimmed)
        return Start(after=Progress(held.log_id, held.trimmed, held.trimmed_check), tables={})
    refuse_others(config, pipeline, standing)
    if standing.progress.log_id != bounds.log_id:
        raise StreamChangedError(
            f"the tables of pipeline {pipeline} were made from log "
            f"{standing.progress.log_id:016x}, and this is log {bounds.log_id:016x}; move them "
            f"away or give the pipeline another {config.place_setting}"
        )
    followed = followed_tables(config, standing)
    behind = sorted(name for name, sequence in followed.items() if applied(name) < sequence)
    added = _added(config, standing)
    if not added and not behind:
        return Start(after=standing.progress, tables=followed)
    held = whole()
    if standing.progress.sequence < held.trimmed:
        # Tables that are there would miss what retention took: that is for the log to say.
        return Start(after=standing.progress, tables=followed)
    if not knowingly:
        changes = [f"{_names(added)} was added to its collections"] if added else []
        changes += [f"the table of {_names(behind)} is gone or older than it was"] if behind else []
        raise PipelineChangedError(
            pipeline=pipeline,
            change=" and ".join(changes),
            remedy=(
                "or set start = 'oldest' to read the log again from its oldest entry, "
                + (
                    f"though its first {held.trimmed} entries are no longer there"
                    if held.trimmed
                    else "which is its first; tables ignore what they have"
                )
            ),
            new=config.place_setting,
        )
    return Start(
        after=Progress(held.log_id, held.trimmed, held.trimmed_check),
        tables={**followed, **{name: applied(name) for name in behind}},
    )


def decide_reset(
    config: LakePipelineConfig,
    pipeline: str,
    *,
    standing: Standing | None,
    place: Progress,
    bounds: Bounds,
    applied: Callable[[str], int],
) -> Standing:
    """What the row says once `pipeline` begins again at `place`, so that no table misses a change.
    Pure; `applied` as in `decide_start`.

    Tables ignore what they have, so going back repeats nothing. It brings what is missing: a table
    that is gone, or was restored as it was earlier, and a collection that was added.

    Raises ResetRefusedError for a place ahead of what some table has, or that the log no longer
    has, PipelineChangedError and StreamChangedError as `decide_start` does.
    """
    if standing is None:
        raise ResetRefusedError(
            pipeline=pipeline,
            why="its tables say of no place where it stands: it is new",
            remedy="It begins where its setting `start` says.",
        )
    refuse_others(config, pipeline, standing)
    if standing.progress.log_id != bounds.log_id or place.log_id != bounds.log_id:
        raise StreamChangedError(
            f"the tables of pipeline {pipeline} were made from log "
            f"{standing.progress.log_id:016x}, and this is log {bounds.log_id:016x}"
        )
    if place.sequence < bounds.trimmed:
        raise ResetRefusedError(
            pipeline=pipeline,
            why=f"the log's first {bounds.trimmed} entries were removed by retention",
            remedy="The oldest place that is left is --to oldest; what was removed would be "
            "missing from a table that does not have it already.",
        )
    followed = followed_tables(config, standing)
    behind = {name: at for name in followed if (at := applied(name)) < followed[name]}
    # Of an added collection, and of a table that is gone, nothing is there: only all that is left
    # will do, and `oldest` says so knowingly.
    there = [standing.progress.sequence, *behind.values(), *(0 for _ in _added(config, standing))]
    least = max(min(there), bounds.trimmed)
    if place.sequence > least:
        raise ResetRefusedError(
            pipeline=pipeline,
            why=f"what is between {least} and {place.sequence} would be missing from its tables",
            remedy="Name a place that is not ahead, or --to oldest.",
        )
    return structs.replace(
        standing,
        progress=place,
        collections=config.collections,
        tables={**followed, **behind},
    )


def loads(config: ReadingConfig) -> bool:
    """Whether the rows that were there before the log come from the source."""
    return isinstance(config, TablePipelineConfig) and config.first_load == "source"


def has_loaded(config: LakePipelineConfig) -> bool:
    """Whether the tables have, or get, rows that the log does not tell. What is kept of a first
    load says so too, when the setting was taken out since."""
    if not isinstance(config, TablePipelineConfig) or config.catalog is not None:
        return False
    kept = Table(config.load_path, storage_options=secrets(config.storage_options))
    return loads(config) or kept.version >= 0


def followed_tables(config: LakePipelineConfig, standing: Standing) -> dict[str, int]:
    """Of the tables that the row knows those that `config` still has, with their sequences."""
    return {
        name: sequence
        for name, sequence in standing.tables.items()
        if not config.collections or name in config.collections
    }


def refuse_others(config: LakePipelineConfig, pipeline: str, standing: Standing) -> None:
    """Refuse what no place in the log can make right: other rows in the same tables.

    Raises PipelineChangedError.
    """
    remedy = "or change it back"
    if standing.pipeline != pipeline:
        change = f"the tables there are those of pipeline {standing.pipeline}"
    elif standing.source != config.source:
        change = f"its tables were made from source {standing.source}, not {config.source}"
    elif other := _other_kind(config, standing):
        change = other
    elif (len(standing.collections) == 1 or len(config.collections) == 1) and (
        standing.collections != config.collections
    ):
        was, now = _names(standing.collections), _names(config.collections)
        change = f"its collections were {was} and are now {now}, whose tables lie elsewhere"
    elif config.in_one_table and (added := _added(config, standing)):
        change = f"{_names(added)} was added to its collections, and their changes until now would "
        change += "be missing from the midst of what is there"
    else:
        return
    raise PipelineChangedError(
        pipeline=pipeline, change=change, remedy=remedy, new=config.place_setting
    )


def _other_kind(config: LakePipelineConfig, standing: Standing) -> str | None:
    """What to say where other things were made of the changes; None where the same were."""
    form = _format(config)
    if standing.to is None:
        # A row of then has the one table of all collections under no name.
        if "" in standing.tables and not config.in_one_table:
            return f"what is there is a changelog, and now it says to = '{config.makes}'"
    elif standing.to != config.makes:
        return (
            f"what is there was made with to = '{standing.to}', and now it says "
            f"to = '{config.makes}'"
        )
    elif standing.format != form:
        return (
            f"its changelog was made with format = '{standing.format}', and now it says "
            f"format = '{form}'"
        )
    return None


def _format(config: LakePipelineConfig) -> str | None:
    return config.format if isinstance(config, ChangelogPipelineConfig) else None


def _added(config: LakePipelineConfig, standing: Standing) -> list[str]:
    if not standing.collections:
        return []
    if not config.collections:
        return ["every other collection"]
    return sorted(set(config.collections) - set(standing.collections))


def _names(collections: tuple[str, ...] | list[str]) -> str:
    return ", ".join(collections) or "all of the source"


class StandingTable:
    """The row, in a Delta table of its own beside the tables; so it is wherever they can be."""

    def __init__(self, config: LakePipelineConfig, pipeline: str, lake: Lake | None = None) -> None:
        """`lake` is where the tables are; without it, in folders."""
        self._config = config
        self._pipeline = pipeline
        self._lake = lake or Folders(config, pipeline)
        self._table = self._lake.standing()
        self._saved: Standing | None = None
        self._unsaved: Standing | None = None
        self._saved_at = time.monotonic()
        self.stood: Progress | None = None
        """What the row said at the last start; None if there was none."""
        self.added: list[str] = []
        """Collections that the row did not have at the last start."""
        self.restepped: list[str] = []
        """Collections whose rows, as of the last start, are from before their steps were changed;
        the empty name is of all."""

    def start(self, bounds: Bounds, whole: Callable[[], Bounds] | None = None) -> Start:
        """Where to go on, as `decide_start` says and raises."""
        self._table.reload()
        self._unsaved = None
        standing = self.read()
        self.stood = None if standing is None else standing.progress
        self.added = [] if standing is None else _added(self._config, standing)
        start = decide_start(
            self._config,
            self._pipeline,
            standing=standing,
            bounds=bounds,
            applied=partial(self.applied, log_id=bounds.log_id),
            whole=whole,
        )
        for name in sorted(start.tables):
            if self._lake.table(name).is_taken_back():
                raise PipelineChangedError(
                    pipeline=self._pipeline,
                    change=f"the table of {name} was restored to an earlier version, and says that "
                    f"it has the changes since, which are missing there",
                    remedy=f"or bring them back: penstock pipeline verify {self._pipeline} "
                    f"--repair",
                    new=self._config.place_setting,
                )
        if standing is not None and start.after != standing.progress:
            log.warning(
                "pipeline reads the log again from its oldest entry",
                pipeline=self._pipeline,
                sequence=start.after.sequence,
            )
        steps = digests_of(self._config)
        there = [name for name, sequence in start.tables.items() if sequence]
        before = steps if standing is None or standing.steps is None else standing.steps
        self.restepped = changed_in(there, before, steps)
        if self.restepped:
            log.warning(
                "steps were changed, and rows that are there stay as the steps before made them",
                pipeline=self._pipeline,
                collections=[name or "all" for name in self.restepped],
            )
        self._saved = Standing(
            pipeline=self._pipeline,
            source=self._config.source,
            collections=self._config.collections,
            progress=start.after,
            tables=start.tables,
            to=self._config.makes,
            format=_format(self._config),
            steps=steps,
        )
        return start

    def reset(self, place: Progress, bounds: Bounds) -> Progress:
        """Have the next run begin at `place`; the place before. As `decide_reset` says and raises.

        No driver may run meanwhile: of two commits to the row Delta refuses one.
        """
        self._table.reload()
        standing = self.read()

        after = decide_reset(
            self._config,
            self._pipeline,
            standing=standing,
            place=place,
            bounds=bounds,
            applied=partial(self.applied, log_id=bounds.log_id),
        )
        assert standing is not None
        self.put(standing, after)
        return standing.progress

    def put(self, standing: Standing, after: Standing) -> None:
        """Have the row, which says `standing`, say `after`. As for `reset`, no driver may run."""
        self._saved, self._unsaved = standing, after
        self.save(batch_id=0)

    def applied(self, collection: str, *, log_id: int) -> int:
        """The sequence that a collection's table has; 0 if there is none.

        Raises StreamChangedError for the table of another log.
        """
        return self._lake.table(collection).applied(self._pipeline, log_id=log_id)

    def collections(self) -> list[str]:
        """Those that have a table, as the row says that is stored; none without one."""
        standing = self.read()
        return [] if standing is None else sorted(standing.tables)

    @property
    def progress(self) -> Progress:
        """Everything up to here is in the tables."""
        assert self._saved is not None
        return (self._unsaved or self._saved).progress

    def settle(self) -> None:
        """Write where a new pipeline begins, before it has anything."""
        if self.stood is None:
            self._saved, self._unsaved = None, self._saved
            self.save(batch_id=0)

    @property
    def tables(self) -> dict[str, int]:
        """By collection: the sequence that its table must have by now."""
        assert self._saved is not None
        return (self._unsaved or self._saved).tables

    def advance(self, until: Progress, tables: Mapping[str, int], *, batch_id: int) -> None:
        """Everything up to `until` is in the tables; `tables` are those that the batch touched.

        Written now, or after a while if nothing was applied.
        """
        assert self._saved is not None
        known = self._unsaved or self._saved
        self._unsaved = structs.replace(known, progress=until, tables={**known.tables, **tables})
        if tables or time.monotonic() - self._saved_at >= _QUIET_SECONDS:
            self.save(batch_id=batch_id)

    def save(self, *, batch_id: int) -> None:
        """Write what is not written yet."""
        standing = self._unsaved
        if standing is None or standing == self._saved:
            return
        stamp = Stamp(
            pipeline=self._pipeline,
            log_id=standing.progress.log_id,
            after=self._saved.progress.sequence if self._saved else 0,
            until=standing.progress.sequence,
            batch=batch_id,
        )
        row: dict[str, Any] = {
            "pipeline": standing.pipeline,
            "source": standing.source,
            "collections": list(standing.collections),
            "progress": str(standing.progress),
            "sequence": standing.progress.sequence,
            "tables": msgspec.json.encode(standing.tables).decode(),
            "to": standing.to,
            "format": standing.format,
            "steps": None
            if standing.steps is None
            else msgspec.json.encode(standing.steps).decode(),
        }
        self._table.replace(
            arrow.Table.from_pylist([row], schema=progress_columns.STANDING_SCHEMA), stamp
        )
        self._saved, self._unsaved = standing, None
        self._saved_at = time.monotonic()
        tidy_now_and_then(self._pipeline, self._config, self._table)

    def read(self) -> Standing | None:
        """What the row says; None before the first run."""
        rows: list[dict[str, Any]] = [
            row for batch in self._table.scan() for row in batch.to_pylist()
        ]
        if not rows:
            return None
        (row,) = rows
        steps = row.get("steps")
        return Standing(
            pipeline=row["pipeline"],
            source=row["source"],
            collections=tuple(row["collections"]),
            progress=parse_progress(row["progress"]),
            tables=msgspec.json.decode(row["tables"], type=dict[str, int]),
            to=row.get("to"),
            format=row.get("format"),
            steps=None
            if steps is None
            else msgspec.json.decode(steps, type=tuple[StepDigest, ...]),
        )
