"""The whole rows after changes that build on the row before, each of them. Pure.

What such a change says is in `penstock.spark.table.patch`. Of current rows only the last is wanted;
here every one is a version, so they are made in pieces and kept as cells.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct, structs
from numpy.typing import NDArray

from penstock.spark.history.columns import AS_OF_EVENT, VERSION_COLUMNS
from penstock.spark.table.apply import relative_keys, table_states
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.chunk import PIECE_BYTES, Chunk, concat_cells
from penstock.spark.table.decode import Cells, Document, decode_documents, documents_of
from penstock.spark.table.patch import State, decode_change, fold
from penstock.spark.table.plan import DATABASE, KEY, SOURCE
from penstock.spark.table.reduce import PUT, RELATIVE, codes_of
from penstock.spark.table.rejects import Reject


class TooLargeError(Exception):
    """More bytes than may be held."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Resolved(Struct, frozen=True, kw_only=True):
    """The whole rows of a chunk's changes."""

    cells: Cells
    """Of the chunk's own rows, and then of those that were made."""
    count: int
    """How many rows that is."""
    documents: NDArray[np.int64]
    """By row of the chunk: where in `cells` its whole row is; -1 where it has none."""
    as_of_event: NDArray[np.bool_]
    """By row of the chunk: whether its whole row is surely as of the change."""
    rejects: list[Reject]


def resolve(chunk: Chunk, base: pa.Table, *, bytes_max: int) -> Resolved:
    """Make the rows after RELATIVE changes of `chunk`, in order; `base` are open versions.

    Raises TooLargeError once they come to more than `bytes_max`.
    """
    count = chunk.rows.num_rows
    documents = np.where(chunk.roles == PUT, np.arange(count), -1)
    sure = as_of_event(chunk.rows["full_document_as_of_event"])
    if not (chunk.roles == RELATIVE).any():
        return Resolved(
            cells=chunk.cells, count=count, documents=documents, as_of_event=sure, rejects=[]
        )
    before, sure_before = _states(chunk, base), _sure(base)
    made = _Made(count, bytes_max)
    rejects: list[Reject] = []
    states: dict[int, State] = {}
    sure_states: dict[int, bool] = {}
    codes, told = codes_of(chunk.rows), _told(chunk)
    texts = ("operation_type", "full_document", "update_description", "disambiguated_paths")
    concerned = np.flatnonzero(np.isin(codes, np.unique(codes[chunk.roles == RELATIVE])))
    rows = chunk.rows.select(["sequence", "key", "source", "database", *texts, "unchanged"])
    for row, entry in zip(
        concerned.tolist(), rows.take(arrow.array(concerned)).to_pylist(), strict=True
    ):
        code = int(codes[row])
        own = (entry["key"], entry["source"], entry["database"])
        state = states.get(code) or before.get(own) or State(document=None)
        sure_states[code] = sure_after(
            role=int(chunk.roles[row]),
            as_of_event=bool(sure[row]),
            documented=entry["full_document"] is not None,
            before=sure_states.get(code, sure_before.get(own, True)),
        )
        if chunk.roles[row] != RELATIVE:
            states[code] = State(document=told.get(row), sequence=entry["sequence"])
            continue
        change = decode_change(
            sequence=entry["sequence"],
            document=None,
            operation=entry["operation_type"],
            full_document=entry["full_document"],
            update_description=entry["update_description"],
            unchanged=entry["unchanged"],
            disambiguated_paths=entry["disambiguated_paths"],
        )
        after = fold(state, [change])
        if after.rejected:
            rejects += [Reject(sequence=at, reason=reason) for at, reason in after.rejected]
        elif after.document is not None:
            documents[row] = made.add(after.document)
        sure[row] = sure_states[code]
        states[code] = structs.replace(after, rejected=())
    cells = concat_cells((chunk.cells, count), *made.pieces())
    return Resolved(
        cells=cells, count=made.count, documents=documents, as_of_event=sure, rejects=rejects
    )


def sure_after(*, role: int, as_of_event: bool, documented: bool, before: bool) -> bool:
    """Whether a row surely had these values right after a change: one of that role, whose document,
    if it is `documented`, says so itself or not. `before`: whether it had those before."""
    if role != RELATIVE:
        return role != PUT or as_of_event
    return (as_of_event or not documented) and before


def as_of_event(column: Any) -> NDArray[np.bool_]:
    """Of each value whether it is surely as of its change; what says nothing is not."""
    sure: NDArray[np.bool_] = compute.fill_null(column, False).to_numpy().astype(bool)
    return sure


def _sure(base: pa.Table) -> Mapping[tuple[str, str, str], bool]:
    """Of the open versions, whether their values are surely as of their change."""
    names = (KEY, SOURCE, DATABASE, AS_OF_EVENT)
    rows = zip(*(base[name].to_pylist() for name in names), strict=True)
    return {(key, source, database): sure for key, source, database, sure in rows}


def _states(chunk: Chunk, base: pa.Table) -> Mapping[tuple[str, str, str], State]:
    """The open versions that changes of `chunk` build on."""
    keys = arrow.array(relative_keys(chunk), pa.string())
    return table_states(base.filter(compute.is_in(base[KEY], keys)), own=VERSION_COLUMNS)


def _told(chunk: Chunk) -> dict[int, Document]:
    """The documents of PUTs that a RELATIVE change follows, by row."""
    codes, roles = codes_of(chunk.rows), chunk.roles
    order = np.argsort(codes, kind="stable")
    follows = np.zeros(len(order), bool)
    follows[:-1] = (codes[order][1:] == codes[order][:-1]) & (roles[order][1:] == RELATIVE)
    wanted = order[follows & (roles[order] == PUT)].tolist()
    return dict(zip(wanted, documents_of(chunk.cells, wanted), strict=True))


class _Made:
    """Rows that were made, as cells: as objects they would take several times as much."""

    def __init__(self, first: int, bytes_max: int) -> None:
        self.count = first
        self._bytes_max = bytes_max
        self._pieces: list[tuple[Cells, int]] = []
        self._waiting: list[Document] = []
        self._held = 0
        self._size = 0

    def add(self, document: Document) -> int:
        """Keep a row; its number."""
        self._waiting.append(document)
        size = len(msgspec.json.encode(document))
        self._held += size
        self._size += size
        if self._size > self._bytes_max:
            raise TooLargeError(self._size)
        if self._held >= PIECE_BYTES:
            self._flush()
        self.count += 1
        return self.count - 1

    def pieces(self) -> list[tuple[Cells, int]]:
        """All rows, by number."""
        if self._waiting:
            self._flush()
        return self._pieces

    def _flush(self) -> None:
        self._pieces.append((decode_documents(self._waiting), len(self._waiting)))
        self._waiting, self._held = [], 0
