"""Values, records, tables and errors, to and from the JSON that goes over a store's socket."""

import traceback
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
import structlog

from penstock.errors import LogCorruptError, LogFullError, PenstockError
from penstock.store.attributevalue import (
    decode_attributes,
    decode_value,
    encode_attribute,
    encode_attributes,
)
from penstock.store.conditions import Attr, Literal
from penstock.store.documents import from_plain, item_from_plain, to_plain
from penstock.store.errors import (
    ConditionCheckFailedError,
    InvalidConditionError,
    RefusedError,
    StoreError,
    ValueRefusedError,
)
from penstock.store.keys import KeyAttribute, KeyType
from penstock.store.paths import Path, PathLike, format_path, parse_path
from penstock.store.records import EventType, StreamRecord
from penstock.store.remote.errors import InternalServerError
from penstock.store.remote.requests import Form
from penstock.store.schema import Index, StreamViewType, Table
from penstock.store.streams import ConsumerInfo, StreamInfo
from penstock.store.updates import (
    IfNotExists,
    ListAppend,
    Minus,
    Plus,
    SetValue,
    if_not_exists,
    list_append,
    minus,
    plus,
)
from penstock.store.values import DEPTH_MAX, Item, Value

# --- values ---------------------------------------------------------------------------------------


def read_value(form: Form, json: object) -> Value:
    """The value of a request or an answer.

    Raises ValueRefusedError and MalformedValueError for what is no value of that form.
    """
    return decode_value(json) if form == "dynamodb" else from_plain(json)


def read_item(form: Form, json: object) -> Item:
    """An item, or a key. Raises as `read_value`, and RefusedError for what is no object."""
    if not isinstance(json, dict):
        raise RefusedError("an item and a key are objects. Nothing was changed.")
    attributes = cast("dict[str, object]", json)
    return decode_attributes(attributes) if form == "dynamodb" else item_from_plain(attributes)


def write_value(form: Form, value: Value) -> Any:
    """A value in that form. Raises ValueRefusedError for what plain JSON does not have."""
    return encode_attribute(value) if form == "dynamodb" else to_plain(value)


def write_item(form: Form, item: Item | None) -> Any:
    """An item in that form, null for none. Raises as `write_value`."""
    if item is None:
        return None
    return encode_attributes(item) if form == "dynamodb" else to_plain(item)


# --- paths and what an update sets ----------------------------------------------------------------


def read_path(given: str | list[str | int]) -> Path:
    """A path as it is written, or as the list of its elements."""
    return parse_path(given if isinstance(given, str) else tuple(given))


def write_path(path: PathLike) -> str | list[str | int]:
    """A path, written if it can be."""
    parsed = parse_path(path)
    written = format_path(parsed)
    try:
        plain = parse_path(written) == parsed
    except InvalidConditionError:
        plain = False
    return written if plain else list(parsed)


_EXPRESSIONS: Final = ("Attr", "Value", "IfNotExists", "ListAppend", "Plus", "Minus")


def read_expression(form: Form, json: object, depth: int = 0) -> SetValue:
    """What an update works out: {"Plus": [{"Attr": "n"}, {"Value": 1}]}, values in `form`."""
    if not isinstance(json, dict) or len(cast("dict[str, object]", json)) != 1:
        raise _no_expression()
    if depth > DEPTH_MAX:
        raise RefusedError(f"an expression is nested more than {DEPTH_MAX} deep")
    word, given = next(iter(cast("dict[str, object]", json).items()))
    if word == "Value":
        return Literal(read_value(form, given))
    if word == "Attr":
        return Attr(_path_of(given))
    pair = cast("list[object]", given) if isinstance(given, list) else []
    if word not in _EXPRESSIONS or len(pair) != 2:
        raise _no_expression()
    second = read_expression(form, pair[1], depth + 1)
    if word == "IfNotExists":
        return if_not_exists(_path_of(pair[0]), second)
    first = read_expression(form, pair[0], depth + 1)
    if word == "ListAppend":
        return list_append(first, second)
    return plus(first, second) if word == "Plus" else minus(first, second)


def _path_of(given: object) -> Path:
    if isinstance(given, str | list):
        return read_path(cast("str | list[str | int]", given))
    raise _no_expression()


def _no_expression() -> RefusedError:
    return RefusedError(
        f"an expression is an object with one of {', '.join(_EXPRESSIONS)}. Nothing was changed."
    )


def write_expression(form: Form, value: SetValue) -> dict[str, Any]:
    """What `read_expression` reads."""
    match value:
        case Literal(plain):
            return {"Value": write_value(form, plain)}
        case Attr(path):
            return {"Attr": write_path(path)}
        case IfNotExists(path, otherwise):
            return {"IfNotExists": [write_path(path), write_expression(form, otherwise)]}
        case ListAppend(left, right):
            return _pair("ListAppend", form, left, right)
        case Plus(left, right):
            return _pair("Plus", form, left, right)
        case Minus(left, right):
            return _pair("Minus", form, left, right)


def _pair(word: str, form: Form, left: SetValue, right: SetValue) -> dict[str, Any]:
    return {word: [write_expression(form, left), write_expression(form, right)]}


# --- records --------------------------------------------------------------------------------------


def write_record(form: Form, record: StreamRecord) -> dict[str, Any]:
    """A record; images that it does not have are left out."""
    written = {
        name: value
        for name in StreamRecord.__struct_fields__
        if (value := getattr(record, name)) is not None
    }
    for name in ("keys", "old_image", "new_image"):
        if name in written:
            written[name] = write_item(form, written[name])
    return written


def read_record(form: Form, json: Mapping[str, Any]) -> StreamRecord:
    """What `write_record` wrote."""
    read: dict[str, Any] = dict(json)
    for name in ("keys", "old_image", "new_image"):
        if name in read:
            read[name] = read_item(form, read[name])
    read["event_type"] = EventType(read["event_type"])
    read["view"] = StreamViewType(read["view"])
    return StreamRecord(**read)


def write_table(table: Table) -> dict[str, Any]:
    """A table's schema, as `describe_table` answers it."""
    sort = table.sort_key
    return {
        **msgspec.structs.asdict(table),
        "partition_key": table.partition_key._asdict(),
        "sort_key": None if sort is None else sort._asdict(),
        "indexes": [_write_index(index) for index in table.indexes],
    }


def _write_index(index: Index) -> dict[str, Any]:
    sort = index.sort_key
    return {
        **msgspec.structs.asdict(index),
        "partition_key": index.partition_key._asdict(),
        "sort_key": None if sort is None else sort._asdict(),
    }


def read_table(json: Mapping[str, Any]) -> Table:
    """What `write_table` wrote."""
    read = _read_keys(json)
    read["indexes"] = tuple(Index(**_read_keys(index)) for index in read["indexes"])
    return Table(**read)


def _read_keys(json: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = dict(json)
    for name in ("partition_key", "sort_key"):
        if read[name] is not None:
            read[name] = KeyAttribute(read[name]["name"], KeyType(read[name]["type"]))
    return read


def write_info(info: StreamInfo) -> dict[str, Any]:
    """What `get_stream_info` answers."""
    return {**info._asdict(), "consumers": [one._asdict() for one in info.consumers]}


def read_info(json: Mapping[str, Any]) -> StreamInfo:
    """What `write_info` wrote."""
    read: dict[str, Any] = dict(json)
    read["view_type"] = StreamViewType(read["view_type"])
    read["consumers"] = [ConsumerInfo(**one) for one in read["consumers"]]
    return StreamInfo(**read)


# --- errors ---------------------------------------------------------------------------------------

_NAMES: Final = {LogFullError.code: "DiskFull", LogCorruptError.code: "CorruptedPage"}
"""The names of errors that are not a store's own."""


def write_error(form: Form, error: PenstockError) -> dict[str, Any]:
    """An error: its name, its message, its code, which is its own alone, and its facts."""
    facts = error.facts() if isinstance(error, StoreError) else {}
    name = error.name if isinstance(error, StoreError) else _NAMES.get(error.code, "StoreError")
    written = {"error": name, "message": str(error), "code": error.code, **facts}
    if isinstance(error, ConditionCheckFailedError):
        try:
            written["item"] = write_item(form, error.item)
        except ValueRefusedError:
            written |= {"values": "dynamodb", "item": write_item("dynamodb", error.item)}
    text = getattr(error, "dynamodb", None)
    if text is not None:
        written["dynamodb"] = text
    return written


def read_error(form: Form, json: Mapping[str, Any]) -> PenstockError:
    """The error that `write_error` wrote, as if it had been raised here."""
    facts = {name: fact for name, fact in json.items() if name not in ("error", "code", "message")}
    facts.pop("values", None)
    kind = _kinds().get(str(json.get("code")), StoreError)
    error = kind.__new__(kind)
    Exception.__init__(error, str(json.get("message", "")))
    if kind is ConditionCheckFailedError and facts.get("item") is not None:
        facts["item"] = read_item(form, facts["item"])
    for name, fact in facts.items():
        setattr(error, name, fact)
    return error


def _kinds() -> dict[str, type[PenstockError]]:
    if not _by_code:
        kinds: list[type[PenstockError]] = [StoreError, LogFullError, LogCorruptError]
        while kinds:
            kind = kinds.pop()
            _by_code[kind.code] = kind
            kinds += kind.__subclasses__()
    return _by_code


_by_code: Final[dict[str, type[PenstockError]]] = {}


def told(error: BaseException) -> PenstockError:
    """What a client is told of an error: of a defect only that there is one."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, RecursionError):
        return RefusedError("the request is nested too deeply. Nothing was changed.")
    # Where, and not what it says: that may show a document.
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = [f"{frame.name}:{frame.lineno}" for frame in frames]
    _log.error("request failed", error=type(error).__name__, where=where)
    return InternalServerError(
        "the server met a defect of its own, and logged it. A write was undone. Please report it."
    )


_log = structlog.get_logger()
