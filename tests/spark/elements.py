"""What the tests of tables of elements share: histories of documents, and their elements."""

from pathlib import Path
from typing import Any

import msgspec
from deltalake import DeltaTable
from hypothesis import strategies as st
from msgspec import Struct

from penstock.event import AnyEvent, ChangeEvent
from penstock.spark.config import TablePipelineConfig
from tests.spark.tables import Document, Entries, change, pipeline, schema_event

ITEMS: list[dict[str, Any]] = [{"explode": "items"}]
Rows = dict[tuple[str, str, int], Document]
"""By database, key and element."""


class History(Struct, frozen=True):
    """A log, and what its documents were."""

    entries: Entries
    commits: list[list[AnyEvent]]
    states: dict[tuple[str, int], list[tuple[int, Document | None]]]
    """By database and key: what the document was from a sequence on."""

    def current(self) -> Rows:
        """The rows that there are in the end."""
        rows: Rows = {}
        for (database, key), states in self.states.items():
            rows |= rows_of_document(database, key, states[-1][1])
        return rows


def rows_of_document(database: str, key: int, document: Document | None) -> Rows:
    document = document or {}
    return {
        (database, key_of(key), at): {
            name: value
            for name, value in (document | {"items": shown(one)}).items()
            if value is not None
        }
        for at, one in enumerate(document.get("items") or ())
    }


def shown(element: Any) -> Any:
    """An element as its column has it."""
    return msgspec.json.encode(element).decode() if isinstance(element, dict) else element


@st.composite
def histories(draw: st.DrawFn, *, drops: bool = False, hard: bool = False) -> History:
    """Commits over few documents, as a source that always knows them would tell them.

    `drops` are among them. `hard`: so are values that fit no column, and changes that do not say
    the whole document, of one without elements.
    """
    entries, commits = Entries(), list[list[AnyEvent]]()
    states: dict[tuple[str, int], list[tuple[int, Document | None]]] = {}
    one: st.SearchStrategy[Any] = st.integers(0, 9) | st.none()
    if draw(st.booleans()):
        one = st.fixed_dictionaries({"sku": st.integers(0, 9)})
    element = draw(one.filter(lambda it: it is not None))
    first: Document = {"_id": 9, "n": 0, "name": "", "items": [element]}
    commits.append([change(9, "insert", first, database="a")])
    entries.commit(*commits[0])
    live = {("a", 9): first}
    states["a", 9] = [(1, first)]
    for _ in range(draw(st.integers(1, 8))):
        if drops and draw(st.integers(0, 9)) == 0:
            database = draw(st.sampled_from(["a", "b"]))
            commits.append([schema_event("drop", database=database)])
            for own in [own for own in live if own[0] == database]:
                del live[own]
                states[own].append((entries.head + 1, None))
        else:
            commits.append([])
            for at in range(draw(st.integers(1, 4))):
                own = (draw(st.sampled_from(["a", "b"])), draw(st.integers(0, 2)))
                commits[-1].append(_changed(draw, own, live, one, hard=hard))
                states.setdefault(own, []).append((entries.head + at + 1, live.get(own)))
        entries.commit(*commits[-1])
    return History(entries, commits, states)


def _changed(
    draw: st.DrawFn,
    own: tuple[str, int],
    live: dict[tuple[str, int], Document],
    one: st.SearchStrategy[Any],
    *,
    hard: bool,
) -> ChangeEvent:
    """A change of a document, which `live` then has."""
    database, key = own
    was = live.get(own)
    kinds = ["put", "put", "delete"]
    if was is not None and (was.get("items") or hard):
        kinds += ["delta", "unchanged", "cut"]
    kind = draw(st.sampled_from(kinds))
    if kind == "delete":
        live.pop(own, None)
        return change(key, "delete", database=database)
    array = draw(st.none() | st.lists(one, max_size=4))
    sent: Document = {"_id": key, "n": draw(st.integers(0, 9))}
    sent |= draw(st.sampled_from([{}, {"name": "x"}]))
    sent |= {} if array is None else {"items": array}
    if was is None or kind == "put":
        if hard and array and draw(st.integers(0, 5)) == 0:
            sent["n"] = "no number"
        live[own] = sent
        return change(key, "replace", sent, database=database)
    if kind == "delta":
        said = {name: sent[name] for name in ("n", "items") if name in sent}
        live[own] = {name: value for name, value in was.items() if name != "name"} | said
        update = {"updatedFields": said, "removedFields": ["name"]}
        return change(key, "update", update=update, database=database)
    if kind == "cut" and was.get("items"):
        count = draw(st.integers(0, len(was["items"])))
        live[own] = was | {"items": was["items"][:count]}
        cut = {"truncatedArrays": [{"field": "items", "newSize": count}]}
        return change(key, "update", update=cut, database=database)
    kept = [name for name in ("name", "items") if name in was]
    sent = {name: value for name, value in sent.items() if name not in kept}
    live[own] = sent | {name: was[name] for name in kept}
    return change(key, "update", sent, unchanged=kept, database=database)


def ends_of(entries: Entries) -> list[int]:
    table = entries.table().select(["sequence", "ends_commit"])
    return [row["sequence"] for row in table.to_pylist() if row["ends_commit"]]


def said_by(rows: list[Document]) -> Rows:
    """The rows of a table, nulls and its own columns left out."""
    found: Rows = {}
    for row in rows:
        own = (row["_database"], row["_key"], row["element"])
        assert own not in found
        found[own] = {
            name: value
            for name, value in row.items()
            if value is not None and not (name.startswith("_") and name != "_id")
        }
        del found[own]["element"]
    return found


def rows_in(path: Path) -> Rows:
    return said_by(DeltaTable(str(path)).to_pyarrow_table().to_pylist())


def exploding(path: Path, *collections: str, **more: Any) -> TablePipelineConfig:
    return pipeline(path, *collections, transform=ITEMS, **more)


def items_of(path: Path) -> dict[str, list[Any]]:
    """By key: the elements, in their order."""
    found: dict[str, dict[int, Any]] = {}
    for (_, key, at), row in rows_in(path).items():
        found.setdefault(key, {})[at] = row.get("items")
    return {key: [array[at] for at in range(len(array))] for key, array in found.items()}


def key_of(key: int) -> str:
    return f'{{"_id":{key}}}'
