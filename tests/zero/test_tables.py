"""Tables begin, change and end with what they are made of, and what cannot be told is refused."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from penstock import extjson
from penstock.errors import ConfigError, MisfitError, ResetError
from penstock.event import Kind
from penstock.mysql_sql.alterations import Alteration, Renaming, alteration
from penstock.wire import HIDDEN_KEY, Stream
from penstock.zero.changes import Teller, Told, creation
from penstock.zero.config import ZeroTablesConfig
from penstock.zero.inferring import FIELDS_MAX
from penstock.zero.mapping import Mapping
from penstock.zero.rows import permissions_row
from penstock.zero.tables import Table
from tests.zero.folding import Replica

Document = dict[str, Any]


def stream(collection: str, database: str = "db", tenant: str = "db") -> Stream:
    return Stream("shop", database, tenant, collection)


def no_look_up(_: Stream, __: bytes) -> bytes | None:
    raise AssertionError("nothing has to be looked up")


class Shard:
    """A shard that is told of changes, and the replica that they make."""

    def __init__(self, config: Document, *rows: tuple[str, Document], **mapping: Any) -> None:
        self.mapping = Mapping(ZeroTablesConfig.model_validate(config), **mapping)
        sampling = self.mapping.sampling()
        for collection, row in rows:
            sampling.add(stream(collection), key_of(row), encoded(row))
        self.teller = Teller(sampling.tables(), self.mapping)
        self.replica = Replica()
        for table in self.teller.tables:
            self.take(creation(table))
        for collection, row in rows:
            self.take(self.teller.row(stream(collection), key_of(row), encoded(row)))

    def take(self, said: list[bytes]) -> list[str]:
        for message in said:
            self.replica.apply(message)
        return [json.loads(message)[1]["tag"] for message in said]

    def insert(self, collection: str, row: Document, **also: Any) -> list[str]:
        told = Told(
            stream=stream(collection),
            operation="insert",
            key=key_of(row),
            document=encoded(row),
            **also,
        )
        return self.take(self.teller.told(told, no_look_up))

    def shape(self, operation: str, collection: str, **facts: Any) -> list[str]:
        told = Told(
            stream=stream(collection),
            kind=Kind.SCHEMA,
            operation=operation,
            document=msgspec.json.encode(facts),
        )
        return self.take(self.teller.told(told, no_look_up))

    def names(self) -> list[str]:
        return sorted(name for schema, name in self.replica.tables if schema == "public")


def encoded(row: Document) -> bytes:
    return bytes(extjson.encode(row))


def key_of(row: Document) -> bytes:
    name = "_id" if "_id" in row else "id"
    return bytes(extjson.encode({name: row[name]}))


WHOLE: Document = {"sources": {"shop": {}}}


def one_table(**table: Any) -> Document:
    return {"tables": {"items": {"source": "shop", "collection": "items", **table}}}


# --- whole sources ------------------------------------------------------------------------------


def test_a_collection_of_a_whole_source_is_a_table_from_its_first_row_z5() -> None:
    shard = Shard(WHOLE)
    assert shard.names() == []
    assert shard.shape("create", "items") == []
    assert shard.insert("items", {"_id": 1, "a": "x"}) == [
        "create-table",
        "create-index",
        "insert",
    ]
    assert shard.replica.rows("items") == [{"_id": 1, "a": "x"}]


def test_dropped_is_drop_table_and_truncated_is_truncate() -> None:
    shard = Shard(WHOLE, ("items", {"_id": 1}), ("others", {"_id": 1}))
    assert shard.shape("drop", "items", truncated="true") == ["truncate"]
    assert shard.shape("create", "items") == []
    assert shard.replica.rows("items") == []
    assert shard.shape("drop", "items") == ["drop-table"]
    assert shard.shape("dropDatabase", "") == ["drop-table"]
    assert shard.names() == []
    shard.insert("items", {"_id": 2, "b": True})
    assert shard.replica.rows("items") == [{"_id": 2, "b": True}]


def test_renamed_is_rename_table_in_the_place_of_another_and_its_name_is_free_again() -> None:
    shard = Shard(WHOLE, ("items", {"_id": 1, "a": 1}), ("others", {"_id": "o"}))
    said = shard.shape("rename", "items", to={"db": "db", "coll": "others"})
    assert said == ["drop-table", "rename-table"]
    assert shard.insert("others", {"_id": 2, "a": 2}) == ["insert"]
    # Its index has kept its name: the new table needs another.
    shard.insert("items", {"_id": 3})
    assert shard.names() == ["items", "others"]
    assert len(shard.replica.rows("others")) == 2
    record = msgspec.json.encode(shard.teller.tables)
    again = Teller(msgspec.json.decode(record, type=tuple[Table, ...]), shard.mapping)
    assert again.tables == shard.teller.tables
    said = shard.shape("rename", "others", to={"db": "db", "coll": "x"}, targetCaptured=False)
    assert said == ["drop-table"]


def test_a_collection_that_comes_from_outside_by_a_rename_is_a_reset() -> None:
    shard = Shard({"sources": {"shop": {"exclude": ["hidden"]}}}, ("items", {"_id": 1}))
    with pytest.raises(ResetError, match="hidden was renamed to items"):
        shard.shape("rename", "hidden", to={"db": "db", "coll": "items"})


def test_a_table_without_a_key_is_left_out_of_a_whole_source_and_that_is_told() -> None:
    shard = Shard(WHOLE)
    told = Told(
        stream=stream("log"), operation="insert", key=b'{"_row":"ab"}', document=b'{"line":"x"}'
    )
    assert shard.teller.told(told, no_look_up) == []
    assert "no primary key" in shard.teller.left_out["log"]
    sampling = shard.mapping.sampling()
    sampling.add(stream("log"), b'{"_row":"ab"}', b'{"line":"x"}')
    sampling.tables()
    assert "no primary key" in sampling.left_out["log"]


def test_a_table_never_begins_behind_a_row_that_could_not_be_in_it() -> None:
    """That row would be missing, and nobody would know: the shard stops, and says why."""
    shard = Shard(WHOLE)
    with pytest.raises(ConfigError, match="more than 1000 different fields"):
        shard.insert("items", {"_id": 1, **{f"f{n}": n for n in range(FIELDS_MAX + 1)}})


def test_dead_letters_are_no_table_of_a_whole_source() -> None:
    mapping = Mapping(ZeroTablesConfig.model_validate(WHOLE))
    assert not mapping.wants(stream("penstock_dead_letters"))
    assert mapping.wants(stream("items"))
    assert not mapping.wants(Stream("another", "db", "db", "items"))


# --- configured tables --------------------------------------------------------------------------


def test_of_a_configured_table_dropped_and_renamed_away_are_truncate() -> None:
    shard = Shard(one_table(columns={"a": "int"}), ("items", {"_id": 1, "a": 1}))
    assert shard.shape("drop", "items") == ["truncate"]
    shard.insert("items", {"_id": 2, "a": 1})
    assert shard.shape("rename", "items", to={"db": "db", "coll": "old"}) == ["truncate"]
    assert shard.replica.rows("items") == []
    with pytest.raises(ResetError, match="old was renamed to items"):
        shard.shape("rename", "old", to={"db": "db", "coll": "items"})
    shard = Shard({**WHOLE, **one_table(columns={"a": "int"})}, ("old", {"_id": 1}))
    with pytest.raises(ResetError, match="which a table of Zero is made of"):
        shard.shape("rename", "old", to={"db": "db", "coll": "items"})


def test_what_is_configured_of_a_whole_source_is_not_a_table_twice() -> None:
    shard = Shard({**WHOLE, **one_table(columns={"a": "int"})})
    shard.insert("items", {"_id": 1, "a": 1, "b": 1})
    shard.insert("others", {"_id": 1, "b": 1})
    assert shard.replica.rows("items") == [{"_id": 1, "a": 1}]
    assert shard.replica.rows("others") == [{"_id": 1, "b": 1}]


def test_a_table_whose_key_is_configured_is_there_before_its_first_row() -> None:
    shard = Shard(one_table(columns={"id": {"from": "_id", "type": "objectid"}, "a": "int"}))
    assert shard.names() == ["items"]
    shard = Shard(one_table(columns={"id": "int", "a": "int"}, key=["id"]))
    assert shard.names() == ["items"]
    shard = Shard(one_table(columns={"id": "int", "a": "int"}))
    assert shard.names() == []
    shard.insert("items", {"id": 1, "a": 1})
    assert shard.replica.rows("items") == [{"id": 1, "a": 1}]


def test_a_key_has_to_be_all_of_the_sources_key_z5() -> None:
    columns = {"a": {"from": "_id.a", "type": "int"}, "b": {"from": "_id.b", "type": "text"}}
    row = {"_id": {"a": 1, "b": "x"}}
    shard = Shard(one_table(columns=columns), ("items", row))
    assert shard.replica.rows("items") == [{"a": 1, "b": "x"}]
    delete = Told(stream=stream("items"), operation="delete", key=key_of(row))
    assert shard.take(shard.teller.told(delete, no_look_up)) == ["delete"]
    assert shard.replica.rows("items") == []
    with pytest.raises(MisfitError, match=r"another part, '_id\.b'"):
        Shard(one_table(columns={"a": columns["a"]}), ("items", row))
    with pytest.raises(MisfitError, match="a key of _id came"):
        Shard(one_table(columns={"n": "int"}, key=["n"])).insert("items", {"_id": 1, "n": 1})


def test_two_databases_with_one_collection_have_to_be_told_apart() -> None:
    config = one_table()
    shard = Shard(config, ("items", {"_id": 1}))
    with pytest.raises(ConfigError, match=r"db\.items"):
        shard.teller.row(stream("items", database="other"), b'{"_id":1}', b'{"_id":1}')
    config["tables"]["items"]["collection"] = "db.items"
    shard = Shard(config, ("items", {"_id": 1}))
    assert not shard.teller.row(stream("items", database="other"), b'{"_id":1}', b'{"_id":1}')
    assert shard.teller.row(stream("items", tenant="x"), b'{"_id":2}', b'{"_id":2}')


def test_two_tables_of_one_name_are_refused() -> None:
    config = {"tables": {"Items": {"source": "shop", "collection": "other"}}, **WHOLE}
    with pytest.raises(ConfigError, match="two tables"):
        Shard(config, ("items", {"_id": 1}), ("other", {"_id": 1}))
    shard = Shard(config, ("other", {"_id": 1}))
    with pytest.raises(ConfigError, match="Name one of them"):
        shard.insert("items", {"_id": 1})


def test_hidden_fields_are_no_columns_and_decide_nothing() -> None:
    hidden = frozenset({"secret", "author.mail"})
    columns = {
        "id": {"from": "_id", "type": "int"},
        "secret": "text",
        "mail": {"from": "author.mail", "type": "text"},
        "name": {"from": "author.name", "type": "text"},
    }
    row = {"_id": 1, "author": {"name": "x"}}

    def hiding(_: Stream) -> frozenset[str]:
        return hidden

    shard = Shard(one_table(columns=columns), ("items", row), hidden=hiding)
    assert list(shard.replica.tables["public", "items"].columns) == ["id", "name"]
    config = one_table(columns=columns, where={"secret": "x"})
    with pytest.raises(ConfigError, match="would tell what it holds"):
        Shard(config, ("items", row), hidden=hiding)
    sampling = Mapping(ZeroTablesConfig.model_validate(one_table())).sampling()
    sampling.add(stream("items"), b'{"%b":"ab"}' % HIDDEN_KEY.encode(), b"{}")
    with pytest.raises(ConfigError, match="may not see"):
        sampling.tables()


def test_of_a_discriminated_collection_keys_that_another_table_has_end_nothing_here() -> None:
    """Nor do they stop the shard: only what may have been in the table is held against it."""
    columns = {"id": {"from": "_id", "type": "int"}, "kind": "text"}
    shard = Shard(one_table(columns=columns, where={"kind": "a"}))
    shard.insert("items", {"_id": 1, "kind": "a"})
    for row in ({"_id": "x", "kind": "b"}, {"_id": {"a": 1}}):
        key = key_of(row)
        replace = Told(stream=stream("items"), operation="replace", key=key, document=encoded(row))
        assert shard.take(shard.teller.told(replace, no_look_up)) == []
        delete = Told(stream=stream("items"), operation="delete", key=key)
        assert shard.take(shard.teller.told(delete, no_look_up)) == []
        told = msgspec.structs.replace(delete, before=encoded(row))
        assert shard.take(shard.teller.told(told, no_look_up)) == []
        was = msgspec.structs.replace(delete, before=encoded({**row, "kind": "a"}))
        with pytest.raises(MisfitError):
            shard.teller.told(was, no_look_up)
    assert shard.replica.rows("items") == [{"id": 1, "kind": "a"}]


def test_a_key_of_sql_that_has_another_type_than_its_row_is_never_passed_over() -> None:
    where = {"kind": "a"}
    shard = Shard(one_table(columns={"id": "int", "kind": "text"}, key=["id"], where=where))
    shard.insert("items", {"id": 1, "kind": "a"})
    delete = Told(stream=stream("items"), operation="delete", key=b'{"id":"1"}')
    with pytest.raises(MisfitError, match="column id: text came"):
        shard.teller.told(delete, no_look_up)
    elsewhere = msgspec.structs.replace(delete, before=b'{"id":"1","kind":"b"}')
    assert shard.teller.told(elsewhere, no_look_up) == []


# --- values and fields --------------------------------------------------------------------------


def test_a_value_that_does_not_fit_is_refused_by_name_and_not_shown() -> None:
    shard = Shard(one_table(columns={"_id": "int", "price": "int"}))
    with pytest.raises(MisfitError) as raised:
        shard.insert("items", {"_id": 1, "price": "secret price"})
    sentence = str(raised.value)
    assert "table items, column price: text came" in sentence
    assert "secret" not in sentence
    assert raised.value.code == "zero.misfit"
    assert not raised.value.inferred
    with pytest.raises(MisfitError, match="column _id: null came"):
        shard.insert("items", {"_id": None})
    with pytest.raises(MisfitError, match=r"beyond 2\^53-1 came.*bigint"):
        shard.insert("items", {"_id": 1, "price": 1 << 53})


def test_a_path_into_what_is_no_document_is_refused_or_kept_in_rest() -> None:
    columns = {"_id": "int", "name": {"from": "author.name", "type": "text"}}
    row = {"_id": 1, "author": "x"}
    with pytest.raises(MisfitError, match="in the place of a document"):
        Shard(one_table(columns=columns), ("items", row))
    shard = Shard(one_table(columns=columns, rest="more"), ("items", row))
    assert shard.replica.rows("items") == [{"_id": 1, "more": {"author": "x"}}]


def test_new_fields_are_added_kept_or_ignored_z7() -> None:
    rows = [("items", {"_id": 1, "a": 1})]
    later = {"_id": 2, "new": {"x": 1}, "nothing": None}
    shard = Shard(one_table(columns={"a": "int"}, new_fields="add"), *rows)
    assert shard.insert("items", later) == ["add-column", "insert"]
    assert shard.insert("items", later) == ["insert"]
    assert shard.replica.rows("items")[1] == {"_id": 2, "new": {"x": 1}}
    shard = Shard(one_table(columns={"a": "int"}, rest="more"), *rows)
    assert shard.insert("items", later) == ["insert"]
    kept = {"new": {"x": 1}, "nothing": None}
    assert shard.replica.rows("items")[1] == {"_id": 2, "more": kept}
    shard = Shard(one_table(columns={"a": "int"}), *rows)
    shard.insert("items", later)
    assert shard.replica.rows("items")[1] == {"_id": 2}


def test_fields_that_differ_in_capitals_are_columns_of_different_names() -> None:
    shard = Shard(one_table(), ("items", {"_id": 1, "Name": "a", "name": "b"}))
    shard.insert("items", {"_id": 2, "NAME": "c", "_0_version": 1, "9": 2})
    assert shard.replica.rows("items") == [
        {"_id": 1, "Name": "a", "name_2": "b"},
        {"_id": 2, "NAME_3": "c", "f_0_version": 1, "f_9": 2},
    ]


def test_more_fields_than_a_table_may_have_are_refused_with_the_way_out() -> None:
    row = {"_id": 1, **{f"f{number}": 1 for number in range(FIELDS_MAX + 1)}}
    with pytest.raises(ConfigError, match="new_fields = 'ignore'"):
        Shard(one_table(), ("items", row))
    shard = Shard(one_table(), ("items", {"_id": 1}))
    with pytest.raises(MisfitError, match="new_fields = 'rest'"):
        shard.insert("items", row)
    shard = Shard(one_table(columns={"f1": "int"}, rest="more"), ("items", row))
    assert len(shard.replica.rows("items")[0]["more"]) == FIELDS_MAX


def test_an_inferred_column_widens_and_a_declared_one_does_not() -> None:
    shard = Shard(one_table(), ("items", {"_id": 1, "n": 1, "b": 1}))
    assert shard.insert("items", {"_id": 2, "n": 1.5, "b": 1 << 60}) == [
        "update-column",
        "update-column",
        "insert",
    ]
    assert shard.replica.rows("items") == [
        {"_id": 1, "n": 1, "b": "1"},
        {"_id": 2, "n": 1.5, "b": str(1 << 60)},
    ]
    with pytest.raises(MisfitError) as raised:
        shard.insert("items", {"_id": 3, "n": "text"})
    assert raised.value.inferred
    shard = Shard(one_table(columns={"n": "int"}, new_fields="add"), ("items", {"_id": 1}))
    with pytest.raises(MisfitError):
        shard.insert("items", {"_id": 2, "n": 1.5})


def test_an_image_before_in_which_the_filters_field_is_hidden_says_nothing_of_where_it_was() -> (
    None
):
    columns = {"id": {"from": "_id", "type": "int"}}
    shard = Shard(
        one_table(columns=columns, where={"kind": "a"}), ("items", {"_id": 1, "kind": "a"})
    )
    told = Told(
        stream=stream("items"),
        operation="replace",
        key=b'{"_id":1}',
        document=b'{"_id":1,"kind":"b"}',
        before=b'{"_id":1}',
    )
    assert shard.take(shard.teller.told(told, no_look_up)) == ["delete"]


def test_current_rows_are_read_only_for_what_is_not_configured() -> None:
    columns = {"id": {"from": "_id", "type": "int"}}
    known, unknown = one_table(columns=columns), one_table(columns=columns, new_fields="add")
    for config, wanted in ((known, False), (unknown, True), (one_table(), True), (WHOLE, True)):
        sampling = Mapping(ZeroTablesConfig.model_validate(config)).sampling()
        assert sampling.wants(stream("items")) is wanted
    assert not Mapping(ZeroTablesConfig.model_validate(known)).sampling().wants(stream("others"))


def test_an_update_without_its_document_is_looked_up_and_of_none_nothing_is_told() -> None:
    shard = Shard(one_table(), ("items", {"_id": 1, "n": 1}))
    told = Told(stream=stream("items"), operation="update", key=b'{"_id":1}')
    shard.take(shard.teller.told(told, lambda _, __: b'{"_id":1,"n":2}'))
    assert shard.replica.rows("items") == [{"_id": 1, "n": 2}]
    assert shard.teller.told(told, lambda _, __: None) == []


def test_a_key_that_changed_is_told_as_the_two_events_that_sql_sources_make_of_it() -> None:
    shard = Shard(WHOLE, ("items", {"id": 1, "a": "x"}))
    gone = Told(stream=stream("items"), operation="delete", key=b'{"id":1}', before=b'{"id":1}')
    assert shard.take(shard.teller.told(gone, no_look_up)) == ["delete"]
    part = Told(
        stream=stream("items"),
        operation="insert",
        key=b'{"id":2}',
        document=b'{"id":2}',
        unchanged=("a",),
        snapshot=False,
    )
    shard.take(shard.teller.told(part, lambda _, __: b'{"id":2,"a":"x"}'))
    assert shard.replica.rows("items") == [{"id": 2, "a": "x"}]


def test_what_is_no_data_says_nothing() -> None:
    shard = Shard(one_table(), ("items", {"_id": 1}))
    gap = Told(stream=stream("items"), kind=Kind.GAP, operation="gap", document=b"{}")
    assert shard.teller.told(gap, no_look_up) == []
    assert shard.shape("invalidate", "") == shard.shape("createIndexes", "items") == []


# --- columns of SQL -----------------------------------------------------------------------------

SHAPE = [{"name": "id", "type": "int"}, {"name": "title", "type": "varchar(40)"}]


def test_columns_of_sql_are_added_and_dropped_as_they_are_described() -> None:
    shard = Shard(WHOLE, ("items", {"id": 1, "old": "x"}))
    said = shard.shape("modify", "items", columns=SHAPE, key=["id"])
    assert said == ["drop-column", "add-column"]
    assert shard.shape("modify", "items", columns=SHAPE, key=["id"]) == []
    shard.insert("items", {"id": 2, "title": "y"})
    assert shard.replica.rows("items") == [{"id": 1}, {"id": 2, "title": "y"}]
    shard = Shard(one_table(columns={"old": "text"}, key=[]), ("items", {"id": 1, "old": "x"}))
    assert shard.shape("modify", "items", columns=SHAPE, key=["id"]) == []


def test_a_hidden_column_of_sql_is_not_announced() -> None:
    def hiding(_: Stream) -> frozenset[str]:
        return frozenset({"title"})

    shard = Shard(WHOLE, ("items", {"id": 1}), hidden=hiding)
    assert shard.shape("modify", "items", columns=SHAPE, key=["id"]) == []


def test_a_renamed_column_of_sql_keeps_its_values() -> None:
    shard = Shard(WHOLE, ("items", {"id": 1, "old": "x"}))
    statement = "ALTER TABLE items /* RENAME COLUMN id TO x */ RENAME COLUMN `old` TO title"
    assert shard.shape("modify", "items", statement=statement) == ["update-column"]
    shard.insert("items", {"id": 2, "title": "y"})
    assert shard.replica.rows("items") == [{"id": 1, "title": "x"}, {"id": 2, "title": "y"}]
    assert shard.shape("modify", "items", columns=SHAPE, key=["id"]) == []
    shard.shape("modify", "items", statement="alter table items change column id number int")
    told = Told(stream=stream("items"), operation="delete", key=b'{"number":1}')
    shard.take(shard.teller.told(told, no_look_up))
    assert shard.replica.rows("items") == [{"number": 2, "title": "y"}]


def test_a_renamed_column_that_is_declared_is_a_reset() -> None:
    shard = Shard(one_table(columns={"id": "int", "old": "text"}, key=["id"]))
    with pytest.raises(ResetError, match="from = 'title'"):
        shard.shape("modify", "items", statement="ALTER TABLE items RENAME COLUMN old TO title")


@pytest.mark.parametrize(
    ("what", "after"),
    [
        ("DROP COLUMN b, RENAME COLUMN a TO b", {"b": "a's", "c": "c's"}),
        ("CHANGE a b TEXT, DROP b", {"b": "a's", "c": "c's"}),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO a", {"a": "b's", "b": "a's", "c": "c's"}),
        ("CHANGE a b TEXT, CHANGE b a TEXT", {"a": "b's", "b": "a's", "c": "c's"}),
        ("RENAME COLUMN a TO B, RENAME COLUMN b TO A", {"A": "b's", "B": "a's", "c": "c's"}),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO d", {"b": "a's", "d": "b's", "c": "c's"}),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO c, DROP c", {"b": "a's", "c": "b's"}),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO c, RENAME COLUMN c TO a",
         {"a": "c's", "b": "a's", "c": "b's"}),
        ("RENAME COLUMN a TO d, ADD COLUMN a TEXT", {"b": "b's", "c": "c's", "d": "a's"}),
        ("DROP COLUMN a, ADD COLUMN a TEXT", {"b": "b's", "c": "c's"}),
        ("RENAME COLUMN A TO title", {"title": "a's", "b": "b's", "c": "c's"}),
        ("RENAME COLUMN a TO A", {"A": "a's", "b": "b's", "c": "c's"}),
        ("MODIFY A TEXT", {"A": "a's", "b": "b's", "c": "c's"}),
        ("CHANGE A a TEXT", {"a": "a's", "b": "b's", "c": "c's"}),
        ("RENAME COLUMN IF EXISTS x TO b", {"a": "a's", "b": "b's", "c": "c's"}),
        ("RENAME COLUMN IF EXISTS a TO b, DROP IF EXISTS b", {"b": "a's", "c": "c's"}),
        ("RENAME COLUMN a TO `id-`, RENAME COLUMN b TO `id.`",
         {"id-": "a's", "id_": "b's", "c": "c's"}),
    ],
)  # fmt: skip
def test_the_values_of_columns_go_where_an_alter_puts_them(what: str, after: Document) -> None:
    """All it says is of the table as it was, as MySQL and MariaDB take it."""
    shard = Shard(WHOLE, ("items", {"id": 1, "a": "a's", "b": "b's", "c": "c's"}))
    shard.shape("modify", "items", statement=f"ALTER TABLE items {what}")
    paths = {one.path for one in shard.teller.tables[-1].columns}
    added = {"a"} if "ADD COLUMN a" in what else set[str]()
    described = [{"name": name, "type": "text"} for name in sorted(paths | added)]
    said = shard.shape("modify", "items", columns=described, key=["id"])
    assert said == ["add-column"] * len(added)
    assert shard.replica.rows("items") == [{"id": 1, **after}]
    columns = shard.replica.tables["public", "items"].columns
    assert set(columns) == {"id", *after, *added}
    row = {one.path: one.path for one in shard.teller.tables[-1].columns if not one.key}
    shard.insert("items", {"id": 2, **row})
    names = {one.name: one.path for one in shard.teller.tables[-1].columns if not one.key}
    assert shard.replica.rows("items")[1] == {"id": 2, **names}


def test_a_column_that_another_statement_dropped_gives_its_values_to_no_namesake() -> None:
    """Its source describes the table with its next row, which is behind both."""
    shard = Shard(WHOLE, ("items", {"id": 1, "a": "a's", "b": "b's"}))
    assert shard.shape("modify", "items", statement="ALTER TABLE items DROP b") == ["drop-column"]
    rename = "ALTER TABLE items RENAME COLUMN IF EXISTS b TO a"
    assert shard.shape("modify", "items", statement=rename) == []
    rename = "ALTER TABLE items RENAME COLUMN a TO b"
    assert shard.shape("modify", "items", statement=rename) == ["update-column"]
    assert shard.replica.rows("items") == [{"id": 1, "b": "a's"}]
    # Of a row's column that it does not know, as where all of them were null.
    rename = "ALTER TABLE items RENAME COLUMN unknown TO b"
    assert shard.shape("modify", "items", statement=rename) == ["drop-column"]


def test_a_name_in_double_quotes_is_one_in_a_session_with_ansi_quotes() -> None:
    statement = """ALTER TABLE "items" CHANGE "a" "title" TEXT COMMENT 'CHANGE "b" "c" INT'"""
    shard = Shard(WHOLE, ("items", {"id": 1, "a": "x"}))
    modes = "REAL_AS_FLOAT,PIPES_AS_CONCAT,ANSI_QUOTES"
    said = shard.shape("modify", "items", statement=statement, sqlMode=modes)
    assert said == ["update-column"]
    assert shard.replica.rows("items") == [{"id": 1, "title": "x"}]


@pytest.mark.parametrize(
    "what", ["RENAME COLUMN a TO old", "RENAME COLUMN x TO old", "DROP OLD, CHANGE a old TEXT"]
)
def test_a_column_that_takes_the_place_of_one_that_is_declared_is_a_reset(what: str) -> None:
    columns = {"id": "int", "old": "text"}
    shard = Shard(
        one_table(columns=columns, key=["id"], new_fields="add"), ("items", {"id": 1, "a": "x"})
    )
    with pytest.raises(ResetError, match="another column of items was renamed to old"):
        shard.shape("modify", "items", statement=f"ALTER TABLE items {what}")
    rename = "ALTER TABLE items RENAME COLUMN IF EXISTS x TO old, DROP old, CHANGE ID id BIGINT"
    assert shard.shape("modify", "items", statement=rename) == []


def test_a_rename_of_what_may_not_be_there_to_what_is_there_is_a_reset() -> None:
    """Rows that came before a rename keep its old name, so a table may have both."""
    shard = Shard(WHOLE, ("items", {"id": 1, "a": "x"}), ("items", {"id": 2, "b": "x"}))
    statement = "ALTER TABLE items RENAME COLUMN IF EXISTS a TO b"
    with pytest.raises(ResetError, match="not known which of them"):
        shard.shape("modify", "items", statement=statement)


def test_a_column_that_takes_the_place_of_the_key_is_a_reset() -> None:
    shard = Shard(WHOLE, ("items", {"id": 1, "a": 2}))
    statement = "ALTER TABLE items DROP COLUMN id, RENAME COLUMN a TO id, ADD PRIMARY KEY (id)"
    with pytest.raises(ResetError, match="is a part of its key"):
        shard.shape("modify", "items", statement=statement)


@pytest.mark.parametrize(
    ("statement", "renamed", "dropped"),
    [
        ("ALTER TABLE t CHANGE a b INT, CHANGE COLUMN `c d` `e``f` TEXT",
         [("a", "b"), ("c d", "e`f")], []),
        ("ALTER TABLE d.t CHANGE t.a b DECIMAL(9,2) DEFAULT 1, MODIFY COLUMN d.t.c INT",
         [("a", "b"), ("c", "c")], []),
        ("ALTER TABLE t COMMENT 'RENAME COLUMN a TO b'", [], []),
        ("ALTER TABLE t ADD x INT DEFAULT 1 -- CHANGE a b INT", [], []),
        ("ALTER TABLE t ADD (x INT, `, CHANGE a b ` INT), ADD y TEXT DEFAULT (\"', DROP z\")",
         [], []),
        ("ALTER TABLE t RENAME TO u", [], []),
        ("CREATE TABLE t (`CHANGE a b ` INT)", [], []),
        ("ALTER DATABASE t CHANGE a b INT", [], []),
        ("ALTER TABLE t CHANGE ? b INT, RENAME COLUMN a TO ?, DROP ?", [], []),
        ("SET STATEMENT max_statement_time=5 FOR ALTER TABLE t WAIT 5 RENAME COLUMN a TO b",
         [("a", "b")], []),
        ("/*!50000 ALTER TABLE t RENAME COLUMN a TO b */ /* xid=8 */", [("a", "b")], []),
        ("ALTER TABLE t /*!80013 RENAME COLUMN a TO b */", [("a", "b")], []),
        ("ALTER TABLE t DROP a, DROP COLUMN IF EXISTS `index`, DROP t.b RESTRICT, DROP c CASCADE",
         [], ["a", "index", "b", "c"]),
        ("ALTER TABLE t DROP PRIMARY KEY, DROP INDEX i, DROP KEY IF EXISTS j, DROP FOREIGN KEY f",
         [], []),
        ("ALTER TABLE t DROP CONSTRAINT c, DROP CHECK k, DROP SYSTEM VERSIONING, DROP PERIOD FOR p",
         [], []),
        ("ALTER TABLE t DROP PARTITION p0", [], []),
    ],
)  # fmt: skip
def test_what_becomes_of_columns_is_read_from_the_words_of_a_statement(
    statement: str, renamed: list[tuple[str, str]], dropped: list[str]
) -> None:
    wanted = tuple(Renaming(old, new) for old, new in renamed)
    assert alteration(statement) == Alteration(wanted, tuple(dropped))


@pytest.mark.parametrize(
    ("statement", "dropped"),
    [
        ("ALTER TABLE t DROP a PARTITION BY HASH (id) PARTITIONS 4", ("a",)),
        ("ALTER TABLE t DROP b, DROP IF EXISTS a REMOVE PARTITIONING", ("b", "a")),
        ("ALTER TABLE t DROP INDEX remove, DROP PARTITION p0", ()),
    ],
)
def test_a_column_is_dropped_before_what_is_said_of_partitions(
    statement: str, dropped: tuple[str, ...]
) -> None:
    assert alteration(statement).dropped == dropped


def test_a_rename_of_what_may_not_be_there_is_told_as_one() -> None:
    found = alteration("ALTER ONLINE TABLE IF EXISTS t RENAME COLUMN IF EXISTS a TO b")
    assert found == Alteration((Renaming("a", "b", if_exists=True),), if_exists=True)


def test_a_backslash_escapes_nothing_in_a_session_with_no_backslash_escapes() -> None:
    statement = r"ALTER TABLE t COMMENT '\', RENAME COLUMN a TO b -- '"
    assert alteration(statement) == Alteration()
    assert alteration(statement, "NO_BACKSLASH_ESCAPES").renamed == (Renaming("a", "b"),)


# --- Zero's own tables, and the configuration ---------------------------------------------------


def test_zeros_own_tables_are_there_and_those_that_are_mapped_are_live_z6() -> None:
    mapped = {
        "clients": {
            "source": "shop",
            "collection": "zero_clients",
            "columns": {"clientGroupID": "_id.group", "clientID": "_id.client"},
        }
    }
    shard = Shard(mapped, app_id="app", shard_num="3")
    assert [*shard.replica.tables] == [
        ("app_3", "mutations"),
        ("app", "permissions"),
        ("app_3", "clients"),
    ]
    row = {"_id": {"group": "g", "client": "c"}, "lastMutationID": 1}
    shard.insert("zero_clients", row)
    shard.insert("zero_clients", {**row, "lastMutationID": 2})
    assert shard.replica.rows("clients", "app_3") == [
        {"clientGroupID": "g", "clientID": "c", "lastMutationID": 2}
    ]
    with pytest.raises(MisfitError, match="lastMutationID: null came"):
        shard.insert("zero_clients", {**row, "lastMutationID": None})
    mapped["mutations"] = {"source": "shop", "collection": "zero_mutations", "columns": {
        "clientGroupID": "_id.g", "clientID": "_id.c", "mutationID": "_id.m"}}  # fmt: skip
    shard = Shard(mapped, app_id="app", shard_num="3")
    row, result = {"_id": {"g": "g", "c": "c", "m": 7}}, {"error": "app", "message": "no"}
    for written in (result, json.dumps(result)):  # as MongoDB and MySQL have it, and as MariaDB
        shard.insert("zero_mutations", {**row, "result": written})
        assert shard.replica.rows("mutations", "app_3") == [
            {"clientGroupID": "g", "clientID": "c", "mutationID": 7, "result": result}
        ]
    for nothing in (None, "null", "{"):
        with pytest.raises(MisfitError, match="result: "):
            shard.insert("zero_mutations", {**row, "result": nothing})
    table = next(one for one in shard.teller.tables if one.name == "permissions")
    shard.take([permissions_row(table, b'{"tables":{}}', "x")])
    shard.take([permissions_row(table, None, None)])
    assert shard.replica.rows("permissions", "app") == [{"lock": True}]
    mapped["clients"]["columns"] = {"nonsense": "x"}
    with pytest.raises(ConfigError, match="no column 'nonsense'"):
        Shard(mapped)


def test_what_an_update_did_not_send_of_zeros_own_tables_stays_as_it_was() -> None:
    """As MySQL tells it with partial row images, of the columns that must have a value too."""
    own = {
        "clients": {"source": "shop", "collection": "zero_clients"},
        "mutations": {"source": "shop", "collection": "zero_mutations"},
    }
    shard = Shard(own)
    key = {"clientGroupID": "g", "clientID": "c"}
    mutation, result = {**key, "mutationID": 7}, {"error": "app", "message": "no"}

    def tell(collection: str, key: Document, row: Document, **also: Any) -> list[str]:
        told = Told(
            stream=stream(collection), key=encoded(key), document=encoded({**key, **row}), **also
        )
        return shard.take(shard.teller.told(told, no_look_up))

    tell("zero_clients", key, {"lastMutationID": 7, "userID": "u"}, operation="insert")
    tell("zero_mutations", mutation, {"result": result}, operation="insert")
    updated: Document = {"operation": "update", "unchanged": ("lastMutationID",)}
    assert tell("zero_clients", key, {"userID": "v"}, **updated) == ["update"]
    assert shard.replica.rows("clients", "zero_0") == [{**key, "lastMutationID": 7, "userID": "v"}]
    updated["unchanged"] = ("result",)
    assert tell("zero_mutations", mutation, {"at": 1}, **updated) == ["update"]
    assert shard.replica.rows("mutations", "zero_0") == [{**mutation, "result": result}]
    with pytest.raises(MisfitError, match="result: null came"):
        tell("zero_mutations", mutation, {"result": None}, operation="update")


def test_the_fingerprint_is_that_of_the_configuration() -> None:
    def fingerprints(config: Document) -> tuple[str, str]:
        shard = Shard(config, ("items", {"_id": 1, "a": 1}))
        table = next(one for one in shard.teller.tables if one.name == "items")
        return shard.mapping.fingerprint, table.fingerprint

    one = fingerprints(one_table())
    assert fingerprints(one_table()) == one
    for other in (one_table(where={"a": 1}), one_table(rest="more"), WHOLE):
        assert not set(fingerprints(other)) & set(one)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"columns": {"a": "varchar"}}, "no type of a column"),
        ({"columns": {"a b": "text"}}, "no name of a table or column"),
        ({"columns": {"_0_version": "text"}}, "no name of a table or column"),
        ({"columns": {"a": "text", "A": "text"}}, "two columns have one name"),
        ({"columns": {"a": {"from": "x..y", "type": "text"}}}, "leads nowhere"),
        ({"columns": {"a": "json"}, "key": ["a"]}, "cannot be told apart"),
        ({"key": ["a"]}, "which columns does not have"),
        ({"new_fields": "rest"}, "needs the name of that column"),
        ({"collection": "db."}, "is no collection"),
        ({"where": {"a": {"exsits": True}}}, "a condition is a value"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(table: Document, sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        ZeroTablesConfig.model_validate(one_table(**table))


@pytest.mark.parametrize(
    ("where", "value", "is_in"),
    [
        ({"a": 1}, 1, True),
        ({"a": 1}, 1.0, True),
        ({"a": 1}, True, False),
        ({"a": 1.5}, 1.5, True),
        ({"a": True}, True, True),
        ({"a": ["x", 2]}, 2, True),
        ({"a": ["x", 2]}, "y", False),
        ({"a.b": "x"}, {"b": "x"}, True),
        ({"a.b": "x"}, "x", False),
        ({"a": {"exists": True}}, None, False),
        ({"a": {"exists": False}}, None, True),
        ({"a": {"$date": "2026-01-01T00:00:00.000Z"}}, "2026-01-01T00:00:00.000Z", False),
        ({"a": {"$date": "2026-01-01T00:00:00.000Z"}}, datetime(2026, 1, 1, tzinfo=UTC), True),
    ],
)
def test_where_means_equal_values(where: Document, value: Any, is_in: bool) -> None:
    shard = Shard(one_table(where=where, columns={"id": {"from": "_id", "type": "int"}}))
    assert bool(shard.insert("items", {"_id": 1, "a": value}, snapshot=False)) == is_in
