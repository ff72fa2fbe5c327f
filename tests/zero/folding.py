"""A replica as Zero keeps one: what a shard's messages come to, and refusals of what would kill it.

An insert replaces the row of its key with exactly its columns; an update sets columns, or makes the
row; a delete of no row is nothing. Source: @rocicorp/zero 1.9.0, as its sheet has it.
"""

import json
from collections.abc import Sequence
from typing import Any, cast

Row = dict[str, Any]


class RefusedError(AssertionError):
    """A message that would crash a replica again and again."""


class Replicated:
    """A table in it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.columns: dict[str, dict[str, Any]] = dict(spec["columns"])
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.key: tuple[str, ...] | None = None
        self.index = ("", "")

    def place(self, row: Row) -> tuple[Any, ...]:
        if not self.key:
            raise RefusedError("a row of a table without a unique index")
        for name in self.key:
            if row.get(name) is None:
                raise RefusedError(f"a row without its key column {name}")
        return tuple(_hashable(row[name]) for name in self.key)

    def check(self, row: Row) -> None:
        folded = {name.casefold() for name in self.columns}
        if len(folded) < len(self.columns):
            raise RefusedError("two columns of one name")
        for name, value in row.items():
            spec = self.columns.get(name)
            if spec is None:
                raise RefusedError(f"a row with the column {name}, which was not announced")
            if not _is_of(spec, value):
                raise RefusedError(f"{value!r} in a column of {spec['dataType']}")


class Replica:
    """All tables, by schema and name."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str], Replicated] = {}
        self.indexes: set[tuple[str, str]] = set()

    def apply(self, message: bytes) -> None:
        tag, change = json.loads(message)
        assert tag == "data"
        getattr(self, f"_{change['tag'].replace('-', '_')}")(change)

    def rows(self, name: str, schema: str = "public") -> list[Row]:
        """A table's rows, without what is null in them."""
        table = self.tables.get((schema, name))
        found = table.rows.values() if table is not None else ()
        return [{name: value for name, value in row.items() if value is not None} for row in found]

    def _of(self, relation: dict[str, Any]) -> Replicated:
        table = self.tables[relation["schema"], relation["name"]]
        assert tuple(relation["rowKey"]["columns"]) == table.key
        return table

    def _insert(self, change: dict[str, Any]) -> None:
        table, row = self._of(change["relation"]), change["new"]
        table.check(row)
        table.rows[table.place(row)] = dict(row)

    def _update(self, change: dict[str, Any]) -> None:
        table, row = self._of(change["relation"]), change["new"]
        assert change["key"] is None
        table.check(row)
        table.rows.setdefault(table.place(row), {}).update(row)

    def _delete(self, change: dict[str, Any]) -> None:
        table, key = self._of(change["relation"]), change["key"]
        table.check(key)
        assert tuple(key) == table.key
        table.rows.pop(table.place(key), None)

    def _truncate(self, change: dict[str, Any]) -> None:
        for relation in change["relations"]:
            self._of(relation).rows.clear()

    def _create_table(self, change: dict[str, Any]) -> None:
        spec = change["spec"]
        name = spec["schema"], spec["name"]
        self._free(name)
        self.tables[name] = Replicated(spec)

    def _create_index(self, change: dict[str, Any]) -> None:
        spec = change["spec"]
        table = self.tables[spec["schema"], spec["tableName"]]
        name = spec["schema"], spec["name"]
        self._free(name)
        self.indexes.add(name)
        assert spec["unique"]
        assert all(table.columns[one]["notNull"] for one in spec["columns"])
        table.key = tuple(spec["columns"])
        table.index = name

    def _free(self, name: tuple[str, str]) -> None:
        taken = {(schema, one.casefold()) for schema, one in {*self.tables, *self.indexes}}
        if (name[0], name[1].casefold()) in taken:
            raise RefusedError(f"{name} is there already")

    def _drop_table(self, change: dict[str, Any]) -> None:
        table = self.tables.pop((change["id"]["schema"], change["id"]["name"]))
        self.indexes.discard(table.index)

    def _rename_table(self, change: dict[str, Any]) -> None:
        old, new = change["old"], change["new"]
        self._free((new["schema"], new["name"]))
        self.tables[new["schema"], new["name"]] = self.tables.pop((old["schema"], old["name"]))

    def _add_column(self, change: dict[str, Any]) -> None:
        table, column = self._named(change), change["column"]
        assert not column["spec"].get("notNull")
        table.columns[column["name"]] = column["spec"]
        table.check({})

    def _drop_column(self, change: dict[str, Any]) -> None:
        table = self._named(change)
        assert change["column"] not in (table.key or ())
        del table.columns[change["column"]]
        for row in table.rows.values():
            row.pop(change["column"], None)

    def _update_column(self, change: dict[str, Any]) -> None:
        table, old, new = self._named(change), change["old"], change["new"]
        assert table.columns[old["name"]] == old["spec"]
        kept = {new["name"] if name == old["name"] else name: spec
                for name, spec in table.columns.items()}  # fmt: skip
        kept[new["name"]] = new["spec"]
        table.columns = kept
        if table.key:
            table.key = tuple(new["name"] if one == old["name"] else one for one in table.key)
        for row in table.rows.values():
            if old["name"] in row:
                row[new["name"]] = _cast(row.pop(old["name"]), new["spec"])

    def _named(self, change: dict[str, Any]) -> Replicated:
        return self.tables[change["table"]["schema"], change["table"]["name"]]


def _cast(value: Any, spec: dict[str, Any]) -> Any:
    if value is None or _is_of(spec, value):
        return value
    if spec["dataType"] == "text" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise RefusedError(f"{value!r} becomes one of {spec['dataType']}")


_SAFE = (1 << 53) - 1


def _is_of(spec: dict[str, Any], value: Any) -> bool:
    data_type: str = spec["dataType"]
    if value is None:
        return not spec.get("notNull")
    if data_type.endswith("[]"):
        assert spec["elemPgTypeClass"]
        inner = {"dataType": data_type.removesuffix("[]")}
        return isinstance(value, list) and all(
            _is_of(inner, one) for one in cast("Sequence[Any]", value)
        )
    if data_type == "json":
        return _is_safe(value)
    if data_type == "bool":
        return isinstance(value, bool)
    if data_type in {"text", "enum"}:
        assert (data_type == "enum") == (spec.get("pgTypeClass") == "e") or "elem" in str(spec)
        return isinstance(value, str)
    assert data_type in {"int8", "float8", "timestamptz", "date", "time"}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(value, int):
        return abs(value) <= _SAFE
    # Where JavaScript writes a double as an integer, it has to be one of 64 bits.
    whole = value == int(value) and abs(value) < 1e21
    return data_type != "int8" and not (whole and abs(value) >= 2**63)


def _is_safe(value: Any) -> bool:
    """Whether no number in a value is an integer that JavaScript does not hold."""
    if isinstance(value, dict):
        return all(_is_safe(one) for one in cast("Row", value).values())
    if isinstance(value, list):
        return all(_is_safe(one) for one in cast("Sequence[Any]", value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return abs(value) <= _SAFE or value != int(value)
    return True


def _hashable(value: Any) -> Any:
    return json.dumps(value, sort_keys=True)
