"""Keys that differ at the source, and would be one row in the columns of a key. Pure.

A column of text holds an ObjectId as its digits, and one of bytes has no place for a subtype. So a
table says of each of its key's fields what is behind such values: the first one decides, and a row
whose key has the other form is rejected, never written over the first. Numbers that are equal are
one key at every source, whatever their types: who gives a key another type deletes the old one.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from penstock.errors import DestinationError
from penstock.spark.replica.dialect import Values
from penstock.spark.table.arrow import compute
from penstock.spark.table.decode import Cells, parse_documents
from penstock.spark.table.kinds import Kind, document_field, kind_of_column
from penstock.spark.table.plan import Misfit, Placement
from penstock.spark.table.reduce import PUT

Forms = Mapping[str, str]
"""By a key's field: the one form that its values have which two forms of key would share."""

OBJECT_ID: Final = "objectId"
TEXT: Final = "text"
_BINARY: Final = "binary "
"""And the subtype behind it."""
_DIGITS: Final = "^[0-9a-f]{24}$"


class Told(Struct, frozen=True, kw_only=True):
    """What the keys of some rows say about their table."""

    forms: Forms
    """The table's, after them."""
    misfits: Mapping[int, Misfit]
    """The rows whose key is one that the table does not tell apart from another."""


def tell_apart(
    known: Forms,
    keys: Sequence[str],
    cells: Cells,
    placement: Placement,
    *,
    fields: Sequence[str],
    operations: NDArray[np.int8],
    sequences: NDArray[np.int64],
) -> Told:
    """Which rows have keys of the table's forms; `known` grows by the earliest that is written.

    `keys` and `cells` are the rows', before they were placed; `fields` are the key's.
    """
    forms, misfits = dict(known), dict[int, Misfit]()
    for field in fields:
        found = _forms(field, keys, cells, placement)
        order = sorted(found, key=lambda row: int(sequences[row]))
        for row in order:
            form, rest = found[row], row in placement.misfits
            if field not in forms and operations[row] == PUT and not rest:
                forms[field] = form
            held = forms.get(field)
            if held is not None and held != form:
                reason = (
                    f"the key's field {field} is {_said(form)}, and {_said(held)} is the same in "
                    f"its column: the key {_other(keys[row], field, held)} would be the same row"
                )
                misfits.setdefault(row, Misfit(field, reason))
    return Told(forms=forms, misfits=misfits)


def formed(value: Any, form: str | None) -> Any:
    """A key's field as its table gives it, in Extended JSON, in the form that the table has."""
    if form == OBJECT_ID:
        return {"$oid": value} if re.match(_DIGITS, str(value)) else value
    if form is not None and form.startswith(_BINARY):
        return {"$binary": {**value["$binary"], "subType": form.removeprefix(_BINARY)}}
    return value


def refuse_equal(key: Sequence[Values], keys: Sequence[str], *, name: str, pipeline: str) -> None:
    """Raise DestinationError if two of these rows, all of them to be written, have one key."""
    seen: dict[tuple[Any, ...], str] = {}
    for values, text in zip(
        zip(*(one.column.to_pylist() for one in key), strict=True), keys, strict=True
    ):
        other = seen.setdefault(values, text)
        if other != text:
            raise DestinationError(
                pipeline=pipeline,
                what=f"the keys {other} and {text} are both there at the source, and would be the "
                f"same row of the table {name}",
                remedy="Remove one of them at the source, or replicate the collection to MongoDB.",
            )


def _forms(field: str, keys: Sequence[str], cells: Cells, placement: Placement) -> dict[int, str]:
    """By row: the form of a value that another form of key would share."""
    found: dict[int, str] = {}
    column = next((one for one in placement.schema if document_field(one) == field), None)
    is_text = column is not None and kind_of_column(column) in {Kind.STRING, Kind.OBJECT_ID}
    for kind, values in cells.get(field, {}).items():
        if kind is Kind.OBJECT_ID and is_text:
            found |= dict.fromkeys(_rows(compute.is_valid(values)), OBJECT_ID)
        elif kind is Kind.STRING and is_text:
            alike = compute.match_substring_regex(values, _DIGITS)
            found |= dict.fromkeys(_rows(compute.fill_null(alike, False)), TEXT)
        elif kind is Kind.BINARY:
            rows = _rows(compute.is_valid(values))
            own = parse_documents([keys[row] for row in rows])
            found |= {
                row: f"{_BINARY}{document[field]['$binary']['subType']}"
                for row, document in zip(rows, own, strict=True)
            }
    return found


def _rows(mask: Any) -> list[int]:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False)).tolist()


def _said(form: str) -> str:
    if form.startswith(_BINARY):
        return f"bytes of subtype {form.removeprefix(_BINARY)}"
    return "an ObjectId" if form == OBJECT_ID else "text of 24 digits"


def _other(key: str, field: str, form: str) -> str:
    """The key that is the same, in the other form."""
    (document,) = parse_documents([key])
    value: Any = document[field]
    if form == OBJECT_ID:
        document[field] = {"$oid": value}
    elif form == TEXT:
        document[field] = value["$oid"]
    else:
        binary = {**value["$binary"], "subType": form.removeprefix(_BINARY)}
        document[field] = {"$binary": binary}
    return msgspec.json.encode(document).decode()
