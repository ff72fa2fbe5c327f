"""Which rows a table still has room for, where their fields want columns. Pure."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.spark.table.arrow import Column
from penstock.spark.table.kinds import Kind


class Room(NamedTuple):
    """How many columns a table can have, and how wide its rows can be."""

    columns_max: int
    widths: Mapping[Kind, int] | None = None
    """What a column of each kind takes of a row, in a unit of the server's; None: no matter."""
    width_max: int = 0
    """So much all columns may take."""

    def width(self, *kinds: Kind | None) -> int:
        widths = self.widths
        return 0 if widths is None else sum(0 if one is None else widths[one] for one in kinds)

    def holds(self, columns: int, width: int) -> bool:
        return columns <= self.columns_max and width <= self.width_max


class Wanted(NamedTuple):
    """A column that is not there yet."""

    name: str
    kind: Kind
    column: Column


def without_room(
    wanted: Sequence[Wanted],
    sequences: NDArray[np.int64],
    rejected: Container[int],
    room: Room,
    *,
    columns: int,
    width: int,
) -> tuple[dict[int, str], frozenset[str]]:
    """The rows that a table of so many columns has no room for, and the names that it then lacks.

    Each row is told with the first name that there is no room for. Earlier rows, by sequence, have
    their columns first; a row that is rejected, here or before, takes no room from others.
    """
    of_row: dict[int, list[Wanted]] = defaultdict(list)
    for one in wanted:
        present: NDArray[np.bool_] = one.column.is_valid().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(present).tolist():
            of_row[row].append(one)
    refused: dict[int, str] = {}
    granted: set[str] = set()
    for row in sorted(of_row, key=lambda row: int(sequences[row])):
        if row in rejected:
            continue
        more = [one for one in of_row[row] if one.name not in granted]
        at, wide = columns + len(granted), width
        for one in more:
            at, wide = at + 1, wide + room.width(one.kind)
            if not room.holds(at, wide):
                refused[row] = one.name
                break
        else:
            granted.update(one.name for one in more)
            width = wide
    return refused, frozenset(one.name for one in wanted) - granted
