"""What the log changed while rows were read: those rows are left to the stream. Pure.

A chunk of rows is read beside the stream, between two watermarks: what the tables had when the read
was asked for, and what they have when its rows are written. A row that the log named in between may
be older than the table's, or gone, so it is not written: the log told what became of it. So it is
only of changes that the table takes: those that it has already say nothing of a row that it lost
since. A row that it did not name is, at the least, as the log has it up to there; and what is newer
in it comes in the log behind it (docs/decisions/0034). The method is that of DBLog (Andreakis and
Papapanagiotou, 2020), with the places of the log as the watermarks.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.chunk import Control
from penstock.spark.table.reduce import CONTROL, DELETE, PUT, RELATIVE
from penstock.spark.table.writing import changes_no_row

KEYS_MAX: Final = 2_000_000
"""Of so many changed rows one window knows; beyond, it forgets them all, and its chunks are read
again, fewer at once."""


class Window:
    """The keys that changes named since it was opened."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], set[str]] = {}
        self._building: dict[tuple[str, str], set[str]] = {}
        self._ended: set[tuple[str, str]] = set()
        self._count = 0

    def see(self, rows: pa.Table) -> None:
        """Changes of rows are applied (columns of ROW_SCHEMA)."""
        self._count += rows.num_rows
        if self.is_full:
            # It stays open until the read has ended, however much the log tells by then.
            self._keys.clear()
            self._building.clear()
            return
        named = rows.select(["role", "database", "collection", "key"]).to_pylist()
        for row in named:
            if row["role"] != CONTROL:
                namespace = row["database"], row["collection"]
                self._keys.setdefault(namespace, set()).add(row["key"])
                if row["role"] == RELATIVE:
                    self._building.setdefault(namespace, set()).add(row["key"])
        for row in named:
            if row["role"] in {PUT, DELETE}:
                self._building.get((row["database"], row["collection"]), set()).discard(row["key"])

    def end(self, database: str, collection: str) -> None:
        """No row of the collection is the one that it was; without a name, of the database."""
        self._ended.add((database, collection))

    @property
    def is_full(self) -> bool:
        """Whether more was changed than it can know: then it knows of no key at all."""
        return self._count > KEYS_MAX

    def ended(self, database: str, collection: str) -> bool:
        """Whether a row that was read may be one of another collection, or of none."""
        return not self._ended.isdisjoint({(database, collection), (database, "")})

    def untouched(self, rows: pa.Table) -> NDArray[np.intp]:
        """The places of the rows (ROW_SCHEMA) that no change has named."""
        self._require_known()
        return np.flatnonzero([not named for named in _among(self._keys, rows)])

    def building(self, rows: pa.Table) -> NDArray[np.intp]:
        """The places of the rows whose changes only build on the row that the table has: if it had
        none, nobody has told what became of them."""
        self._require_known()
        return np.flatnonzero(_among(self._building, rows))

    def _require_known(self) -> None:
        if self.is_full:
            raise RuntimeError("a window that is full was asked for keys, of which it knows none")


def unapplied(rows: pa.Table, applied: Callable[[str], int]) -> pa.Table:
    """The changes of rows (ROW_SCHEMA) behind what the tables of their collections have `applied`.

    A table ignores the others, which come again after a crash or a reset: nobody puts back a row
    that it has lost since.
    """
    rows = rows.filter(compute.not_equal(rows["role"], CONTROL))
    sequences = rows["sequence"].to_numpy()
    behind = np.zeros(rows.num_rows, bool)
    for collection in compute.unique(rows["collection"]).to_pylist():
        own = compute.equal(rows["collection"], collection).to_numpy()
        behind |= own & (sequences > applied(collection))
    return rows.filter(arrow.array(behind))


def _among(keys: Mapping[tuple[str, str], set[str]], rows: pa.Table) -> list[bool]:
    """Which of the rows (ROW_SCHEMA) have one of these keys, by database and collection."""
    nothing: set[str] = set()
    return [
        row["key"] in keys.get((row["database"], row["collection"]), nothing)
        for row in rows.select(["database", "collection", "key"]).to_pylist()
    ]


def ends_of(control: Control) -> list[tuple[str, str]]:
    """The (database, collection)s whose rows an event ends; without a name, all of a database."""
    if changes_no_row(control) or not control.database:
        return []
    return [(control.database, control.collection), *filter(None, [renamed_to(control)])]


def redefines(control: Control) -> bool:
    """Whether rows that are read behind an event may have other values than before, untold.

    A `modify` with columns only says, behind the next rows, what they are now.
    """
    return control.operation == "modify" and "columns" not in control.description


def renamed_to(control: Control) -> tuple[str, str] | None:
    """The (database, collection) that took over the rows of another, if one did."""
    if control.operation != "rename":
        return None
    to = control.description.get("to") or {}
    return str(to.get("db", "")), str(to.get("coll", ""))
