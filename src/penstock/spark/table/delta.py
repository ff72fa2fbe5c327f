"""Delta tables through delta-rs: what is applied, rows by key, and one commit per batch."""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from penstock.errors import PipelineChangedError, StreamChangedError
from penstock.proxies import for_delta
from penstock.spark.ahead import Ahead
from penstock.spark.changelog.folder import LEFTOVER_SECONDS, Folder
from penstock.spark.storage import at_its_path, means_no_table, stored_at
from penstock.spark.table.arrow import Column, arrow, compute
from penstock.spark.table.committing import commit, refuse_unwritable
from penstock.spark.table.features import constraints
from penstock.spark.table.lasting import keep_commits
from penstock.spark.table.owner import RECENT_COMMITS, Commit, is_short, owners_of
from penstock.spark.table.plan import (
    DATABASE,
    KEY,
    OPERATION,
    OWN_COLUMNS,
    REJECTED,
    SOURCE,
    STALE,
)
from penstock.spark.table.reduce import DELETE, PUT
from penstock.spark.table.side import FolderSide
from penstock.spark.table.slices import castable
from penstock.spark.table.stamp import Stamp, app_id, log_app_id, signed
from penstock.spark.table.statistics import STATISTICS, state_statistics, statistics_of
from penstock.spark.transform.config import ELEMENT

WRITER: Final = WriterProperties(compression="ZSTD", compression_level=1)
_SAME_ELEMENT: Final = (
    f"((s.{OPERATION} = {PUT} AND t.{ELEMENT} = s.{ELEMENT}) OR "
    f"(s.{OPERATION} <> {PUT} AND t.{ELEMENT} >= s.{ELEMENT}))"
)
_PART: Final = re.compile(
    r"part-\d{5}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-c\d{3}(?:\.\w+)?\.parquet"
)
_FORGETS: Final = "delta.deletedFileRetentionDuration"
"""The table's property that says for how long its checkpoints name a file that was replaced."""
_A_WEEK: Final = "interval 1 week"
"""Where it is not set."""
_UNIT_SECONDS: Final = {
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86_400.0,
    "week": 604_800.0,
}
_INTERVAL: Final = re.compile(rf"interval (\d+) ({'|'.join(_UNIT_SECONDS)})s?")
_LITERALS_MAX: Final = 500
"""Beyond so many keys, reading all and choosing is faster than a condition that names them."""


class Table:
    """One Delta table of a pipeline, as it is now. Not shared between threads."""

    own: pa.Schema = OWN_COLUMNS
    """Its columns beside those of the documents."""
    partitions: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        path: str,
        *,
        pipeline: str = "",
        storage_options: Mapping[str, str] | None = None,
        name: str = "",
    ) -> None:
        """`pipeline` is whose it is to be; without it, it may be of any, or of more than one.
        `name` is what its log is to call it, where its folder does not say that.

        Raises PipelineChangedError for a table of another pipeline, and so does `reload`.
        """
        self.path = path
        self._pipeline = pipeline
        self._name = name
        self._storage = dict(storage_options or {})
        self._delta: DeltaTable | None = None
        self.reload()
        self._opened = self.version

    @at_its_path
    def reload(self) -> None:
        """See what others have committed."""
        try:
            seen = DeltaTable(self.path, storage_options=self._storage or None)
        except TableNotFoundError as error:
            if not means_no_table(error):
                raise
            self._delta = None
            return
        self._refuse_others(seen)
        self._delta = seen

    def _refuse_others(self, seen: DeltaTable) -> None:
        name = self._pipeline
        if not name or seen.transaction_version(app_id(name)) is not None:
            return
        owners = owners_of(seen, storage=self._storage)
        if not owners or name in owners:
            return
        whose = ", ".join(sorted(owners))
        raise PipelineChangedError(
            pipeline=name,
            change=f"the table {self.path} is of pipeline {whose}, as its commits say, and not its "
            f"own",
            remedy=f"or its name back if it was called {whose}",
        )

    def applied(self, pipeline: str, *, log_id: int | None) -> int:
        """The sequence up to which the pipeline's changes are in the table; 0 in a new one.

        Raises StreamChangedError if they came from another log than `log_id`: its sequences say
        nothing here, and rows deleted in between would stay for ever.
        """
        if self._delta is None:
            return 0
        known = self._delta.transaction_version(log_app_id(pipeline))
        if log_id is not None and known is not None and known != signed(log_id):
            raise StreamChangedError(
                f"the table {self.path} was made from log {known % (1 << 64):016x}, and this is "
                f"log {log_id:016x}; move the table away or give the pipeline another path"
            )
        return self._delta.transaction_version(app_id(pipeline)) or 0

    @property
    def version(self) -> int:
        """Grows with each commit; -1 before the first."""
        return -1 if self._delta is None else self._delta.version()

    @property
    def commits(self) -> range:
        """The versions that came since it was opened here."""
        return range(self._opened + 1, self.version + 1)

    @at_its_path
    def is_taken_back(self) -> bool:
        """As `KeptTable.is_taken_back`."""
        history = [] if self._delta is None else self._delta.history(RECENT_COMMITS)
        return is_short(
            [
                Commit(
                    version=one["version"],
                    at_ms=one.get("timestamp", 0),
                    operation=str(one.get("operation")),
                    parameters=one.get("operationParameters") or {},
                    is_ours="penstock.pipeline" in one,
                )
                for one in history
            ]
        )

    @property
    def layout(self) -> tuple[pa.Schema, list[str]] | None:
        """All its columns, and those of them that are partitions; None before the first commit."""
        if self._delta is None:
            return None
        return self._arrow_schema, list(self._delta.metadata().partition_columns)

    @property
    def constraints(self) -> Mapping[str, str]:
        """As `KeptTable.constraints`."""
        return {} if self._delta is None else constraints(self._delta.metadata().configuration)

    @property
    def schema(self) -> pa.Schema:
        """The documents' columns, without `own`; empty before the first commit."""
        if self._delta is None:
            return arrow.schema([])
        return arrow.schema(
            [column for column in self._arrow_schema if column.name not in self.own.names]
        )

    @at_its_path
    def rows(self, keys: Sequence[str], *, where: str | None = None) -> pa.Table:
        """The rows with one of these `_key`s, of whatever database; `where` is SQL."""
        if self._delta is None or not keys:
            return self.own.empty_table()
        conditions = [] if where is None else [where]
        if len(keys) <= _LITERALS_MAX:
            conditions.append(f"`{KEY}` IN ({', '.join(text(key) for key in keys)})")
        wanted = arrow.array(keys, pa.string())
        found = [
            batch.filter(compute.is_in(batch[KEY], wanted))
            for batch in self.scan(" AND ".join(conditions) or None)
        ]
        return arrow.Table.from_batches(found, self._arrow_schema)

    def scan(self, predicate: str | None = None) -> Iterator[pa.RecordBatch]:
        """The table's rows, all columns, in no order."""
        if self._delta is None:
            return
        schema, batches = self._arrow_schema, iter(self._delta.scan(predicate=predicate))
        while True:
            with stored_at(self.path):
                batch = next(batches, None)
            if batch is None:
                return
            for rows in castable(arrow.record_batch(batch)):
                yield arrow.RecordBatch.from_arrays(
                    [rows[field.name].cast(field.type) for field in schema], schema=schema
                )

    def has(self, predicate: str) -> bool:
        """Whether there is a row for which a condition of SQL holds."""
        return any(batch.num_rows for batch in self.scan(predicate))

    @property
    def _arrow_schema(self) -> pa.Schema:
        assert self._delta is not None
        return arrow.schema(self._delta.schema().to_arrow())

    def side(self) -> FolderSide:
        """It as of this version, for Spark's tasks."""
        return FolderSide(path=self.path, version=self.version, storage=self._storage)

    @at_its_path
    def merge(self, changes: pa.Table, stamp: Stamp) -> None:
        """Apply `changes` in one commit: OWN_COLUMNS, the documents' columns, and OPERATION.

        The documents' columns are all that the table has and maybe new ones, which it gets.
        A key occurs once. Of a table of elements, a key and an element do, and what is to be
        deleted or is stale is said once for all elements from one on.
        """
        delta = self._ready(_stored(changes), stamp)
        if not delta.file_uris():
            self.insert(changes, stamp)
            return
        before = self.version
        columns = [name for name in changes.column_names if name != OPERATION]
        values = {f"`{name}`": f"s.`{name}`" for name in columns}
        same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in (KEY, DATABASE, SOURCE))
        if ELEMENT in self.own.names:
            same += f" AND {_SAME_ELEMENT}"
        known = {*self.own.names, *self.schema.names}
        commit(
            delta,
            lambda delta: (
                delta.merge(
                    changes,
                    same,
                    source_alias="s",
                    target_alias="t",
                    merge_schema=not known.issuperset(columns),
                    writer_properties=WRITER,
                    commit_properties=stamp.properties(),
                )
                .when_matched_delete(f"s.{OPERATION} = {DELETE}")
                .when_matched_update(
                    {f"`{REJECTED}`": f"s.`{REJECTED}`"}, predicate=f"s.{OPERATION} = {STALE}"
                )
                .when_matched_update(values)
                .when_not_matched_insert(values, predicate=f"s.{OPERATION} = {PUT}")
                .execute()
            ),
        )
        if self.version == before:
            # No row was changed, so nothing was committed; how far it has come is to be stored.
            self.append(_fresh(changes.slice(0, 0)), stamp)
        elif self._name:
            _state_name(delta, self._name)

    def insert(self, changes: pa.Table, stamp: Stamp) -> None:
        """As `merge`, where the table has no row of these keys: none of it is read."""
        self.append(_fresh(changes), stamp)

    @at_its_path
    def rewrite(self, changes: pa.Table, stamp: Stamp) -> None:
        """As `merge`, but columns may have become wider: every file is written anew."""
        schema = _stored(changes)
        ready = self._ready(schema, stamp)

        def write(delta: DeltaTable) -> None:
            # The writer pulls batches on a thread of its runtime, where the table cannot be read.
            with Ahead(_rewritten(self.scan(), changes, schema)) as batches:
                write_deltalake(
                    delta,
                    arrow.RecordBatchReader.from_batches(schema, batches),
                    mode="overwrite",
                    schema_mode="overwrite",
                    writer_properties=WRITER,
                    commit_properties=stamp.properties(overwrites=True),
                )

        commit(ready, write)

    @at_its_path
    def replace(self, rows: pa.Table, stamp: Stamp) -> None:
        """Have these rows and no others, in one commit; columns that are new, too."""
        commit(
            self._ready(rows.schema, stamp),
            lambda delta: write_deltalake(
                delta,
                rows,
                mode="overwrite",
                schema_mode="merge",
                writer_properties=WRITER,
                commit_properties=stamp.properties(overwrites=True),
            ),
        )

    @at_its_path
    def append(self, rows: pa.Table, stamp: Stamp) -> None:
        """Add rows, in one commit."""
        commit(
            self._ready(rows.schema, stamp),
            lambda delta: write_deltalake(
                delta,
                rows,
                mode="append",
                schema_mode="merge",
                writer_properties=WRITER,
                commit_properties=stamp.properties(),
            ),
        )

    @at_its_path
    def empty(self, predicate: str, stamp: Stamp | None) -> None:
        """Delete the rows for which `predicate` holds. Without a stamp it moves nothing on."""
        if self._delta is None:
            return
        state_statistics(self._delta, self._arrow_schema)
        before = self.version
        commit(
            self._delta,
            lambda delta: delta.delete(
                predicate,
                writer_properties=WRITER,
                commit_properties=None if stamp is None else stamp.properties(),
            ),
        )
        self._stamped(stamp, before)

    @at_its_path
    def relabel(self, predicate: str, values: Mapping[str, str], stamp: Stamp) -> None:
        """Set columns to SQL expressions where `predicate` holds."""
        if self._delta is None:
            return
        state_statistics(self._delta, self._arrow_schema)
        before = self.version
        commit(
            self._delta,
            lambda delta: delta.update(
                dict(values),
                predicate=predicate,
                writer_properties=WRITER,
                commit_properties=stamp.properties(),
            ),
        )
        self._stamped(stamp, before)

    def _stamped(self, stamp: Stamp | None, before: int) -> None:
        """Store how far it has come where no row was there to change, so that nothing was committed
        behind the version `before`."""
        if stamp is not None and stamp.moves and self.version == before:
            self.append(self._arrow_schema.empty_table(), stamp)

    @at_its_path
    def add_files(self, files: Sequence[AddAction], schema: pa.Schema, stamp: Stamp) -> None:
        """Have files that are written already be part of the table, in one commit.

        `schema` are the columns of a new table; those in the files' `partition_values` are its
        partitions.
        """
        partition_by = list(files[0].partition_values)
        ready = self._ready(schema, stamp, partition_by=partition_by)

        def write(delta: DeltaTable) -> None:
            delta.create_write_transaction(
                list(files),
                mode="append",
                schema=delta.schema(),
                partition_by=partition_by,
                commit_properties=stamp.properties(),
            )
            delta.update_incremental()

        commit(ready, write)

    @at_its_path
    def compact(self) -> tuple[int, int]:
        """Join small files, in one commit: how many there were, and how many they became.

        Those of partitions that delta-rs cannot read to join them stay (`_unreadable`).
        """
        if self._delta is None:
            return 0, 0
        self.reload()
        refuse_unwritable(self._delta)
        state_statistics(self._delta, self._arrow_schema)
        before = self.version
        filters = [(name, "not in", values) for name, values in self._unreadable().items()]
        done = self._delta.optimize.compact(
            partition_filters=filters or None, writer_properties=WRITER
        )
        keep_commits(self._delta.table_uri, after=before, until=self.version)
        return done["numFilesRemoved"], done["numFilesAdded"]

    def _unreadable(self) -> dict[str, list[str]]:
        """By partition column: its values with a character that delta-rs writes in two ways, so
        that it finds no file of them when it joins."""
        assert self._delta is not None
        found: dict[str, set[str]] = {}
        for partition in self._delta.partitions():
            for name, value in partition.items():
                if "~" in str(value):
                    found.setdefault(name, set()).add(str(value))
        return {name: sorted(values) for name, values in found.items()}

    @at_its_path
    def vacuum(self, *, history_seconds: float) -> int:
        """Delete files that no version of the last `history_seconds` uses; an hour at least.

        How many. Only files that a commit has replaced: what else lies in the folder stays.
        """
        if self._delta is None:
            return 0
        self.reload()
        refuse_unwritable(self._delta)
        try:
            deleted = self._delta.vacuum(
                retention_hours=_hours(history_seconds),
                enforce_retention_duration=False,
                dry_run=False,
            )
        finally:
            self._delta.cleanup_metadata()
        return len(deleted)

    @at_its_path
    def unknown_files(self, *, older_seconds: float) -> list[str]:
        """Files in the folder, last written so long ago, that no version of as long uses.

        None where the log forgets sooner than that what a version has used.
        """
        if self._delta is None:
            return []
        self.reload()
        known = self._delta.metadata().configuration.get(_FORGETS, _A_WEEK)
        if _interval_seconds(known) < older_seconds:
            return []
        return self._delta.vacuum(
            retention_hours=_hours(older_seconds),
            enforce_retention_duration=False,
            dry_run=True,
            full=True,
        )

    @at_its_path
    def sweep(self, *, older_seconds: float) -> int:
        """Delete files of this table that its log has forgotten, or never knew; a day old at least.

        How many. Only under names that delta-rs and Spark give, in the table's own folders: what
        lies deeper is another's.
        """
        unknown = self.unknown_files(older_seconds=max(LEFTOVER_SECONDS, older_seconds))
        names = [name for name in unknown if self._is_of_a_commit(name)]
        if names:
            Folder(self.path, storage_options=self._storage).remove(names)
        return len(names)

    def _is_of_a_commit(self, name: str) -> bool:
        assert self._delta is not None
        *folders, file = name.split("/")
        columns = [one.partition("=")[0] for one in folders]
        return columns == self._delta.metadata().partition_columns and bool(_PART.fullmatch(file))

    def _ready(
        self, schema: pa.Schema, stamp: Stamp, *, partition_by: Sequence[str] = ()
    ) -> DeltaTable:
        """The table, for a commit behind which its columns are these too, as `schema` has them."""
        if self._delta is None:
            self._create(schema, stamp, partition_by=partition_by)
        else:
            columns = {field.name: field for field in (*self._arrow_schema, *schema)}
            state_statistics(self._delta, arrow.schema(list(columns.values())))
            if self._name:
                _state_name(self._delta, self._name)
        assert self._delta is not None
        return self._delta

    def _create(self, schema: pa.Schema, stamp: Stamp, *, partition_by: Sequence[str] = ()) -> None:
        """Have the table, without a row, for the first commit under `stamp`.

        Raises CommitFailedError where another driver of the pipeline has committed to it since it
        was opened here: what is to be written was decided without that.
        """
        create_table(
            self.path,
            schema,
            partition_by=partition_by or self.partitions,
            storage=self._storage,
            name=self._name,
        )
        self.reload()
        assert self._delta is not None
        if self._delta.transaction_version(app_id(stamp.pipeline)) is not None:
            self._delta = None
            raise CommitFailedError(
                f"another process has made the table {self.path} and committed to it meanwhile"
            )


def create_table(
    path: str,
    schema: pa.Schema,
    *,
    storage: Mapping[str, str],
    partition_by: Sequence[str] = (),
    name: str = "",
) -> None:
    """Have a table without a row at `path`, or the one that is there, as it is."""
    options = dict(storage) or None
    try:
        DeltaTable.create(
            path,
            schema=schema,
            mode="ignore",
            partition_by=list(partition_by) or None,
            storage_options=options,
            name=name or None,
            configuration={STATISTICS: statistics_of(schema, partition_by)},
            # Tried again behind another's, it would be a commit on top, with this schema.
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    except CommitFailedError:
        if not DeltaTable.is_deltatable(path, storage_options=options):
            raise
    keep_commits(path, after=-1, until=0)


def _state_name(delta: DeltaTable, name: str) -> None:
    """Have the table's log call it that: delta-rs forgets it where a merge adds columns, behind
    which a kill may come. Raises as `state_statistics`."""
    if delta.metadata().name != name:
        once = CommitProperties(max_commit_retries=0)
        commit(delta, lambda delta: delta.alter.set_table_name(name, commit_properties=once))


def _rewritten(
    batches: Iterable[pa.RecordBatch], changes: pa.Table, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The table's rows that no change touches, the stale ones marked, then the new rows."""
    operations = changes[OPERATION].to_pylist()
    identities = list(
        zip(*(changes[name].to_pylist() for name in (KEY, DATABASE, SOURCE)), strict=True)
    )
    touched = dict(zip(identities, operations, strict=True))
    marks = dict(zip(identities, changes[REJECTED].to_pylist(), strict=True))
    for batch in batches:
        own = list(zip(*(batch[name].to_pylist() for name in (KEY, DATABASE, SOURCE)), strict=True))
        kept = [touched.get(identity, STALE) == STALE for identity in own]
        columns = []
        for field in schema:
            if field.name == REJECTED:
                marked = [
                    marks.get(identity, old)
                    for identity, old in zip(own, batch[REJECTED].to_pylist(), strict=True)
                ]
                columns.append(arrow.array(marked, pa.int64()))
            elif field.name in batch.schema.names:
                column = batch[field.name]
                columns.append(as_wide(column, field.type))
            else:
                columns.append(arrow.nulls(batch.num_rows, field.type))
        whole = arrow.RecordBatch.from_arrays(columns, schema=schema)
        yield whole.filter(arrow.array(kept, pa.bool_()))
    yield from _fresh(changes).cast(schema).to_batches()


def _stored(changes: pa.Table) -> pa.Schema:
    """The columns that a table gets of `changes`."""
    return arrow.schema([field for field in changes.schema if field.name != OPERATION])


def _fresh(changes: pa.Table) -> pa.Table:
    """The whole rows among `changes`."""
    return changes.filter(compute.equal(changes[OPERATION], PUT)).drop_columns(OPERATION)


def as_wide(column: Column, target: pa.DataType) -> Column:
    """The same values in a type that holds them all, as `kinds.wider` allows."""
    if column.type == target:
        return column
    if arrow.types.is_decimal(target):
        column = column.cast(pa.decimal128(19, 0))
    return column.cast(target)


def of_stream(source: str, database: str) -> str:
    """The SQL condition for the rows of one database of a source."""
    return f"`{SOURCE}` = {text(source)} AND `{DATABASE}` = {text(database)}"


def _hours(seconds: float) -> int:
    """Never fewer: vacuum knows whole hours only."""
    return max(1, math.ceil(seconds / 3600))


def _interval_seconds(said: str) -> float:
    """A duration as Delta's properties have it; 0 for one that is not understood."""
    found = _INTERVAL.fullmatch(said.strip().lower())
    return int(found[1]) * _UNIT_SECONDS[found[2]] if found else 0.0


def text(value: str) -> str:
    """A SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def secrets(storage_options: Mapping[str, Any]) -> dict[str, str]:
    """Storage options as delta-rs takes them: past proxies, where the store is on this machine."""
    return for_delta({name: value.get_secret_value() for name, value in storage_options.items()})
