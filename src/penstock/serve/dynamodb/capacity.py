"""What operations would have consumed of a table's capacity, by the published rules.

A read costs a unit for each 4 KiB of items, half of one if it may be a little old; a write one for
each KiB of the larger of the item before and after; in a transaction both cost twice. Nothing is
limited by it here.
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/read-write-operations.html
"""

from typing import Any

from penstock.store import Item
from penstock.store.values import encode_item


def item_size(item: Item | None) -> int:
    """An item's bytes, as the service counts them; 0 for none."""
    return 0 if item is None else encode_item(item).size


def read_units(size: int, *, consistent: bool) -> float:
    """What it costs to read so many bytes."""
    units = max(-(-size // 4096), 1)
    return float(units) if consistent else units / 2


def written_size(old: Item | None, new: Item | None) -> int:
    """The bytes that a write counts: those of the larger item, before or after it."""
    return max(item_size(old), item_size(new))


def write_units(size: int) -> float:
    """What it costs to write so many bytes."""
    return float(max(-(-size // 1024), 1))


def consumed(
    request: dict[str, Any], table: str, units: float, *, kind: str = ""
) -> dict[str, Any]:
    """The ConsumedCapacity member of an answer, if the request wants it.

    `kind` is Read or Write for operations that tell the two apart.
    """
    wanted = request.get("ReturnConsumedCapacity", "NONE")
    if wanted == "NONE":
        return {}
    return {"ConsumedCapacity": _consumed(wanted, table, units, kind)}


def consumed_each(
    request: dict[str, Any], units: dict[str, float], *, kind: str = ""
) -> dict[str, Any]:
    """As `consumed`, for operations on several tables."""
    wanted = request.get("ReturnConsumedCapacity", "NONE")
    if wanted == "NONE":
        return {}
    return {
        "ConsumedCapacity": [
            _consumed(wanted, table, amount, kind) for table, amount in units.items()
        ]
    }


def wants_capacity(request: dict[str, Any]) -> bool:
    """Whether the request asks what it consumed, which takes the sizes of items."""
    return bool(request.get("ReturnConsumedCapacity", "NONE") != "NONE")


def _consumed(wanted: str, table: str, units: float, kind: str) -> dict[str, Any]:
    amounts = {"CapacityUnits": units}
    if kind:
        amounts[f"{kind}CapacityUnits"] = units
    told: dict[str, Any] = {"TableName": table, **amounts}
    if wanted == "INDEXES":
        told["Table"] = dict(amounts)
    return told
