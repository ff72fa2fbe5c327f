"""The log applied anew as to an SQL database: rows as columns, by the server's own rules."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.altering import altered
from penstock.spark.replica.anew import Anew
from penstock.spark.replica.beside import Judged, Rows, Wanted
from penstock.spark.replica.cells import (
    cells_of,
    column_of,
    differing_columns,
    key_bytes,
    key_cells,
    row_bytes,
    row_cells,
)
from penstock.spark.replica.dialect import Dialect, SqlColumn, SqlTable, Values
from penstock.spark.replica.keys import Forms, formed
from penstock.spark.replica.rows import decode_keyed, existing_columns, prepared, values_of
from penstock.spark.replica.tables import move_setup
from penstock.spark.table.arrow import Column
from penstock.spark.table.chunk import Chunk
from penstock.spark.table.decode import (
    Cells,
    decode_documents,
    extended_json,
    parse_documents,
    python_values,
)
from penstock.spark.table.kinds import Kind, wider
from penstock.spark.table.placing import place


class SqlAnew(Anew):
    """Tables of an SQL database; `dialect` has been connected once."""

    def __init__(
        self, pipeline: str, config: ReplicatePipelineConfig, rows: Rows, dialect: Dialect
    ) -> None:
        super().__init__(pipeline, config, rows, decode_keyed)
        self._dialect = dialect
        self.tables: dict[str, SqlTable] = {}
        self._keys: dict[str, tuple[str, ...]] = {}
        self.forms: Mapping[str, Forms] = {}
        """By table: what the key of the replica's own one holds."""

    def begin_as(self, tables: Mapping[str, SqlTable]) -> None:
        """Have the columns that the replica's tables have.

        What a column is follows from the log and from where batches ended, which end elsewhere
        here. A column only grows, so it holds what it ever took, with one exception: a whole double
        that came to a column of integers, which is one of decimals now.
        """
        for name, there in tables.items():
            mine = self.tables.get(name)
            own = {one.name: one for one in mine.columns} if mine is not None else {}
            columns = [_widest(one, own.pop(one.name, None)) for one in there.columns if one.kind]
            self.tables[name] = SqlTable(columns=(*columns, *own.values()), unique=there.unique)

    def key(self, name: str) -> tuple[str, ...]:
        """The columns of a table's key, in order."""
        known = self._keys.get(name)
        if known is None:
            table = self.tables[name]
            shortest = min((len(one), sorted(one)) for one in table.unique or [frozenset[str]()])
            known = tuple(shortest[1])
        return known

    def own_of(self, name: str, said: str) -> bytes | None:
        """As `Anew.own_of`."""
        table = self.tables.get(name)
        documents = parse_documents([said])
        names = tuple(sorted(documents[0]))
        if table is None or names != self.key(name):
            return None
        found = place(
            existing_columns(table),
            decode_documents(documents),
            np.zeros(1, np.int64),
            naming=self._dialect.naming,
        )
        if found.misfits:
            return None
        return self._owns(values_of(found, np.zeros(1, np.int64), names))[0]

    def said(self, name: str, own: bytes) -> str:
        """As `Saying.said`."""
        table, forms = self.tables[name], self.forms.get(name, {})
        document: dict[str, Any] = {}
        for field, cell in zip(self.key(name), key_cells(own), strict=True):
            column = table.column(field)
            kind = (column.kind if column is not None else None) or Kind.UNFIT
            if cell is None or cell == []:
                document[field] = None
                continue
            (value,) = python_values(kind, column_of(kind, [cell]))
            document[field] = formed(extended_json(kind, value), forms.get(field))
        return msgspec.json.encode(document).decode()

    def differing(self, wanted: bytes, found: bytes) -> tuple[str, ...]:
        """As `Saying.differing`."""
        return differing_columns(wanted, found)

    # --- what the log does ------------------------------------------------------------------------

    def _write(self, name: str, chunk: Chunk) -> None:
        while True:
            rows = prepared(
                chunk,
                name=name,
                table=self.tables.get(name),
                dialect=self._dialect,
                pipeline=self._pipeline,
                stale=self.known.stale.get(name, {}),
                forms=self.known.forms.get(name, {}),
                select=partial(self._selected, name),
            )
            if not rows.setup:
                break
            for change in rows.setup:
                self.tables[name] = altered(self.tables.get(name), change, self._dialect)
        self._keys[name] = tuple(sorted(rows.key))
        self.known.forms[name] = rows.forms
        if rows.deletes:
            self.rows.delete(name, self._owns(rows.deletes))
        if rows.put:
            self.rows.put(name, self._wanted(rows.puts, rows.key, rows.put, rows.sequences))
        self._note(name, (*rows.put, *rows.deleted, *rows.absent), dict(rows.stale))

    def _wanted(
        self,
        puts: Sequence[Values],
        key: Sequence[str],
        said: Sequence[str],
        sequences: Sequence[int],
    ) -> list[Wanted]:
        owns = self._owns([one for one in puts if one.name in key])
        helds = rows_of(
            {one.name: cells_of(one.kind, one.column, key=one.name in key) for one in puts}
        )
        return [Wanted(*one) for one in zip(owns, said, sequences, helds, strict=True)]

    def _owns(self, key: Sequence[Values]) -> list[bytes]:
        columns = [
            cells_of(one.kind, one.column, key=True)
            for one in sorted(key, key=lambda one: one.name)
        ]
        return [key_bytes(cells) for cells in zip(*columns, strict=True)]

    def _selected(
        self, name: str, columns: Sequence[SqlColumn], key: Sequence[Values]
    ) -> list[Column]:
        found = [self.rows.get(name, own) for own in self._owns(key)]
        rows = [row_cells(held) for held in found if held is not None]
        return [
            column_of(one.kind or Kind.UNFIT, [row.get(one.name) for row in rows])
            for one in columns
        ]

    def _move(self, old: str, new: str) -> None:
        source = self.tables[old]
        for change in move_setup(self._pipeline, old, new, source, self.tables.get(new)):
            self.tables[new] = altered(self.tables.get(new), change, self._dialect)
        self.rows.move(old, new)
        if old in self._keys:
            self._keys[new] = self._keys[old]

    # --- what makes it right ----------------------------------------------------------------------

    def _cells(self, name: str, rows: Sequence[tuple[Judged, bytes | None]]) -> Cells:
        told = [{} if held is None else row_cells(held) for _, held in rows]
        cells = decode_keyed([None] * len(rows), [one.said for one, _ in rows])
        key = self.key(name)
        for column in self.tables[name].columns:
            values = [row.get(column.name) for row in told]
            if (
                column.name in key
                or column.kind is None
                or not any(one is not None for one in values)
            ):
                continue
            cells[column.name] = {column.kind: column_of(column.kind, values)}
        return cells


def rows_of(columns: Mapping[str, Sequence[Any]]) -> list[bytes]:
    """The rows of these columns' cells."""
    names = tuple(columns)
    return [
        row_bytes(dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)
    ]


def _widest(there: SqlColumn, mine: SqlColumn | None) -> SqlColumn:
    """A column of the replica, or as wide as it came to be here."""
    if mine is None or mine.kind is None or there.kind is None:
        return there
    grown = wider(mine.kind, there.kind) or wider(there.kind, mine.kind) or there.kind
    return structs.replace(there, kind=grown)
