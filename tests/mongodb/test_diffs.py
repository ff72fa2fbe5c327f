"""Updates of servers that do not state what the paths mean, told as those that do."""

# Documents may hold anything, and isinstance says no more than "a dict".
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import random
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from bson import DBRef
from pymongo import MongoClient

from penstock.event import ChangeEvent, Operation
from penstock.sources.mongodb.diffs import described
from penstock.sources.mongodb.documents import BsonEncoder
from penstock.subscribe.compose import Composition
from penstock.subscribe.compose import InexactError as NoCompositionError
from penstock.updates import apply_update
from tests.mongodb.support import Reading, reading
from tests.seeds import seed_of
from tests_support.servers import MongoReplicaSet

Document = dict[str, Any]
NAMES = ("a", "b", "a.b", "b.0", "a.b.a", "0", "1", "01", "", ".", "a.", "$x", "x.$y", "ab")
PAD = "x" * 500
"""Makes a description shorter than the document, so that the server logs one."""


@pytest.mark.parametrize(
    ("diff", "updated", "removed", "cuts", "paths"),
    [
        ({"u": {"a": 1}, "i": {"b": 2}, "d": {"c": False}}, {"a": 1, "b": 2}, ["c"], {}, {}),
        ({"i": {"a.b": 1}}, {"a.b": 1}, [], {}, {"a.b": ["a.b"]}),
        ({"sa": {"i": {"b": 1}}}, {"a.b": 1}, [], {}, {}),
        ({"sa": {"a": True, "u0": 1, "l": 3}}, {"a.0": 1}, [], {"a": 3}, {}),
        ({"sa": {"d": {"0": False}}}, {}, ["a.0"], {}, {"a.0": ["a", "0"]}),
        ({"i": {"0": 1}, "s": {"i": {"": 1}}}, {"0": 1, ".": 1}, [], {}, {}),
        (
            {"sa.b": {"a": True, "s1": {"s2": {"u": {"c": 1}}}}},
            {"a.b.1.2.c": 1},
            [],
            {},
            {"a.b.1.2.c": ["a.b", 1, "2", "c"]},
        ),
        ({"sr": {"i": DBRef("t", 5)}}, {"r.$ref": "t", "r.$id": 5}, [], {}, {}),
    ],
)
def test_each_step_of_a_diff_is_a_step_of_a_path(
    diff: Document, updated: Document, removed: list[str], cuts: dict[str, int], paths: Document
) -> None:
    assert described({"$v": 2, "diff": diff}) == {
        "updatedFields": updated,
        "removedFields": removed,
        "truncatedArrays": [{"field": path, "newSize": size} for path, size in cuts.items()],
        "disambiguatedPaths": paths,
    }


def test_two_fields_with_one_path_have_no_description() -> None:
    assert described({"$v": 2, "diff": {"i": {"a.b": 1}, "sa": {"i": {"b": 2}}}}) is None
    assert described({"$v": 2, "diff": {"d": {"a.b": False}, "sa": {"u": {"b": 2}}}}) is None


@pytest.mark.parametrize(
    "raw",
    [
        {"$v": 1, "$set": {"a": 1}},
        {"$v": 2, "diff": {"b": {"a": 1}}},
        {"$v": 2, "diff": {"sa": {"a": True, "d": {"0": False}}}},
        {"$v": 2, "diff": {}, "more": 1},
    ],
)
def test_a_diff_of_another_version_is_refused(raw: Document) -> None:
    with pytest.raises(TypeError, match="an update with"):
        described(raw)


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(5) if depth else 4
    if kind < 2:
        names = rng.sample(NAMES, rng.randrange(4))
        return {name: _value(rng, depth - 1) for name in names}
    if kind == 2:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return rng.randrange(9)


def _mutated(rng: random.Random, document: Document) -> Document:
    """The document after a few changes at places of it, mostly deep inside."""
    result = deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        at: Any = result
        while inner := [
            one
            for one in (at.values() if isinstance(at, dict) else at)
            if type(one) in {dict, list}
        ]:
            if not rng.randrange(4):
                break
            at = rng.choice(inner)
        if isinstance(at, dict):
            at[rng.choice(NAMES)] = _value(rng, 1)
            if rng.randrange(2):
                at.pop(rng.choice(NAMES), None)
        elif at and rng.randrange(2):
            del at[rng.randrange(len(at)) :]
        else:
            at.append(_value(rng, 1))
    return result


def _folded(read: Reading) -> dict[str, Any]:
    """The rows after all changes; None where one is not known."""
    rows: dict[str, Any] = {}
    for event in read.changes:
        if event.full_document is not None:
            rows[event.document_id] = msgspec.json.decode(event.full_document)
            continue
        assert event.operation is Operation.UPDATE
        before = rows[event.document_id]
        rows[event.document_id] = before and _after(before, event)
    return rows


def _after(row: Document, event: ChangeEvent) -> Document | None:
    if event.update_description is None:
        return None
    assert event.disambiguated_paths is not None
    update = msgspec.json.decode(event.update_description)
    return apply_update(row, update, msgspec.json.decode(event.disambiguated_paths))


def _composed(read: Reading) -> dict[str, Any]:
    """The rows after the composition of all updates of each, where there is one."""
    first: dict[str, Document] = {}
    compositions: dict[str, Composition | None] = {}
    for event in read.changes:
        if event.full_document is not None:
            first[event.document_id] = msgspec.json.decode(event.full_document)
            compositions[event.document_id] = Composition()
            continue
        composition = compositions[event.document_id]
        if composition is None or event.update_description is None:
            compositions[event.document_id] = None
            continue
        try:
            composition.add(event.update_description, paths=event.disambiguated_paths or b"")
        except NoCompositionError:
            compositions[event.document_id] = None
    return {
        name: apply_update(first[name], msgspec.json.decode(one.encoded()), {})
        for name, one in compositions.items()
        if one is not None
    }


async def _rows_equal_the_servers(mongo: MongoReplicaSet, seed: int, *, documents: int) -> int:
    """How many updates were told as such, of random ones that are folded onto their rows."""
    rng = random.Random(seed)
    with MongoClient[Document](mongo.uri) as client:
        name = f"diffs{seed}"
        things = client[name].things
        async with reading(mongo.uri, database=name, full_document="default") as read:
            now = [
                {"_id": number, "pad": PAD, "a": _value(rng, 3), "b": _value(rng, 3)}
                for number in range(documents)
            ]
            things.insert_many(now)
            for _ in range(4):
                now = [_mutated(rng, one) for one in now]
                for one in now:
                    things.update_one({"_id": one["_id"]}, [{"$replaceWith": {"$literal": one}}])
            things.insert_one({"_id": "end"})
            await read.until(lambda r: bool(r.changes) and r.changes[-1].document_id == "end")
        encode = BsonEncoder().encode
        held = {str(one["_id"]): msgspec.json.decode(encode(one)) for one in things.find()}
        client.drop_database(name)
    rows = _folded(read)
    unknown = [key for key, row in rows.items() if row is None]
    assert len(unknown) <= documents / 4  # those of two fields with one path
    assert rows | {key: held[key] for key in unknown} == held
    composed = _composed(read)
    assert composed == {key: held[key] for key in composed}
    return sum(event.update_description is not None for event in read.changes)


@pytest.mark.server
async def test_updates_of_names_with_dots_and_digits_are_folded_as_the_server_does_them(
    mongo: MongoReplicaSet,
) -> None:
    assert await _rows_equal_the_servers(mongo, seed_of("diffs"), documents=80) > 100


@pytest.mark.server
async def test_a_newer_server_says_the_same(mongo6027: MongoReplicaSet) -> None:
    assert await _rows_equal_the_servers(mongo6027, seed_of("diffs 6.0.27"), documents=80) > 100


@pytest.mark.soak
@pytest.mark.server
@pytest.mark.parametrize("number", range(20))
async def test_many_random_updates_are_folded(mongo6027: MongoReplicaSet, number: int) -> None:
    await _rows_equal_the_servers(mongo6027, seed_of(f"diffs {number}"), documents=500)
