"""Secondary indexes: the items of a table, found by other attributes than their key.

An index has a partition key and, if wanted, a sort key: attributes of items, at their top level. It
holds an entry for each item that has them, and nothing else of it; a query reads the items
themselves. What an index promises (record 0020):

- **Sparse.** An item is in it if its attributes could be such a key: of the type that the index
  names, not empty, and within the limits of a table's key (2048 and 1024 bytes). Any other item is
  not in it, and no write is refused because of an index.
- **With the item.** An entry is written in the transaction that writes its item, so no reader and
  no crash can find one without the other, and a transaction sees its own. Streams are not touched:
  an index has no records, and takes no sequence.
- **In order.** By partition key, then by sort key (strings by their UTF-8 bytes, numbers by their
  value, bytes as they are), then by the item's own key. However long the keys are
  (`penstock.store.longkeys`), nothing is left out or comes twice where pages meet.
- **Whole or not there.** An index is made a bounded step at a time, while others write. It is there
  to be queried once every item is in it (`Index.ready`). What a crash leaves of one is dropped when
  the store is next opened for writing, unless it is a server's, which goes on (`Index.kept`).
- **Gone at once.** A dropped index is out of sight, and leaves the disk a few entries at a time, as
  the items of a dropped table do.
- **Nothing that has expired** is found, whether it was swept yet or not (F8).

With a scope, only items are in it whose partition key, a string, has that text before its first
"#": those of one kind, where a table holds several.

A table without an index pays nothing. While a store has one it is of format 2, which an older
Penstock refuses: it would write items and leave their entries behind. Once the last is dropped it
is of format 1 again.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.kv import Transaction
from penstock.store.conditions import Condition
from penstock.store.errors import (
    IndexAlreadyExistsError,
    IndexNotFoundError,
    IndexNotReadyError,
    RefusedError,
)
from penstock.store.indexbuilders import QueryIndexWith
from penstock.store.keys import (
    PARTITION_BYTES_MAX,
    SORT_BYTES_MAX,
    KeyType,
    after,
    beginning,
    key_of,
)
from penstock.store.layout import Current, Layout, unpack_item
from penstock.store.projections import Projection
from penstock.store.queries import ItemPage, Range, page_of, partition_range, table_range
from penstock.store.schema import Index, Table
from penstock.store.values import Item, decode_item

INDEXES_MAX: Final = 25
"""Of one table: DynamoDB's 20 global and 5 local ones."""
FORMAT_INDEXED: Final = 2
_STEP_ITEMS: Final = 1000
_STEP_BYTES: Final = 4 << 20
_AT_BYTES: Final = 2


# --- entries --------------------------------------------------------------------------------------


def maintain(
    layout: Layout,
    txn: Transaction,
    table: Table,
    key: bytes,
    *,
    old: Item | None,
    new: Item | None,
    new_node: Callable[[], int],
) -> None:
    """Have the table's indexes say of the item under `key` what is so, now that it is `new`."""
    for index in table.indexes:
        before = None if old is None else _entry(table, index, key, old)
        now = None if new is None else _entry(table, index, key, new)
        if before == now:
            continue
        if before is not None:
            # It need not be there: the item may be one that an index in the making has yet to see.
            layout.items.delete(txn, before.key)
        if now is not None:
            layout.items.put(txn, now.key, now.value, new_node=new_node)


class _Entry(msgspec.Struct, frozen=True):
    key: bytes
    value: bytes
    """Where in the entry's key the item's own begins."""


def _entry(table: Table, index: Index, key: bytes, item: Item) -> _Entry | None:
    """The entry of the item under `key`; None if it is not in the index."""
    if index.scope is not None:
        partition = item[table.partition_key.name]
        if not partition.startswith(f"{index.scope}#"):
            return None
    try:
        own = index.prefix + key_of(item, index.partition_key, bytes_max=PARTITION_BYTES_MAX)
        if index.sort_key is not None:
            own += key_of(item, index.sort_key, bytes_max=SORT_BYTES_MAX)
    except RefusedError:
        return None
    return _Entry(own + key[len(table.prefix) :], len(own).to_bytes(_AT_BYTES, "big"))


# --- making and dropping --------------------------------------------------------------------------


class Filling(Struct, frozen=True):
    """How far an index is filled."""

    table: str
    index: Index
    behind: bytes | None = None
    """The key of the last item that was put into it; None: none was."""


def begin(
    layout: Layout,
    txn: Transaction,
    table: Table,
    described: Index,
    *,
    making: Collection[int],
    now_ms: int,
) -> Index:
    """Begin an index, which `fill` fills. From here on writes maintain it.

    `making` are those that somebody fills; what is left of any other that is not ready is dropped,
    but for those that a server keeps. Raises IndexAlreadyExistsError and RefusedError.
    """
    for index in table.indexes:
        if _is_left(index) and index.id not in making:
            table = _without(layout, txn, table, index)
    described = msgspec.structs.replace(described, created_ms=now_ms)
    table, index = added(layout, txn, table, described)
    layout.put_table(txn, table)
    return index


def added(layout: Layout, txn: Transaction, table: Table, described: Index) -> tuple[Table, Index]:
    """The table with one index more, and the index with its number; the table is yet to be put.

    Raises IndexAlreadyExistsError and RefusedError.
    """
    if any(index.name == described.name for index in table.indexes):
        raise IndexAlreadyExistsError(table.name, described.name)
    if len(table.indexes) >= INDEXES_MAX:
        raise RefusedError(
            f"{table.name} has {INDEXES_MAX} indexes, and a table may have no more. Nothing was "
            f"changed. Drop one that is not queried."
        )
    if described.scope is not None and table.partition_key.type is not KeyType.STRING:
        raise RefusedError(
            f"a scope is what stands before '#' in a partition key that is a string, and the one "
            f"of {table.name} is of type {table.partition_key.type.name}. Nothing was changed."
        )
    index = msgspec.structs.replace(described, id=new_number(layout, txn, format_=FORMAT_INDEXED))
    return msgspec.structs.replace(table, indexes=(*table.indexes, index)), index


def new_number(layout: Layout, txn: Transaction, *, format_: int = 1) -> int:
    """The number of a new table or index, in a store that is of this format at the least."""
    state = layout.state(txn)
    assert state is not None, "written when the store was made"
    state = msgspec.structs.replace(
        state, tables=state.tables + 1, format=max(state.format, format_)
    )
    layout.put_state(txn, state)
    return state.tables


def fill(
    layout: Layout, txn: Transaction, name: str, index: Index, *, behind: bytes | None
) -> bytes | None:
    """Put a step's items of the table `name` into an index, from behind the key of one on.

    Returns behind which to go on; None once all are in it, and the index is ready. Raises
    IndexNotFoundError when it was dropped meanwhile, with its table or alone.
    """
    table = layout.table(txn, name)
    if table is None or all(one.id != index.id for one in table.indexes):
        raise IndexNotFoundError(name, index.name)
    found, bytes_, last = list[_Entry](), 0, behind
    first, before = _reach(table, index)
    if behind is not None:
        first = after(behind) or behind
    looked = 0
    for key, value in layout.items.items(txn, first=first, before=before):
        if looked == _STEP_ITEMS or bytes_ >= _STEP_BYTES:
            break
        entry = _entry(table, index, key, decode_item(unpack_item(value).data))
        if entry is not None:
            found.append(entry)
        looked, bytes_, last = looked + 1, bytes_ + len(value), key
    else:
        last = None
        filled = tuple(
            msgspec.structs.replace(one, ready=True) if one.id == index.id else one
            for one in table.indexes
        )
        layout.put_table(txn, msgspec.structs.replace(table, indexes=filled))
    _put(layout, txn, found)
    return last


def _reach(table: Table, index: Index) -> Range:
    """The keys of all items that may be in an index."""
    if index.scope is None:
        return table_range(table)
    first = table.prefix + beginning(f"{index.scope}#", table.partition_key)
    return Range(first, after(first))


def _put(layout: Layout, txn: Transaction, entries: list[_Entry]) -> None:
    state = layout.state(txn)
    assert state is not None, "written when the store was made"
    nodes = state.nodes

    def new_node() -> int:
        nonlocal nodes
        nodes += 1
        return nodes

    for entry in entries:
        layout.items.put(txn, entry.key, entry.value, new_node=new_node)
    if nodes != state.nodes:
        layout.put_state(txn, msgspec.structs.replace(state, nodes=nodes))


def drop(layout: Layout, txn: Transaction, table: Table, name: str) -> None:
    """Forget an index of a table. Raises IndexNotFoundError."""
    _without(layout, txn, table, _found(table, name))
    settle_format(layout, txn)


def abandon(layout: Layout, txn: Transaction, name: str, index: Index) -> None:
    """Forget an index that could not be filled, if it is there still."""
    table = layout.table(txn, name)
    # By all of it: if its first step was undone, its number may be another index's by now.
    ready = msgspec.structs.replace(index, ready=True)
    if table is not None and (index in table.indexes or ready in table.indexes):
        _without(layout, txn, table, index)
    settle_format(layout, txn)


def unfinished(layout: Layout, txn: Transaction) -> bool:
    """Whether a store has an index that is not ready, and that nobody will fill."""
    return any(_is_left(index) for table in layout.tables(txn) for index in table.indexes)


def _is_left(index: Index) -> bool:
    return not index.ready and not index.kept


def forget_unfinished(layout: Layout, txn: Transaction) -> None:
    """Forget what whoever wrote the store before left of indexes that he was making."""
    for table in layout.tables(txn):
        kept = table
        for index in table.indexes:
            if _is_left(index):
                kept = _without(layout, txn, kept, index)
    settle_format(layout, txn)


def settle_format(layout: Layout, txn: Transaction) -> None:
    """Let an older Penstock have the store again once no table has an index."""
    state = layout.state(txn)
    assert state is not None, "written when the store was made"
    if state.format == FORMAT_INDEXED and not any(table.indexes for table in layout.tables(txn)):
        layout.put_state(txn, msgspec.structs.replace(state, format=1))


def _without(layout: Layout, txn: Transaction, table: Table, index: Index) -> Table:
    kept = tuple(one for one in table.indexes if one.id != index.id)
    table = msgspec.structs.replace(table, indexes=kept)
    layout.put_table(txn, table)
    layout.drop(txn, index.prefix)
    return table


# --- reading --------------------------------------------------------------------------------------


def read_page(
    layout: Layout,
    txn: Transaction,
    table: Table,
    query: QueryIndexWith[Any],
    *,
    now_ms: int,
) -> ItemPage:
    """The items that a query finds by an index.

    Raises IndexNotFoundError, IndexNotReadyError, and what a key is refused with.
    """
    index = _found(table, query.index)
    keyed = as_table(table, index)
    return read_range(
        layout,
        txn,
        table,
        index,
        partition_range(keyed, query.key(keyed), query.bound),
        now_ms=now_ms,
        limit=query.limit_,
        start=query.start,
        reverse=query.reversed,
        condition=query.condition,
        projection=query.projection,
    )


def as_table(table: Table, index: Index) -> Table:
    """What is asked of a table's keys can be asked of an index's: its entries begin as items do."""
    return Table(
        id=index.id,
        name=f"the index {index.name!r} of {table.name}",
        partition_key=index.partition_key,
        sort_key=index.sort_key,
    )


def place_in(table: Table, index: Index, item: Item) -> bytes | None:
    """Where in an index an item has its entry, from the item or the keys alone; None: nowhere."""
    entry = _entry(table, index, table.key(item), item)
    return None if entry is None else entry.key


def read_range(
    layout: Layout,
    txn: Transaction,
    table: Table,
    index: Index,
    keys: Range,
    *,
    now_ms: int,
    limit: int | None = None,
    start: Item | None = None,
    reverse: bool = False,
    condition: Condition | None = None,
    projection: Projection | None = None,
    seen: Callable[[Item], Item] | None = None,
    stops: bool = False,
) -> ItemPage:
    """The items of a range of an index's keys, in order, from behind the keys `start`.

    With `seen`, `condition` and sizes are of what that makes of an item, and so is the page; with
    `stops` too it is `queries.page_of`'s.
    Raises IndexNotReadyError.
    """
    if not index.ready:
        raise IndexNotReadyError(table.name, index.name)
    first, before = keys
    if start is not None:
        place = as_table(table, index).key(start) + table.key(start)[len(table.prefix) :]
        if reverse:
            before = place if before is None else min(before, place)
        else:
            first = max(first, after(place) or place)
    entries = layout.items.items(txn, first=first, before=before, reverse=reverse)
    return page_of(
        (_item(layout, txn, table, key, value) for key, value in entries),
        tuple(dict.fromkeys((*table.key_names, *index.key_names))),
        now_ms=now_ms,
        limit=limit,
        condition=condition,
        projection=projection,
        seen=seen,
        stops=stops,
    )


def _found(table: Table, name: str) -> Index:
    for index in table.indexes:
        if index.name == name:
            return index
    raise IndexNotFoundError(table.name, name)


def _item(layout: Layout, txn: Transaction, table: Table, entry: bytes, value: bytes) -> Current:
    at = int.from_bytes(value, "big")
    found = layout.items.get(txn, table.prefix + entry[at:])
    assert found is not None, "an entry leaves with its item"
    return unpack_item(found)
