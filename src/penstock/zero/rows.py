"""Rows of one table as messages. Pure, and compiled once for each table: this is the hot path."""

from typing import Any, Final, NoReturn

import msgspec
from msgspec import Raw

from penstock.errors import MisfitError
from penstock.wire.shown import HIDDEN_KEY, ROW_KEY
from penstock.zero.paths import fields_of, test_of, value_at
from penstock.zero.tables import Column, Table
from penstock.zero.types import Convert, UnfitError, converter, plain_json

_encode: Final = msgspec.json.Encoder().encode
_NULL: Final = b"null"

Fields = dict[str, Raw]


class Rows:
    """Writes the rows of one table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.test = test_of(table.where)
        """Whether a document is in it; None where all are."""
        self.filtered: Final = tuple(one.path for one in table.where)
        self.consumed: Final = table.consumed
        self._keys = [_Compiled(one) for one in table.columns if one.key]
        self._plain = [_Compiled(one) for one in table.columns if not one.key and one.path]
        self._key_fields = {one.path.split(".", 1)[0] for one in self._keys}
        self._key_paths = {one.path for one in self._keys}
        self._simple_key = self._key_paths == self._key_fields
        self._partly = frozenset(
            one.path.split(".", 1)[0] for one in self._plain if "." in one.path
        )
        self._rest = b'"%b":' % table.rest.encode() if table.rest else b""
        relation = _encode(table.relation)
        self._relation = relation
        self._insert = b'["data",{"tag":"insert","relation":%b,"new":{' % relation
        self._update = b'["data",{"tag":"update","relation":%b,"key":null,"new":{' % relation
        self._delete = b'["data",{"tag":"delete","relation":%b,"key":{' % relation
        self.truncation: Final = b'["data",{"tag":"truncate","relations":[%b]}]' % relation
        """The end of all of its rows."""

    def insert(self, key: Fields, fields: Fields) -> bytes:
        """A row, in the place of any of its key. Raises MisfitError."""
        parts = self._key(key)
        self._values(fields, parts)
        return self._insert + b",".join(parts) + b"}}]"

    def update(self, key: Fields, fields: Fields, *, unsent: frozenset[str] | None = None) -> bytes:
        """A row whose columns are all told, also those that are null now; but for columns of the
        fields in `unsent`, which stay as they were. Raises MisfitError."""
        parts = self._key(key)
        self._values(fields, parts, nulls=True, unsent=unsent)
        return self._update + b",".join(parts) + b"}}]"

    def delete(self, key: Fields) -> bytes:
        """The end of a row. Raises MisfitError for a key that none of its rows can have."""
        return self._delete + b",".join(self._key(key)) + b"}}]"

    @property
    def has_fixed_key(self) -> bool:
        """Whether its key is MongoDB's, whose values never become others of another type."""
        return self._key_fields == {"_id"}

    def has_fields_of(self, key: Fields) -> bool:
        """Whether a key is of the fields of its key, whatever their values."""
        return key.keys() == self._key_fields

    # --- columns --------------------------------------------------------------------------------

    def _key(self, key: Fields) -> list[bytes]:
        if key.keys() != self._key_fields:
            self._no_key(key)
        parts: list[bytes] = []
        for one in self._keys:
            try:
                value = bytes(key[one.path]) if self._simple_key else value_at(key, one.path)
                if value is None or value == _NULL:
                    raise UnfitError("null")
                parts.append(one.head + one.convert(value))
            except UnfitError as error:
                raise self._misfit(one, error) from None
        if not self._simple_key:
            self._covered(key)
        return parts

    def _covered(self, key: Fields) -> None:
        """Refuse a key with a part that no column has: two rows would be one."""
        if missing := uncovered(key, self._key_paths):
            raise MisfitError(
                table=self.table.name,
                column=", ".join(self.table.key),
                came=f"a key with another part, {missing!r},",
                want="all of its source's key",
                remedy="Add a column of that part to its columns and its key.",
            )

    def _no_key(self, key: Fields) -> NoReturn:
        came = f"a key of {', '.join(key)}"
        remedy = "Set key and columns of the table to the fields of the source's key; its client "
        remedy += "then begins anew."
        if HIDDEN_KEY in key:
            came, remedy = "a key that is hidden", "Ask with a token that may see the key."
        elif list(key) == [ROW_KEY]:
            came, remedy = "a row without a primary key", "Give the table of its source one."
        raise MisfitError(
            table=self.table.name,
            column=", ".join(self.table.key),
            came=came,
            want=f"the source's key, of {', '.join(sorted(self._key_fields))}",
            remedy=remedy,
        )

    def _values(
        self,
        fields: Fields,
        parts: list[bytes],
        *,
        nulls: bool = False,
        unsent: frozenset[str] | None = None,
    ) -> None:
        """Into `parts` what the columns but the key's are."""
        get = fields.get
        misfits: dict[str, bytes] = {}
        for one in self._plain:
            path = one.path
            try:
                if one.dotted:
                    value = value_at(fields, path)
                else:
                    raw = get(path)
                    value = None if raw is None else bytes(raw)
                if value is not None and value != _NULL:
                    parts.append(one.head + one.convert(value))
                    continue
            except UnfitError as error:
                if not self._rest or one.required:
                    raise self._misfit(one, error) from None
                step = path if path in fields else path.split(".", 1)[0]
                misfits[step] = bytes(fields[step])
            else:
                if unsent and not unsent.isdisjoint(one.fields):
                    continue
                if one.required:
                    raise self._misfit(one, UnfitError("null"))
            if nulls:
                parts.append(one.head + _NULL)
        if self._rest:
            rest = self._rest_of(fields, misfits)
            if rest or nulls:
                parts.append(self._rest + (rest or _NULL))

    def _rest_of(self, fields: Fields, misfits: dict[str, bytes]) -> bytes:
        kept = misfits
        if self.table.new_fields == "rest":
            consumed, partly, keys = self.consumed, self._partly, self._key_fields
            for name, raw in fields.items():
                if (name not in consumed or name in partly) and name not in keys:
                    kept[name] = bytes(raw)
        if not kept:
            return b""
        return _encode({name: Raw(plain_json(value)) for name, value in kept.items()})

    def _misfit(self, one: "_Compiled", error: UnfitError) -> MisfitError:
        return misfit(self.table, one.column, error)


class _Compiled:
    """A column, ready to be written."""

    __slots__ = ("column", "convert", "dotted", "fields", "head", "path", "required")

    def __init__(self, column: Column) -> None:
        self.column = column
        self.path = column.path
        self.dotted = "." in column.path
        self.fields = frozenset({column.path, column.path.split(".", 1)[0]})
        self.head = b"%b:" % _encode(column.name)
        convert = converter(column.type)
        self.convert: Convert = _never_null(convert) if column.required else convert
        self.required = column.required


def _never_null(convert: Convert) -> Convert:
    def converted(value: bytes) -> bytes:
        written = convert(value)
        if written == _NULL:
            raise UnfitError("null")
        return written

    return converted


def misfit(table: Table, column: Column, error: UnfitError) -> MisfitError:
    """The error of a value that does not fit a column."""
    said = f"columns = {{ {column.name} = '...' }} of [serve.zero.tables.{table.name}]"
    remedy = f"Correct the document, or declare a type that takes both under {said}"
    if error.remedy:
        remedy += f": {error.remedy}"
    keeps = "" if column.key or table.rest else "; or keep such values with rest = 'NAME'"
    return MisfitError(
        table=table.name,
        column=column.name,
        came=error.came,
        want=column.type + (", part of the key" if column.key else ""),
        remedy=f"{remedy}{keeps}. The client then begins anew.",
        inferred=not column.declared,
    )


def uncovered(key: Fields, paths: set[str], prefix: str = "") -> str:
    """A part of a key to which none of the paths leads; empty where there is none."""
    for name, raw in key.items():
        path = f"{prefix}{name}"
        if path in paths:
            continue
        value = bytes(raw)
        if value[:1] != b"{" or value.startswith(b'{"$') or value == b"{}":
            return path
        if missing := uncovered(fields_of(value), paths, f"{path}."):
            return missing
    return ""


def permissions_row(table: Table, permissions: bytes | None, digest: str | None) -> bytes:
    """The one row of an application's permissions: them as JSON, and their hash (Z6)."""
    fields = {"hash": Raw(_encode(digest)), "permissions": Raw(permissions or _NULL)}
    return Rows(table).insert({"lock": Raw(b"true")}, fields)


def change(message: Any) -> bytes:
    """A change that is no row's, as a finished message."""
    return _encode(["data", message])
