"""Delta tables of versions: the open ones by key, and one commit per batch.

Tables are partitioned by `_current`: what is closed stays in files that no later batch reads, and
a batch costs what is open, not what was.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from penstock.spark.ahead import Ahead
from penstock.spark.history.columns import (
    CURRENT,
    FROM_SEQUENCE,
    IDENTITY,
    TO_SEQUENCE,
    VALID_TO,
    VERSION_COLUMNS,
)
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.committing import commit
from penstock.spark.table.delta import WRITER, Table, as_wide, of_stream
from penstock.spark.table.stamp import Stamp

_OPEN: Final = f"`{CURRENT}` = true"
_GONE: Final = "(gone)"
"""A name that no column can have: whatever fields there are, they are called otherwise."""


class VersionTable(Table):
    """One Delta table of versions, as it is now. Not shared between threads."""

    own = VERSION_COLUMNS
    partitions = (CURRENT,)

    def open_versions(self, keys: Sequence[str]) -> pa.Table:
        """The open versions with one of these `_key`s, of whatever database."""
        return self.rows(keys, where=_OPEN)

    def scan_open(self, source: str, database: str, *, before: int) -> Iterator[pa.RecordBatch]:
        """The open versions of one database of a source that began before a sequence, in no
        order."""
        return self.scan(_open_before(source, database, before))

    def put(self, versions: pa.Table, stamp: Stamp) -> None:
        """Have these versions in place of those that are the same by IDENTITY, in one commit.

        VERSION_COLUMNS and the documents' columns, all that the table has and maybe new ones. Of
        what the table has, only open versions may be among them.
        """
        if self._delta is None or not self._delta.file_uris():
            self.append(versions, stamp)
            return
        same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in IDENTITY)
        values = {f"`{name}`": f"s.`{name}`" for name in versions.column_names}
        known = {*self.own.names, *self.schema.names}
        commit(
            self._ready(versions.schema, stamp),
            lambda delta: (
                delta.merge(
                    versions,
                    f"t.{_OPEN} AND {same}",
                    source_alias="s",
                    target_alias="t",
                    merge_schema=not known.issuperset(versions.column_names),
                    writer_properties=WRITER,
                    commit_properties=stamp.properties(),
                )
                .when_matched_update(values)
                .when_not_matched_insert(values)
                .execute()
            ),
        )

    def mend(self, versions: pa.Table, gone: pa.Table, stamp: Stamp) -> None:
        """As `put`, of closed versions too; and those that are the same as one of `gone` (IDENTITY)
        are taken out, in the same commit."""
        known = {*self.own.names, *self.schema.names}
        changes = arrow.concat_tables(
            [_marked(versions, is_gone=False), _marked(gone, is_gone=True)],
            promote_options="default",
        )
        same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in IDENTITY)
        values = {f"`{name}`": f"s.`{name}`" for name in versions.column_names}
        commit(
            self._ready(versions.schema, stamp),
            lambda delta: (
                delta.merge(
                    changes,
                    same,
                    source_alias="s",
                    target_alias="t",
                    merge_schema=not known.issuperset(versions.column_names),
                    writer_properties=WRITER,
                    commit_properties=stamp.properties(),
                )
                .when_matched_delete(f"s.`{_GONE}`")
                .when_matched_update(values, predicate=f"NOT s.`{_GONE}`")
                .when_not_matched_insert(values, predicate=f"NOT s.`{_GONE}`")
                .execute()
            ),
        )

    def mend_wider(self, versions: pa.Table, gone: pa.Table, stamp: Stamp) -> None:
        """As `mend`, but columns may have become wider: every file is written anew, and a version
        that was there several times is there once."""
        if self._delta is None:
            self.append(versions, stamp)
            return
        self._rewrite(versions, gone, stamp)

    def put_wider(self, versions: pa.Table, stamp: Stamp) -> None:
        """As `put`, but columns may have become wider: every file is written anew."""
        self._rewrite(versions, versions.slice(0, 0), stamp)

    def _rewrite(self, versions: pa.Table, gone: pa.Table, stamp: Stamp) -> None:
        def write(delta: DeltaTable) -> None:
            # The writer pulls batches on a thread of its runtime, where the table cannot be read.
            with Ahead(_rewritten(self.scan(), versions, gone)) as batches:
                write_deltalake(
                    delta,
                    arrow.RecordBatchReader.from_batches(versions.schema, batches),
                    mode="overwrite",
                    schema_mode="overwrite",
                    partition_by=list(self.partitions),
                    writer_properties=WRITER,
                    commit_properties=stamp.properties(overwrites=True),
                )

        commit(self._ready(versions.schema, stamp), write)

    def close(
        self, source: str, database: str, *, sequence: int, timestamp: int, stamp: Stamp
    ) -> None:
        """End the open versions of one database of a source that began before `sequence`, in one
        commit."""
        ended = {
            CURRENT: "false",
            TO_SEQUENCE: str(sequence),
            VALID_TO: f"to_timestamp_micros({timestamp * 1000})",
        }
        self.relabel(_open_before(source, database, sequence), ended, stamp)

    def take_back(self, source: str, database: str, *, sequence: int, stamp: Stamp) -> None:
        """Take out what began with an event in one database of a source."""
        self.empty(f"{of_stream(source, database)} AND `{FROM_SEQUENCE}` = {sequence}", stamp)


def _open_before(source: str, database: str, sequence: int) -> str:
    return f"{_OPEN} AND {of_stream(source, database)} AND `{FROM_SEQUENCE}` < {sequence}"


def _marked(versions: pa.Table, *, is_gone: bool) -> pa.Table:
    """The same, and a column that says whether they are to be taken out."""
    marks = arrow.array([is_gone] * versions.num_rows, pa.bool_())
    return versions.append_column(_GONE, marks)


def _rewritten(
    batches: Iterable[pa.RecordBatch], versions: pa.Table, gone: pa.Table
) -> Iterator[pa.RecordBatch]:
    """The table's versions but those that are given or `gone`, in the columns of the given; then
    these."""
    schema = versions.schema
    own = versions.select(IDENTITY)
    named = arrow.concat_tables([own, gone.select(IDENTITY).cast(own.schema)])
    given = set(zip(*(named[name].to_pylist() for name in IDENTITY), strict=True))
    sequences = compute.unique(named[FROM_SEQUENCE])
    for batch in batches:
        maybe = compute.is_in(batch[FROM_SEQUENCE], sequences).to_numpy(zero_copy_only=False)
        kept = ~maybe
        for at in maybe.nonzero()[0].tolist():
            kept[at] = tuple(batch[name][at].as_py() for name in IDENTITY) not in given
        arrays = [
            as_wide(batch[field.name], field.type)
            if field.name in batch.schema.names
            else arrow.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        whole = arrow.RecordBatch.from_arrays(arrays, schema=schema)
        yield whole.filter(arrow.array(kept, pa.bool_()))
    yield from versions.to_batches()
