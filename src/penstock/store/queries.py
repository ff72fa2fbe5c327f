"""Reading items: one partition in the order of its sort keys, or a table from end to end."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from penstock.kv import Transaction
from penstock.store.conditions import Condition, holds
from penstock.store.errors import InvalidConditionError, ResponseTooLargeError
from penstock.store.keys import SORT_BYTES_MAX, after, beginning, encode_key
from penstock.store.layout import Current, Layout, unpack_item
from penstock.store.projections import Projection, project
from penstock.store.schema import Table
from penstock.store.values import Item, Scalar, decode_item, encode_item

PAGE_BYTES_MAX: Final = 1 << 20
"""Of items looked at for one page, as DynamoDB counts them."""


class SortBound(NamedTuple):
    """What a query asks of the sort key; made by the builders of `Query`."""

    op: str
    values: tuple[Scalar, ...]


class Range(NamedTuple):
    """The keys from `first` on that sort before `before`."""

    first: bytes
    before: bytes | None

    def has(self, key: bytes) -> bool:
        """Whether a key is one of them."""
        return self.first <= key and (self.before is None or key < self.before)


class ItemPage(NamedTuple):
    """What a query or scan found."""

    items: list[Item]
    last_key: Item | None
    """What to go on after (`exclusive_start_key`); None when this was all."""
    evaluated: int
    """How many items were looked at, which is what `limit` counts."""
    size: int = 0
    """DynamoDB's bytes of the items that were looked at."""


def partition_range(table: Table, key: dict[str, Any], bound: SortBound | None) -> Range:
    """The keys of a partition whose sort key is as asked.

    Raises what a key is refused with, and InvalidConditionError for a table without a sort key.
    """
    prefix = table.partition(key)
    if bound is None:
        return Range(prefix, after(prefix))
    if table.sort_key is None:
        raise InvalidConditionError(f"{table.name} has no sort key, so a query cannot bound it")
    attribute = table.sort_key
    if bound.op == "begins_with":
        start = prefix + beginning(bound.values[0], attribute)
        return Range(start, after(start))
    low, high = (
        prefix + encode_key(value, attribute, bytes_max=SORT_BYTES_MAX)
        for value in (bound.values[0], bound.values[-1])
    )
    # Every key says where it ends, so all that begins with it is itself.
    match bound.op:
        case "eq" | "between":
            return Range(low, after(high))
        case "lt":
            return Range(prefix, low)
        case "le":
            return Range(prefix, after(low))
        case "gt":
            return Range(after(low) or low, after(prefix))
        case "ge":
            return Range(low, after(prefix))
        case _:
            raise InvalidConditionError(f"{bound.op!r} is nothing to ask of a sort key")


def table_range(table: Table) -> Range:
    """The keys of all items of a table."""
    return Range(table.prefix, after(table.prefix))


def segment_range(table: Table, segment: int, segments: int) -> Range:
    """One of `segments` parts of a table, counted from 0; each partition is in exactly one.

    They are cut by the first two bytes of partition keys, so they are of one size only if those
    are spread.
    """
    first, before = table_range(table)
    if segment:
        first = _cut(table, segment, segments)
    if segment < segments - 1:
        before = _cut(table, segment + 1, segments)
    return Range(first, before)


def _cut(table: Table, segment: int, segments: int) -> bytes:
    return table.prefix + (segment * 0x10000 // segments).to_bytes(2, "big")


def read_page(
    layout: Layout,
    txn: Transaction,
    table: Table,
    keys: Range,
    *,
    now_ms: int,
    limit: int | None = None,
    start: Item | None = None,
    reverse: bool = False,
    condition: Condition | None = None,
    projection: Projection | None = None,
    stops: bool = False,
) -> ItemPage:
    """The items of a range, in order, from behind the key `start`.

    `limit` counts the items that are looked at, before `condition` leaves some out. Items that have
    expired are not there (F8). `stops`: as `page_of`.
    """
    first, before = keys
    if start is not None:
        place = table.key(start)
        if reverse:
            before = place if before is None else min(before, place)
        else:
            first = max(first, after(place) or place)
    values = layout.items.items(txn, first=first, before=before, reverse=reverse)
    return page_of(
        (unpack_item(value) for _, value in values),
        table.key_names,
        now_ms=now_ms,
        limit=limit,
        condition=condition,
        projection=projection,
        stops=stops,
    )


def page_of(
    candidates: Iterable[Current],
    keys: tuple[str, ...],
    *,
    now_ms: int,
    limit: int | None,
    condition: Condition | None,
    projection: Projection | None,
    seen: Callable[[Item], Item] | None = None,
    stops: bool = False,
) -> ItemPage:
    """The first page of these items; `keys` are the attributes by which it is gone on.

    With `seen`, the page is of what that makes of each item, which has these attributes still. With
    `stops`, it ends with the item that reaches `limit` or 1 MiB, and says so though nothing may
    follow, as DynamoDB's does; else in front of the item that would be beyond.
    """
    found, evaluated, size, last = list[Item](), 0, 0, None
    for current in candidates:
        if not current.visible(now_ms):
            continue
        shown, bytes_ = None, current.size
        if seen is not None:
            shown = seen(decode_item(current.data))
            bytes_ = encode_item(shown).size
        beyond = evaluated == limit or (evaluated and size + bytes_ > PAGE_BYTES_MAX)
        if beyond and not stops:
            assert last is not None
            return ItemPage(found, {name: last[name] for name in keys}, evaluated, size)
        last = decode_item(current.data) if shown is None else shown
        evaluated += 1
        size += bytes_
        if condition is None or holds(condition, last):
            found.append(project(last, projection, keep=keys) if projection else last)
        if stops and (evaluated == limit or size >= PAGE_BYTES_MAX):
            return ItemPage(found, {name: last[name] for name in keys}, evaluated, size)
    return ItemPage(found, None, evaluated, size)


def get_all(
    layout: Layout,
    txn: Transaction,
    table: Table,
    keys: Sequence[Item],
    *,
    now_ms: int,
    bytes_max: int | None = None,
) -> list[Item | None]:
    """The items of those keys, by their places; None for one that is not there.

    Raises ResponseTooLargeError for more than `bytes_max` of items, as DynamoDB counts them.
    """
    found, size = list[Item | None](), 0
    for key in keys:
        value = layout.items.get(txn, table.key(key))
        current = None if value is None else unpack_item(value)
        if current is None or not current.visible(now_ms):
            found.append(None)
            continue
        size += current.size
        if bytes_max is not None and size > bytes_max:
            raise ResponseTooLargeError(
                f"{table.name}: the items of these {len(keys)} keys have more than {bytes_max} "
                f"bytes. Ask for fewer at once."
            )
        found.append(decode_item(current.data))
    return found


def count(layout: Layout, txn: Transaction, table: Table, *, now_ms: int) -> int:
    """How many items a table has; every one is looked at."""
    keys = table_range(table)
    items = layout.items.items(txn, first=keys.first, before=keys.before)
    return sum(unpack_item(value).visible(now_ms) for _, value in items)
