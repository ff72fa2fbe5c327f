"""What fields are announced as, and what fits. Properties, without a server."""

import math
import re
from datetime import UTC
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.extjson import encode
from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.graphql.names import distinct, pascal, said
from penstock.serve.captures.graphql.shapes import OWN, SCALARS, Fitter, Sample, shape_of
from penstock.subscribe.scope import EVERYTHING, Grant, Scope, Verb
from penstock.wire import Stream

NAME = re.compile(r"(?!__)[_A-Za-z][_0-9A-Za-z]*")

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-10, 10),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.decimals(allow_nan=False, allow_infinity=False, places=2),
    st.datetimes(timezones=st.just(UTC)),
    st.sampled_from(
        [
            {"$numberLong": "5"},
            {"$numberLong": "-9223372036854775808"},
            {"$numberDouble": "NaN"},
            {"$date": {"$numberLong": "-99999999999999"}},
            {"$binary": {"base64": "AA==", "subType": "04"}},
            {"$oid": "0" * 24},
        ]
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda inside: st.one_of(
        st.lists(inside, max_size=3), st.dictionaries(st.text("ab", max_size=2), inside, max_size=2)
    ),
    max_leaves=4,
)
NAMES = st.one_of(
    st.sampled_from(["_id", "__v", "a", "a b", "a-b", "rest", "misfits", "9"]), st.text(max_size=3)
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=6)
TYPES = st.one_of(st.sampled_from(SCALARS), st.sampled_from(SCALARS).map(lambda one: f"[{one}]"))


def encoded(document: dict[str, Any]) -> bytes:
    """The document as a log holds it; wrappers are written as they are."""

    def written(value: Any) -> bytes:
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            if any(name.startswith("$") for name in fields):
                return msgspec.json.encode(fields)
            pairs = (
                msgspec.json.encode(name) + b":" + written(one) for name, one in fields.items()
            )
            return b"{" + b",".join(pairs) + b"}"
        if isinstance(value, list):
            return b"[" + b",".join(map(written, cast("list[Any]", value))) + b"]"  # type: ignore[redundant-cast]
        return bytes(encode({"v": value}))[5:-1]

    return written(document)


@given(DOCUMENTS, st.dictionaries(NAMES, TYPES, max_size=6))
def test_no_value_is_lost_or_changed_whatever_was_announced(
    document: dict[str, Any], types: dict[str, str]
) -> None:
    """It is in its field, exactly, or in rest as it was; and a misfit is said."""
    raw = encoded(document)
    shape = shape_of("orders", types, configured=True)
    fitted = Fitter(shape).fit(raw)
    given_raw = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    announced = {one.name: one for one in shape.fields}
    assert fitted.misfits == [one for one in given_raw if one in announced and one in fitted.rest]
    for name, value in given_raw.items():
        if name in fitted.rest:
            assert bytes(fitted.rest[name]) == bytes(value)
            continue
        field = announced[name]
        sent = msgspec.json.decode(msgspec.json.encode(fitted.values[field.spelling]))
        assert same(sent, msgspec.json.decode(value), field.type), (sent, bytes(value))


def same(sent: Any, stored: Any, type_: str) -> bool:
    """Whether a value as it was sent tells exactly the one that is stored."""
    if sent is None or stored is None:
        return sent is None and stored is None
    if type_.startswith("["):
        pairs = zip(sent, stored, strict=True)
        return all(same(one, other, type_.strip("[]")) for one, other in pairs)
    match type_:
        case "JSON":
            return bool(sent == stored)
        case "Long" | "Int":
            whole = stored if isinstance(stored, int) else int(stored["$numberLong"])
            return int(sent) == whole and type(sent) is (str if type_ == "Long" else int)
        case "Float":
            number: float = (
                stored if isinstance(stored, int | float) else int(stored["$numberLong"])
            )
            return math.isfinite(sent) and float(sent) == number and int(sent) == int(number)
        case "Decimal":
            if isinstance(stored, int):
                return bool(sent == str(stored))
            return [sent] == list(cast("dict[str, str]", stored).values())
        case "Base64":
            return bool(stored == {"$binary": {"base64": sent, "subType": "00"}})
        case "DateTime":
            return bool(stored == {"$date": sent})
        case "ObjectId":
            return bool(stored == {"$oid": sent})
        case _:
            return bool(sent == stored and type(sent) is type(stored))


@pytest.mark.parametrize(
    ("type_", "value", "fits"),
    [
        ("Int", (1 << 31) - 1, True),
        ("Int", 1 << 31, False),
        ("Int", True, False),
        ("Int", 3.0, False),
        ("Long", (1 << 64) - 1, True),
        ("Float", 1 << 53, True),
        ("Float", (1 << 53) + 1, False),
        ("Float", {"$numberDouble": "Infinity"}, False),
        ("String", 5, False),
        ("Boolean", 0, False),
        ("DateTime", "2026-01-01", False),
        ("Base64", {"$binary": {"base64": "AA==", "subType": "04"}}, False),
        ("[Int]", [1, None], True),
        ("[Int]", [1, "a"], False),
        ("[Int]", 1, False),
    ],
)
def test_what_fits_is_exact_where_clients_read_it(type_: str, value: Any, fits: bool) -> None:
    """A number of JavaScript is not, beyond 2^53."""
    shape = shape_of("orders", {"a": type_}, configured=True)
    fitted = Fitter(shape).fit(encoded({"a": value}))
    assert (fitted.misfits == []) is fits


@given(st.lists(DOCUMENTS, max_size=5))
def test_what_a_shape_was_inferred_from_fits_it(documents: list[dict[str, Any]]) -> None:
    sample = Sample()
    raws = [encoded(one) for one in documents]
    for raw in raws:
        sample.add(raw)
    fitter = Fitter(shape_of("orders", sample.types(), configured=False))
    for raw in raws:
        fitted = fitter.fit(raw)
        assert (fitted.misfits, fitted.rest) == ([], {})


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, 2], "Int"),
        ([1, 1 << 40], "Long"),
        ([{"$numberLong": "5"}], "Long"),
        ([1, 1.5], "Float"),
        ([None, "a"], "String"),
        ([1, "a"], "JSON"),
        ([[1], [1 << 40], []], "[Long]"),
        ([[1], 1], "JSON"),
        ([None], "JSON"),
        ([{"a": 1}], "JSON"),
        ([1 << 40, 1.5], "JSON"),
        ([[[1]]], "JSON"),
    ],
)
def test_the_narrowest_type_is_announced(values: list[Any], type_: str) -> None:
    sample = Sample()
    for value in values:
        sample.add(encoded({"a": value}))
    assert sample.types() == {"a": type_}


@given(st.lists(st.text(max_size=4), unique=True))
def test_every_name_can_be_said_and_none_twice(names: list[str]) -> None:
    spelt = distinct(((one, said(one)) for one in names), taken=OWN)
    assert sorted(spelt) == sorted(names)
    assert len({*spelt.values()} | {*OWN}) == len(names) + len(OWN)
    assert all(NAME.fullmatch(one) for one in spelt.values())
    assert all(NAME.fullmatch(pascal(one)) for one in names)
    assert distinct(((one, said(one)) for one in reversed(names)), taken=OWN) == spelt


def test_names_that_can_be_said_are_kept_and_others_get_a_number() -> None:
    names = ["a b", "a-b", "a_b", "__v", "9", "rest", ""]
    assert distinct(((one, said(one)) for one in names), taken=OWN) == {
        "a_b": "a_b",
        "a b": "a_b_2",
        "a-b": "a_b_3",
        "__v": "_v",
        "9": "_9",
        "rest": "rest_2",
        "": "_",
    }
    assert [pascal(one) for one in ("order_items", "orders", "9.a", "")] == [
        *("OrderItems", "Orders", "_9A", "_"),
    ]


def test_a_type_that_there_is_not_is_refused_by_its_place() -> None:
    for wrong in ("int", "Int!", "[[Int]]", "[Int", ""):
        with pytest.raises(ValueError, match=r"orders\.total is"):
            CapturesConfig.model_validate({"types": {"orders": {"total": wrong}}})


def test_a_shape_tells_nobody_what_they_may_not_see() -> None:
    orders = Stream("shop", "db", "db", "orders")
    types = {"total": "Int", "secret": "String"}
    shape = shape_of("orders", types, configured=False, streams=[orders])

    def of(*grants: Grant) -> list[str] | None:
        seen = shape.seen_by(Scope(grants))
        return None if seen is None else [one.name for one in seen.fields]

    assert shape.seen_by(EVERYTHING) == shape
    assert of(Grant()) == ["secret", "total"]
    assert of(Grant(hidden=frozenset({"secret"}))) == ["total"]
    assert of(Grant(collections=frozenset({"lines"}))) is None
    assert of(Grant(verbs=frozenset({Verb.SCHEMA}))) is None
    both = [orders, Stream("shop", "db2", "db2", "orders")]
    one_tenant = Scope((Grant(tenants=frozenset({"db"})),))
    assert shape_of("orders", types, configured=False, streams=both).seen_by(one_tenant) is None
    assert shape_of("orders", types, configured=True, streams=both).seen_by(one_tenant) is not None
    unseen = shape_of("orders", types, configured=True)
    assert unseen.seen_by(Scope((Grant(),))) is None
