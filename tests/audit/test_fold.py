"""What a trail says of its tables at a place, and what it cannot say (A12, A13, A14, A18)."""

from typing import Any

import pytest
from bson.int64 import Int64
from hypothesis import given
from hypothesis import strategies as st

from penstock.audit.fold import Fold, Table, changed, decoded, names_before, whole_rows
from penstock.audit.undoing import Undoing
from penstock.errors import AuditError
from penstock.updates import InexactError
from tests.audit.support import entries, row, text

Record = dict[str, Any]


class Story:
    """Records, in order."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def say(self, op: str, tbl: str = "t", **more: Any) -> "Story":
        at = len(self.records) + 1
        meta = {"db": "d", "tbl": tbl, **more.pop("meta", {})}
        said = {"at": at, "ts": 1000 * at, "op": op, "meta": meta, "txn": {"id": str(at)}}
        self.records.append({**said, **more})
        return self

    def made(self, tbl: str = "t") -> "Story":
        return self.say(
            "ddl", tbl, said={"operation": "create", "statement": f"CREATE TABLE {tbl}"}
        )

    def dropped(self, tbl: str = "t", **more: Any) -> "Story":
        return self.say("ddl", tbl, said={"operation": "drop", **more})

    def insert(self, row: Record, tbl: str = "t", key: str = "id", **flags: bool) -> "Story":
        chg = {name: {"t": value} for name, value in row.items()}
        return self.say("i", tbl, meta={"pk": _key(row, key, flags)}, chg=chg, flags=flags)

    def delete(self, row: Record, tbl: str = "t", key: str = "id", **flags: bool) -> "Story":
        chg = {name: {"f": value} for name, value in row.items()}
        return self.say("d", tbl, meta={"pk": _key(row, key, flags)}, chg=chg, flags=flags)

    def update(self, key: Any, tbl: str = "t", **changed: tuple[Any, Any]) -> "Story":
        chg = {name: {"f": was, "t": now} for name, (was, now) in changed.items()}
        return self.say("u", tbl, meta={"pk": {"id": key}}, chg=chg, flags={})

    def copy(self, what: str, *names: str, name: str = "s", **said: Any) -> "Story":
        """What the source says of a copy; of one that is complete, with the rows that are here."""
        facts = {"snapshot": name, "collections": [f"d.{one}" for one in names], **said}
        told: Record = {"said": {"operation": f"snapshot_{what}", **facts}}
        if what == "completed":
            rows = sum("copied" in record.get("flags", {}) for record in self.records)
            told["said"].setdefault("documents", rows)
            told["counted"] = rows
        return self.say("copy", "", **told)

    def fold(self, until: int | None = None) -> Fold:
        fold = Fold()
        for record in self.records[:until]:
            fold.take(record)
        return fold

    def undo(self, after: int) -> Undoing:
        undoing = Undoing()
        for record in self.records[after:]:
            undoing.take(record)
        return undoing


def _key(row: Record, key: str, flags: dict[str, bool]) -> Record:
    return {"_row": repr(row)} if flags.get("keyless") else {key: row[key]}


def rows(table: Table) -> list[Record]:
    return [row.values for _, row in whole_rows(table) for _ in range(row.times)]


def kinds(fold: Fold, tbl: str = "t") -> list[str]:
    return [doubt.kind for doubt in fold.doubts(fold.tables["d", tbl])]


def test_keys_that_only_read_alike_are_two_rows() -> None:
    """A12: 5 and "5", and texts that a joined key would confuse."""
    story = Story().made()
    for key in (5, "5", Int64(5)):
        story.insert({"id": key, "n": str(type(key))})
    fold = story.fold()
    assert len(rows(fold.tables["d", "t"])) == 3
    assert kinds(fold) == []


def test_a_key_that_changes_takes_its_row_along() -> None:
    """A13: the end of the old key, and the beginning of the new one."""
    story = Story().made().insert({"id": 1, "n": 1}).delete({"id": 1, "n": 1})
    story.insert({"id": 2, "n": 1})
    assert rows(story.fold().tables["d", "t"]) == [{"id": 2, "n": 1}]
    assert rows(story.fold(2).tables["d", "t"]) == [{"id": 1, "n": 1}]


def test_null_is_a_value_and_a_column_that_was_not_there_is_none() -> None:
    """A14."""
    story = Story().made().insert({"id": 1, "n": 1}).update(1, n=(1, None), m=(None, None))
    assert rows(story.fold().tables["d", "t"]) == [{"id": 1, "n": None, "m": None}]


def test_a_trail_that_begins_in_the_middle_says_so() -> None:
    story = Story().update(1, n=(1, 2)).insert({"id": 2, "n": 2})
    fold = story.fold()
    assert kinds(fold) == ["beginning"]
    (doubt,) = fold.doubts(fold.tables["d", "t"])
    assert "history begins here" in str(doubt)
    assert "and 1 only in part" in str(doubt)
    assert rows(fold.tables["d", "t"]) == [{"id": 2, "n": 2}]


def test_a_row_of_which_a_part_is_known_becomes_whole_again() -> None:
    story = Story().update(1, n=(1, 2)).delete({"id": 1, "n": 2}).insert({"id": 1, "n": 3})
    assert rows(story.fold().tables["d", "t"]) == [{"id": 1, "n": 3}]


@pytest.mark.parametrize("how", ["truncate", "drop", "database"])
def test_what_emptied_a_table_makes_it_certain_again(how: str) -> None:
    """Whatever was lost, or from before the trail, is gone then."""
    story = Story().insert({"id": 1}).say("gap", "", said={"reason": "position_lost"})
    if how == "truncate":
        story.dropped(truncated="true")
        story.say("ddl", said={"operation": "create", "truncated": "true"})
    else:
        dropped = {"drop": ("drop", "t"), "database": ("dropDatabase", "")}[how]
        story.say("ddl", dropped[1], said={"operation": dropped[0]})
        story.made()
    fold = story.insert({"id": 2}).fold()
    assert kinds(fold) == []
    assert rows(fold.tables["d", "t"]) == [{"id": 2}]


def test_a_gap_is_of_its_table_or_of_all_that_were_there() -> None:
    story = Story().made("a").made("b")
    story.say("gap", "a", said={"reason": "unlogged_rows"})
    story.say("gap", "", said={"reason": "position_lost"}).made("c")
    fold = story.fold()
    assert (kinds(fold, "a"), kinds(fold, "b"), kinds(fold, "c")) == (["gap", "gap"], ["gap"], [])


def test_a_change_that_was_erased_is_a_doubt() -> None:
    story = Story().made().insert({"id": 1, "n": 1})
    record = story.records[-1]
    del record["chg"], record["meta"]["pk"]
    record["erased"] = True
    fold = story.update(1, n=(1, 2)).fold()
    assert kinds(fold) == ["erased"]
    assert rows(fold.tables["d", "t"]) == []


def test_a_rename_takes_the_rows_and_another_tables_place() -> None:
    story = Story().made("a").insert({"id": 1}, "a").made("b").insert({"id": 2}, "b")
    story.say("ddl", "a", said={"operation": "rename", "to": {"db": "d", "coll": "b"}})
    fold = story.insert({"id": 3}, "b").fold()
    assert list(fold.tables) == [("d", "b")]
    assert rows(fold.tables["d", "b"]) == [{"id": 1}, {"id": 3}]
    assert names_before(lambda name: name == ("d", "b"), story.records) == {("d", "a")}


def altering(statement: str) -> Story:
    """A row, an ALTER TABLE, and another row."""
    story = Story().made().insert({"id": 1, "note": "old"})
    story.say("ddl", said={"operation": "modify", "statement": statement})
    return story.insert({"id": 2, "note": "new"})


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t DROP COLUMN note, ADD COLUMN note TEXT",
        "alter table t drop `Note`",
        'ALTER TABLE t DROP IF EXISTS "note"',
        "ALTER TABLE t ADD n INT, RENAME COLUMN note TO other, RENAME COLUMN n TO note",
        "ALTER TABLE t CHANGE COLUMN note other TEXT",
        "ALTER TABLE t CHANGE IF EXISTS note other TEXT",
    ],
)
def test_what_was_in_a_column_before_it_was_dropped_or_renamed_is_a_doubt(statement: str) -> None:
    """What is called so now is another column: it has not those values."""
    story = altering(statement)
    fold = story.fold()
    (doubt,) = fold.doubts(fold.tables["d", "t"])
    assert (doubt.kind, "(note)" in doubt.said) == ("altered", True)
    story.update(1, note=("old", "newer")).delete({"id": 1, "note": "newer"})
    fold = story.fold()
    assert fold.doubts(fold.tables["d", "t"]) == []


@pytest.mark.parametrize("gone", [False, True])
def test_an_equal_row_behind_it_does_not_make_one_from_before_certain(gone: bool) -> None:
    """Without a key nothing tells the two apart."""
    row = {"n": 1}
    story = Story().made().insert(row, keyless=True)
    statement = "ALTER TABLE t DROP COLUMN n, ADD COLUMN n INT"
    story.say("ddl", said={"operation": "modify", "statement": statement})
    story.insert(row, keyless=True)
    if gone:
        story.delete(row, keyless=True)
    assert kinds(story.fold()) == ["altered"]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD COLUMN n INT COMMENT 'DROP COLUMN note'",
        "ALTER TABLE t DROP INDEX note, DROP KEY note, ADD INDEX (note)",
        "ALTER TABLE t ALTER COLUMN note DROP DEFAULT, DROP PRIMARY KEY /* DROP note */",
        "ALTER TABLE t CHANGE note Note VARCHAR(9), RENAME INDEX note TO other",
        "ALTER TABLE t RENAME TO note",
        "DROP INDEX note ON t",
    ],
)
def test_a_statement_that_takes_no_column_away_raises_no_doubt(statement: str) -> None:
    fold = altering(statement).fold()
    assert fold.doubts(fold.tables["d", "t"]) == []


def test_what_was_altered_if_it_was_there_is_no_table_for_that() -> None:
    statement = "ALTER TABLE IF EXISTS t DROP COLUMN n"
    story = Story().say("ddl", said={"operation": "modify", "statement": statement})
    assert story.fold().tables == {}
    assert kinds(story.insert({"id": 1}).fold()) == ["beginning"]
    story = Story().made().insert({"id": 1, "n": 1})
    story.say("ddl", said={"operation": "modify", "statement": statement})
    assert kinds(story.fold()) == ["altered"]


def test_equal_rows_without_a_key_are_as_many_as_they_were() -> None:
    """A11."""
    row = {"n": 1}
    story = Story().made().insert(row, keyless=True).insert(row, keyless=True)
    story.delete(row, keyless=True).insert({"n": 2}, keyless=True)
    assert rows(story.fold().tables["d", "t"]) == [{"n": 1}, {"n": 2}]
    assert rows(story.fold(3).tables["d", "t"]) == [{"n": 1}, {"n": 1}]
    assert list(story.undo(3).tables["d", "t"].counts.values()) == [1, -1]


@pytest.mark.parametrize("op", ["i", "u", "d"])
def test_records_that_contradict_one_another_are_a_doubt(op: str) -> None:
    """A row that is inserted twice, or that ends without having begun: a record is missing."""
    story = Story().made()
    if op == "i":
        story.insert({"id": 1}).insert({"id": 1})
    elif op == "u":
        story.update(1, n=(1, 2))
    else:
        story.delete({"id": 1})
    assert kinds(story.fold()) == ["contradiction"]


def test_a_row_that_was_not_sent_whole_is_left_out_until_it_is() -> None:
    story = Story().made().insert({"id": 1}, partial=True).update(1, n=(None, 2))
    fold = story.fold()
    assert kinds(fold) == ["partial"]
    assert rows(fold.tables["d", "t"]) == []


NESTED: Record = {"id": 1, "a": {"b": 1, "l": [1, {"n": 2}, 3]}}


@pytest.mark.parametrize("paths", [{}, None], ids=["stated", "of before"])
def test_a_path_leads_into_a_column(paths: Record | None) -> None:
    chg = {"a.b": {"t": 5}, "a.l.1.n": {}, "a.l": {"size": 2}, "n": {"t": 0}}
    assert changed(NESTED, chg, paths) == {"id": 1, "a": {"b": 5, "l": [1, {}]}, "n": 0}


def test_a_name_with_dots_is_what_its_record_says() -> None:
    """A column, a name within one, a path beside another column of that name, and digits."""
    row: Record = {"id": 1, "a": {"b": {}, "0": 1}, "a.b": [1, 2]}
    assert changed(row, {"a.b": {"size": 1}}, {"a.b": ["a.b"]}) == {**row, "a.b": [1]}
    assert changed(row, {"a.c": {"t": 5}}, {"a.c": ["a.c"]}) == {**row, "a.c": 5}
    within: Record = {**row, "a": {"b": {}, "0": 1, "b.c": 5}}
    assert changed(row, {"a.b.c": {"t": 5}}, {"a.b.c": ["a", "b.c"]}) == within
    assert changed(row, {"a.b": {"t": 5}}, {}) == {**row, "a": {"b": 5, "0": 1}}
    assert changed(row, {"a.0": {"t": 5}}, {"a.0": ["a", "0"]}) == {**row, "a": {"b": {}, "0": 5}}
    # Those of a flattened document are columns, whatever they were before.
    flat = {"id": 1, "b.0": [1, 2]}
    for paths in (None, {"b.0": ["b", "0"]}):
        assert changed(flat, {"b.0": {"size": 1}, "b.c": {"t": 5}}, paths) == {
            "id": 1,
            "b.0": [1],
            "b.c": 5,
        }


@pytest.mark.parametrize("size", [{}, {"size": 1}], ids=["set", "cut"])
@pytest.mark.parametrize("row", [{"a": {"b": {"c": [1]}, "b.c": [1]}}, {"a": {}, "a.b": {}}])
def test_a_record_that_does_not_say_is_refused_where_a_name_of_the_row_has_a_dot(
    row: Record, size: Record
) -> None:
    with pytest.raises(InexactError, match="ambiguous"):
        changed(row, {"a.b.c": size or {"t": 5}})


def test_a_path_into_what_is_no_document_is_refused() -> None:
    with pytest.raises(InexactError, match="nothing at the path"):
        changed({"id": 1, "a": 5}, {"a.b": {"t": 5}}, {})


def test_an_update_that_describes_itself_is_folded_into_its_row() -> None:
    """As MongoDB sends it without pre-images, through the records that a pipeline writes."""
    story = [
        row(1, after={"id": 1, "address": {"city": "a", "tags": [1, 2]}}),
        row(
            2,
            key='{"id":1}',
            operation_type="update",
            update_description=text(
                {
                    "updatedFields": {"address.city": "b", "address.x.y": 1},
                    "truncatedArrays": [{"field": "address.tags", "newSize": 1}],
                }
            ),
            disambiguated_paths=text({"address.x.y": ["address", "x.y"]}),
        )
        | {"full_document": None},
    ]
    fold = Fold()
    for at, entry in enumerate(entries(story), start=1):
        assert entry.record is not None
        fold.take({**decoded(entry.record), "at": at})
    table = fold.tables["db", "orders"]
    assert rows(table) == [{"id": 1, "address": {"city": "b", "tags": [1], "x.y": 1}}]
    assert [doubt.kind for doubt in fold.doubts(table)] == ["beginning"]


def test_a_column_with_a_dot_that_comes_beside_a_document_is_a_column() -> None:
    """Of an update of which both rows are known."""
    before, after = {"id": 1, "a": {"b": 1}}, {"id": 1, "a": {"b": 1}, "a.b": 2}
    (entry,) = entries([row(1, before=before, after=after)])
    assert entry.record is not None
    told = decoded(entry.record)
    assert changed(before, told["chg"], told.get("paths")) == after


def test_a_table_that_was_copied_has_the_rows_from_before() -> None:
    story = Story().update(1, n=(1, 2)).insert({"id": 1, "n": 2}, copied=True)
    story.insert({"id": 7, "n": 7}, copied=True).update(7, n=(7, 8))
    fold = story.fold()
    assert kinds(fold) == []
    assert rows(fold.tables["d", "t"]) == [{"id": 1, "n": 2}, {"id": 7, "n": 8}]
    assert fold.tables["d", "t"].copied_at == 3


def lost_and_copied() -> Story:
    """Rows 1 and 2; a gap, in which 1 changed and 2 went; a copy, while 3 came and 4 went."""
    story = Story().made().insert({"id": 1, "n": 1}).insert({"id": 2, "n": 2})
    story.say("gap", "", said={"reason": "lost"}).copy("started", "t")
    story.insert({"id": 3, "n": 3}).insert({"id": 1, "n": 9}, copied=True)
    return story.insert({"id": 4, "n": 4}, copied=True).delete({"id": 4, "n": 4})


def test_a_copy_that_is_complete_makes_good_what_was_lost_before_it() -> None:
    """Rows that it did not tell, and that nothing was told of since it began, are gone."""
    story = lost_and_copied()
    assert kinds(story.fold()) == ["gap"]
    story.copy("completed", "t").update(1, n=(9, 10))
    fold = story.fold()
    assert kinds(fold) == []
    assert rows(fold.tables["d", "t"]) == [{"id": 3, "n": 3}, {"id": 1, "n": 10}]
    assert fold.tables["d", "t"].statement == "", "a statement may have been lost, too"


@pytest.mark.parametrize(
    "case", ["another", "again", "rows elsewhere", "no rows", "lost meanwhile", "another table"]
)
def test_a_copy_that_the_trail_does_not_have_whole_makes_nothing_good(case: str) -> None:
    """Above all one of which the words were read again from another log, and not the rows."""
    story = lost_and_copied()
    if case == "another":
        story.copy("completed", "t", name="other")
    elif case == "again":
        story.records[4]["said"]["again"] = True
        story.copy("completed", "t")
    elif case == "rows elsewhere":
        story.copy("completed", "t", documents=3)
    elif case == "no rows":
        story = Story().made().insert({"id": 1}).say("gap", "", said={"reason": "lost"})
        story.copy("started", "t").copy("completed", "t")
    elif case == "lost meanwhile":
        story.say("gap", "", said={"reason": "lost"}).copy("completed", "t")
    else:
        story.copy("completed", "u")
    fold = story.fold()
    assert set(kinds(fold)) == {"gap"}
    assert rows(fold.tables["d", "t"])[0]["id"] in {1, 2}


def test_a_gap_of_one_table_within_its_copy_stays() -> None:
    story = lost_and_copied().say("gap", "t", said={"reason": "lost"}).copy("completed", "t")
    fold = story.fold()
    assert kinds(fold) == ["gap"]
    assert [doubt.at for doubt in fold.doubts(fold.tables["d", "t"])] == [10]


def test_an_empty_table_of_a_copy_is_there_and_a_copy_that_is_not_complete_is_a_doubt() -> None:
    story = Story().copy("started", "t", "u").insert({"id": 1}, copied=True)
    assert kinds(story.fold()) == ["copying"]
    assert kinds(story.fold(), "u") == ["beginning"]
    story.copy("completed", "t", "u")
    fold = story.fold()
    assert kinds(fold) == kinds(fold, "u") == []
    assert rows(fold.tables["d", "u"]) == []


def test_equal_rows_are_not_made_good() -> None:
    """Which of them a copy told, and which are from before, nobody knows."""
    story = Story().made().insert({"n": 1}, keyless=True).say("gap", "", said={"reason": "lost"})
    story.copy("started", "t").insert({"n": 1}, keyless=True, copied=True).copy("completed", "t")
    assert set(kinds(story.fold())) == {"gap", "copied_keyless"}


def test_a_copy_tells_an_undoing_and_a_replay_nothing() -> None:
    undoing = Story().copy("started", "t").copy("completed", "t").undo(0)
    assert not undoing.tables
    assert not undoing.everywhere


def test_rows_beyond_the_memory_that_is_allowed_are_refused() -> None:
    fold, story = Fold(bytes_max=10_000), Story()
    for n in range(100):
        story.insert({"id": n, "v": "x" * 100})

    def take_all() -> None:
        for record in story.records:
            fold.take(record)

    with pytest.raises(AuditError, match="more than 10,000 bytes"):
        take_all()


def test_rows_that_go_make_room() -> None:
    fold = Fold(bytes_max=2000)
    story = Story().made()
    for n in range(50):
        story.insert({"id": n, "v": "x" * 500}).delete({"id": n, "v": "x" * 500})
        story.insert({"id": 1000, "v": "x" * 500}, "u")
        story.say("ddl", "u", said={"operation": "rename", "to": {"db": "d", "coll": "w"}})
        story.dropped("w")
    for record in story.records:
        fold.take(record)


def test_a_record_of_a_newer_version_is_refused() -> None:
    with pytest.raises(AuditError, match="does not know"):
        Story().say("x").fold()


# --- any life of a few rows -----------------------------------------------------------------------

changes = st.lists(
    st.tuples(st.sampled_from("iudm"), st.integers(0, 3), st.integers(0, 9)), max_size=40
)


@given(changes=changes, cut=st.integers(0, 40))
def test_undoing_and_folding_agree(changes: list[tuple[str, int, int]], cut: int) -> None:
    """The rows at a place, from the records before it and from those behind it."""
    story = Story().made()
    now: dict[int, Record] = {}
    states: list[dict[int, Record]] = [{}]
    for op, key, n in changes:
        before = len(story.records)
        row = now.get(key)
        if op == "i" and row is None:
            now[key] = {"id": key, "n": n, "m": 0}
            story.insert(now[key])
        elif op == "u" and row is not None and row["n"] != n:
            story.update(key, n=(row["n"], n))
            now[key] = {**row, "n": n}
        elif op == "m" and row is not None and row["m"] != n:
            story.update(key, m=(row["m"], n))
            now[key] = {**row, "m": n}
        elif op == "d" and row is not None:
            story.delete(now.pop(key))
        if len(story.records) > before:
            states.append({key: dict(row) for key, row in now.items()})
    at = min(cut, len(states) - 1)
    table = story.fold(at + 1).tables["d", "t"]
    assert {row["id"]: row for row in rows(table)} == states[at]
    undone = dict(states[-1])
    undoing = story.undo(at + 1).tables.get(("d", "t"))
    if undoing is not None:
        for data, one in undoing.rows.items():
            key = decoded(data)["id"]
            assert (key in undone) == one.is_there
            assert one.is_now.items() <= undone.get(key, {}).items()
            row = undone.pop(key, None)
            if one.there:
                undone[key] = one.columns if one.whole else {**(row or {}), **one.columns}
    assert undone == states[at]
