"""Apply a batch to tables of current rows (see `penstock.spark.table.writing`).

A table holds one row for each key, as of the last change in the log, and no row for a deleted one;
with `explode`, one for each element of a field (`penstock.spark.table.elements`).

Order inside a batch: first the rejects, then the tables, each in one Delta commit with the app
transaction that guards it. A crash in between leaves a reject whose table write follows when the
batch is applied again; a row is never missing from a table without being in the rejects.

| event | the table |
|---|---|
| drop, dropDatabase | loses its rows; columns stay, for whoever reads them |
| rename to a collection of this pipeline | hands its rows over; what was there is replaced |
| rename to any other, or to one that the source does not capture | loses its rows: it is gone |
| rename from a collection that this pipeline does not follow | cannot be known: a gap |
| rename behind which the rows are copied (convertToCapped) | loses its rows; copies follow |
| rename to a collection with other steps | a gap too, and the old name loses its rows |
| rename that only the old name's table is past | a gap: it has the rows of then no more |
| gap | `on_gap`: stop, or note it in the rejects |
| create, modify, indexes, sharding, invalidate, system events | gets columns that they declare |
| any other | is not guessed at: the pipeline stops before it |
"""

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from penstock.spark.table.apply import TableWrite, prepare, prepare_move, relative_keys
from penstock.spark.table.chunk import Chunk, Control
from penstock.spark.table.delta import of_stream, text
from penstock.spark.table.elements import (
    ELEMENT_NAMING,
    Elements,
    element_columns,
    elements_of,
    prepare_elements,
    prepare_elements_move,
)
from penstock.spark.table.lake import KeptTable
from penstock.spark.table.plan import DATABASE, DELTA, OWN_COLUMNS, SEQUENCE, Naming
from penstock.spark.table.slices import in_slices, slice_bytes, whole_keys
from penstock.spark.table.stamp import Stamp
from penstock.spark.table.writing import Writer


class BatchWriter(Writer[KeptTable]):
    """Applies one batch; made anew for each."""

    def _open(self, collection: str) -> KeptTable:
        return self._lake.table(collection)

    def _columns(self, collection: str) -> tuple[pa.Schema, Naming]:
        elements = self._elements(collection)
        if elements is None:
            return OWN_COLUMNS, DELTA
        return element_columns(elements.field), ELEMENT_NAMING

    def _write(self, parts: Sequence[tuple[KeptTable, Chunk]], stamp: Stamp) -> None:
        writes: list[tuple[KeptTable, TableWrite]] = []
        for table, part in parts:
            base = table.rows(relative_keys(part))
            elements = self._elements(part.rows["collection"][0].as_py())
            if elements is not None:
                write = prepare_elements(part, schema=table.schema, base=base, elements=elements)
            else:
                write = prepare(
                    part,
                    schema=table.schema,
                    base=base,
                    loading=self._loading,
                    constraints=table.constraints,
                )
            writes.append((table, write))
        self._commit(writes, stamp)

    def _elements(self, collection: str) -> Elements | None:
        """What the collection's table has rows of; None for rows of documents."""
        return elements_of(self._pipeline, self._config, collection)

    def _commit(
        self,
        writes: Sequence[tuple[KeptTable, TableWrite]],
        stamp: Stamp,
        *,
        fresh: bool = False,
    ) -> None:
        """`fresh`: the tables have no row of the keys that are written."""
        self._reject([reject for _, write in writes for reject in write.rejects], stamp)
        for table, write in writes:
            if write.widened:
                table.rewrite(write.changes, stamp)
            elif fresh:
                table.insert(write.changes, stamp)
            else:
                table.merge(write.changes, stamp)
            self._rows += write.rows

    def _empty(self, table: KeptTable, control: Control, database: str, stamp: Stamp) -> None:
        table.empty(of_stream(control.source, database), stamp)

    def _move(
        self, old: KeptTable, new: KeptTable, control: Control, to: tuple[str, str], stamp: Stamp
    ) -> None:
        database, _ = to
        here, there = (
            of_stream(control.source, control.database),
            of_stream(control.source, database),
        )
        # What has come there since is another driver's, who is further: it stays.
        before = f"{there} AND {SEQUENCE} < {stamp.until}"
        if old is new:
            if self._applied(new) < stamp.until:
                new.empty(before, None)
                changed = {DATABASE: text(database), SEQUENCE: str(stamp.until)}
                new.relabel(here, changed, stamp)
            return
        if self._applied(new) < stamp.until:
            new.empty(before, None)
            self._hand_over(old, new, control, to, stamp)
        if self._applied(old) < stamp.until:
            old.empty(here, stamp)

    def _hand_over(
        self, old: KeptTable, new: KeptTable, control: Control, to: tuple[str, str], stamp: Stamp
    ) -> None:
        """Put the rows that the event moves into `new`.

        In one commit if they fit a slice; else in several, of which the last alone takes the table
        on. A driver that is killed in between leaves rows there that are put there once more.
        """
        database, collection = to
        here = of_stream(control.source, control.database)
        elements = self._elements(collection)
        bytes_max = slice_bytes(self._config.max_bytes_per_batch)
        if elements is None:
            nothing = OWN_COLUMNS.empty_table()
            slices = in_slices(old.scan(here), nothing=nothing, bytes_max=bytes_max)
            moved = partial(
                prepare_move, database=database, collection=collection, sequence=stamp.until
            )
        else:
            nothing = element_columns(elements.field).empty_table()
            # They are taken apart as Python's objects, which are several times as large.
            quarter = max(1, bytes_max // 4)
            slices = whole_keys(partial(old.scan, here), nothing=nothing, bytes_max=quarter)
            moved = partial(
                prepare_elements_move, database=database, sequence=stamp.until, elements=elements
            )
        unmoved = stamp.unmoved(self._applied(new))
        fresh = not new.has(of_stream(control.source, database))
        for rows, is_last in slices:
            if not is_last and new.version < 0:
                new.append(nothing, unmoved)
            write = moved(rows, schema=new.schema)
            self._commit([(new, write)], stamp if is_last else unmoved, fresh=fresh)
            # Else they would be held while the next ones are read.
            del rows, write
