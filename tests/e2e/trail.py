"""What a trail says, for comparison with the tables that it is the trail of."""

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bson.decimal128 import Decimal128

Record = Mapping[str, Any]


def plain(value: Any) -> Any:
    """A value of a record, in the form that the log has it."""
    if isinstance(value, Decimal128):
        return {"$numberDecimal": format(value.to_decimal(), "f")}
    if isinstance(value, bytes):
        return {"$binary": {"base64": base64.b64encode(value).decode(), "subType": "00"}}
    return value


def folded(records: Sequence[Record], tables: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table that a trail of all its life adds up to."""
    keyed: dict[str, dict[str, dict[str, Any]]] = {}
    keyless: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        table = record["meta"]["tbl"]
        if record["op"] == "ddl":
            said = record["said"]
            match said["operation"]:
                case "drop":
                    keyed.pop(table, None)
                    keyless.pop(table, None)
                case "rename":
                    for rows in (keyed, keyless):
                        moved = rows.pop(table, None)
                        rows.pop(said["to"]["coll"], None)
                        if moved is not None:
                            rows[said["to"]["coll"]] = moved  # type: ignore[assignment]
                case _:
                    pass
            continue
        if "keyless" in record.get("flags", {}):
            rows_now = keyless.setdefault(table, [])
            if record["op"] == "i":
                rows_now.append(side(record, "t"))
            else:
                rows_now.remove(side(record, "f"))
            continue
        rows = keyed.setdefault(table, {})
        key = repr(record["meta"]["pk"])
        match record["op"]:
            case "i":
                assert key not in rows, record
                rows[key] = side(record, "t")
            case "d":
                assert told(rows.pop(key)) == told(side(record, "f")), record
            case _:
                row = rows[key]
                for name, chg in record["chg"].items():
                    # A column that came later was not there before, and is NULL in the table.
                    assert row.get(name) == plain(chg.get("f")), record
                    row[name] = plain(chg.get("t"))
    return {table: [*keyed.get(table, {}).values(), *keyless.get(table, [])] for table in tables}


def told(row: dict[str, Any]) -> dict[str, Any]:
    """Without NULL: a column that came later is NULL in a row that does not say it."""
    return {name: value for name, value in row.items() if value is not None}


def side(record: Record, which: str) -> dict[str, Any]:
    return {name: plain(chg[which]) for name, chg in record["chg"].items() if which in chg}


def row_changes(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """The transaction and table of each row change, an update of a key once."""
    for record in records:
        if record["op"] in {"i", "u", "d"} and "moved_from" not in record["meta"]:
            yield record["txn"]["id"], record["meta"]["tbl"]


def check_transactions(records: Sequence[Record]) -> None:
    """Each transaction is one stretch of the trail, whole, and numbered from 0."""
    sizes = Counter(record["txn"]["id"] for record in records)
    expected: tuple[str, int] | None = None
    for record in records:
        name, size = record["txn"]["id"], record["txn"]["size"]
        if expected is None or expected[0] != name:
            assert expected is None or expected[1] == sizes[expected[0]], expected
            expected = (name, 0)
        assert record["seq"] == expected[1], record
        assert size == sizes[name], (record, sizes[name])
        expected = (name, expected[1] + 1)
