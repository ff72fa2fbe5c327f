"""A row more for each element of an array of a document. Pure; workers run it.

An entry keeps the row that it has: its `element` is null, and `elements` says how many its document
has from then on, null where the change does not say. Below it comes a row for each element, in
their order, with `element` from 0 on: the entry again, whose documents have that element in the
place of the array.

The elements of a document are so the rows of its last entry with `elements`; whatever came before
is gone. Where an image before the change says what that was, the rows also say insert, update or
delete of each element.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock.event import Kind
from penstock.spark.table.arrow import arrow
from penstock.spark.table.chunk import PIECE_BYTES
from penstock.spark.transform.config import ELEMENT

ELEMENT_FIELDS: Final = (
    arrow.field(ELEMENT, pa.int32()),
    arrow.field("elements", pa.int32()),
)
_TEXTS: Final = ("operation_type", "full_document", "full_document_before_change")
_OTHERS: Final = ("update_description", "disambiguated_paths")
"""What a row of an element does not say: it is of the whole document."""

_encode = msgspec.json.Encoder().encode

Document = dict[str, Any]


class Explode(Struct, frozen=True):
    """An array field of some collections; of all, where none is named."""

    field: str
    collections: frozenset[str]


class Made(Struct, frozen=True, kw_only=True):
    """What a row says of its own."""

    operation: str
    document: str | None
    before: str | None
    element: int | None = None
    elements: int | None = None


def exploded(rows: pa.Table, explodes: Sequence[Explode]) -> Iterator[pa.Table]:
    """The rows with ELEMENT_FIELDS, and those of elements below each; some 32 MiB at a time."""
    read: list[dict[str, Any]] = rows.select(
        [*_TEXTS, "kind", "collection", "unchanged"]
    ).to_pylist()
    places: list[int] = []
    made: list[Made] = []
    size = 0
    for place, row in enumerate(read):
        field = _field_of(row, explodes)
        for one in [_plain(row)] if field is None else of_change(row, field):
            places.append(place)
            made.append(one)
            size += len(one.document or "") + len(one.before or "")
            if size >= PIECE_BYTES:
                yield _table(rows, places, made)
                places, made, size = [], [], 0
    if places:
        yield _table(rows, places, made)


def of_change(row: dict[str, Any], field: str) -> Iterator[Made]:
    """A change and its elements."""
    deleted = row["operation_type"] == "delete"
    after = _decoded(row["full_document"])
    before = _decoded(row["full_document_before_change"])
    now: list[Any] | None = None
    if deleted:
        now = []
    elif after is not None and field not in (row["unchanged"] or ()):
        now = _array(after, field)
    then = None if before is None else _array(before, field)
    count = None if now is None else len(now)
    yield msgspec.structs.replace(_plain(row), elements=count)
    if now is None:
        return
    for at in range(max(len(now), len(then or ()))):
        is_now, was = at < len(now), then is not None and at < len(then)
        operation = row["operation_type"]
        if then is not None:
            operation = "delete" if not is_now else "update" if was else "insert"
        yield Made(
            operation=operation,
            document=_with(after, field, now[at]) if after is not None and is_now else None,
            before=_with(before, field, then[at]) if before is not None and then and was else None,
            element=at,
            elements=count,
        )


def _array(document: Document, field: str) -> list[Any] | None:
    """The elements; none where it has no such field, None where that is no array."""
    value = document.get(field)
    if value is None:
        return []
    return value if isinstance(value, list) else None


def _with(document: Document, field: str, element: Any) -> str:
    return _encode({**document, field: element}).decode()


def _plain(row: dict[str, Any]) -> Made:
    return Made(
        operation=row["operation_type"],
        document=row["full_document"],
        before=row["full_document_before_change"],
    )


def _field_of(row: dict[str, Any], explodes: Sequence[Explode]) -> str | None:
    if row["kind"] != Kind.DATA:
        return None
    return next(
        (
            one.field
            for one in explodes
            if not one.collections or row["collection"] in one.collections
        ),
        None,
    )


def _decoded(text: str | None) -> Document | None:
    return None if text is None else msgspec.json.decode(text, type=dict[str, Any])


def _table(rows: pa.Table, places: Sequence[int], made: Sequence[Made]) -> pa.Table:
    taken = rows.take(arrow.array(places, pa.int64()))
    own = arrow.array([one.element is None for one in made], pa.bool_())
    said = {
        "operation_type": [one.operation for one in made],
        "full_document": [one.document for one in made],
        "full_document_before_change": [one.before for one in made],
    }
    columns: list[Any] = []
    for field in taken.schema:
        if field.name in said:
            columns.append(arrow.array(said[field.name], field.type))
        elif field.name in _OTHERS:
            nothing = arrow.scalar(None, field.type)
            columns.append(arrow.compute.if_else(own, taken[field.name], nothing))
        else:
            columns.append(taken[field.name])
    columns += [
        arrow.array([one.element for one in made], pa.int32()),
        arrow.array([one.elements for one in made], pa.int32()),
    ]
    return arrow.table(columns, schema=arrow.schema([*taken.schema, *ELEMENT_FIELDS]))
