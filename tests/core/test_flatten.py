"""Flattened documents come back exactly (P32)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.extjson import AmbiguousDocumentError
from penstock.flatten import flatten, names, respelled, spelled, unflatten

NAMES = st.one_of(
    st.text("ab.\\$", max_size=4),
    st.sampled_from(["", ".", "..", "\\", "\\.", "a.b", "a", "b", "0", "$set", "_id"]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=5)


@given(DOCUMENTS)
def test_a_document_comes_back_with_its_order_from_its_flattened_form(
    document: dict[str, Any],
) -> None:
    """P32: arrays, dots in keys, dollar keys, empty documents and nulls."""
    flat = flatten(document)
    # Compared as text, because dicts are equal whatever their order.
    assert json.dumps(unflatten(flat)) == json.dumps(document)
    assert all(value == {} for value in flat.values() if type(value) is dict)


@given(DOCUMENTS, DOCUMENTS)
def test_two_documents_never_have_one_flattened_form(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert (json.dumps(flatten(one)) == json.dumps(flatten(other))) == (
        json.dumps(one) == json.dumps(other)
    )


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_a_path_comes_back_from_its_key(path: list[str]) -> None:
    assert names(spelled(path)) == path


@pytest.mark.parametrize(
    ("document", "flat"),
    [
        ({"a": {"b": 1, "c": {"d": 2}}}, {"a.b": 1, "a.c.d": 2}),
        ({"a.b": 1, "a": {"b": 2}}, {"a\\.b": 1, "a.b": 2}),
        ({"a\\": {"b": 1}}, {"a\\\\.b": 1}),
        ({"a": {}}, {"a": {}}),
        ({"a": [{"b": {"c": 1}}]}, {"a": [{"b": {"c": 1}}]}),
        ({"a": {"b": None, "": 1}}, {"a.b": None, "a.": 1}),
        ({"a": {"$set": 1}}, {"a.$set": 1}),
        ({}, {}),
    ],
)
def test_each_shape_has_its_own_flattened_form(
    document: dict[str, Any], flat: dict[str, Any]
) -> None:
    assert flatten(document) == flat
    assert unflatten(flat) == document


@pytest.mark.parametrize(
    "flat", [{"a": 1, "a.b": 2}, {"a.b": 2, "a": 1}, {"a": {}, "a.b": 1}, {"a\\b": 1}, {"a\\": 1}]
)
def test_what_no_document_flattens_to_is_refused(flat: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a flattened"):
        unflatten(flat)


def test_a_plain_document_that_mimics_a_wrapper_is_refused() -> None:
    """Unflattened, {"a.$oid": "x"} would be an ObjectId, which it never was."""
    with pytest.raises(AmbiguousDocumentError, match=r"\$oid"):
        flatten({"a": {"$oid": "x"}})


def test_the_paths_of_an_update_are_spelled_as_the_keys_are() -> None:
    update = {
        "updatedFields": {"a.b": {"c": 1}, "x.y.0": 2, "p\\q": 3},
        "removedFields": ["x.y"],
        "truncatedArrays": [{"field": "x.y", "newSize": 1}],
    }
    assert respelled(update, {"x.y.0": ["x.y", 0], "x.y": ["x.y"]}) == {
        "updatedFields": {"a.b": {"c": 1}, "x\\.y.0": 2, "p\\\\q": 3},
        "removedFields": ["x\\.y"],
        "truncatedArrays": [{"field": "x\\.y", "newSize": 1}],
    }
