"""What all that is told of a row comes to. Pure; a row at a time, its changes one by one."""

# A document's values may be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct, structs

from penstock.spark.functions.lives import Lives
from penstock.spark.functions.told import Entry, Told, as_batches, change_of, rows_in
from penstock.spark.table.apply import outcome
from penstock.spark.table.arrow import arrow
from penstock.spark.table.patch import State, decode_change, fold
from penstock.spark.table.reduce import DELETE, PUT

UPSERT: Final = "upsert"
GONE: Final = "delete"
UPDATE: Final = "update"
STALE: Final = "stale"

_IDENTITY: Final = [
    ("source", pa.string()),
    ("database", pa.string()),
    ("collection", pa.string()),
    ("key", pa.string()),
]
_STATE: Final = [
    ("document", pa.string()),
    ("sequence", pa.int64()),
    ("rejected_sequence", pa.int64()),
]
_TOLD: Final = (
    "sequence",
    "operation_type",
    "full_document",
    "update_description",
    "disambiguated_paths",
    "unchanged",
)
CURRENT_SCHEMA: Final = arrow.schema([*_IDENTITY, *_STATE])
CHANGE_SCHEMA: Final = arrow.schema(
    [
        ("operation", pa.string()),
        *_IDENTITY,
        *_STATE,
        (
            "changes",
            pa.list_(
                arrow.struct(
                    [
                        ("sequence", pa.int64()),
                        ("operation_type", pa.string()),
                        ("full_document", pa.string()),
                        ("update_description", pa.string()),
                        ("disambiguated_paths", pa.string()),
                        ("unchanged", pa.list_(pa.string())),
                    ]
                )
            ),
        ),
    ]
)
REJECTED_SCHEMA: Final = arrow.schema(
    [("sequence", pa.int64()), *_IDENTITY, ("reason", pa.string())]
)


class Row:
    """A row, as far as it is known, change by change."""

    def __init__(self, before: State | None) -> None:
        """`before` is the row before the first change; None where nobody knows it."""
        self.state = before
        self.sequence = 0
        """Of the last change."""
        self.waiting: list[Entry] = []
        """Changes that build on a row that is not known."""
        self._text: str | None = None

    def take(self, entry: Entry) -> tuple[tuple[int, str], ...]:
        """Apply the next change; sequence and reason if it is rejected."""
        self.sequence = entry["sequence"]
        if entry["role"] in {PUT, DELETE}:
            # Nothing of it needs to be decoded, unless something builds on it.
            self.state, self.waiting = State(document=None, sequence=self.sequence), []
            self._text = entry["full_document"] if entry["role"] == PUT else None
            return ()
        if self.state is None:
            self.waiting.append(entry)
            return ()
        after = fold(self._decoded(self.state), [change_of(entry)])
        if not after.rejected:
            self._text = None
        self.state = structs.replace(after, rejected=())
        return after.rejected

    def _decoded(self, state: State) -> State:
        if self._text is None or state.document is not None:
            return state
        return structs.replace(state, document=msgspec.json.decode(self._text))

    @property
    def there(self) -> bool:
        """Whether there is a row, as far as it is known."""
        return self._text is not None or (
            self.state is not None and self.state.document is not None
        )

    @property
    def document(self) -> str | None:
        """As Extended JSON; None where there is none, or none is known."""
        if self._text is not None or self.state is None or self.state.document is None:
            return self._text
        return text_of(self.state.document)


def text_of(document: Any) -> str:
    """A document as Extended JSON."""
    return msgspec.json.encode(document).decode()


def latest(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """CHANGE_SCHEMA: what is told of each row, for whoever has it."""
    yield from as_batches(map(_latest, rows_in(batches)), CHANGE_SCHEMA, size=_size)


def _latest(told: Told) -> dict[str, Any]:
    row = Row(None)
    for entry in told.entries:
        row.take(entry)
    said = {**_identity(told), "sequence": row.sequence}
    if row.state is None:
        changes = [{name: entry[name] for name in _TOLD} for entry in row.waiting]
        return {"operation": UPDATE, **said, "changes": changes}
    return {
        "operation": UPSERT if row.there else GONE,
        **said,
        "document": row.document,
        "sequence": row.state.sequence,
        "rejected_sequence": row.state.rejected_sequence,
    }


def current(batches: Iterable[pa.RecordBatch], *, lives: Lives) -> Iterator[pa.RecordBatch]:
    """CURRENT_SCHEMA: the rows that there are behind all that is told, from the beginning."""
    yield from as_batches(_current(batches, lives), CURRENT_SCHEMA, size=_size)


def _current(batches: Iterable[pa.RecordBatch], lives: Lives) -> Iterator[dict[str, Any]]:
    for told in rows_in(batches):
        row = Row(State(document=None))
        for entry in told.entries:
            row.take(entry)
        if row.there and row.state is not None:
            moved = lives.moved(told.life, told.source)
            yield {
                **_identity(told),
                "document": row.document,
                "sequence": max(row.state.sequence, moved),
                "rejected_sequence": row.state.rejected_sequence,
            }


def rejected(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """REJECTED_SCHEMA: the changes that could not be applied, from the beginning."""
    yield from as_batches(_rejected(batches), REJECTED_SCHEMA, size=_size)


def _rejected(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for told in rows_in(batches):
        row = Row(State(document=None))
        for entry in told.entries:
            for sequence, reason in row.take(entry):
                own = {name: entry[name] for name, _ in _IDENTITY}
                yield {"sequence": sequence, **own, "reason": reason}


def _identity(told: Told) -> dict[str, Any]:
    return {
        "source": told.source,
        "database": told.life.database,
        "collection": told.life.collection,
        "key": told.key,
    }


def _size(row: dict[str, Any]) -> int:
    texts = [row.get("document"), *(one["full_document"] for one in row.get("changes") or ())]
    return sum(len(text) for text in texts if text is not None)


# --- onto rows that are kept ----------------------------------------------------------------------

BASE: Final = ("document", "sequence", "rejected_sequence")


class _Base(Struct, frozen=True):
    document: str | None
    sequence: int | None
    rejected_sequence: int | None


def built(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """CHANGE_SCHEMA of such rows with the columns `base_*` of the row before: no `update` is left,
    but `stale` where the row stays as it was."""
    yield from as_batches(_built(batches), CHANGE_SCHEMA, size=_size)


def _built(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for row in batch.to_pylist():
            base = _Base(*(row.pop(f"base_{name}") for name in BASE))
            yield row if row["operation"] != UPDATE else _onto(base, row)


def _onto(base: _Base, row: dict[str, Any]) -> dict[str, Any]:
    known = 0 if base.document is None else base.sequence or 0
    before = State(
        document=None if base.document is None else msgspec.json.decode(base.document),
        sequence=known,
        rejected_sequence=base.rejected_sequence,
    )
    changes = [
        decode_change(
            sequence=one["sequence"],
            operation=one["operation_type"],
            document=None,
            full_document=one["full_document"],
            update_description=one["update_description"],
            unchanged=one["unchanged"],
            disambiguated_paths=one["disambiguated_paths"],
        )
        for one in row["changes"]
        if one["sequence"] > known
    ]
    own = (row["key"], row["source"], row["database"])
    after = outcome(own, before, fold(before, changes))
    return {
        **row,
        "operation": UPSERT if after.operation == PUT else STALE,
        "document": None if after.document is None else text_of(after.document),
        "sequence": after.sequence,
        "rejected_sequence": after.rejected,
        "changes": None,
    }
