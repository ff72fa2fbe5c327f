"""What a source may say, in random order, and the rows that it adds up to."""

import json
from typing import Any

from hypothesis import strategies as st
from msgspec import Raw, Struct, structs

from penstock.event import (
    AnyEvent,
    ChangeEvent,
    ClusterTime,
    Commit,
    Operation,
    SchemaEvent,
    SystemEvent,
    event_id,
)

SOURCES = ("shop", "crm")
COLLECTIONS = ("a", "b", "c")
KEYS: tuple[Any, ...] = (0, 1, 2, "0", "x" * 600 + "1", "x" * 600 + "2", {"$oid": "0" * 24})
"""Two of them are longer than a key of the database may be, and alike for as long as it may be."""

Row = dict[str, Any] | None
"""A document; None where it is not known."""
Rows = dict[tuple[str, str], dict[str, Row]]
"""By (source, collection) and by key as text."""


class Step(Struct, frozen=True):
    """One thing that a source does."""

    source: str
    what: str
    collection: str
    key: Any
    to: str
    value: int


steps = st.builds(
    Step,
    source=st.sampled_from(SOURCES),
    what=st.sampled_from(
        ("insert",) * 4
        + (
            "replace",
            "update",
            "update",
            "delta",
            "delta",
            "dotted",
            "strange",
            "kept",
            "delete",
            "delete",
        )
        + ("drop", "create", "rename", "dropDatabase", "modify")
    ),
    collection=st.sampled_from(COLLECTIONS),
    key=st.sampled_from(KEYS),
    to=st.sampled_from(COLLECTIONS),
    value=st.integers(0, 3),
)
commits_of_steps = st.lists(st.lists(steps, min_size=1, max_size=6), min_size=1, max_size=12)


class Model:
    """A dict of dicts: the simplest thing that could be right."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.positions: dict[str, int] = dict.fromkeys(SOURCES, 0)

    def copy(self) -> Rows:
        return {name: dict(rows) for name, rows in self.rows.items() if rows}

    def commit(self, wanted: list[Step]) -> Commit:
        """The steps of the first one's source, as a commit."""
        source = wanted[0].source
        self.positions[source] += 1
        position = self.positions[source]
        events = [
            self._event(step, position, ordinal)
            for ordinal, step in enumerate(one for one in wanted if one.source == source)
        ]
        return Commit(source=source, position=str(position), events=tuple(events))

    def _event(self, step: Step, position: int, ordinal: int) -> AnyEvent:
        name = (step.source, step.collection)
        if step.what == "rename" and name not in self.rows:
            # No server would: there is nothing to rename.
            step = structs.replace(step, what="modify")
        if step.what in {"drop", "create", "rename", "dropDatabase", "modify"}:
            self._schema(step, name)
            said = {"to": {"db": "db", "coll": step.to}} if step.what == "rename" else {}
            return schema(step.source, step.what, step.collection, said, position, ordinal)
        rows = self.rows.setdefault(name, {})
        key = json.dumps({"_id": step.key})
        before = rows.get(key)
        document: Row = {"_id": step.key, "n": step.value, "at": {"n": 1}}
        update: dict[str, Any] | None = None
        paths: dict[str, Any] | None = None
        unchanged: tuple[str, ...] = ()
        operation = Operation.INSERT
        match step.what:
            case "replace":
                operation = Operation.REPLACE
            case "update":
                operation = Operation.UPDATE
            case "delta":
                operation, document = Operation.UPDATE, None
                update = {"updatedFields": {"at.m": step.value}, "removedFields": ["n"]}
                after = None
                # What a field's own name is, and what a path, is not told of this one.
                if before is not None and "at.m" not in before:
                    after = {**before, "at": {**before["at"], "m": step.value}}
                    after.pop("n", None)
                rows[key] = after
            case "dotted":
                operation, document = Operation.UPDATE, None
                update, paths = {"updatedFields": {"at.m": step.value}}, {"at.m": ["at.m"]}
                rows[key] = None if before is None else {**before, "at.m": step.value}
            case "strange":
                operation, document = Operation.UPDATE, None
                update = {"updatedFields": {"gone.m": 1}}
                rows[key] = None
            case "kept":
                # A row of before the column `late` was added does not say it.
                operation, document = Operation.UPDATE, {"_id": step.key, "n": step.value}
                unchanged = ("at",) if step.value % 2 else ("at", "late")
                sure = before is not None and all(name in before for name in unchanged)
                rows[key] = {**before, **document} if before is not None and sure else None
            case "delete":
                operation, document = Operation.DELETE, None
                rows.pop(key, None)
            case _:
                pass
        if document is not None and not unchanged:
            rows[key] = document
        return change(
            step.source,
            step.collection,
            step.key,
            operation,
            document,
            update=update,
            paths=paths,
            unchanged=unchanged,
            position=position,
            ordinal=ordinal,
        )

    def _schema(self, step: Step, name: tuple[str, str]) -> None:
        match step.what:
            case "drop":
                self.rows.pop(name, None)
            case "dropDatabase":
                self.rows = {n: rows for n, rows in self.rows.items() if n[0] != step.source}
            case "rename":
                moved = self.rows.pop(name, {})
                self.rows[step.source, step.to] = moved
            case _:
                pass


def change(
    source: str,
    collection: str,
    key: Any,
    operation: Operation = Operation.INSERT,
    document: dict[str, Any] | None = None,
    *,
    update: dict[str, Any] | None = None,
    paths: dict[str, Any] | None = None,
    unchanged: tuple[str, ...] = (),
    position: int = 1,
    ordinal: int = 0,
    snapshot: bool = False,
) -> ChangeEvent:
    """A change of one row."""
    return ChangeEvent(
        event_id=event_id(source, str(position), ordinal),
        source=source,
        database="db",
        tenant="db",
        collection=collection,
        cluster_time=ClusterTime(1_700_000_000 + position, ordinal),
        timestamp=(1_700_000_000 + position) * 1000,
        position=str(position),
        document_id=str(key),
        key=Raw(json.dumps({"_id": key}).encode()),
        operation=operation,
        full_document=None if document is None else Raw(json.dumps(document).encode()),
        update_description=None if update is None else Raw(json.dumps(update).encode()),
        disambiguated_paths=None if update is None else Raw(json.dumps(paths or {}).encode()),
        unchanged=unchanged,
        snapshot=snapshot,
    )


def schema(
    source: str,
    operation: str,
    collection: str = "",
    said: dict[str, Any] | None = None,
    position: int = 1,
    ordinal: int = 0,
) -> SchemaEvent:
    """A schema event."""
    return SchemaEvent(
        event_id=event_id(source, f"schema {position}", ordinal),
        source=source,
        database="db",
        tenant="db",
        collection=collection,
        cluster_time=ClusterTime(1_700_000_000 + position, ordinal),
        timestamp=(1_700_000_000 + position) * 1000,
        position=str(position),
        operation=operation,
        description=Raw(json.dumps(said or {}).encode()),
    )


def system(source: str, operation: str, **said: Any) -> SystemEvent:
    """What Penstock says of a source."""
    return SystemEvent(
        event_id=event_id(source, operation, 0),
        source=source,
        database="db",
        tenant="db",
        collection="",
        cluster_time=ClusterTime(1_700_000_000, 0),
        timestamp=1_700_000_000_000,
        position="0",
        operation=operation,
        description=Raw(json.dumps({"source": source, **said}).encode()),
    )


def copied_whole(source: str, snapshot: str = "first") -> list[Commit]:
    """A source that was empty when it was first copied: from here on all of it is known."""
    facts: dict[str, Any] = {"snapshot": snapshot, "collections": [], "whole": True}
    return [
        Commit(source=source, position=operation, events=(system(source, operation, **facts),))
        for operation in ("snapshot_started", "snapshot_completed")
    ]
