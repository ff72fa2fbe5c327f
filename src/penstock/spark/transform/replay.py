"""Rejected changes, tried again with the steps of today: `penstock pipeline replay`.

The log says what a change was, the table where its row stands. A row that a rejected change left
stale has every change since in the rejects, but for those that its batch put together with the last
one; so all of them go through the steps together, in their order, onto the row. What they come to
is written if the row then is as its last change says. A row that is not in the table may have been
deleted since: the log says so, and without it nothing is done; one that never was in it is made
of what the log has. The table is written first, then the rejects say so; a crash in between is seen
in the row.

A rename takes rows, and what they lack, to another table. So a change's row is looked for where the
log says that it is by now. What it was when it was renamed its table does not say: such a row is
made again of what the log has, from its last whole document on, or left.

A pipeline may run meanwhile where tables are in folders: Delta refuses whichever of the two commits
to a table last.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec import Struct

from penstock.client.flight import LogClient, ReadRequest
from penstock.spark.config import TablePipelineConfig
from penstock.spark.table.apply import prepare, relative_keys
from penstock.spark.table.arrow import arrow
from penstock.spark.table.chunk import INPUT_COLUMNS, reduce_entries
from penstock.spark.table.elements import Elements, elements_of, prepare_elements
from penstock.spark.table.lake import KeptTable, seen_lake
from penstock.spark.table.plan import DATABASE, KEY, OPERATION, REJECTED, SEQUENCE, SOURCE, STALE
from penstock.spark.table.rejects import LOADED, REPLAYED, SUPERSEDED, VIEW_STEP
from penstock.spark.table.standing import StandingTable
from penstock.spark.transform.fate import LEFT, LOST, Replayed, Row, decide, is_brought
from penstock.spark.transform.found import Event, Found, Identity, Place
from penstock.spark.transform.settled import mark, outcome, pending_in, unmoved
from penstock.spark.transform.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ELSEWHERE: Final = (
    "as the pipeline is configured now, nobody knows what its row was when renamed to"
)
_RENAME: Final = "rename"
"""The operation of a row that a rename moved and that fits its new table no more."""


def through(
    stage: Stage, entries: pa.Table, *, pipeline: str, spark: "SparkSession | None"
) -> tuple[pa.Table, dict[int, str]]:
    """Entries with all steps done, in the target's columns; of those refused, by sequence, why."""
    if stage.is_empty or not entries.num_rows:
        return entries, {}
    from penstock.spark.session import local_session

    session = spark or local_session(app_name=f"penstock {pipeline}")
    stage.check(session)
    with stage.computed(session.createDataFrame(signed(entries)), suspect=True) as computed:
        reasons = {at: verdict.reason for at, verdict in computed.refused.items()}
        done: pa.Table = computed.frame.select(*stage.target_columns).toArrow()
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
        self._standing = StandingTable(config, name, self._lake).read()

    def run(self) -> list[Replayed]:
        rejects = self._lake.rejects()
        rejects.applied(self._name, log_id=self._bounds.log_id)
        outcomes: list[Replayed] = []
        by_collection: dict[str, list[dict[str, Any]]] = {}
        loaded: list[dict[str, Any]] = []
        for one in pending_in(self._name, rejects):
            if one.get("step") == VIEW_STEP:
                continue  # its row is in the table
            if one["operation_type"] == LOADED:
                loaded.append(one)
            elif one["collection"] and one["key"] is not None:
                by_collection.setdefault(one["collection"], []).append(one)
            else:
                outcomes.append(outcome(one, LEFT, "it is no change of a row"))
        if loaded:
            brought = self._brought(loaded)
            self._mark(rejects, brought)
            outcomes += brought
        while by_collection:
            settled = self._joined(by_collection)
            self._mark(rejects, settled)
            outcomes += settled
        return sorted(outcomes, key=lambda one: one.sequence)

    def _brought(self, loaded: Sequence[Mapping[str, Any]]) -> list[Replayed]:
        """What became of rows that a first load rejected; by the row that their table has."""
        tables = {name: self._lake.table(name) for name in {one["collection"] for one in loaded}}
        named = [(one, (one["collection"], _own(one, one["database"]))) for one in loaded]
        rows = _rows_of(tables, {place for _, place in named})
        return [
            outcome(one, SUPERSEDED)
            if is_brought(rows.get(place), one["sequence"])
            else outcome(one, LEFT, "it came with the first load: no log has it")
            for one, place in named
        ]

    def _joined(self, by_collection: dict[str, list[dict[str, Any]]]) -> list[Replayed]:
        """Settle the rejects of a collection, and of those that renames join with it; they are
        taken out of `by_collection`."""
        collections: Set[str] = {next(iter(by_collection))}
        while True:
            known = self._known(collections, by_collection)
            if known.found.joined <= collections:
                break
            collections = collections | known.found.joined
        for collection in collections:
            by_collection.pop(collection, None)
        outcomes = [outcome(one, SUPERSEDED) for one in known.gone]
        outcomes += [outcome(one, LEFT, why) for one, why in known.lost]
        for collection in sorted({one for one, _ in known.groups}):
            outcomes += self._collection(collection, known)
        return outcomes

    def _known(
        self, collections: Set[str], by_collection: Mapping[str, list[dict[str, Any]]]
    ) -> "_Known":
        """What is known of the rows of these collections' rejects.

        It is read from where it must be known; if other collections turn out to be joined, as far
        as these collections tell.
        """
        pending = [one for name in collections for one in by_collection.get(name, ())]
        pending.sort(key=lambda one: int(one["sequence"]))
        tables = {name: self._lake.table(name) for name in collections}
        applied = {name: self._applied(name, table) for name, table in tables.items()}
        keys = {one["key"] for one in pending}
        here = {(one["collection"], _own(one, one["database"])) for one in pending}
        rows = _rows_of(tables, here)
        least = min(
            [one["sequence"] - 1 for one in pending] + [row.sequence - 1 for row in rows.values()]
        )
        while True:
            found = self._read(collections, keys, least)
            found.follow(max(applied.values()))
            known = _Known(
                found=found, tables=tables, applied=applied, groups={}, gone=[], lost=[], rows={}
            )
            for one in pending:
                at = one["sequence"]
                # An event that moves a row and rejects it has moved it.
                since = at - 1 if one["operation_type"] == _RENAME else at
                named: Place = (one["collection"], one["database"])
                is_known = since >= self._bounds.trimmed
                place = found.place(named, since=since) if is_known else named
                if since < at <= self._bounds.trimmed:
                    known.lost.append((one, LOST))
                elif place is None:
                    known.gone.append(one)
                elif isinstance(place, Event):
                    known.lost.append((one, f"{_ELSEWHERE} {(place.to or ('',))[0]}"))
                else:
                    known.groups.setdefault((place[0], _own(one, place[1])), []).append(one)
            if not found.joined <= collections:
                return known
            known.rows.update(_rows_of(tables, known.groups.keys()))
            needed = self._needed(known)
            if needed >= least or least <= self._bounds.trimmed:
                return known
            least = needed

    def _applied(self, collection: str, table: KeptTable) -> int:
        """How far a table is: it does not say that it has what changed no row of it."""
        applied = table.applied(self._name, log_id=self._bounds.log_id)
        standing = self._standing
        if standing is None or standing.progress.log_id != self._bounds.log_id:
            return applied
        if applied < standing.tables.get(collection, 0):
            return applied
        return max(applied, standing.progress.sequence)

    def _elements(self, collection: str) -> Elements | None:
        """What the collection's table has rows of; None for rows of documents."""
        return elements_of(self._name, self._config, collection)

    def _needed(self, known: "_Known") -> int:
        """Behind which sequence the log must be known."""
        needed = self._bounds.head
        for (collection, own), pending in known.groups.items():
            row = known.rows.get((collection, own))
            if row is not None and not known.is_moved(collection, own):
                # The row's last change, or the event that brought it.
                needed = min(needed, row.sequence - 1)
            elif row is not None and row.rejected is None:
                continue
            elif (
                row is not None
                or any(one["operation_type"] == _RENAME for one in pending)
                or self._elements(collection) is not None
                or known.found.building([pending[0]["sequence"]])
            ):
                # What it was, its table does not say: a document without elements has no row, and
                # what such a change builds on was in its batch.
                return 0
        return needed

    def _collection(self, collection: str, known: "_Known") -> list[Replayed]:
        """Settle the rejects whose rows are in this collection by now."""
        found, applied = known.found, known.applied[collection]
        groups = {own: one for (name, own), one in known.groups.items() if name == collection}
        pending = {own: [one["sequence"] for one in group] for own, group in groups.items()}
        lives = {own: [at for at in found.life(collection, own) if at <= applied] for own in groups}
        fates = {
            own: decide(
                pending[own],
                row=known.rows.get((collection, own)),
                applied=applied,
                known_from=self._bounds.trimmed + 1,
                others=[at for at in lives[own] if at not in pending[own]],
                moved=known.is_moved(collection, own),
            )
            for own in groups
        }
        tried = {own: fate.tried for own, fate in fates.items() if fate.tried}
        whole, unsure = self._needing(collection, tried, known, lives)
        left = self._apply(collection, whole, known, unsure=unsure)
        outcomes: list[Replayed] = []
        for own, group in groups.items():
            fate = fates[own]
            for one in group:
                at = one["sequence"]
                if at in fate.states:
                    outcomes.append(outcome(one, fate.states[at]))
                elif at in fate.tried and own not in left:
                    state = REPLAYED if at == fate.tried[-1] else SUPERSEDED
                    outcomes.append(outcome(one, state))
                else:
                    outcomes.append(outcome(one, LEFT, left.get(own, fate.reason)))
        return outcomes

    def _needing(
        self,
        collection: str,
        tried: Mapping[Identity, Sequence[int]],
        known: "_Known",
        lives: Mapping[Identity, Sequence[int]],
    ) -> tuple[dict[Identity, Sequence[int]], Set[Identity]]:
        """All changes that those which are tried need, by row; and the rows of which neither the
        table nor the log says what they were before."""
        found, known_from = known.found, self._bounds.trimmed + 1
        exploded = self._elements(collection) is not None
        there = {own: row for own in tried if (row := known.rows.get((collection, own)))}
        # A batch rejects a row's last change alone; what that builds on is in the log only.
        relative = found.building([last[0] for own, last in tried.items() if own not in there])
        whole: dict[Identity, Sequence[int]] = {}
        unsure = set[Identity]()
        for own, last in tried.items():
            row = there.get(own)
            if row is None:
                entire = exploded or last[0] in relative or found.came((collection, own[1]))
                whole[own] = lives[own] if entire else last
            elif known.is_moved(collection, own):
                whole[own] = lives[own]
                unsure.add(own)
            else:
                since = [at for at in lives[own] if row.sequence < at < last[-1]]
                whole[own] = sorted({*since, *last})
                if row.sequence < known_from:
                    unsure.add(own)
        if not exploded and known_from > 1:
            starts = {own: group[0] for own, group in whole.items() if group and own not in there}
            cut = found.building([*starts.values()])
            unsure |= {own for own, at in starts.items() if at in cut}
        return whole, unsure

    def _read(self, collections: Set[str], keys: Set[str], least: int) -> Found:
        """What the log has behind `least` of the rows with these keys."""
        first = max(least, self._bounds.trimmed)
        found = Found(collections, keys, self._config)
        # To its end: a rename that is half done is in the new name's table, and not in the old's.
        head = self._client.bounds().head
        if first >= head:
            return found
        request = ReadRequest(
            log_id=self._bounds.log_id,
            after=first,
            until=head,
            source=self._config.source,
            collections=tuple(f"{self._config.source}/{name}" for name in sorted(collections)),
            columns=self._stage.columns,
        )
        for batch in self._client.read(request):
            found.add(batch)
        return found

    def _apply(
        self,
        collection: str,
        tried: Mapping[Identity, Sequence[int]],
        known: "_Known",
        *,
        unsure: Set[Identity],
    ) -> dict[Identity, str]:
        """Write what fits now; of the other rows, why it does not.

        Of rows that are `unsure` neither the table nor the log says what they were before.
        """
        table, found = known.tables[collection], known.found
        elements = self._elements(collection)
        entries = found.entries([at for group in tried.values() for at in group])
        missing = {own for own, group in tried.items() if not group or not found.has(group)}
        left = dict.fromkeys(missing, "an event about its whole collection moved it")
        if not entries.num_rows:
            return left
        entries, reasons = through(self._stage, entries, pipeline=self._name, spark=self._spark)
        chunk = reduce_entries(_at(entries, collection, tried))
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
            write = prepare(chunk, schema=table.schema, base=base, constraints=table.constraints)
        reasons = {one.sequence: one.reason for one in write.rejects} | reasons
        kept: list[bool] = []
        sequences: list[int] = []
        for change in write.changes.select(
            [KEY, DATABASE, SOURCE, SEQUENCE, OPERATION]
        ).to_pylist():
            own = (change[KEY], change[DATABASE], change[SOURCE])
            last = tried[own][-1]
            fits = change[OPERATION] != STALE and change[SEQUENCE] == last and own not in left
            kept.append(fits)
            # Behind what brought it, as all rows of the table.
            came = known.found.came((collection, own[1]))
            sequences.append(max([int(change[SEQUENCE]), *came]))
            if not fits and own not in left:
                left[own] = reasons.get(int(last), "it does not say the whole row")
        column = write.changes.schema.get_field_index(SEQUENCE)
        changes = write.changes.set_column(
            column, write.changes.schema.field(column), arrow.array(sequences, pa.int64())
        ).filter(arrow.array(kept, pa.bool_()))
        if changes.num_rows:
            place = table.applied(self._name, log_id=self._bounds.log_id)
            stamp = unmoved(self._name, log_id=self._bounds.log_id, at=place)
            if write.widened:
                table.rewrite(changes, stamp)
            else:
                table.merge(changes, stamp)
        return left

    def _mark(self, rejects: KeptTable, settled: Sequence[Replayed]) -> None:
        mark(rejects, settled, pipeline=self._name, log_id=self._bounds.log_id)


class _Known(Struct, kw_only=True):
    """What is known of the rows of rejects, in collections that renames join."""

    found: Found
    tables: dict[str, KeptTable]
    applied: dict[str, int]
    """By collection: how far its table is."""
    groups: dict[tuple[str, Identity], list[dict[str, Any]]]
    """By row, in the collection where it is now: its rejects, by sequence."""
    gone: list[dict[str, Any]]
    """Rejects of rows that an event ended."""
    lost: list[tuple[dict[str, Any], str]]
    """Rejects of rows of which nobody knows where they are, and why."""
    rows: dict[tuple[str, Identity], Row]
    """Where the tables say that these rows stand."""

    def is_moved(self, collection: str, own: Identity) -> bool:
        """Whether the row is as an event brought it."""
        row = self.rows.get((collection, own))
        return row is not None and row.sequence in self.found.came((collection, own[1]))


def _own(one: Mapping[str, Any], database: str) -> Identity:
    """The row of a reject, in this database."""
    return one["key"], database, one["source"]


def _rows_of(
    tables: Mapping[str, KeptTable], wanted: Set[tuple[str, Identity]]
) -> dict[tuple[str, Identity], Row]:
    rows: dict[tuple[str, Identity], Row] = {}
    for collection, table in tables.items():
        keys = sorted({own[0] for name, own in wanted if name == collection})
        found = table.rows(keys).select([KEY, DATABASE, SOURCE, SEQUENCE, REJECTED]).to_pylist()
        for row in found:
            own = (collection, (row[KEY], row[DATABASE], row[SOURCE]))
            if own in wanted:
                rows[own] = Row(sequence=row[SEQUENCE], rejected=row[REJECTED])
    return rows


def _at(entries: pa.Table, collection: str, tried: Mapping[Identity, Sequence[int]]) -> pa.Table:
    """Entries as those of the collection where their rows are now."""
    databases = {at: database for (_, database, _), group in tried.items() for at in group}
    sequences: list[Any] = entries["sequence"].to_pylist()
    there: dict[str, list[str]] = {
        "collection": [collection] * entries.num_rows,
        "database": [databases[int(at)] for at in sequences],
    }
    for name, values in there.items():
        column = entries.schema.get_field_index(name)
        field = entries.schema.field(column)
        entries = entries.set_column(
            column, field, arrow.array(values, pa.string()).cast(field.type)
        )
    return entries


def signed(entries: pa.Table) -> pa.Table:
    """The same columns as Spark has them: no unsigned numbers."""
    columns = [
        column.combine_chunks().view(pa.int64()) if column.type == pa.uint64() else column
        for column in entries.columns
    ]
    return arrow.table(columns, names=entries.column_names)
