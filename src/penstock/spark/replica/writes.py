"""From changes of rows to writes of documents of MongoDB. Pure, but for `find`."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import bson
import msgspec
import numpy as np
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, ReplaceOne

from penstock.audit.values import value_of
from penstock.spark.replica.documents import (
    CODEC,
    DOCUMENT,
    ID,
    REASON,
    InexactBsonError,
    exact,
    with_id,
)
from penstock.spark.table.chunk import Chunk
from penstock.spark.table.decode import Cells
from penstock.spark.table.kinds import Kind
from penstock.spark.table.patch import Change, State, fold
from penstock.spark.table.reduce import DELETE, PUT, RELATIVE, codes_of
from penstock.spark.table.rejects import Reject

Document = dict[str, Any]

Find = Callable[[Document], Document | None]
"""Gives the document that a filter names, as the transaction sees it."""

RAW: Final = CodecOptions(RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_MS)
"""Documents as they are; an instant in them may be one that Python has none for."""


class DocumentWrite(NamedTuple):
    """What is done to one document."""

    key: str
    operation: int
    """PUT, DELETE, or RELATIVE: it stays as it is."""
    sequence: int
    """Of its last change."""
    own: bytes | None
    """`{"_id": ...}` as BSON; None for a key that cannot be one."""
    document: bytes | None
    """Of a PUT."""
    rejects: list[Reject]

    @property
    def write(self) -> "ReplaceOne[Any] | DeleteOne | None":
        """None where nothing is written."""
        if self.own is None or self.operation == RELATIVE:
            return None
        if self.document is None:
            return DeleteOne(_filter(self.own))
        return ReplaceOne(_filter(self.own), RawBSONDocument(self.document, RAW), upsert=True)


def writes_of(chunk: Chunk, stale: Mapping[str, int], find: Find) -> list[DocumentWrite]:
    """What changes of one collection do; `stale` is by key the change that a document lacks."""
    codes = codes_of(chunk.rows)
    folding = np.isin(codes, np.unique(codes[chunk.roles == RELATIVE]))
    simple = chunk.take(np.flatnonzero(~folding))
    count = simple.rows.num_rows
    ids = _cell(simple.cells, ID, Kind.BINARY, count)
    documents = _cell(simple.cells, DOCUMENT, Kind.BINARY, count)
    reasons = _cell(simple.cells, REASON, Kind.STRING, count)
    rows: list[DocumentWrite] = []
    keys: list[Any] = simple.rows["key"].to_pylist()
    for key, role, sequence, own, document, reason in zip(
        keys, simple.roles.tolist(), simple.sequences.tolist(), ids, documents, reasons,
        strict=True,
    ):  # fmt: skip
        rows.append(_row(key, role, sequence, own, document, reason))
    if folding.any():
        building = chunk.take(np.flatnonzero(folding))
        rows += _folded(building, stale, find)
    return rows


def _folded(chunk: Chunk, stale: Mapping[str, int], find: Find) -> list[DocumentWrite]:
    """Rows whose changes build on one another, and on the document that is there."""
    histories: dict[str, list[int]] = {}
    told = chunk.rows.to_pylist()
    for at, change in enumerate(told):
        histories.setdefault(change["key"], []).append(at)
    ids = _cell(chunk.cells, ID, Kind.BINARY, len(told))
    documents = _cell(chunk.cells, DOCUMENT, Kind.BINARY, len(told))
    rows: list[DocumentWrite] = []
    for key, history in histories.items():
        own = ids[history[0]]
        if own is None:
            reason = "its key cannot be one in MongoDB"
            rows.append(_row(key, PUT, told[history[-1]]["sequence"], None, None, reason))
            continue
        found = find(_filter(own))
        before = State(document=found, rejected_sequence=stale.get(key))
        after = fold(before, [_change(told[at], documents[at]) for at in history])
        rejects = [Reject(sequence=at, reason=why) for at, why in after.rejected]
        if after.rejected_sequence is not None and after.sequence == before.sequence:
            rows.append(DocumentWrite(key, RELATIVE, after.sequence, own, None, rejects))
            continue
        if after.document is None:
            rows.append(DocumentWrite(key, DELETE, after.sequence, own, None, rejects))
        else:
            row = _made(key, after, own)
            rows.append(row._replace(rejects=[*rejects, *row.rejects]))
        if after.rejected_sequence is not None:
            # Right for a while, and stale behind that.
            rows.append(DocumentWrite(key, RELATIVE, after.sequence, own, None, rejects[-1:]))
    return rows


def _row(
    key: str,
    role: int,
    sequence: int,
    own: bytes | None,
    document: bytes | None,
    reason: str | None,
) -> DocumentWrite:
    if role == DELETE:
        # One without an _id cannot be there.
        return DocumentWrite(key, DELETE, sequence, own, None, [])
    if own is None or document is None:
        rejects = [Reject(sequence=sequence, reason=reason or "")]
        return DocumentWrite(key, RELATIVE, sequence, own, None, rejects)
    return DocumentWrite(key, PUT, sequence, own, document, [])


def _made(key: str, after: State, own: bytes) -> DocumentWrite:
    assert after.document is not None
    document = reason = None
    try:
        document = with_id(after.document, key)
    except (InexactBsonError, BSONError, OverflowError) as error:
        known = isinstance(error, InexactBsonError)
        reason = str(error) if known else f"BSON does not hold it ({type(error).__name__})"
    return _row(key, PUT, after.sequence, own, document, reason)


def _change(row: Document, document: bytes | None) -> Change:
    """A change of a row's history, with its values as MongoDB has them."""
    made: Document | None = None if document is None else bson.decode(document, CODEC)
    update: Document | None = None
    try:
        if made is None and row["full_document"] is not None:
            made = value_of(exact(row["full_document"]))
        if row["update_description"] is not None:
            said = exact(row["update_description"])
            fields = said.get("updatedFields") or {}
            update = {
                **said,
                "updatedFields": {path: value_of(one) for path, one in fields.items()},
            }
    except InexactBsonError:
        made = update = None  # which `fold` rejects
    paths = row["disambiguated_paths"]
    return Change(
        sequence=row["sequence"],
        operation=row["operation_type"],
        document=made,
        update=update,
        unchanged=tuple(row["unchanged"] or ()),
        paths=None if paths is None else msgspec.json.decode(paths),
    )


def _filter(own: bytes) -> Document:
    return {"_id": {"$eq": bson.decode(own, CODEC)["_id"]}}


def _cell(cells: Cells, name: str, kind: Kind, count: int) -> list[Any]:
    column = cells.get(name, {}).get(kind)
    values: list[Any] = [None] * count if column is None else column.to_pylist()
    return values
