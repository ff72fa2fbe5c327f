"""Rejected changes, tried again with the steps of today: `penstock pipeline replay`.

The log says what a change was, the table where its row stands. A row that a rejected change left
stale has every change since in the rejects, but for those that its batch put together with the last
one; so all of them go through the steps together, in their order, onto the row. What they come to
is written if the row then is as its last change says. A row that is not in the table may have been
deleted since: the log says so, and without it nothing is done; one that never was in it is made
of what the log has. The table is written first, then the rejects say so; a crash in between is seen
in the row.

A pipeline may run meanwhile where tables are in folders: Delta refuses whichever of the two commits
to a table last.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec import Struct

from penstock.client.flight import LogClient, ReadRequest
from penstock.spark.config import TablePipelineConfig
from penstock.spark.table.apply import prepare, relative_keys
from penstock.spark.table.arrow import arrow
from penstock.spark.table.chunk import INPUT_COLUMNS, reduce_entries
from penstock.spark.table.delta import Stamp, text
from penstock.spark.table.elements import Elements, elements_of, prepare_elements
from penstock.spark.table.lake import KeptTable, seen_lake
from penstock.spark.table.plan import DATABASE, KEY, OPERATION, REJECTED, SEQUENCE, SOURCE, STALE
from penstock.spark.table.rejects import LOADED, REPLAYED, SUPERSEDED
from penstock.spark.transform.found import Found, Identity
from penstock.spark.transform.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEFT: Final = "left"
"""It stays in the rejects, for the reason that is given."""

_NAMED_MAX: Final = 500


class Replayed(Struct, frozen=True, kw_only=True):
    """What became of a rejected change."""

    sequence: int
    collection: str | None
    key: str | None
    state: str
    """replayed, superseded or left."""
    reason: str = ""
    """Why it is left."""


class Row(Struct, frozen=True, kw_only=True):
    """Where a table says that a row stands."""

    sequence: int
    rejected: int | None


class Fate(Struct, frozen=True, kw_only=True):
    """What is to be done with a row's rejected changes."""

    tried: tuple[int, ...] = ()
    """To be applied together, ascending."""
    states: dict[int, str] = {}
    """By sequence: what is known without applying anything."""
    reason: str = ""
    """Why the rest is left."""


def decide(
    pending: Sequence[int],
    *,
    row: Row | None,
    applied: int,
    known_from: int,
    others: Sequence[int],
) -> Fate:
    """What to do with the rejected changes of one row, by their sequences, ascending. Pure.

    `row` is what the table has; `applied` how far the table is. Of the sequences from `known_from`
    on `others` are all changes of the row, or events that end it, which are not `pending`.
    """
    here = [at for at in pending if at <= applied]
    if not here:
        return Fate(reason="its batch is not in the table yet")
    if row is not None:
        states = {at: SUPERSEDED for at in here if at < row.sequence}
        if row.sequence in here:
            states[row.sequence] = REPLAYED
        tried = tuple(at for at in here if at > row.sequence)
        if tried and row.rejected != tried[-1]:
            return Fate(states=states, reason="the table has it neither applied nor rejected")
        if tried and known_from > tried[0]:
            return Fate(states=states, reason="the log no longer has it")
        return Fate(tried=tried, states=states)
    if known_from > here[0]:
        return Fate(reason="the log no longer has it")
    last = max((at for at in others if at <= applied), default=0)
    states = {at: SUPERSEDED for at in here if at < last}
    tried = tuple(at for at in here if at > last)
    why = "" if tried or states else "an event about its whole collection moved it"
    return Fate(tried=tried, states=states, reason=why)


def pending_in(pipeline: str, rejects: KeptTable) -> list[dict[str, Any]]:
    """The rows of the rejects table that are not settled, by sequence."""
    rows: list[dict[str, Any]] = [
        row for batch in rejects.scan(f"pipeline = {text(pipeline)}") for row in batch.to_pylist()
    ]
    return sorted(
        (row for row in rows if row.get("state") is None), key=lambda row: int(row["sequence"])
    )


def through(
    stage: Stage, entries: pa.Table, *, pipeline: str, spark: "SparkSession | None"
) -> tuple[pa.Table, dict[int, str]]:
    """Entries (INPUT_COLUMNS) with all steps done; of those refused, by sequence, why."""
    if stage.is_empty or not entries.num_rows:
        return entries, {}
    from penstock.spark.session import local_session

    session = spark or local_session(app_name=f"penstock {pipeline}")
    stage.check(session)
    with stage.computed(session.createDataFrame(signed(entries))) as computed:
        reasons = {at: verdict.reason for at, verdict in computed.refused.items()}
        done: pa.Table = computed.frame.select(*INPUT_COLUMNS).toArrow()
        return done, reasons


class Replay:
    def __init__(
        self,
        name: str,
        config: TablePipelineConfig,
        client: LogClient,
        spark: "SparkSession | None",
    ) -> None:
        self._lake = seen_lake(config, name, spark)
        self._name = name
        self._config = config
        self._client = client
        self._spark = spark
        self._bounds = client.bounds()
        self._stage = Stage(name, config, INPUT_COLUMNS)

    def run(self) -> list[Replayed]:
        rejects = self._lake.rejects()
        rejects.applied(self._name, log_id=self._bounds.log_id)
        outcomes: list[Replayed] = []
        by_collection: dict[str, list[dict[str, Any]]] = {}
        for one in pending_in(self._name, rejects):
            if one["operation_type"] == LOADED:
                outcomes.append(_outcome(one, LEFT, "it came with the first load: no log has it"))
            elif one["collection"] and one["key"] is not None:
                by_collection.setdefault(one["collection"], []).append(one)
            else:
                outcomes.append(_outcome(one, LEFT, "it is no change of a row"))
        for collection, pending in by_collection.items():
            settled = self._collection(collection, pending)
            self._mark(rejects, settled)
            outcomes += settled
        return sorted(outcomes, key=lambda one: one.sequence)

    def _collection(self, collection: str, pending: list[dict[str, Any]]) -> list[Replayed]:
        table = self._lake.table(collection)
        elements = elements_of(self._name, self._config, collection)
        applied = table.applied(self._name, log_id=self._bounds.log_id)
        rows = _rows_of(table, [one["key"] for one in pending])
        groups: dict[Identity, list[dict[str, Any]]] = {}
        for one in pending:
            groups.setdefault((one["key"], one["database"], one["source"]), []).append(one)
        least = min([pending[0]["sequence"] - 1, *(row.sequence for row in rows.values())])
        if elements is not None and not rows.keys() >= groups.keys():
            # A document without elements has no row that says what it was.
            least = 0
        found = self._read(collection, pending, least, applied)
        firsts = [group[0]["sequence"] for own, group in groups.items() if own not in rows]
        if least > self._bounds.trimmed and found.building(firsts):
            # What such a change builds on was in its batch, and is before it in the log.
            found = self._read(collection, pending, 0, applied)
        fates = {
            own: decide(
                [one["sequence"] for one in group],
                row=rows.get(own),
                applied=applied,
                known_from=self._bounds.trimmed + 1,
                others=found.others(own),
            )
            for own, group in groups.items()
        }
        tried = {own: fate.tried for own, fate in fates.items() if fate.tried}
        # A batch rejects a row's last change alone; what that builds on is in the log only.
        relative = found.building([last[0] for own, last in tried.items() if own not in rows])
        whole: dict[Identity, tuple[int, ...]] = {}
        for own, last in tried.items():
            if own in rows:
                since = [at for at in found.others(own) if rows[own].sequence < at < last[-1]]
            else:
                entire = elements is not None or last[0] in relative
                since = found.whole(own) if entire else []
            whole[own] = (*since, *last)
        known_from = self._bounds.trimmed + 1
        unsure = {own for own in tried if own in rows and rows[own].sequence + 1 < known_from}
        if elements is None and known_from > 1:
            starts = {own: min(whole[own]) for own in tried if own not in rows}
            cut = found.building([*starts.values()])
            unsure |= {own for own, at in starts.items() if at in cut}
        left = self._apply(table, whole, found, applied, unsure=unsure, elements=elements)
        outcomes: list[Replayed] = []
        for own, group in groups.items():
            fate = fates[own]
            for one in group:
                at = one["sequence"]
                if at in fate.states:
                    outcomes.append(_outcome(one, fate.states[at]))
                elif at in fate.tried and own not in left:
                    state = REPLAYED if at == fate.tried[-1] else SUPERSEDED
                    outcomes.append(_outcome(one, state))
                else:
                    outcomes.append(_outcome(one, LEFT, left.get(own, fate.reason)))
        return outcomes

    def _read(
        self,
        collection: str,
        pending: list[dict[str, Any]],
        least: int,
        applied: int,
    ) -> Found:
        """What the log has behind `least` of the rejected changes, and of what their rows were."""
        wanted = arrow.array([one["sequence"] for one in pending], pa.int64())
        first = max(least, self._bounds.trimmed)
        found = Found(collection, {one["key"] for one in pending})
        if first >= applied:
            return found
        request = ReadRequest(
            log_id=self._bounds.log_id,
            after=first,
            until=applied,
            source=self._config.source,
            collections=(f"{self._config.source}/{collection}",),
            columns=self._stage.columns,
        )
        for batch in self._client.read(request):
            found.add(batch, wanted)
        return found

    def _apply(
        self,
        table: KeptTable,
        tried: dict[Identity, tuple[int, ...]],
        found: Found,
        applied: int,
        *,
        unsure: Set[Identity],
        elements: Elements | None,
    ) -> dict[Identity, str]:
        """Write what fits now; of the other rows, why it does not.

        Of rows that are `unsure` the log no longer has all that they were since.
        """
        sequences = [at for group in tried.values() for at in group]
        entries = found.entries(sequences)
        missing = {own for own, group in tried.items() if not found.has(group)}
        left = dict.fromkeys(missing, "an event about its whole collection moved it")
        if not entries.num_rows:
            return left
        entries, reasons = through(self._stage, entries, pipeline=self._name, spark=self._spark)
        chunk = reduce_entries(entries)
        building = {*relative_keys(chunk)}
        left |= {own: "the log no longer has it" for own in unsure if own[0] in building}
        base = table.rows([key for key, _, _ in tried])
        # Its row is known after all, if all that was rejected is applied now.
        marks = arrow.nulls(base.num_rows, pa.int64())
        column = base.schema.get_field_index(REJECTED)
        base = base.set_column(column, base.schema.field(column), marks)
        if elements is not None:
            write = prepare_elements(chunk, schema=table.schema, base=base, elements=elements)
        else:
            write = prepare(chunk, schema=table.schema, base=base)
        reasons = {one.sequence: one.reason for one in write.rejects} | reasons
        kept: list[bool] = []
        for change in write.changes.select(
            [KEY, DATABASE, SOURCE, SEQUENCE, OPERATION]
        ).to_pylist():
            own = (change[KEY], change[DATABASE], change[SOURCE])
            last = tried[own][-1]
            fits = change[OPERATION] != STALE and change[SEQUENCE] == last and own not in left
            kept.append(fits)
            if not fits and own not in left:
                left[own] = reasons.get(last, "it does not say the whole row")
        changes = write.changes.filter(arrow.array(kept, pa.bool_()))
        if changes.num_rows:
            stamp = self._stamp(applied)
            if write.widened:
                table.rewrite(changes, stamp)
            else:
                table.merge(changes, stamp)
        return left

    def _mark(self, rejects: KeptTable, settled: Sequence[Replayed]) -> None:
        for state in (REPLAYED, SUPERSEDED):
            of_state = [one for one in settled if one.state == state]
            for start in range(0, len(of_state), _NAMED_MAX):
                some = of_state[start : start + _NAMED_MAX]
                rejects.relabel(
                    f"pipeline = {text(self._name)} AND ({' OR '.join(map(_is_it, some))})",
                    {"state": text(state)},
                    self._stamp(max(one.sequence for one in some)),
                )

    def _stamp(self, until: int) -> Stamp:
        """Of a commit that moves nothing on."""
        return Stamp(
            pipeline=self._name, log_id=self._bounds.log_id, after=until, until=until, batch=-1
        )


def _rows_of(table: KeptTable, keys: Sequence[str]) -> dict[Identity, Row]:
    found = table.rows(keys).select([KEY, DATABASE, SOURCE, SEQUENCE, REJECTED]).to_pylist()
    return {
        (row[KEY], row[DATABASE], row[SOURCE]): Row(sequence=row[SEQUENCE], rejected=row[REJECTED])
        for row in found
    }


def signed(entries: pa.Table) -> pa.Table:
    """The same columns as Spark has them: no unsigned numbers."""
    columns = [
        column.combine_chunks().view(pa.int64()) if column.type == pa.uint64() else column
        for column in entries.columns
    ]
    return arrow.table(columns, names=entries.column_names)


def _outcome(one: dict[str, Any], state: str, reason: str = "") -> Replayed:
    return Replayed(
        sequence=one["sequence"],
        collection=one["collection"],
        key=one["key"],
        state=state,
        reason=reason,
    )


def _is_it(one: Replayed) -> str:
    return f"(sequence = {one.sequence} AND key = {text(one.key or '')})"
