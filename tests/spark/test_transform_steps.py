"""Steps over documents: exact on documents and on updates of them, and what they hide is gone."""

# Documents are what JSON says they are: Any all the way down.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import hmac
import json
from pickle import dumps, loads
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.sources.mysql.columns import ColumnRules, ColumnScope
from penstock.spark.transform.casts import CastError, cast_value
from penstock.spark.transform.config import ExpectConfig, TransformConfig
from penstock.spark.transform.paths import RefusedError
from penstock.spark.transform.steps import (
    MASKED,
    Changed,
    apply_step,
    step_of,
)
from penstock.updates import InexactError, apply_update

Document = dict[str, Any]
SECRET = "s3cret"
SALT = "0123456789abcdef"
NAMES = st.sampled_from(["a", "b", "c", "1"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.integers(1 << 40, 1 << 41)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        [
            SECRET,
            "",
            {"$numberLong": "5"},
            {"$date": "2026-01-01T00:00:00.000Z"},
            {"$oid": "0" * 24},
        ]
    )
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=3)
PATHS = st.sampled_from(["a", "b", "a.b", "a.b.c", "b.a", "c.a"])


def places(value: Any, at: str = "") -> list[str]:
    """Every path in a document at which an update can set or remove something."""
    found: list[str] = []
    items: Any = []
    if isinstance(value, dict) and not next(iter(value), "").startswith("$"):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for name, inner in items:
        path = f"{at}.{name}" if at else str(name)
        found += [path, *places(inner, path)]
    return found


@st.composite
def updates(draw: st.DrawFn, document: Document) -> Document:
    """An update of one or two places of `document`."""
    paths = places(document)
    chosen = draw(st.lists(st.sampled_from(paths), max_size=2, unique=True)) if paths else []
    fields = {path: draw(VALUES) for path in chosen}
    fields |= draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=1))
    return {"updatedFields": fields, "removedFields": draw(st.lists(st.sampled_from("abc")))}


def named(kind: str, **more: Any) -> st.SearchStrategy[TransformConfig]:
    """A step of that kind at some paths."""

    def made(paths: set[str]) -> TransformConfig:
        return configured(**{kind: tuple(sorted(paths))}, **more)

    return st.sets(st.sampled_from(["a", "b", "c"]) if kind == "select" else PATHS, min_size=1).map(
        made
    )


def configured(**settings: Any) -> TransformConfig:
    return TransformConfig.model_validate(settings)


STEPS = (
    named("select")
    | named("drop")
    | named("mask")
    | named("hash", salt=SALT)
    | st.sampled_from(
        [
            configured(rename={"a": "x"}),
            configured(rename={"a": "b"}),
            configured(rename={"a": "b", "b": "a"}),
            configured(flatten=True),
            configured(flatten=("a",)),
            configured(cast={"a": "string"}),
            configured(cast={"a.b": "long"}),
        ]
    )
)


@given(st.data(), DOCUMENTS, STEPS)
def test_a_step_of_an_update_comes_to_what_it_makes_of_the_documents(
    data: st.DataObject, before: Document, config: TransformConfig
) -> None:
    """Updates that say only what changed are applied to rows that went through the step."""
    step, update = step_of(config), data.draw(updates(before))
    try:
        # The reference: the source's own document, through the step.
        expected = step.document(apply_update(before, update, {}))
        row = step.document(before)
        said = step.update(update)
        found = apply_update(row, said, {})
    except (InexactError, RefusedError):
        return  # the row is stale, and says so
    assert found == expected


@given(DOCUMENTS, STEPS)
def test_a_step_leaves_alone_what_it_does_not_name(
    document: Document, config: TransformConfig
) -> None:
    """To the byte: an int stays an int, and a long a long."""
    if config.kind in {"select", "flatten"}:
        return
    aside = {"z": document, "y": [document, 1.0, {"$numberLong": "1"}]}
    text = msgspec.json.encode(aside)
    assert msgspec.json.encode(step_of(config).document(msgspec.json.decode(text))) == text


@given(st.data(), PATHS, st.sampled_from(["mask", "hash", "drop"]))
def test_what_a_step_hides_is_nowhere(data: st.DataObject, path: str, kind: str) -> None:
    """Not in the document, the image before it or any update, whichever way the value comes."""
    more: Document = {"salt": SALT} if kind == "hash" else {}
    step = step_of(configured(**{kind: (path,)}, **more))
    clean = VALUES.filter(lambda value: SECRET not in json.dumps(value))
    document = data.draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), clean, max_size=3))
    *parents, last = path.split(".")
    at = document
    for name in parents:
        inner: Document = {}
        wrapped: Any = data.draw(st.sampled_from([inner, [inner], {"1": inner}]))
        # The first name is the document's own; below it numbers and arrays are passed through.
        at[name] = wrapped
        at = inner
    hidden: Any = data.draw(st.sampled_from([SECRET, [SECRET], {"deep": SECRET}, [{"1": SECRET}]]))
    at[last] = hidden
    named = [place for place in places(document) if SECRET in json.dumps(_at(document, place))]
    for place in named:
        changed = Changed(
            document=msgspec.json.decode(msgspec.json.encode(document)),
            before=msgspec.json.decode(msgspec.json.encode(document)),
            update={"updatedFields": {place: _at(document, place)}},
        )
        apply_step(step, changed)
        assert SECRET not in repr(changed)


def _at(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document


@pytest.mark.parametrize(
    "settings", [{"hash": ["a"], "salt": SALT}, {"cast": {"a": "int"}}, {"mask": ["a"]}]
)
def test_a_step_can_be_sent_to_a_worker(settings: Document) -> None:
    step = step_of(configured(**settings))
    assert loads(dumps(step)).document({"a": 1}) == step.document({"a": 1})


def test_an_update_that_cannot_be_followed_is_left_out_where_the_document_is_there() -> None:
    step = step_of(configured(hash=("a",), salt=SALT))
    update = {"updatedFields": {"a.b": SECRET}}
    changed = Changed(document={"a": {"b": SECRET}}, update=update)
    apply_step(step, changed)
    assert changed.update is None
    with pytest.raises(RefusedError, match=r"a\.b"):
        apply_step(step, Changed(update=update))


@pytest.mark.parametrize(
    ("step", "document"),
    [
        ({"drop": ("card.cvc",)}, {"card": {"cvc": 1, "$oid": "zz"}}),
        ({"drop": ("card.cvc",)}, {"a": {}, "card": [{"cvc": 1, "$date": "x"}]}),
        ({"drop": ("cvc",)}, {"cvc": 1, "$oid": "zz"}),
        ({"select": ("$oid", "b")}, {"cvc": 1, "$oid": "zz", "b": 1}),
        ({"rename": {"cvc": "$oid"}}, {"cvc": "zz"}),
    ],
)
def test_no_step_makes_an_object_a_value_of_another_type(
    step: Document, document: Document
) -> None:
    """What is written as an object with `$oid` first is no object to whoever reads it."""
    made = step_of(configured(**step))
    with pytest.raises(RefusedError, match=r"begin with a field \$(oid|date)"):
        apply_step(made, Changed(document=document))
    update = {"updatedFields": dict(document)}
    if "card" in document:
        with pytest.raises(RefusedError, match=r"begin with a field \$(oid|date)"):
            apply_step(made, Changed(update=update))
    changed = Changed(document={"_id": 1, "b": 2}, before=document)
    apply_step(made, changed)
    assert changed.before is None


def test_fields_that_were_not_sent_again_go_by_their_new_names() -> None:
    changed = Changed(document={"_id": 1}, unchanged=["a", "b", "c"])
    for config in (
        configured(rename={"a": "x"}),
        configured(drop=("b",)),
        configured(mask=("c",)),
    ):
        apply_step(step_of(config), changed)
    assert changed.unchanged == ["x", "c"]
    with pytest.raises(RefusedError):
        apply_step(step_of(configured(flatten=True)), changed)


def test_masked_values_keep_only_whether_there_was_one() -> None:
    step = step_of(configured(mask=("card.no",)))
    document = {"card": [{"no": 4111, "n": 1.0}, {"no": None}], "no": 1}
    assert step.document(document) == {
        "card": [{"no": MASKED, "n": 1.0}, {"no": None}],
        "no": 1,
    }


def test_hashes_are_equal_where_values_are_and_need_the_salt() -> None:
    def hashed(value: Any, salt: str = SALT) -> Any:
        step = step_of(configured(hash=("a",), salt=salt))
        return step.document({"a": value})["a"]

    assert hashed("x") == hashed("x") != hashed("y")
    assert hashed("x") != hashed("x", SALT[::-1])
    assert hashed(None) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ann@example.com", "ann@example.com"),
        ('"ä', '"ä'),
        (5, "5"),
        ({"$numberLong": "5"}, "5"),
        (-(1 << 40), "-1099511627776"),
        ((1 << 64) - 1, "18446744073709551615"),
        (5.0, "5.0"),
        (True, "true"),
        ({"$numberDecimal": "5"}, '{"$numberDecimal":"5"}'),
        ({"$numberLong": "5", "b": 1}, '{"$numberLong":"5","b":1}'),
        ([1, "a"], '[1,"a"]'),
    ],
)
def test_others_who_have_the_salt_find_the_same_hash(value: Any, text: str) -> None:
    """Of a text as capture hashes it, and of a whole number whatever its width."""
    step = step_of(configured(hash=("a",), salt=SALT))
    found = step.document({"a": value})["a"]
    assert found == hmac.digest(SALT.encode(), text.encode(), "sha256").hex()
    if isinstance(value, str):
        rules = ColumnRules(ColumnScope(hash=("*.*.a",)), salt=SALT).of(("d", "t"), ("a",), ())
        assert rules is not None
        assert rules.apply({"a": value}) == {"a": found}


@pytest.mark.parametrize(
    ("value", "to", "expected"),
    [
        (5, "string", "5"),
        ({"$numberLong": "5"}, "string", "5"),
        ({"$oid": "ab"}, "string", "ab"),
        ("12", "int", 12),
        ("12", "long", {"$numberLong": "12"}),
        (3.0, "int", 3),
        (1 << 40, "long", 1 << 40),
        ({"$numberDecimal": "7.0"}, "int", 7),
        ("1.5", "double", 1.5),
        ({"$numberDecimal": "0.5"}, "double", 0.5),
        ("1.10", "decimal", {"$numberDecimal": "1.10"}),
        (0.1, "decimal", {"$numberDecimal": "0.1"}),
        ("true", "boolean", True),
        ("2026-01-01T01:00:00+01:00", "timestamp", {"$date": "2026-01-01T00:00:00.000Z"}),
        ("2026-01-01 00:00:00.5-05:30", "timestamp", {"$date": "2026-01-01T05:30:00.500Z"}),
        ("20260101T000000,123456000Z", "timestamp", {"$date": "2026-01-01T00:00:00.123456Z"}),
        ("2026-W01-4T00Z", "timestamp", {"$date": "2026-01-01T00:00:00.000Z"}),
        (None, "int", None),
    ],
)
def test_casts_are_exact(value: Any, to: str, expected: Any) -> None:
    found = cast_value(value, to)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "to"),
    [
        (12.5, "int"),
        (-0.0, "int"),
        (1 << 31, "int"),
        ((1 << 53) + 1, "double"),
        ("1e400", "double"),
        ({"$numberDecimal": "0.1"}, "double"),
        ({"$numberDecimal": "9E+6000"}, "long"),
        ({"$numberDouble": "NaN"}, "decimal"),
        ("12x", "int"),
        (SECRET, "timestamp"),
        ("2026-01-01T00:00:00", "timestamp"),
        ("2026-01-01T00:00:00.123456789Z", "timestamp"),
        ("2026-01-01T00:00:00,1234560001+01:00", "timestamp"),
        ("2026-01-01T00:00:00.123456x+00:00", "timestamp"),
        ("2026-01-01T00:00:00+00:00:00.5", "timestamp"),
        ("0001-01-01T00:00:00.000001+01:00", "timestamp"),
        ("9999-12-31T23:59:59.999999-01:00", "timestamp"),
        (1, "boolean"),
        ([1], "string"),
        ({"a": 1}, "string"),
        (True, "int"),
    ],
)
def test_what_a_cast_would_change_is_refused_and_not_quoted(value: Any, to: str) -> None:
    with pytest.raises(CastError) as refused:
        cast_value(value, to)
    assert SECRET not in str(refused.value)


@given(
    LEAVES, st.sampled_from(["string", "int", "long", "double", "decimal", "boolean", "timestamp"])
)
def test_a_cast_value_stays_itself_when_it_is_cast_again(value: Any, to: str) -> None:
    try:
        once = cast_value(value, to)
    except CastError:
        return
    assert cast_value(once, to) == once


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"drop": ["a"], "mask": ["b"]},
        {"filter": "n > 0"},
        {"drop": ["a"], "document_schema": "a INT"},
        {"hash": ["a"]},
        {"hash": ["a"], "salt": "short"},
        {"mask": ["a"], "salt": SALT},
        {"sql": "DELETE FROM documents", "document_schema": "a INT"},
        {"sql": "SELECT DISTINCT a FROM documents", "document_schema": "a INT"},
        {"function": "nothing", "document_schema": "a INT"},
        {"rename": {"a": "x", "b": "x"}},
        {"mask": ["a.0.b"]},
        {"select": ["a.b"]},
        {"rename": {"a.b": "c"}},
        {"rename": {"a": "b.c"}},
        {"flatten": ["a.b"]},
        {"drop": [""]},
        {"cast": {"a": "uuid"}},
    ],
)
def test_a_step_that_means_nothing_is_refused(settings: Document) -> None:
    with pytest.raises(ValidationError):
        TransformConfig.model_validate(settings)


def test_expectations_have_the_words_of_spark_too() -> None:
    words = {"expect": "warn", "expect_or_drop": "drop", "expect_or_fail": "stop", "warn": "warn"}
    for word, own in words.items():
        one = {"name": "x", "condition": "a > 0", "document_schema": "a INT", "action": word}
        assert ExpectConfig.model_validate(one).action == own
