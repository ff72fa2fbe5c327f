"""Apply a batch to the Delta tables of a pipeline, one for each collection, exactly once.

Applying a batch twice equals once (invariant 7), whoever applies it: the tables themselves say how
far they have come. An event about a whole collection cuts the batch: what is before it is applied
first, in a commit of its own. A gap that stops the pipeline stops it before the source transaction
that it is in. What the tables keep of their collections is for the writers to say:
`penstock.spark.table.batch` keeps current rows, `penstock.spark.history.batch` all versions.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs

from penstock.errors import ChangesLostError, PipelineChangedError, PipelineError
from penstock.event import Kind
from penstock.spark.config import DeltaPipelineConfig, SteppedPipelineConfig
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.chunk import Chunk, Collected, Control
from penstock.spark.table.declared import Declarations, Declared, declared_by, with_declared
from penstock.spark.table.events import Effect, Place, effect_of, renamed
from penstock.spark.table.lake import Folders, KeptTable, Lake
from penstock.spark.table.plan import Naming
from penstock.spark.table.reduce import CONTROL
from penstock.spark.table.rejecting import write_rejects
from penstock.spark.table.rejects import GAP, Reject
from penstock.spark.table.stamp import Stamp
from penstock.spark.table.unfollowed import Unfollowed
from penstock.spark.transform.config import ExpectConfig, TransformConfig
from penstock.spark.transform.digests import deciding_steps

HARMLESS: Final = frozenset(
    {
        "create",
        "modify",
        "createIndexes",
        "dropIndexes",
        "shardCollection",
        "reshardCollection",
        "refineCollectionShardKey",
        "invalidate",
    }
)
"""Schema events that change no row. Any other may: it is never passed over."""

_Own = TypeVar("_Own", bound=KeptTable)


class BatchResult(Struct, frozen=True, kw_only=True):
    """What a batch came to."""

    batch_id: int
    entries: int
    """Entries read."""
    rows: int
    """Rows written or deleted in tables; 0 when the batch was applied before."""
    rejected: int
    sequence: int
    """The last one applied; 0 for an empty batch."""
    tables: dict[str, int] = {}
    """By collection: the sequence that its table says it has, of the tables it concerned."""


class Writer(ABC, Generic[_Own]):
    """Applies one batch; made anew for each."""

    def __init__(
        self,
        *,
        pipeline: str,
        config: DeltaPipelineConfig,
        log_id: int | None,
        batch_id: int,
        entries_at: Callable[[Sequence[int]], pa.Table],
        lake: Lake | None = None,
        tables: Mapping[str, int] | None = None,
        loading: bool = False,
        unfollowed: Unfollowed | None = None,
        declarations: Declarations | None = None,
    ) -> None:
        """`entries_at` gives entries as they came (ENTRY_COLUMNS), for the rejects.

        `lake` is where the tables are; without it, in folders. `tables` are sequences that the
        tables of collections must have: one that has less is not the table that it was. Without
        `collections`, they are all that there are but this batch's. With `loading` they do not
        have all rows yet. `unfollowed` is told of renames, and one that cannot be followed is no
        gap then. `declarations` are those of before the batch.
        """
        self._pipeline = pipeline
        self._config = config
        self._log_id = log_id
        self._batch_id = batch_id
        self._entries_at = entries_at
        self._lake = lake or Folders(config, pipeline)
        self._known = tables
        self._least = tables or {}
        self._loading = loading
        self._unfollowed = unfollowed
        self._declarations = declarations or Declarations()
        self._controls: Sequence[Control] = ()
        self._said: dict[str, list[Control]] = {}
        """By collection: what events of the batch, and before it, may declare."""
        self._touched: dict[str, _Own] = {}
        self._rejects: KeptTable | None = None
        self._rows = 0
        self._rejected = 0

    def apply(self, batch: Collected, *, before: Callable[[int], Collected]) -> BatchResult:
        """Write everything that is not written yet. Raises as `merge_into_delta` says.

        `before` collects anew what of the batch is before the commit of an entry: where that stops
        the pipeline, none of its commit is written.
        """
        lost = next((one for one in batch.controls if self._stops_at(one)), None)
        if lost is not None:
            batch = before(lost.sequence)
        after, last = batch.after, batch.chunk.last_sequence
        self._controls = batch.controls
        for said in self._declarations.before(batch.controls):
            self._said.setdefault(said.collection, []).append(said)
        for control in batch.controls:
            if changes_no_row(control):
                continue
            self._changes(batch.chunk, after, control.sequence - 1)
            self._control(control)
            after = control.sequence
        self._changes(batch.chunk, after, last)
        if lost is not None:
            self._control(lost)
        self._declarations.note(batch.controls)
        return BatchResult(
            batch_id=self._batch_id,
            entries=batch.entries,
            rows=self._rows,
            rejected=self._rejected,
            sequence=last,
            tables={
                collection: self._applied(table)
                for collection, table in self._touched.items()
                if table.version >= 0
            },
        )

    @property
    def opened(self) -> list[KeptTable]:
        """The tables that it has looked into, each as it is now."""
        rejects = [] if self._rejects is None else [self._rejects]
        return [*self._touched.values(), *rejects]

    # --- what the tables keep -------------------------------------------------------------------

    @abstractmethod
    def _open(self, collection: str) -> _Own:
        """The table of a collection, as it is now."""

    @abstractmethod
    def _columns(self, collection: str) -> tuple[pa.Schema, Naming]:
        """The own columns of a collection's table, and how its others are named."""

    @abstractmethod
    def _write(self, parts: Sequence[tuple[_Own, Chunk]], stamp: Stamp) -> None:
        """Apply changes of rows: the rejects of all first, then each table in one commit."""

    @abstractmethod
    def _empty(self, table: _Own, control: Control, database: str, stamp: Stamp) -> None:
        """The event takes all rows of a database (of its source) out of the collection."""

    @abstractmethod
    def _move(
        self, old: _Own, new: _Own, control: Control, to: tuple[str, str], stamp: Stamp
    ) -> None:
        """The event renames: hand rows over to (database, collection) `to`, in place of its own.

        The new name first, so that a crash in between repeats it whole. Where memory does not hold
        them, in several commits, of which only the last takes the table on. A table that has the
        event already is left as it is.
        """

    # --- rows -----------------------------------------------------------------------------------

    def _changes(self, chunk: Chunk, after: int, until: int) -> None:
        """Apply the changes of rows in (after, until]."""
        here = (chunk.sequences > after) & (chunk.sequences <= until) & (chunk.roles != CONTROL)
        written = self._changed_rows(chunk.take(np.flatnonzero(here)), after, until)
        told = {one.collection for one in self._controls if after < one.sequence <= until}
        for collection in sorted(filter(self._follows, told - written)):
            self._declare(collection, self._stamp(after, until))

    def _changed_rows(self, chunk: Chunk, after: int, until: int) -> set[str]:
        """Apply these, which are all in (after, until]; the collections that they are of."""
        if not chunk.rows.num_rows:
            return set()
        parts: list[tuple[_Own, Chunk]] = []
        for collection in compute.unique(chunk.rows["collection"]).to_pylist():
            table = self._table(collection)
            own = compute.equal(chunk.rows["collection"], collection).to_numpy()
            part = chunk.take(np.flatnonzero(own & (chunk.sequences > self._applied(table))))
            if part.rows.num_rows:
                declared = self._declared(collection)
                parts.append((table, structs.replace(part, declared=declared)))
        self._write(parts, self._stamp(after, until))
        return {part.rows["collection"][0].as_py() for _, part in parts}

    def _declare(self, collection: str, stamp: Stamp) -> None:
        """Have the columns that a source declares before it has rows: no later batch says them."""
        declared = self._declared(collection)
        if not declared:
            return
        table = self._table(collection)
        own, naming = self._columns(collection)
        columns = with_declared(table.schema, declared, naming)
        if self._applied(table) < stamp.until and len(columns) > len(table.schema):
            table.append(arrow.schema([*own, *columns]).empty_table(), stamp)

    def _declared(self, collection: str) -> Declared:
        said = self._said.get(collection, ())
        return declared_by(said, collection, steps_of(self._config, collection))

    def _reject(self, rejects: list[Reject], stamp: Stamp) -> None:
        if not rejects:
            return
        if self._rejects is None:
            self._rejects = self._lake.rejects()
        self._rejected += write_rejects(
            self._rejects,
            rejects,
            stamp,
            entries_at=self._entries_at,
            captured=not self._config.steps,
        )

    # --- events about whole collections ---------------------------------------------------------

    def _control(self, control: Control) -> None:
        stamp = self._stamp(control.sequence - 1, control.sequence)
        effect = self._effect(control)
        if not effect.known:
            raise PipelineError(
                f"pipeline {self._pipeline}: at sequence {control.sequence} the source says "
                f"{control.operation!r} of {control.database}.{control.collection}, and what that "
                f"does to its rows is not known here. Everything before is applied, and nothing "
                f"was skipped. Use a Penstock that knows it, or copy the collection again into a "
                f"pipeline with a new {self._config.place_setting}, whose log begins after it."
            )
        if self._unfollowed is not None:
            self._unfollowed.note(control.sequence, effect)
        if self._is_gap(effect):
            self._lost(control, effect.lost, stamp)
        if effect.moves is not None:
            self._rename(control, effect.moves[1], stamp)
        for database, collection in effect.ends:
            for name in [collection] if collection else self._collections(control):
                self._drop(name, control, database, stamp)

    def _stops_at(self, control: Control) -> bool:
        halts = self._config.on_gap == "halt" and not changes_no_row(control)
        return halts and self._is_gap(self._effect(control))

    def _effect(self, control: Control) -> Effect:
        return effect_of(control, follows=self._follows, same_steps=self._same_steps)

    def _is_gap(self, effect: Effect) -> bool:
        return bool(effect.lost) and (self._unfollowed is None or effect.brings is None)

    def _same_steps(self, before: str, after: str) -> bool:
        return steps_of(self._config, before) == steps_of(self._config, after)

    def _rename(self, control: Control, to: Place, stamp: Stamp) -> None:
        database, collection = to
        old, new = self._table(control.collection), self._table(collection)
        if not self._handed_over(old, new, stamp):
            self._move(old, new, control, to, stamp)
            return
        why = "whose table no longer has the rows that it handed over then"
        remedy = (
            f"If the log still has all of {control.collection} and {collection}, remove "
            f"the tables of both, and have them made again: set start = 'oldest', or, for "
            f"to = 'table', penstock pipeline reset {self._pipeline} --to oldest."
        )
        self._lost(control, renamed(control, to, why), stamp, remedy)
        self._drop(collection, control, database, stamp)

    def _handed_over(self, old: _Own, new: _Own, stamp: Stamp) -> bool:
        """Whether `old` is past the event and `new` is not: the rows of then are in neither.

        No crash leaves them so, for the new name is written first. It is so where the new name's
        table was lost, put back from before, or added, and the log is read again.
        """
        if old is new or not self._applied(new) < stamp.until <= self._applied(old):
            return False
        new.reload()  # another driver, who is further, may have written it since it was opened
        return self._applied(new) < stamp.until

    def _drop(self, collection: str, control: Control, database: str, stamp: Stamp) -> None:
        if self._follows(collection):
            table = self._table(collection)
            if self._applied(table) < stamp.until:
                self._empty(table, control, database, stamp)

    def _lost(self, control: Control, description: str, stamp: Stamp, remedy: str = "") -> None:
        if self._config.on_gap == "halt":
            raise ChangesLostError(
                pipeline=self._pipeline,
                sequence=control.sequence,
                description=description,
                remedy=remedy,
            )
        self._reject([Reject(sequence=control.sequence, reason=f"{GAP}{description}")], stamp)

    # --- helpers --------------------------------------------------------------------------------

    def _collections(self, control: Control) -> Sequence[str]:
        """Those whose tables a database's drop concerns: sources need not drop each first."""
        if self._config.collections:
            return self._config.collections
        if self._known is None:
            raise PipelineError(
                f"pipeline {self._pipeline}: at sequence {control.sequence} the database "
                f"{control.database} is dropped, and which tables have its rows was not said. "
                f"Everything before is applied. Say which: `tables`, as the results of the batches "
                f"before gave them, or `collections`."
            )
        return sorted({*self._known, *self._touched} - {""})

    def _follows(self, collection: str) -> bool:
        return bool(collection) and (
            not self._config.collections or collection in self._config.collections
        )

    def _table(self, collection: str) -> _Own:
        if collection not in self._touched:
            table = self._open(collection)
            if self._applied(table) < self._least.get(collection, 0):
                raise PipelineChangedError(
                    pipeline=self._pipeline,
                    change=f"the table of {collection} is gone or older than it was",
                    remedy="or put the table back",
                    new=self._config.place_setting,
                )
            self._touched[collection] = table
        return self._touched[collection]

    def _applied(self, table: KeptTable) -> int:
        return table.applied(self._pipeline, log_id=self._log_id)

    def _stamp(self, after: int, until: int) -> Stamp:
        return Stamp(
            pipeline=self._pipeline,
            log_id=self._log_id,
            after=after,
            until=until,
            batch=self._batch_id,
        )


def steps_of(
    config: SteppedPipelineConfig, collection: str
) -> list[TransformConfig | ExpectConfig]:
    """What decides how the documents of a collection come to its table, and which do."""
    steps = deciding_steps(config)
    return [one for one in steps if not one.collections or collection in one.collections]


def cuts_of(controls: Sequence[Control]) -> list[int]:
    """Where a batch is cut: the sequences of events that concern a whole collection's rows."""
    return [control.sequence for control in controls if not changes_no_row(control)]


def changes_no_row(control: Control) -> bool:
    """Whether rows are as they were behind it."""
    if control.kind is Kind.SCHEMA:
        own = {"db": control.database, "coll": control.collection}
        # A log may hold a rename that went nowhere.
        stays = control.operation == "rename" and control.description.get("to") == own
        return stays or control.operation in HARMLESS
    return control.kind is not Kind.GAP
