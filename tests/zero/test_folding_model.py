"""What is told folds to what the documents are (Z7), whatever happened and whatever of it is said.

The model knows documents as Python values; it projects the last ones by code of its own.
"""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import extjson
from penstock.event import Operation
from penstock.wire import Stream
from penstock.zero.changes import LookUp, Teller, Told, creation
from penstock.zero.config import ZeroTablesConfig
from penstock.zero.mapping import Mapping
from penstock.zero.tables import Table
from tests.seeds import cases
from tests.zero.folding import Replica

Document = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STREAM = Stream("shop", "db", "db", "things")

CONFIG = ZeroTablesConfig.model_validate(
    {
        "tables": {
            "everything": {
                "source": "shop",
                "collection": "things",
                "columns": {"kind": "json"},
                "new_fields": "add",
            },
            "articles": {
                "source": "shop",
                "collection": "db.things",
                "where": {"kind": "article"},
                "columns": {
                    "id": {"from": "_id", "type": "int"},
                    "number": "double",
                    "author": {"from": "author.name", "type": "text"},
                    "born": {"from": "author.born", "type": "timestamp"},
                    "price": "decimal",
                    "tags": "text[]",
                },
            },
            "drafts": {
                "source": "shop",
                "collection": "things",
                "where": {"kind": ["draft", 7], "gone": {"exists": False}},
                "columns": {"kind": "json", "number": "int", "title": "text"},
                "rest": "more",
            },
        }
    }
)

ALONE = ZeroTablesConfig.model_validate(
    {"tables": {"everything": CONFIG.tables["everything"].model_dump(by_alias=True)}}
)
"""Where a row is always in the one table, a part of it may be all that is told."""

moments = st.integers(-(10**13), 10**13).map(lambda ms: EPOCH + timedelta(milliseconds=ms))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
decimals = st.decimals(allow_nan=False, allow_infinity=False, places=3)
authors = st.fixed_dictionaries({}, optional={"name": texts, "born": moments, "age": st.just(3)})
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "kind": st.sampled_from(["article", "article", "draft", "draft", 7, "other", None]),
    "gone": st.sampled_from([True, None]),
    "number": st.integers(-3, 3) | st.floats(-1e15, 1e15),
    "title": texts,
    "author": authors,
    "price": decimals | st.integers(0, 10**6),
    "tags": st.lists(texts, max_size=2),
    "at": moments,
    "big name": st.sampled_from([1, 1 << 60, None]),
    "Title": st.booleans(),
}
documents = st.lists(st.sampled_from([*FIELDS]), max_size=3).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in {"kind", *names}})
)


class Happened(msgspec.Struct):
    """A change: what a document became, and what of it is said."""

    id: int
    document: Document | None
    """None for a delete."""
    patches: bool
    """Whether it leaves other fields as they were."""
    says_before: bool
    says_update: bool
    says_document: bool
    later: bool
    partial: bool


happenings = st.lists(
    st.builds(
        Happened,
        id=st.integers(0, 1),
        document=st.one_of(documents, documents, documents, st.none()),
        patches=st.booleans(),
        says_before=st.booleans(),
        says_update=st.booleans(),
        says_document=st.booleans(),
        later=st.booleans(),
        partial=st.booleans(),
    ),
    max_size=14,
)


def encoded(id_: int, document: Document) -> bytes:
    return bytes(extjson.encode({"_id": id_, **document}))


class Model:
    """The documents after each change, and the entries of the log that tell them."""

    def __init__(self, changes: list[Happened]) -> None:
        self.after: list[dict[int, Document]] = [{}]
        for one in changes:
            now = dict(self.after[-1])
            if one.document is None:
                now.pop(one.id, None)
            else:
                was = now.get(one.id, {}) if one.patches else {}
                now[one.id] = {**was, **one.document}
            self.after.append(now)
        self.changes = changes

    def told(self, number: int) -> tuple[Told | None, bytes | None]:
        """A change as an entry tells it, and what looking its document up gives."""
        one = self.changes[number]
        before, after = self.after[number].get(one.id), self.after[number + 1].get(one.id)
        key = b'{"_id":%d}' % one.id
        if before is None and after is None:
            return None, None
        said_before = encoded(one.id, before) if before is not None and one.says_before else None
        if after is None:
            return Told(stream=STREAM, operation="delete", key=key, before=said_before), None
        seen = self.after[-1].get(one.id) if one.later else after
        found = None if seen is None else encoded(one.id, seen)
        operation, update = Operation.INSERT, None
        if before is not None:
            operation = Operation.UPDATE if one.says_update else Operation.REPLACE
            update = described(before, after) if one.says_update else None
        document, unchanged = found if one.says_document else None, tuple[str, ...]()
        if operation is not Operation.UPDATE or one.partial:
            unchanged = unsent(before or after, after) if one.partial else ()
            sent = {name: value for name, value in after.items() if name not in unchanged}
            document = encoded(one.id, sent)
        told = Told(
            stream=STREAM,
            operation=operation,
            key=key,
            document=document,
            before=said_before,
            update_description=update,
            unchanged=unchanged,
            as_of_event=operation is not Operation.UPDATE,
            snapshot=one.says_before,
        )
        return told, found

    def copied(self, lost: int, found: int, until: int) -> list[Told]:
        """What a copy says behind changes that were lost, but for the last of which others came:
        every row, and every row that is gone and was not said to be."""
        known = set(self.after[lost])
        for number in range(found, until):
            one = self.changes[number]
            if one.document is not None:
                known.add(one.id)
            elif one.id in self.after[number]:
                known.discard(one.id)
        gone = known - self.after[until].keys()
        return [
            Told(stream=STREAM, operation="delete", key=b'{"_id":%d}' % one) for one in gone
        ] + [
            Told(
                stream=STREAM,
                operation="insert",
                key=b'{"_id":%d}' % one,
                document=encoded(one, document),
                snapshot=True,
            )
            for one, document in self.after[until].items()
        ]


def unsent(before: Document, after: Document) -> tuple[str, ...]:
    """The fields that an update leaves as they were, which some sources do not send again."""
    return tuple(name for name in after if before.get(name) == after[name] and name in before)


def described(before: Document, after: Document) -> bytes:
    updated = {
        name: value
        for name, value in after.items()
        if name not in before or before[name] != value or type(before[name]) is not type(value)
    }
    removed = [name for name in before if name not in after]
    said = {"updatedFields": updated, "removedFields": removed, "truncatedArrays": []}
    return bytes(extjson.encode(said))


# --- what the tables have to be -----------------------------------------------------------------


def wire(value: Any) -> Any:
    """A value in a column of its own type, or inside json."""
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(milliseconds=1)
    if isinstance(value, Decimal):
        return str(value)
    return value


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(one) for name, one in cast("Document", value).items()}
    if isinstance(value, datetime):
        said = extjson.date(wire(value))["$date"]
        return said if isinstance(said, str) else wire(value)
    if isinstance(value, Decimal):
        return str(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and abs(value) > (1 << 53) - 1 and value == int(value):
        return str(value)
    return value


def article(id_: int, one: Document) -> Document | None:
    if one.get("kind") != "article":
        return None
    author = one.get("author", {})
    price = one.get("price")
    return {
        "id": id_,
        "number": one.get("number"),
        "author": author.get("name"),
        "born": wire(author.get("born")),
        "price": None if price is None else str(price),
        "tags": one.get("tags"),
    }


def draft(id_: int, one: Document) -> Document | None:
    if one.get("kind") not in ("draft", 7) or one.get("gone") is not None:
        return None
    number, rest = one.get("number"), dict(one)
    if isinstance(number, int):
        rest.pop("number")
    else:
        number = None
    for name in ("title", "kind"):
        rest.pop(name, None)
    kept = {name: plain(value) for name, value in rest.items()}
    columns = {"kind": one["kind"], "number": number, "title": one.get("title")}
    return {"_id": id_, **columns, "more": kept or None}


def everything(id_: int, one: Document, table: Table) -> Document:
    """Inferred: the columns are those of the table, and each is what it says to be."""
    names = {column.path: (column.name, column.type) for column in table.columns}
    row: Document = {"_id": id_}
    for field, value in one.items():
        if value is None:
            continue
        name, kind = names[field]
        if kind == "json":
            row[name] = plain(value)
        elif kind in {"bigint", "decimal"}:
            row[name] = str(value)
        else:
            row[name] = wire(value)
    return row


def shown(rows: list[Document]) -> list[str]:
    return sorted(
        json.dumps({name: one for name, one in row.items() if one is not None}, sort_keys=True)
        for row in rows
    )


def numbers(text: list[str]) -> list[Any]:
    """Compared as JavaScript does: 3 is 3.0."""
    return [json.loads(one) for one in text]


# --- the promise --------------------------------------------------------------------------------


def looking_up(found: bytes | None) -> LookUp:
    """What gives the document as it was seen later."""
    return lambda _, __: found


def nothing_there(_: Stream, __: bytes) -> None:
    """A document that is gone by now."""


class Shard:
    """Begins with the rows at a place of the log, and follows; now and then over a restart."""

    def __init__(self, model: Model, start: int, config: ZeroTablesConfig) -> None:
        self.config = config
        self.mapping = Mapping(config)
        self.replica = Replica()
        sampling = self.mapping.sampling()
        rows = model.after[start].items()
        for one, document in rows:
            sampling.add(STREAM, b'{"_id":%d}' % one, encoded(one, document))
        self.teller = Teller(sampling.tables(), self.mapping)
        for table in self.teller.tables:
            self.take(creation(table))
        for one, document in rows:
            self.take(self.teller.row(STREAM, b'{"_id":%d}' % one, encoded(one, document)))

    def take(self, said: list[bytes]) -> None:
        for message in said:
            self.replica.apply(message)

    def restart(self) -> None:
        record = msgspec.json.encode(self.teller.tables)
        tables = msgspec.json.decode(record, type=tuple[Table, ...])
        self.teller = Teller(tables, Mapping(self.config))

    def equals(self, now: dict[int, Document]) -> None:
        named = (("articles", article), ("drafts", draft)) if self.config is CONFIG else ()
        for name, project in named:
            wanted = [project(one, document) for one, document in now.items()]
            found = shown(self.replica.rows(name))
            assert numbers(found) == numbers(shown([row for row in wanted if row is not None]))
        tables = {table.name: table for table in self.teller.tables}
        if now:
            rows = [everything(one, said, tables["everything"]) for one, said in now.items()]
            assert numbers(shown(self.replica.rows("everything"))) == numbers(shown(rows))
        else:
            assert self.replica.rows("everything") == []


@settings(max_examples=cases(250), deadline=None)
@given(happenings, st.sampled_from([CONFIG, ALONE]), st.data())
def test_what_is_told_folds_to_what_the_documents_are_z7(
    changes: list[Happened], config: ZeroTablesConfig, data: st.DataObject
) -> None:
    model, end = Model(changes), len(changes)
    start = data.draw(st.just(0) | st.integers(0, end), "start")
    lost = data.draw(st.just(start) | st.integers(start, end), "lost")
    found = data.draw(st.just(lost) | st.integers(lost, end), "found")
    healed = data.draw(st.integers(found, end), "healed")
    shard = Shard(model, start, config)
    for number in range(start, end + 1):
        if number == healed and lost < found:
            for told in model.copied(lost, found, healed):
                shard.take(shard.teller.told(told, nothing_there))
        if number == end or lost <= number < found:
            continue
        entry, later = model.told(number)
        if entry is not None:
            shard.take(shard.teller.told(entry, looking_up(later)))
        if number % 3 == 0:
            shard.restart()
    shard.equals(model.after[-1])
