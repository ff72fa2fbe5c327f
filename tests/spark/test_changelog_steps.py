"""A changelog behind steps: every entry in its place, its document as the steps made it."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from penstock.extjson import encode
from tests.seeds import cases
from tests.spark.changelogs import add, changelog, expected, rows_of, started
from tests.spark.stepped import stepped
from tests.spark.tables import Entries, change, put, schema_event

SECRET = "4111-2222"
STEPS: list[dict[str, Any]] = [{"cast": {"n": "int"}}, {"mask": ["card"]}]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["put", "patch", "delete", "create"]),
        st.integers(0, 3),
        st.sampled_from([5, "7", "x", None]),
    ),
    min_size=1,
    max_size=12,
)


def documented(n: Any) -> tuple[dict[str, Any] | None, bool]:
    """The naive model: what is left of {n, card}, and whether it is refused."""
    if n == "x":
        return None, True
    return {"n": None if n is None else int(n), "card": "****"}, False


@pytest.mark.slow
@settings(max_examples=cases(25), deadline=None)
@given(EVENTS, st.sampled_from(["delta", "parquet"]), st.data())
def test_every_entry_is_there_once_with_what_the_steps_made_of_it(
    events: list[tuple[str, int, Any]], form: str, data: st.DataObject
) -> None:
    entries = Entries()
    for kind, key, n in events:
        fields = {"n": n, "card": SECRET}
        if kind == "put":
            event = structs.replace(
                put(key, **fields), full_document_before_change=encode({"_id": key, **fields})
            )
            entries.commit(event)
        elif kind == "patch":
            entries.commit(change(key, "update", update={"updatedFields": fields}))
        else:
            entries.commit(change(key, "delete") if kind == "delete" else schema_event("create"))
    with TemporaryDirectory() as folder:
        config = changelog(Path(folder) / "c", format=form, transform=STEPS)
        middle = data.draw(st.integers(0, entries.head))
        for after, until in ((0, middle), (0, entries.head)):
            if until > after:
                table, _ = stepped(entries.table(after, until), config)
                add(started(config), table, until=until)
        found = rows_of(config)
    assert SECRET not in repr(found)
    for row, (kind, key, n), captured in zip(found, events, expected(entries.table()), strict=True):
        document, refused = documented(n)
        changed = {"full_document", "full_document_before_change", "update_description"}
        of_its_own = {"check", "commit_digest", "operation_type", "disambiguated_paths"}
        for name in row.keys() - changed - of_its_own:
            assert row[name] == captured[name]
        paths = captured["disambiguated_paths"] if row["update_description"] else None
        assert row["disambiguated_paths"] == paths
        assert row["check"] is row["commit_digest"] is None
        told = {name: row[name] and json.loads(row[name]) for name in changed}
        if kind == "put":
            whole = None if refused else {"_id": key, **(document or {})}
            assert told["full_document"] == told["full_document_before_change"] == whole
        elif kind == "patch":
            assert told["update_description"] == (None if refused else {"updatedFields": document})
        known = row["operation_type"] == captured["operation_type"]
        assert known or (refused and row["operation_type"] == "update")


def test_hashes_of_the_event_are_there_where_nothing_is_hidden(tmp_path: Path) -> None:
    entries = Entries()
    entries.commit(put(1, n=1))
    config = changelog(tmp_path / "c", transform=[{"rename": {"n": "m"}}])
    table, _ = stepped(entries.table(), config)
    add(started(config), table)
    (row,) = rows_of(config)
    assert (row["check"], row["full_document"]) == (
        expected(entries.table())[0]["check"],
        '{"_id":1,"m":1}',
    )
