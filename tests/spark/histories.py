"""What the tests of histories share: the naive model, and what a table of versions says."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import strategies as st
from msgspec import structs

from penstock.event import AnyEvent
from penstock.spark.config import HistoryPipelineConfig
from penstock.spark.history.columns import VERSION_COLUMNS
from penstock.spark.table.apply import table_cells
from penstock.spark.table.decode import documents_of
from tests.spark.tables import Document, Entries, change, schema_event

VALUES = st.fixed_dictionaries(
    {"n": st.integers(0, 2)},
    optional={
        "big": st.sampled_from([2**31, 2**63 - 1]),
        "price": st.sampled_from([0.0, -0.0, 1.5]),
        "name": st.none() | st.sampled_from(["", "a"]),
        "open": st.booleans(),
        "tags": st.lists(st.integers(0, 1) | st.text("a", max_size=1), max_size=2),
        "address": st.dictionaries(st.sampled_from(["street", "zip"]), st.text("a", max_size=1)),
    },
)
"""Few values, so that many changes tell what was known."""

Version = dict[str, Any]

SPAN = ("n", "_from_sequence", "_to_sequence", "_current")
"""From when to when a row had that number."""


def history(path: Path, *collections: str, **more: Any) -> HistoryPipelineConfig:
    """A pipeline into `path`."""
    return HistoryPipelineConfig(
        to="history", source="shop", collections=collections or ("orders",), path=str(path), **more
    )


def at(event: AnyEvent, millis: int) -> AnyEvent:
    """The same, committed at that time."""
    return structs.replace(event, timestamp=millis)


class Model:
    """A list of versions for each row, made change by change."""

    def __init__(self, *, tracked: tuple[str, ...] = (), untracked: tuple[str, ...] = ()) -> None:
        self._tracked, self._untracked = tracked, untracked
        self._open: dict[tuple[str, str], Version] = {}
        self._sure: dict[tuple[str, str], bool] = {}
        self.versions: list[Version] = []

    def take(self, entries: pa.Table) -> "Model":
        """Go on with these entries; of collections, their databases alone tell rows apart."""
        for entry in entries.to_pylist():
            if entry["operation_type"] == "drop":
                for own in [own for own in self._open if own[0] == entry["database"]]:
                    self._end(own, entry)
            elif entry["operation_type"] == "rename":
                self._rename(entry)
            elif entry["operation_type"] == "delete":
                self._end((entry["database"], entry["key"]), entry)
            elif not entry["kind"]:
                self._put((entry["database"], entry["key"]), entry)
        return self

    def _put(self, own: tuple[str, str], entry: dict[str, Any]) -> None:
        known = self._open.get(own)
        document = _document(entry, known["document"] if known else {})
        sure = entry["full_document"] is None or entry["full_document_as_of_event"]
        if entry["full_document"] is None or entry["unchanged"]:
            sure = sure and self._sure.get(own, True)
        self._sure[own] = sure
        same = known is not None and self._seen(known["document"]) == self._seen(document)
        # What is looked up with untracked fields may be a change of these alone.
        joins = bool(self._tracked or self._untracked) and not sure
        if known is not None and same and (known["sure"] == sure or joins):
            if _text(known["document"]) != _text(document) or known["sure"] != sure:
                known |= {"document": document, "sequence": entry["sequence"], "sure": sure}
            return
        self._end(own, entry)
        operation = "snapshot" if entry["snapshot"] else entry["operation_type"]
        self._begin(own, document, operation, entry, sure=sure)

    def _rename(self, entry: dict[str, Any]) -> None:
        to = json.loads(entry["full_document"])["to"]["db"]
        moved = [own for own in self._open if own[0] == entry["database"]]
        for own in [own for own in self._open if own[0] == to]:
            self._end(own, entry)
        for own in moved:
            known = self._open[own]
            self._end(own, entry)
            self._sure[to, own[1]] = known["sure"]
            self._begin((to, own[1]), known["document"], "rename", entry, sure=known["sure"])

    def _begin(
        self,
        own: tuple[str, str],
        document: Document,
        operation: str,
        entry: dict[str, Any],
        *,
        sure: bool,
    ) -> None:
        version = {
            "database": own[0],
            "key": own[1],
            "document": document,
            "operation": operation,
            "from": (entry["sequence"], entry["timestamp"]),
            "to": None,
            "sequence": entry["sequence"],
            "sure": sure,
        }
        self._open[own] = version
        self.versions.append(version)

    def _end(self, own: tuple[str, str], entry: dict[str, Any]) -> None:
        if (known := self._open.pop(own, None)) is not None:
            known["to"] = (entry["sequence"], entry["timestamp"])

    def _seen(self, document: Document) -> str:
        return _text(
            {
                name: value
                for name, value in document.items()
                if (not self._tracked or name in self._tracked) and name not in self._untracked
            }
        )


def _text(document: Document) -> str:
    """Types, signs and the order of what is nested matter; that of the fields does not."""
    return json.dumps(sorted(document.items()))


def _document(entry: dict[str, Any], known: Document) -> Document:
    if entry["full_document"] is None:
        said = json.loads(entry["update_description"])
        removed = said.get("removedFields", [])
        document = {**known, **said.get("updatedFields", {})}
        document = {name: value for name, value in document.items() if name not in removed}
    else:
        document = json.loads(entry["full_document"])
        kept = entry["unchanged"] or ()
        document |= {name: known[name] for name in kept if name in known}
    return {name: value for name, value in document.items() if value is not None}


def told(versions: pa.Table) -> list[Version]:
    """A table's versions as the model has them; checks what it says twice."""
    documents = documents_of(table_cells(versions, own=VERSION_COLUMNS), range(versions.num_rows))
    found: list[Version] = []
    for row, document in zip(
        versions.select(VERSION_COLUMNS.names).to_pylist(), documents, strict=True
    ):
        assert row["_current"] == (row["_to_sequence"] is None) == (row["_valid_to"] is None)
        closed = row["_to_sequence"] is not None
        found.append(
            {
                "database": row["_database"],
                "key": row["_key"],
                "document": document,
                "operation": row["_operation"],
                "from": (row["_from_sequence"], _millis(row["_valid_from"])),
                "to": (row["_to_sequence"], _millis(row["_valid_to"])) if closed else None,
                "sequence": row["_sequence"],
                "sure": row["_as_of_event"],
            }
        )
    return found


def in_order(versions: list[Version]) -> list[str]:
    """Comparable, whatever their order was."""
    return sorted(
        json.dumps({**version, "document": _text(version["document"])}) for version in versions
    )


def versions_of(path: Path | str) -> list[Version]:
    """What a Delta table of versions says."""
    return told(DeltaTable(str(path)).to_pyarrow_table())


def _millis(moment: datetime) -> int:
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


@st.composite
def logs(draw: st.DrawFn, *, schema_events: bool) -> Entries:
    """Commits over few keys: whole documents, copies, deltas, documents with unchanged fields,
    deletes also of what is not there; and drops and renames between databases. The source's clock
    may stand still or go backwards."""
    entries = Entries()
    live: dict[tuple[str, int], Document] = {}
    now = 1_700_000_000_000
    for _ in range(draw(st.integers(1, 10))):
        now += draw(st.sampled_from([0, 1, 1000, -500]))
        if schema_events and draw(st.integers(0, 4)) == 0:
            database, other = draw(st.permutations(["a", "b"]))
            if draw(st.booleans()):
                live = {own: row for own, row in live.items() if own[0] != database}
                event = schema_event("drop", database=database)
            else:
                live = {(other, own[1]): row for own, row in live.items() if own[0] == database}
                to = {"db": other, "coll": "orders"}
                event = schema_event("rename", database=database, to=to)
            entries.commit(at(event, now))
            continue
        events = [_row_event(draw, live) for _ in range(draw(st.integers(1, 5)))]
        entries.commit(*(at(event, now) for event in events))
    return entries


def _row_event(draw: st.DrawFn, live: dict[tuple[str, int], Document]) -> AnyEvent:
    database, key = own = draw(st.sampled_from(["a", "b"])), draw(st.integers(0, 2))
    kinds = ["put", "copy", "delete"] + (["delta", "unchanged"] * 2 if own in live else [])
    kind = draw(st.sampled_from(kinds))
    document = {"_id": key, **draw(VALUES)}
    if kind == "delete":
        live.pop(own, None)
        return change(key, "delete", database=database)
    if kind in {"put", "copy"}:
        live[own] = document
        event = change(key, "insert", document, database=database)
        sure = kind == "copy" or draw(st.booleans())
        return structs.replace(event, snapshot=kind == "copy", full_document_as_of_event=sure)
    if kind == "delta":
        removed = [name for name in ("name", "price") if name in live[own]]
        update = {"updatedFields": {"n": document["n"]}, "removedFields": removed}
        kept = {name: value for name, value in live[own].items() if name not in removed}
        live[own] = {**kept, "n": document["n"]}
        return change(key, "update", update=update, database=database)
    names = [name for name in ("name", "tags") if name in live[own]]
    sent = {name: value for name, value in document.items() if name not in names}
    live[own] = {**sent, **{name: live[own][name] for name in names}}
    event = change(key, "update", sent, unchanged=names, database=database)
    return structs.replace(event, full_document_as_of_event=draw(st.booleans()))


def rows(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Some columns of a table of versions, by key and then by sequence."""
    found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    found.sort(key=lambda row: (row["_key"], row["_from_sequence"]))
    return [tuple(row[name] for name in columns) for row in found]
