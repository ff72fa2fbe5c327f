"""Documents to columns: Extended JSON in, one exact column per field and kind out; and back.

A field whose values are of several kinds has several columns, each null where the value is of
another kind. Nothing is decided here about what a table can hold (see `penstock.spark.table.plan`).
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import base64
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from itertools import chain
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.extjson import binary as binary_wrapper
from penstock.extjson import date as date_wrapper
from penstock.extjson import long as long_wrapper
from penstock.spark.table.arrow import Column, arrow, compute
from penstock.spark.table.kinds import ARROW_TYPES, DECIMAL_SCALE, Kind

Cells = dict[str, dict[Kind, Column]]
"""Per field, in the order of first appearance, a column for each kind that occurs."""

Document = dict[str, Any]
"""A decoded document; values are what JSON gives, wrappers still wrapped."""

_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_DATE_MIN_MS = -62_135_596_800_000  # 0001-01-01
_DATE_MAX_MS = 253_402_300_799_999  # 9999-12-31
_WRAPPERS: Final = {
    "$oid": Kind.OBJECT_ID,
    "$numberLong": Kind.INT64,
    "$numberInt": Kind.INT32,
    "$numberDouble": Kind.DOUBLE,
    "$numberDecimal": Kind.DECIMAL,
    "$date": Kind.TIMESTAMP,
    "$binary": Kind.BINARY,
}
_SURELY_FITS: Final = rf"^[+-]?[0-9]{{1,{38 - DECIMAL_SCALE}}}(\.[0-9]{{1,{DECIMAL_SCALE}}})?$"
"""Text of a decimal that has an exact place in the column type. Others are looked at one by one."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_documents(texts: Iterable[str]) -> list[Document]:
    """The documents of these texts, decoded in one call."""
    documents: list[Document] = msgspec.json.decode(f"[{','.join(texts)}]")
    return documents


def decode_documents(documents: Sequence[Document]) -> Cells:
    """A column per field and kind. Absent and null are the same: null in every column."""
    fields = dict.fromkeys(chain.from_iterable(documents))
    cells: Cells = {}
    for field in fields:
        columns: dict[Kind, Column] = {}
        for kind, column in _columns([document.get(field) for document in documents]):
            known = columns.get(kind)
            columns[kind] = column if known is None else compute.coalesce(known, column)
        if columns:
            cells[field] = columns
    return cells


def _columns(values: list[Any]) -> Iterable[tuple[Kind, Column]]:
    types = set(map(type, values))
    types.discard(type(None))
    for of_type in types:
        part: list[Any] = (
            values
            if len(types) == 1
            else [value if type(value) is of_type else None for value in values]
        )
        if of_type is str:
            yield Kind.STRING, arrow.array(part, pa.string())
        elif of_type is int:
            yield from _integers(part)
        elif of_type is float:
            yield Kind.DOUBLE, arrow.array(part, pa.float64())
        elif of_type is bool:
            yield Kind.BOOL, arrow.array(part, pa.bool_())
        elif of_type is dict:
            yield from _objects(part)
        else:
            yield Kind.JSON, _texts(part)


def _texts(values: list[Any]) -> Column:
    encode = msgspec.json.Encoder().encode
    texts = [None if value is None else encode(value) for value in values]
    column: Column = arrow.array(texts, pa.string())
    return column


def _integers(values: list[int | None]) -> Iterable[tuple[Kind, Column]]:
    present = [value for value in values if value is not None]
    low, high = min(present), max(present)
    if low >= _INT32_MIN and high <= _INT32_MAX:
        yield Kind.INT32, arrow.array(values, pa.int32())
        return

    def between(low: int, high: int) -> list[int | None]:
        return [value if value is not None and low <= value <= high else None for value in values]

    small = arrow.array(between(_INT32_MIN, _INT32_MAX), pa.int32())
    if small.null_count < len(small):
        yield Kind.INT32, small
    large = [
        value
        if value is not None
        and _INT64_MIN <= value <= _INT64_MAX
        and not _INT32_MIN <= value <= _INT32_MAX
        else None
        for value in values
    ]
    if any(value is not None for value in large):
        yield Kind.INT64, arrow.array(large, pa.int64())
    if low < _INT64_MIN or high > _INT64_MAX:
        beyond = [
            None if value is None or _INT64_MIN <= value <= _INT64_MAX else str(value)
            for value in values
        ]
        yield from _decimals(beyond)


def _objects(values: list[Document | None]) -> Iterable[tuple[Kind, Column]]:
    names = [None if value is None else next(iter(value), "") for value in values]
    distinct = dict.fromkeys(name for name in names if name is not None)
    plain = [name for name in distinct if name not in _WRAPPERS]
    for name in distinct:
        if name not in _WRAPPERS:
            continue
        inner = [
            value[name] if own == name and value is not None else None
            for own, value in zip(names, values, strict=True)
        ]
        yield from _unwrapped(name, inner)
    if plain:
        yield (
            Kind.JSON,
            _texts(
                [
                    None if name is None or name in _WRAPPERS else value
                    for name, value in zip(names, values, strict=True)
                ]
            ),
        )


def _unwrapped(name: str, values: list[Any]) -> Iterable[tuple[Kind, Column]]:
    kind = _WRAPPERS[name]
    if kind is Kind.TIMESTAMP:
        yield from _instants(values)
    elif kind is Kind.DECIMAL:
        yield from _decimals(values)
    elif kind is Kind.BINARY:
        decoded = [None if one is None else base64.b64decode(one["base64"]) for one in values]
        yield kind, arrow.array(decoded, pa.binary())
    elif kind is Kind.DOUBLE:
        yield (
            kind,
            arrow.array([None if one is None else float(one) for one in values], pa.float64()),
        )
    elif kind is Kind.OBJECT_ID:
        yield kind, arrow.array(values, pa.string())
    else:
        integers = [None if one is None else int(one) for one in values]
        yield kind, arrow.array(integers, ARROW_TYPES[kind])


def _instants(values: list[Any]) -> Iterable[tuple[Kind, Column]]:
    if all(value is None or type(value) is str for value in values):
        text = arrow.array(values, pa.string())
        yield Kind.TIMESTAMP, text.cast(ARROW_TYPES[Kind.TIMESTAMP])
        return
    micros: list[int | None] = []
    unfit: list[str | None] = []
    for value in values:
        at = None if value is None else _micros(value)
        micros.append(at)
        is_unfit = value is not None and at is None
        unfit.append(msgspec.json.encode({"$date": value}).decode() if is_unfit else None)
    if any(at is not None for at in micros):
        yield Kind.TIMESTAMP, arrow.array(micros, pa.int64()).cast(ARROW_TYPES[Kind.TIMESTAMP])
    if any(text is not None for text in unfit):
        yield Kind.UNFIT, arrow.array(unfit, pa.string())


def _micros(value: Any) -> int | None:
    """Microseconds since the epoch; None outside the years that tables and their readers know."""
    if isinstance(value, str):
        moment = datetime.fromisoformat(value) - _EPOCH
        return (moment.days * 86_400 + moment.seconds) * 1_000_000 + moment.microseconds
    millis = int(value["$numberLong"] if isinstance(value, dict) else value)
    return millis * 1000 if _DATE_MIN_MS <= millis <= _DATE_MAX_MS else None


def _decimals(values: list[str | None]) -> Iterable[tuple[Kind, Column]]:
    target = ARROW_TYPES[Kind.DECIMAL]
    texts = arrow.array(values, pa.string())
    # Arrow's cast of a longer text can wrap around 128 bits, into another number.
    if compute.all(compute.match_substring_regex(texts, _SURELY_FITS)).as_py() is not False:
        yield Kind.DECIMAL, texts.cast(target)
        return
    fitting: list[Decimal | None] = []
    unfit: list[str | None] = []
    for value in values:
        exact = None if value is None else _exact_decimal(value)
        fitting.append(exact)
        is_unfit = value is not None and exact is None
        unfit.append(f'{{"$numberDecimal":"{value}"}}' if is_unfit else None)
    if any(value is not None for value in fitting):
        yield Kind.DECIMAL, arrow.array(fitting, target)
    if any(value is not None for value in unfit):
        yield Kind.UNFIT, arrow.array(unfit, pa.string())


def _exact_decimal(text: str) -> Decimal | None:
    """The number at the column's scale, or None if that would lose a digit or cannot be."""
    with localcontext() as context:
        context.prec = 38
        try:
            value = Decimal(text)
            scaled = value.quantize(Decimal((0, (1,), -DECIMAL_SCALE)))
        except InvalidOperation:
            return None
        return scaled if scaled.is_finite() and scaled == value else None


# --- back to documents --------------------------------------------------------------------------


def extended_json(kind: Kind, value: Any) -> Any:
    """A cell's value as Extended JSON that decodes to the same cell again.

    `value` is what Arrow gives for a column of `kind`: a timestamp as integer microseconds.
    """
    match kind:
        case Kind.INT64:
            return long_wrapper(value)
        case Kind.DECIMAL:
            return {"$numberDecimal": str(value)}
        case Kind.OBJECT_ID:
            return {"$oid": value}
        case Kind.TIMESTAMP:
            return _instant(value)
        case Kind.BINARY:
            return binary_wrapper(value)
        case Kind.DOUBLE:
            return value if value - value == 0 else {"$numberDouble": _non_finite(value)}
        case Kind.JSON | Kind.UNFIT:
            return msgspec.json.decode(value)
        case _:
            return value


def _non_finite(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124


def _instant(micros: int) -> dict[str, Any]:
    millis, rest = divmod(micros, 1000)
    if not rest:
        return date_wrapper(millis)
    moment = _EPOCH + timedelta(microseconds=micros)
    return {"$date": moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"}


def python_values(kind: Kind, column: Column) -> list[Any]:
    """A column as `extended_json` takes its values."""
    if kind is Kind.TIMESTAMP:
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def documents_of(cells: Cells, rows: Sequence[int]) -> list[Document]:
    """The documents of some rows, put together again from their cells; nulls are left out."""
    indices = arrow.array(rows, pa.int64())
    documents: list[Document] = [{} for _ in rows]
    for field, columns in cells.items():
        for kind, column in columns.items():
            for document, value in zip(
                documents, python_values(kind, column.take(indices)), strict=True
            ):
                if value is not None:
                    document[field] = extended_json(kind, value)
    return documents


def json_text(kind: Kind, value: Any) -> str:
    """A cell's value as Extended JSON text."""
    if kind in {Kind.JSON, Kind.UNFIT}:
        return str(value)
    return msgspec.json.encode(extended_json(kind, value)).decode()
