"""What operations would have consumed of a table's capacity, by the published rules.

A read costs a unit for each 4 KiB of items, half of one if it may be a little old; a write one for
each KiB of the larger of the item before and after; in a transaction both cost twice. Nothing is
limited by it here.
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/read-write-operations.html
"""

from typing import Any, Self

from msgspec import Struct

from penstock.serve.dynamodb.indexes import indexes_of, settings_of, shown_by
from penstock.store import Item, Table
from penstock.store.indexes import place_in
from penstock.store.schema import Index
from penstock.store.values import encode_item


def item_size(item: Item | None) -> int:
    """An item's bytes, as the service counts them; 0 for none."""
    return 0 if item is None else encode_item(item).size


def read_units(size: int, *, consistent: bool) -> float:
    """What it costs to read so many bytes."""
    units = max(-(-size // 4096), 1)
    return float(units) if consistent else units / 2


def write_units(size: int) -> float:
    """What it costs to write so many bytes."""
    return float(max(-(-size // 1024), 1))


def written_size(old: Item | None, new: Item | None) -> int:
    """The bytes that a write counts: those of the larger item, before or after it."""
    return max(item_size(old), item_size(new))


class Spent(Struct, frozen=True):
    """Units that were consumed of a table, and of its indexes by their names."""

    table: float = 0.0
    local: dict[str, float] = {}
    global_: dict[str, float] = {}

    @classmethod
    def read(cls, units: float, index: Index | None) -> Self:
        """What a read of a table consumed, or of an index."""
        if index is None:
            return cls(units)
        of_index = {index.name: units}
        return cls(local=of_index) if settings_of(index).local else cls(global_=of_index)

    @classmethod
    def written(cls, table: Table, old: Item | None, new: Item | None) -> Self:
        """What a write of an item consumed: of an index only if it changed what that has of it."""
        local, global_ = dict[str, float](), dict[str, float]()
        for index in indexes_of(table):
            units = _index_units(table, index, old, new)
            if units:
                (local if settings_of(index).local else global_)[index.name] = units
        return cls(write_units(written_size(old, new)), local, global_)

    @property
    def total(self) -> float:
        """The units of the table and its indexes."""
        return self.table + sum(self.local.values()) + sum(self.global_.values())

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.table + other.table,
            _added(self.local, other.local),
            _added(self.global_, other.global_),
        )


def _added(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in one | other}


def _index_units(table: Table, index: Index, old: Item | None, new: Item | None) -> float:
    """What it costs to write an index: its entry is put, replaced, or removed and put elsewhere."""
    shown = shown_by(table, index)
    places, items = list[bytes | None](), list[Item | None]()
    for item in (old, new):
        place = None if item is None else place_in(table, index, item)
        places.append(place)
        items.append(None if item is None or place is None else shown(item))
    if places[0] == places[1]:
        return 0.0 if items[0] == items[1] else write_units(written_size(*items))
    return sum(write_units(item_size(item)) for item in items if item is not None)


def consumed(
    request: dict[str, Any], table: str, spent: Spent, *, kind: str = ""
) -> dict[str, Any]:
    """The ConsumedCapacity member of an answer, if the request wants it.

    `table` is what the request names it: of an ARN the answer has the ARN (API_ConsumedCapacity).

    `kind` is Read or Write for operations that tell the two apart.
    """
    wanted = request.get("ReturnConsumedCapacity", "NONE")
    if wanted == "NONE":
        return {}
    return {"ConsumedCapacity": _consumed(wanted, table, spent, kind)}


def consumed_each(
    request: dict[str, Any], spent: dict[str, Spent], *, kind: str = ""
) -> dict[str, Any]:
    """As `consumed`, for operations on several tables."""
    wanted = request.get("ReturnConsumedCapacity", "NONE")
    if wanted == "NONE":
        return {}
    return {
        "ConsumedCapacity": [_consumed(wanted, table, one, kind) for table, one in spent.items()]
    }


def wants_capacity(request: dict[str, Any]) -> bool:
    """Whether the request asks what it consumed, which takes the sizes of items."""
    return bool(request.get("ReturnConsumedCapacity", "NONE") != "NONE")


def _consumed(wanted: str, table: str, spent: Spent, kind: str) -> dict[str, Any]:
    told: dict[str, Any] = {"TableName": table, **_amounts(spent.total, kind)}
    if wanted == "INDEXES":
        told["Table"] = _amounts(spent.table, kind)
        for member, units in (("Local", spent.local), ("Global", spent.global_)):
            if units:
                told[f"{member}SecondaryIndexes"] = {
                    name: _amounts(amount, kind) for name, amount in units.items()
                }
    return told


def _amounts(units: float, kind: str) -> dict[str, float]:
    amounts = {"CapacityUnits": units}
    if kind:
        amounts[f"{kind}CapacityUnits"] = units
    return amounts
