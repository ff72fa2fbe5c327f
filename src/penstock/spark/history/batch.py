"""Apply a batch to tables of versions (see `penstock.spark.table.writing`): SCD type 2.

A table holds one row for each version of each row of its collection, in the order of the log: what
it was, from which change to which. Nothing is ever taken out of a table, but what a driver that was
killed has begun of a rename.

Order inside a batch: first the rejects, then the tables, each in one Delta commit with the app
transaction that guards it. A change that is rejected makes no version: the one before stays open
and names it (`_rejected_sequence`), until a change that fits, or a delete, ends it.

| event | the table |
|---|---|
| insert, update, replace | opens a version and ends the one before, unless what is tracked stays |
| the same once more, or a copy that tells what is known | is as it was |
| delete, also one that a copy proved | ends the open version |
| a change of the key | is a delete of the old key and an insert of the new one |
| drop, dropDatabase | all open versions end |
| rename to a collection of this pipeline | all open versions of both end; each row of the old name begins a version under the new one |
| rename to any other, or to one that the source does not capture | all open versions end |
| rename from a collection that this pipeline does not follow | cannot be known: a gap |
| rename behind which the rows are copied (convertToCapped) | ends its versions; copies follow |
| rename to a collection with other steps | a gap too, and open versions of the old name end |
| rename that only the old name's table is past | a gap: it has the rows of then no more |
| gap | `on_gap`: stop, or note it in the rejects; versions stay open |
| create, modify, indexes, sharding, invalidate, system events | gets columns that they declare |
| any other | is not guessed at: the pipeline stops before it |
"""  # noqa: E501 - a table

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from penstock.errors import BatchTooLargeError
from penstock.spark.config import HistoryPipelineConfig
from penstock.spark.history.apply import HistoryWrite, Tracking, prepare, prepare_move
from penstock.spark.history.columns import VERSION_COLUMNS, VERSION_NAMING
from penstock.spark.history.delta import VersionTable
from penstock.spark.history.resolve import TooLargeError
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.chunk import Chunk, Control
from penstock.spark.table.declared import Declarations
from penstock.spark.table.lake import Lake
from penstock.spark.table.plan import Naming
from penstock.spark.table.slices import in_slices, slice_bytes
from penstock.spark.table.stamp import Stamp
from penstock.spark.table.unfollowed import Unfollowed
from penstock.spark.table.writing import Writer


def tracking_of(config: HistoryPipelineConfig) -> Tracking:
    """Which fields make a new version, as the pipeline is configured."""
    return Tracking(
        columns=frozenset(config.track_history_column_list),
        except_columns=frozenset(config.track_history_except_column_list),
    )


class HistoryWriter(Writer[VersionTable]):
    """Applies one batch; made anew for each."""

    def __init__(
        self,
        *,
        pipeline: str,
        config: HistoryPipelineConfig,
        log_id: int | None,
        batch_id: int,
        entries_at: Callable[[Sequence[int]], pa.Table],
        lake: Lake | None = None,
        tables: Mapping[str, int] | None = None,
        unfollowed: Unfollowed | None = None,
        declarations: Declarations | None = None,
    ) -> None:
        """As `Writer`."""
        super().__init__(
            pipeline=pipeline,
            config=config,
            log_id=log_id,
            batch_id=batch_id,
            entries_at=entries_at,
            lake=lake,
            tables=tables,
            unfollowed=unfollowed,
            declarations=declarations,
        )
        self._bytes_max = config.max_bytes_per_batch
        self._tracking = tracking_of(config)

    def _open(self, collection: str) -> VersionTable:
        table = self._lake.table(collection)
        assert isinstance(table, VersionTable)
        return table

    def _columns(self, collection: str) -> tuple[pa.Schema, Naming]:  # noqa: ARG002
        return VERSION_COLUMNS, VERSION_NAMING

    def _write(self, parts: Sequence[tuple[VersionTable, Chunk]], stamp: Stamp) -> None:
        left = self._bytes_max
        writes: list[tuple[VersionTable, HistoryWrite]] = []
        for table, part in parts:
            base = table.open_versions(compute.unique(part.rows["key"]).to_pylist())
            left -= base.nbytes + part.nbytes
            try:
                write = prepare(
                    part,
                    schema=table.schema,
                    base=base,
                    tracking=self._tracking,
                    bytes_max=left,
                    constraints=table.constraints,
                )
            except TooLargeError as error:
                raise BatchTooLargeError(
                    pipeline=self._pipeline,
                    entries=sum(one.rows.num_rows for _, one in parts),
                    size=self._bytes_max - left + error.size,
                    size_max=self._bytes_max,
                ) from None
            writes.append((table, write))
        self._commit(writes, stamp)

    def _commit(self, writes: Sequence[tuple[VersionTable, HistoryWrite]], stamp: Stamp) -> None:
        self._reject([reject for _, write in writes for reject in write.rejects], stamp)
        for table, write in writes:
            if write.widened:
                table.put_wider(write.versions, stamp)
            elif write.fresh:
                table.append(write.versions, stamp)
            else:
                table.put(write.versions, stamp)
            self._rows += write.versions.num_rows

    def _empty(self, table: VersionTable, control: Control, database: str, stamp: Stamp) -> None:
        table.close(
            control.source,
            database,
            sequence=control.sequence,
            timestamp=control.timestamp,
            stamp=stamp,
        )

    def _move(
        self,
        old: VersionTable,
        new: VersionTable,
        control: Control,
        to: tuple[str, str],
        stamp: Stamp,
    ) -> None:
        if self._applied(new) < stamp.until:
            self._hand_over(old, new, control, to[0], stamp)
        if self._applied(old) < stamp.until:
            self._empty(old, control, control.database, stamp)

    def _hand_over(
        self, old: VersionTable, new: VersionTable, control: Control, database: str, stamp: Stamp
    ) -> None:
        """End what is open in `database` of `new`, and begin the open versions of `old` there.

        In one commit if they fit a slice; else in several, of which the last alone takes the table
        on. What a driver that was killed has begun in between is taken back; of one and the same
        table it stays, for what it began from has ended in the same commit.
        """
        source, sequence, timestamp = control.source, control.sequence, control.timestamp
        unmoved = stamp.unmoved(self._applied(new))
        if old is not new:
            new.take_back(source, database, sequence=sequence, stamp=unmoved)
        nothing, bytes_max = VERSION_COLUMNS.empty_table(), slice_bytes(self._bytes_max)
        moved = old.scan_open(source, control.database, before=sequence)
        slices = in_slices(moved, nothing=nothing, bytes_max=bytes_max)
        rows, is_last = next(slices)
        ended, fit = nothing, False
        if is_last:
            there = new.scan_open(source, database, before=sequence)
            left = bytes_max - rows.nbytes
            ended, fit = next(in_slices(there, nothing=nothing, bytes_max=left))
        if not fit:
            ended = nothing
            new.close(source, database, sequence=sequence, timestamp=timestamp, stamp=unmoved)
        while True:
            if old is new:
                ended = arrow.concat_tables([ended, rows], promote_options="default")
            write = prepare_move(
                rows,
                ended,
                schema=new.schema,
                database=database,
                sequence=sequence,
                timestamp=timestamp,
            )
            self._commit([(new, write)], stamp if is_last else unmoved)
            if is_last:
                return
            # Else they would be held while the next ones are read.
            del rows, write
            ended = nothing
            rows, is_last = next(slices)
