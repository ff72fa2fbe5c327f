"""What a store's indexes should say, worked out from its items alone."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock import kv
from penstock.store import AnyStore, Index, Item, KeyType, Store, Table
from penstock.store.layout import DATABASES, Layout


def scanned(db: AnyStore, table: str = "t") -> list[Item]:
    """All items of a table."""
    found, last = list[Item](), None
    while True:
        page = db.scan(table).exclusive_start_key(last).execute()
        found += page.items
        if (last := page.last_key) is None:
            return found


def sortable(value: Any, kind: KeyType, limit: int) -> Any:
    """What sorts as the value does; None for what is no key of that type."""
    if kind is KeyType.STRING and isinstance(value, str) and 0 < len(value.encode()) <= limit:
        return value.encode()
    if kind is KeyType.NUMBER and isinstance(value, int | Decimal) and not isinstance(value, bool):
        return Decimal(value)
    if kind is KeyType.BINARY and isinstance(value, bytes) and 0 < len(value) <= limit:
        return value
    return None


def partitions(items: list[Item], index: Index) -> dict[Any, list[Item]]:
    """The items of an index by partition, each in its order; `id`, a string, is their key."""
    found = dict[Any, list[tuple[Any, Item]]]()
    for item in items:
        partition, sort = index.partition_key, index.sort_key
        place = [sortable(item.get(partition.name), partition.type, 2048)]
        if sort is not None:
            place.append(sortable(item.get(sort.name), sort.type, 1024))
        if None in place or (index.scope and item["id"].partition("#")[:2] != (index.scope, "#")):
            continue
        ordered = (*place, item["id"].encode())
        found.setdefault(item[partition.name], []).append((ordered, item))
    return {
        partition: [item for _, item in sorted(rows, key=lambda row: row[0])]
        for partition, rows in found.items()
    }


def queried(
    db: Any, index: str, partition: Any, *, limit: int | None = None, forward: bool = True
) -> list[Item]:
    """A partition of an index, page by page."""
    found, last = list[Item](), None
    while True:
        query = db.query_index("t", index).partition_key(partition).scan_forward(forward)
        if limit is not None:
            query.limit(limit)
        page = query.exclusive_start_key(last).execute()
        found += page.items
        if (last := page.last_key) is None:
            return found


def check(db: AnyStore, *, limit: int = 2) -> None:
    """Every index of the table `t` that is ready says what its items do, in both directions."""
    items = scanned(db)
    for index in db.describe_table("t").indexes:
        if not index.ready:
            continue
        expected = partitions(items, index)
        for partition in [*expected, *(_nowhere(index, expected))]:
            rows = expected.get(partition, [])
            assert queried(db, index.name, partition) == rows
            assert queried(db, index.name, partition, limit=limit) == rows
            assert queried(db, index.name, partition, limit=limit, forward=False) == rows[::-1]


def _nowhere(index: Index, known: dict[Any, list[Item]]) -> list[Any]:
    """Partitions that few items are in, or none: what is left behind would be found in them."""
    few: dict[KeyType, list[Any]] = {
        KeyType.STRING: ["a", "b", "ab"],
        KeyType.NUMBER: [-1, 0, 1, 2],
        KeyType.BINARY: [b"\x00", b"a"],
    }
    return [one for one in few[index.partition_key.type] if one not in known]


def raw(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """All that lies in `items`, of a store that may be open."""
    with kv.open_env(path, create=False) as env:
        env.databases(DATABASES, create=False)
        with env.read() as txn:
            yield from Layout(env).items.items(txn)


def check_disk(db: Store, path: Path) -> None:
    """Once all is swept, nothing lies there but items and one entry for each that an index has."""
    while db.sweep():
        pass
    tables = [db.describe_table(name) for name in db.list_tables()]
    expected = {table.id: db.count(table.name) for table in tables}
    for table in tables:
        expected |= {index.id: _entries(db, table, index) for index in table.indexes}
    found = dict.fromkeys(expected, 0)
    for key, _ in raw(path):
        number = int.from_bytes(key[:4], "big")
        found[number] = found.get(number, 0) + 1
    assert found == expected


def _entries(db: Store, table: Table, index: Index) -> int:
    return sum(map(len, partitions(scanned(db, table.name), index).values()))
