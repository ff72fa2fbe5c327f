"""How MongoDB is to look for records in the order of their places. Pure.

Records are nearly, and not quite, in the order of their times: `at` is the order of the source's
commits, `ts` when each was committed by the source's clock. So a query by time cannot be one walk
along the places without looking at all of them, nor one along the times without sorting all that it
finds. It is cut in three instead: the places between the first and the last time that was asked for
are walked along; what lies beyond them on either side, which is nothing where clocks go forward, is
looked for by time. A cut is never wrong, however old the two places are: each part is asked for
with all conditions, and the parts together are all places.
"""

from typing import Final, NamedTuple

from penstock.audit.filters import Filters, Order

Index = tuple[tuple[str, int], ...]

BY_PLACE: Final[Index] = (("at", 1),)
BY_TIME: Final[Index] = (("ts", -1), ("at", -1))
BY_TABLE: Final[Index] = (("meta.db", 1), ("meta.tbl", 1), ("at", -1))
BY_TABLE_AND_TIME: Final[Index] = (("meta.db", 1), ("meta.tbl", 1), ("ts", -1))
BY_KEY: Final[Index] = (("meta.pk_text", 1), ("meta.db", 1), ("meta.tbl", 1), ("at", -1))
BY_OPERATION: Final[Index] = (("op", 1), ("at", -1))
BY_TRANSACTION: Final[Index] = (("txn.id", 1), ("at", 1))


class Part(NamedTuple):
    """Places that are asked for together, both ends included, and by which index."""

    first: int
    last: int
    by: Index | None
    """None: MongoDB knows best."""


class Times(NamedTuple):
    """Where the times that are asked for begin and end, were all clocks right."""

    first: int
    last: int


def by_time(filters: Filters) -> Index | None:
    """The index in which to look for the ends of Times; None if they are not needed."""
    if not filters.timed or filters.key is not None or filters.transaction is not None:
        return None
    return BY_TABLE_AND_TIME if _one_table(filters) else BY_TIME


def parts_of(
    filters: Filters, *, first: int, last: int, order: Order, times: Times | None
) -> list[Part]:
    """The places from `first` to `last`, in parts that follow each other in `order`."""
    if first > last:
        return []
    index = by_time(filters)
    if index is None:
        return [Part(first, last, _plain(filters))]
    if times is None:
        return [Part(first, last, index)]
    walk = BY_TABLE if _one_table(filters) else BY_PLACE
    inside = max(0, times.last - times.first + 1)
    parts = [
        # Whichever are fewer: the places of this part, or those of the times, by which it sorts.
        Part(begin, end, walk if core or end - begin < inside else index)
        for begin, end, core in (
            (first, min(last, times.first - 1), False),
            (max(first, times.first), min(last, times.last), True),
            (max(first, times.last + 1, times.first), last, False),
        )
        if begin <= end
    ]
    return parts if order == "asc" else parts[::-1]


def _one_table(filters: Filters) -> bool:
    return filters.database is not None and filters.table is not None


def _plain(filters: Filters) -> Index | None:
    if filters.transaction is not None:
        return BY_TRANSACTION
    if filters.key is not None:
        return BY_KEY
    if _one_table(filters):
        # With an operation too, one of two indexes is better, by how rare it is in the table.
        return None if filters.operations else BY_TABLE
    if filters.database is not None or filters.actor is not None:
        return None
    return BY_OPERATION if filters.operations else BY_PLACE
