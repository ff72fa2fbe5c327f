"""Rows of elements beside the rows of entries: what a reader makes of them is what there is."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pydantic import ValidationError

from penstock.errors import PipelineChangedError
from penstock.event import ChangeEvent
from penstock.extjson import encode
from penstock.spark.changelog.entries import as_rows
from penstock.spark.changelog.exploding import Explode, exploded
from penstock.spark.config import ReplicatePipelineConfig, ViewPipelineConfig
from tests.spark.changelogs import add, changelog, expected, rows_of, started
from tests.spark.histories import history
from tests.spark.stepped import stepped
from tests.spark.tables import Entries, change, put, schema_event

ITEMS: list[dict[str, Any]] = [{"explode": "items"}]
ARRAYS = st.none() | st.lists(st.sampled_from([1, "a", {"sku": 5}]), max_size=4)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "patch", "create"]), st.integers(0, 2), ARRAYS),
    max_size=12,
)
Elements = dict[tuple[int, int], Any]


def committed(changes: list[tuple[str, int, Any]], *, images: bool) -> tuple[Entries, Elements]:
    """The log, and the elements that there are in the end: the naive model."""
    entries = Entries()
    current: dict[int, dict[str, Any]] = {}
    for kind, key, items in changes:
        document = {"_id": key, "n": entries.head} | ({} if items is None else {"items": items})
        if kind == "create":
            entries.commit(schema_event("create"))
            continue
        event: ChangeEvent
        if kind == "delete":
            event = change(key, "delete")
        elif kind == "patch" and key in current:
            event = change(key, "update", update={"updatedFields": {"n": 1}})
            document = {**current[key], "n": 1}
        else:
            event = change(key, "replace" if key in current else "insert", document)
        if images and key in current:
            event = structs.replace(event, full_document_before_change=encode(current[key]))
        entries.commit(event)
        if kind == "delete":
            current.pop(key, None)
        else:
            current[key] = document
    return entries, {
        (key, at): document | {"items": one}
        for key, document in current.items()
        for at, one in enumerate(document.get("items") or ())
    }


def rows_made(entries: Entries) -> list[dict[str, Any]]:
    rows = as_rows(entries.table())
    tables = exploded(rows, [Explode("items", frozenset({"orders"}))])
    return [row for table in tables for row in table.to_pylist()]


def of_last(rows: list[dict[str, Any]]) -> Elements:
    """What a reader finds by `elements`: the rows of each document's last entry that has it."""
    last: dict[int, int] = {}
    found: Elements = {}
    for row in rows:
        if row["elements"] is None:
            continue
        key = json.loads(row["key"])["_id"]
        if last.get(key) != row["sequence"]:
            last[key] = row["sequence"]
            found = {own: one for own, one in found.items() if own[0] != key}
        if row["element"] is not None and row["operation_type"] != "delete":
            found[key, row["element"]] = json.loads(row["full_document"])
    return found


def folded(rows: list[dict[str, Any]]) -> Elements:
    """What a reader finds by inserts, updates and deletes of (key, element)."""
    found: Elements = {}
    for row in rows:
        if row["element"] is None:
            continue
        own = (json.loads(row["key"])["_id"], row["element"])
        if row["operation_type"] == "delete":
            del found[own]
        else:
            assert (row["operation_type"] == "insert") == (own not in found)
            found[own] = json.loads(row["full_document"])
    return found


@given(CHANGES, st.booleans())
def test_the_elements_of_a_document_are_the_rows_of_its_last_entry(
    changes: list[tuple[str, int, Any]], images: bool
) -> None:
    whole = [(kind if kind != "patch" else "put", key, items) for kind, key, items in changes]
    entries, elements = committed(whole, images=images)
    rows = rows_made(entries) if entries.head else []
    assert of_last(rows) == elements
    if images:
        assert folded(rows) == elements


@given(CHANGES.filter(bool))
def test_an_entry_keeps_its_own_row_and_place(changes: list[tuple[str, int, Any]]) -> None:
    entries, _ = committed(changes, images=True)
    rows = rows_made(entries)
    assert [row["sequence"] for row in rows] == sorted(row["sequence"] for row in rows)
    own = [row for row in rows if row["element"] is None]
    for row, captured in zip(own, expected(entries.table()), strict=True):
        elements = row.pop("elements")
        del row["element"]
        assert row == captured
        if captured["operation_type"] == "update":
            assert elements is None


def test_a_changelog_explodes_and_refuses_what_is_no_array(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, items=[{"sku": 5}, {"sku": 6}]), put(2, items="none"), put(3))
    entries.commit(change(1, "delete"))
    config = changelog(tmp_path / "c", transform=ITEMS)
    table, refused = stepped(entries.table(), config)
    assert refused is not None
    assert refused["reason"].to_pylist() == ["the field items is no array"]
    for _ in range(2):
        add(started(config), table)
    rows = rows_of(config)
    assert sorted((row["sequence"], row["element"] or 0, row["elements"]) for row in rows) == [
        (1, 0, 2),
        (1, 0, 2),
        (1, 1, 2),
        (2, 0, None),
        (3, 0, 0),
        (4, 0, 0),
    ]
    with pytest.raises(PipelineChangedError, match="without explode"):
        started(changelog(tmp_path / "c"))


def test_explode_is_refused_where_rows_are_told_apart_by_the_documents_key(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="Pipelines to 'table' and 'changelog' have it"):
        history(tmp_path / "h", transform=ITEMS)
    view = {"to": "view", "source": "s", "path": "v", "query": "SELECT count(*) AS n FROM orders"}
    with pytest.raises(ValidationError, match="Pipelines to 'table' and 'changelog' have it"):
        ViewPipelineConfig.model_validate({**view, "transform": ITEMS})
    replica = {"to": "replicate", "source": "s", "uri": "mongodb://h/d", "transform": ITEMS}
    with pytest.raises(ValidationError, match="Pipelines to 'table' and 'changelog' have it"):
        ReplicatePipelineConfig.model_validate(replica)
    for steps in ([*ITEMS, {"drop": ["x"]}], [*ITEMS, {"explode": "more"}], [{"explode": "a.b"}]):
        with pytest.raises(ValidationError):
            changelog(tmp_path / "c", transform=steps)
    with pytest.raises(ValidationError, match="plain Parquet"):
        changelog(tmp_path / "c", format="parquet", transform=ITEMS)
