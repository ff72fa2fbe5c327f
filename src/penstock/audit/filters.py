"""Which records are asked for: from what people write to what MongoDB is asked. Pure.

A key is told typed, or as text. Typed, it is JSON: an ordered object (`{"a":"x","b":1}`) or, for a
key of one column, its value alone (`5`, `"5"`). What is no JSON is text, and compared with
`meta.pk_text`; so `123abc` is never 123 (A12). As text, `5` is the number and the text.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Literal, cast

import msgspec
from bson import json_util
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.objectid import ObjectId
from msgspec import Struct, json

from penstock.audit.moments import Span, span_of
from penstock.audit.values import value_of
from penstock.errors import ConfigError

Operation = Literal["i", "u", "d", "ddl", "gap", "copy", "sys"]
OPERATIONS: Final[tuple[Operation, ...]] = ("i", "u", "d", "ddl", "gap", "copy", "sys")
"""Rows inserted, updated and deleted; schema changes; what was lost; and what was done to the trail
itself, such as an erasure."""
Order = Literal["asc", "desc"]
Conditions = dict[str, Any]


class Key(Struct, frozen=True, kw_only=True):
    """A key that is looked for."""

    texts: tuple[str, ...]
    """What `meta.pk_text` is, as one of these: by it the index finds the key."""
    typed: Any = msgspec.UNSET
    """The ordered object, or the only column's value; UNSET if any type will do."""
    bare: bool = False
    """Whether `typed` is the value alone."""


class Filters(Struct, frozen=True, kw_only=True):
    """What a record must be; what is not said may be anything."""

    database: str | None = None
    table: str | None = None
    key: Key | None = None
    operations: tuple[Operation, ...] = ()
    """One of these; empty for all."""
    since_ms: int | None = None
    until_ms: int | None = None
    """The first millisecond that is too late."""
    transaction: str | None = None
    actor: str | None = None

    @property
    def timed(self) -> bool:
        return self.since_ms is not None or self.until_ms is not None

    def fingerprint(self) -> bytes:
        """Eight bytes that another set of filters has not: a cursor goes on with its own."""
        said = json_util.dumps(conditions(self), json_options=json_util.CANONICAL_JSON_OPTIONS)
        return hashlib.sha256(said.encode()).digest()[:8]


def filters_of(
    *,
    tz: str,
    db: str | None = None,
    table: str | None = None,
    pk: str | None = None,
    pk_text: str | None = None,
    op: str | None = None,
    since: str | None = None,
    until: str | None = None,
    transaction: str | None = None,
    actor: str | None = None,
) -> Filters:
    """Filters as they are written on a command line; a day is one of the time zone `tz`.

    Raises ConfigError that names what was written wrongly.
    """
    database, name = _table(db, table)
    if pk is not None and pk_text is not None:
        raise ConfigError("--pk and --pk-text exclude each other. Give one of them.")
    first, last = _span("since", since, tz), _span("until", until, tz)
    if first is not None and last is not None and first.first_ms >= last.end_ms:
        raise ConfigError(f"--since {since} is behind --until {until}: nothing is in between.")
    for flag, text in (("transaction", transaction), ("actor", actor), ("pk-text", pk_text)):
        if text == "":
            raise ConfigError(f"--{flag} is empty. Leave it out, or say what to look for.")
    return Filters(
        database=database,
        table=name,
        key=key_of(pk) if pk is not None else None if pk_text is None else Key(texts=(pk_text,)),
        operations=_operations(op),
        since_ms=None if first is None else first.first_ms,
        until_ms=None if last is None else last.end_ms,
        transaction=transaction,
        actor=actor,
    )


def _table(db: str | None, table: str | None) -> tuple[str | None, str | None]:
    for flag, text in (("db", db), ("table", table)):
        if text == "":
            raise ConfigError(f"--{flag} is empty. Leave it out, or name one.")
    if table is None or db is not None:
        return db, table
    database, dot, name = table.partition(".")
    if not (database and dot and name):
        raise ConfigError(f"--table {table!r} says no database: write it as db.table, or add --db.")
    return database, name


def _operations(op: str | None) -> tuple[Operation, ...]:
    if op is None:
        return ()
    named = op.split(",")
    wrong = [name for name in named if name not in OPERATIONS]
    if wrong:
        raise ConfigError(
            f"--op {op!r}: {wrong[0]!r} is no operation; they are {', '.join(OPERATIONS)}, several "
            f"with a comma between them."
        )
    return tuple(known for known in OPERATIONS if known in named)


def _span(flag: str, text: str | None, tz: str) -> Span | None:
    if text is None:
        return None
    try:
        return span_of(text, tz=tz)
    except ValueError as error:
        raise ConfigError(f"--{flag}: {error}.") from None


# --- keys -------------------------------------------------------------------------------------


def key_of(text: str) -> Key:
    """A key as it is written: JSON if it is that, else text. Raises ConfigError for an array."""
    try:
        said = json.decode(text)
    except msgspec.DecodeError:
        return Key(texts=(text,))
    if isinstance(said, list) or said == {}:
        raise ConfigError(
            f'--pk {text} can be no key: write an object, as {{"a":1,"b":"x"}}, or the value of a '
            f"key's only column. The text that is shown as a key goes to --pk-text."
        )
    try:
        typed = value_of(said)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"--pk {text} is no Extended JSON: {error}.") from None
    whole = isinstance(typed, dict)
    values = list(said.values()) if whole else [said]
    return Key(texts=_texts(values), typed=typed, bare=not whole)


def _texts(values: list[Any]) -> tuple[str, ...]:
    """How sources write a key as text: a lone text or integer as it is, an ObjectId in hex, all
    else as JSON, where an integer of 64 bits may be wrapped."""
    if len(values) == 1:
        (value,) = values
        if isinstance(value, str):
            return (value,)
        if isinstance(value, int) and not isinstance(value, bool):
            return (str(value),)
        plain = value_of(value)
        if isinstance(plain, ObjectId):
            return (str(plain),)
        if isinstance(plain, Int64):
            return (str(plain),)
    said = values if len(values) > 1 else values[0]
    both = (json.encode(said).decode(), json.encode(_wrapped(said)).decode())
    return both if both[0] != both[1] else both[:1]


def _wrapped(value: Any) -> Any:
    """With every integer wrapped as one of 64 bits."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return {"$numberLong": str(value)}
    if isinstance(value, list):
        return [_wrapped(one) for one in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        document = cast("dict[str, Any]", value)
        return {name: _wrapped(one) for name, one in document.items()}
    return value


# --- what MongoDB is asked --------------------------------------------------------------------


def conditions(filters: Filters) -> Conditions:
    """As a query of MongoDB, without the places; texts are compared and never patterns."""
    asked: Conditions = {}
    if filters.database is not None:
        asked["meta.db"] = {"$eq": filters.database}
    if filters.table is not None:
        asked["meta.tbl"] = {"$eq": filters.table}
    if filters.key is not None:
        asked |= _key_conditions(filters.key)
    if filters.operations:
        one = len(filters.operations) == 1
        asked["op"] = {"$eq": filters.operations[0]} if one else {"$in": list(filters.operations)}
    if filters.timed:
        bounds = (("$gte", filters.since_ms), ("$lt", filters.until_ms))
        asked["ts"] = {name: DatetimeMS(ms) for name, ms in bounds if ms is not None}
    if filters.transaction is not None:
        asked["txn.id"] = {"$eq": filters.transaction}
    if filters.actor is not None:
        asked["src.actor"] = {"$eq": filters.actor}
    return asked


def _key_conditions(key: Key) -> Conditions:
    one = len(key.texts) == 1
    asked: Conditions = {"meta.pk_text": {"$eq": key.texts[0]} if one else {"$in": list(key.texts)}}
    if key.typed is msgspec.UNSET:
        return asked
    if not key.bare:
        return asked | {"meta.pk": {"$eq": key.typed}}
    # An erased record has no key.
    pairs: Conditions = {"$objectToArray": {"$ifNull": ["$meta.pk", {}]}}
    values: Conditions = {"$map": {"input": pairs, "in": "$$this.v"}}
    return asked | {"$expr": {"$eq": [values, [{"$literal": key.typed}]]}}
