"""What a record says of a change, of whatever source and kind."""

from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st

from penstock.audit.config import TrailConfig
from penstock.audit.fold import decoded
from penstock.audit.records import Record, parts_of, record_of, with_place, without_content
from penstock.audit.shown import changes_text
from penstock.errors import AuditError
from penstock.event import Kind
from tests.audit.support import entries, row, text

INDIA = "Asia/Kolkata"


def record(said: dict[str, Any], *, tz: str = INDIA) -> Record:
    found = record_of(said, tz=tz)
    assert found is not None
    return found


def test_null_is_told_from_empty_false_zero_and_absent() -> None:
    """A14: each of these is another value, before and after."""
    before = {"id": 1, "a": None, "b": "", "c": 0, "d": False, "e": None, "gone": 1, "same": None}
    after = {"id": 1, "a": "", "b": None, "c": False, "d": 0, "e": None, "came": None, "same": None}
    assert record(row(1, before=before, after=after))["chg"] == {
        "a": {"f": None, "t": ""},
        "b": {"f": "", "t": None},
        "c": {"f": 0, "t": False},
        "d": {"f": False, "t": 0},
        "gone": {"f": 1},
        "came": {"t": None},
    }


def test_numbers_that_are_written_otherwise_have_changed() -> None:
    found = row(1)
    found |= {
        "operation_type": "replace",
        "full_document_before_change": '{"a":5,"b":1.0,"c":0.0,"d":{"x":1,"y":2},"e":[1]}',
        "full_document": '{"a":5.0,"b":1.0,"c":-0.0,"d":{"y":2,"x":1},"e":[true]}',
    }
    assert list(record(found)["chg"]) == ["a", "c", "d", "e"]


def test_columns_of_any_name_are_kept_by_it() -> None:
    """A28: with dots, dollars, and none at all."""
    names = ["a.b", "$x", "", "ž", "a b", "_id", "f", "t"]
    chg = record(row(1, after=dict.fromkeys(names, 1)))["chg"]
    assert list(chg) == names
    assert decoded(bson.encode({"chg": chg})) == {"chg": chg}


def test_a_table_without_a_key_is_kept_whole_and_says_so() -> None:
    """A11."""
    found = record(row(1, after={"n": 1}, key='{"_row":"abc"}', document_id="abc"))
    assert found["flags"] == {"keyless": True}
    assert found["chg"] == {"n": {"t": 1}}


def test_keys_that_look_alike_as_text_are_others() -> None:
    """A12."""
    one, other = (
        record(row(1, after={"a": 1}, key=text({"x": x, "y": y})))["meta"]["pk"]
        for x, y in (("a|b", "c"), ("a", "b|c"))
    )
    assert one != other
    assert list(one) == ["x", "y"]


def test_both_halves_of_a_changed_key_name_the_other() -> None:
    """A13."""
    gone = record(row(1, before={"id": 1}, origin='{"movedTo":{"id":2}}'))
    come = record(row(2, after={"id": 2}, origin='{"movedFrom":{"id":1}}'))
    assert gone["meta"]["moved_to"] == {"id": 2}
    assert come["meta"]["moved_from"] == {"id": 1}


def test_where_a_change_came_from_is_kept() -> None:
    """A26: who, in which session, by which statement, and where it lies."""
    origin = text({"file": "b.1", "offset": 7, "thread": 3, "statement": "X", "actor": "anna"})
    src = record(row(1, after={"id": 1}, origin=origin))["src"]
    assert src == {
        "source": "shop",
        "position": "0-1-1:0",
        "gtid": "0-1-1",
        "binlog": {"file": "b.1", "pos": 7},
        "thread": 3,
        "sql": "X",
        "actor": "anna",
    }


def test_an_update_that_describes_itself_is_partial_and_says_so() -> None:
    """Of a source that sends no row before the change, as MongoDB without pre-images."""
    update = {
        "updatedFields": {"a.b": 2},
        "removedFields": ["c"],
        "truncatedArrays": [{"field": "d", "newSize": 3}],
    }
    found = row(1, operation_type="update", update_description=text(update))
    said = record(found | {"full_document": None})
    assert said["chg"] == {"a.b": {"t": 2}, "c": {}, "d": {"size": 3}}
    assert (said["op"], said["flags"]) == ("u", {"partial": True})


def test_that_a_masked_value_changed_is_kept_with_the_content() -> None:
    said = row(1, before={"id": 1, "phone": "***"}, after={"id": 1, "phone": "***"})
    assert "masked" not in record(said)
    found = record(said | {"origin": '{"masked":["phone"]}'})
    assert (found["op"], found["chg"], found["masked"]) == ("u", {}, ["phone"])
    assert changes_text(found) == "phone:(changed, masked)"
    assert changes_text(found | {"chg": {"n": {"f": 1, "t": 2}}}) == (
        "n:1→2 | phone:(changed, masked)"
    )
    assert "masked" not in without_content(found)
    assert b"phone" not in parts_of(found).head
    assert b"phone" in parts_of(found).content


def test_which_names_are_paths_is_kept_where_the_source_says_it() -> None:
    found = row(1, operation_type="update", update_description='{"updatedFields":{"a.b.c":1}}')
    found["full_document"] = None
    assert "paths" not in record(found)
    for said in ({}, {"a.b.c": ["a", "b.c"]}, {"a.0": ["a", 0]}):
        made = record(found | {"disambiguated_paths": text(said)})
        assert made["paths"] == said
        assert list(made).index("paths") == list(made).index("chg") + 1
    (spilled,) = entries([found | {"disambiguated_paths": "{}"}], bytes_max=1)
    assert spilled.record is not None
    assert spilled.spilled is not None
    assert "paths" not in decoded(spilled.record)
    assert decoded(spilled.spilled) == {"chg": {"a.b.c": {"t": 1}}, "paths": {}}


def test_names_that_only_look_like_paths_are_said_to_be_columns() -> None:
    found = row(1, before={"a": {}, "b.c": 1}, after={"a": {}, "b.c": 2, "a.d": 3})
    assert record(found)["paths"] == {"b.c": ["b.c"], "a.d": ["a.d"]}
    # Also where the row has no such column now: it may have kept one that was dropped.
    assert record(row(1, before={"b.c": 1}, after={"b.c": 2}))["paths"] == {"b.c": ["b.c"]}
    assert "paths" not in record(row(1, before={"b": 1}, after={"b": 2}))


def test_an_insert_that_lacks_columns_says_so() -> None:
    assert record(row(1, after={"id": 1}, unchanged=["n"]))["flags"] == {"partial": True}
    assert "flags" not in record(row(1, after={"id": 1}))


def test_a_name_that_mongodb_cannot_keep_is_refused_by_the_record() -> None:
    with pytest.raises(AuditError, match=r"record .* a zero byte"):
        entries([row(1, after={"a\0b": 1})])


def test_a_delete_without_a_row_says_that_it_lacks_one() -> None:
    said = record(row(1) | {"operation_type": "delete", "key": '{"id":1}'})
    assert (said["chg"], said["flags"]) == ({}, {"partial": True})


def test_schema_changes_and_gaps_are_records_and_other_notices_are_not() -> None:
    """A9, A16."""
    ddl = row(1, kind=Kind.SCHEMA, operation_type="modify", full_document='{"statement":"ALTER"}')
    assert record(ddl)["said"] == {"operation": "modify", "statement": "ALTER"}
    lost = row(2, kind=Kind.GAP, operation_type="gap", full_document='{"from":"1","to":"9"}')
    assert (record(lost)["op"], record(lost)["said"]["to"]) == ("gap", "9")
    started = row(3, kind=Kind.SYSTEM, operation_type="started", full_document="{}")
    assert record_of(started, tz=INDIA) is None


def test_times_are_told_in_the_trails_zone_and_in_india_while_that_is_it() -> None:
    """A27."""
    said = row(1, after={"id": 1}, timestamp=1_767_225_600_123)
    here = record(said)
    assert here["ts_local"] == "2026-01-01T05:30:00.123+05:30"
    assert here["ts_ist"] == "2026-01-01 05:30:00"
    there = record(said, tz="Europe/Berlin")
    assert (there["ts_local"], there["tz"]) == ("2026-01-01T01:00:00.123+01:00", "Europe/Berlin")
    assert "ts_ist" not in there
    with pytest.raises(ValueError, match="no time zone"):
        TrailConfig.model_validate({"uri": "mongodb://x", "tz": "Mars/Olympus"})


values = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5)


@given(st.dictionaries(st.text(max_size=5), values), st.dictionaries(st.text(max_size=5), values))
def test_a_change_and_the_row_before_it_give_the_row_behind_it(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    chg = record(row(1, before=before or {"id": 1}, after=after))["chg"]
    now = {name: value for name, value in (before or {"id": 1}).items() if name not in chg}
    now |= {name: said["t"] for name, said in chg.items() if "t" in said}
    assert now == after


names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)


@given(st.dictionaries(names, values, min_size=1))
def test_a_stored_record_has_the_parts_that_it_was_made_of(after: dict[str, Any]) -> None:
    made = record(row(1, after=after, origin='{"statement":"INSERT 5","actor":"a","thread":1}'))
    stored = RawBSONDocument(with_place(bson.encode(made), 7))
    assert stored["at"] == 7
    assert parts_of(stored) == parts_of(made)
    left = without_content(made)
    assert parts_of(left).head == parts_of(made).head
    assert "INSERT 5" not in repr(left)
    # What names are paths is content as they are: proved, and erased with them.
    said = {"paths": {"a.b": ["a", "b"]}}
    assert parts_of(made | said).content != parts_of(made).content
    assert without_content(made | said) == left
    assert set(left["meta"]) == {"db", "tbl"}
