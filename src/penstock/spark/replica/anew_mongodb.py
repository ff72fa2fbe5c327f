"""The log applied anew as to MongoDB: documents as their BSON."""

# The stubs of bson leave what is decoded from open.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from typing import Any

import bson
import pyarrow as pa
from bson import json_util
from bson.errors import BSONError

from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.anew import Anew
from penstock.spark.replica.beside import Judged, Rows, Wanted
from penstock.spark.replica.documents import (
    CODEC,
    DOCUMENT,
    ID,
    REASON,
    InexactBsonError,
    decode_bson,
    id_of,
)
from penstock.spark.replica.writes import Document, writes_of
from penstock.spark.table.arrow import arrow
from penstock.spark.table.chunk import Chunk
from penstock.spark.table.decode import Cells
from penstock.spark.table.kinds import Kind
from penstock.spark.table.reduce import DELETE, PUT


class MongoAnew(Anew):
    """Collections of MongoDB."""

    def __init__(self, pipeline: str, config: ReplicatePipelineConfig, rows: Rows) -> None:
        super().__init__(pipeline, config, rows, decode_bson)

    def own_of(self, name: str, said: str) -> bytes | None:  # noqa: ARG002
        """As `Anew.own_of`."""
        try:
            return bson.encode({"_id": id_of(said)})
        except (InexactBsonError, BSONError, OverflowError):
            return None

    def said(self, name: str, own: bytes) -> str:  # noqa: ARG002
        """As `Saying.said`."""
        options = json_util.RELAXED_JSON_OPTIONS
        return json_util.dumps(bson.decode(own, CODEC), json_options=options, separators=(",", ":"))

    def differing(self, wanted: bytes, found: bytes) -> tuple[str, ...]:
        """As `Saying.differing`; of the order of fields nothing is named."""
        one, other = bson.decode(wanted, CODEC), bson.decode(found, CODEC)
        names = dict.fromkeys([*one, *other])
        return tuple(name for name in names if _told(one, name) != _told(other, name))

    def _write(self, name: str, chunk: Chunk) -> None:
        def find(which: Document) -> Document | None:
            held = self.rows.get(name, bson.encode({"_id": which["_id"]["$eq"]}))
            return None if held is None else bson.decode(held, CODEC)

        rows = writes_of(chunk, self.known.stale.get(name, {}), find)
        gone = [row.own for row in rows if row.operation == DELETE and row.own is not None]
        self.rows.delete(name, gone)
        self.rows.put(
            name,
            [
                Wanted(row.own, row.key, row.sequence, row.document)
                for row in rows
                if row.operation == PUT and row.own is not None and row.document is not None
            ],
        )
        for row in rows:
            if row.operation in {PUT, DELETE}:
                self._note(name, (row.key,), {})
            elif row.rejects:
                self._note(name, (), {row.key: row.rejects[-1].sequence})

    def _move(self, old: str, new: str) -> None:
        self.rows.move(old, new)

    def _cells(self, name: str, rows: Sequence[tuple[Judged, bytes | None]]) -> Cells:  # noqa: ARG002
        return {
            ID: {Kind.BINARY: arrow.array([one.own for one, _ in rows], pa.binary())},
            DOCUMENT: {Kind.BINARY: arrow.array([held for _, held in rows], pa.binary())},
            REASON: {Kind.STRING: arrow.nulls(len(rows), pa.string())},
        }


def _told(document: Document, name: str) -> Any:
    return bson.encode({name: document[name]}) if name in document else None
