"""What an update says of a document, where its paths can be read in several ways."""

# Documents may hold anything, and isinstance says no more than "a dict".
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.updates import InexactError, apply_update

NAMES = st.sampled_from(["a", "b", "a.b", "b.a", "0", "1", "", "$x.y"])
VALUES = st.recursive(
    st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def places(at: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The steps to all that is in a document, and to what could be."""
    found: list[tuple[Any, ...]] = []
    inner = list(at.items() if isinstance(at, dict) else enumerate(at))
    for step, value in inner:
        found.append((*before, step))
        if isinstance(value, dict | list) and not _is_wrapper(value):
            found += places(value, (*before, step))
    new = "new.one" if isinstance(at, dict) else len(at)
    return [*found, (*before, new)]


def _is_wrapper(value: Any) -> bool:
    return isinstance(value, dict) and next(iter(value), "").startswith("$")


@given(
    document=st.dictionaries(NAMES.filter(lambda name: name != "$x.y"), VALUES, max_size=4),
    data=st.data(),
)
def test_stated_steps_lead_to_one_place_whatever_names_hold(
    document: dict[str, Any], data: st.DataObject
) -> None:
    """As MongoDB states them: a text is a name, dots and digits in it or not; a number a place."""
    steps = data.draw(st.sampled_from(places(document)))
    path = ".".join(map(str, steps))
    expected = deepcopy(document)
    at: Any = expected
    for step in steps[:-1]:
        at = at[step]
    update: dict[str, Any] = {"updatedFields": {path: "new"}}
    if isinstance(at, dict) and data.draw(st.booleans()):
        at.pop(steps[-1], None)
        update = {"removedFields": [path]}
    elif isinstance(at, list) and steps[-1] == len(at):
        at.append("new")
    else:
        at[steps[-1]] = "new"
    before = deepcopy(document)
    assert apply_update(document, update, {path: list(steps)}) == expected
    assert document == before


def test_an_array_whose_field_has_a_dot_is_cut() -> None:
    cut = {"truncatedArrays": [{"field": "a.b", "newSize": 1}]}
    document = {"a": {"b": [1, 2]}, "a.b": [3, 4]}
    assert apply_update(document, cut, {"a.b": ["a.b"]}) == {"a": {"b": [1, 2]}, "a.b": [3]}
    assert apply_update({"a": {"b": [1, 2]}}, cut, {}) == {"a": {"b": [1]}}


@pytest.mark.parametrize(
    ("document", "path", "steps"),
    [
        ({"a": [1]}, "a.0", ["a", "0"]),
        ({"a": {"0": 1}}, "a.0", ["a", 0]),
        ({"a": {"c": 1}}, "a.b.c", ["a.b", "c"]),
        # Of a flattened document: its field is spelled otherwise than its steps.
        ({"a\\.b": 1}, "a\\.b", ["a.b"]),
    ],
)
def test_a_document_that_is_not_as_the_steps_say_is_left(
    document: dict[str, Any], path: str, steps: list[Any]
) -> None:
    with pytest.raises(InexactError):
        apply_update(document, {"updatedFields": {path: 2}}, {path: steps})


@pytest.mark.parametrize(
    "update",
    [
        {"updatedFields": {"a.b": 2}},
        {"removedFields": ["a.b"]},
        {"truncatedArrays": [{"field": "a.b", "newSize": 0}]},
    ],
)
def test_a_path_that_the_source_does_not_state_may_be_a_name_with_a_dot(
    update: dict[str, Any],
) -> None:
    """Also of a document without such a field: the update may have added it."""
    document = {"a": {"b": [1]}}
    assert apply_update(document, update, {}) != document
    with pytest.raises(InexactError, match="may be the name of a field"):
        apply_update(document, update, None)
    assert apply_update(document, {"updatedFields": {"a": 2}}, None) == {"a": 2}
    # A flattened row has what was at `a` under such names.
    for whole in ({"updatedFields": {"a": 2}}, {"removedFields": ["a"]}):
        with pytest.raises(InexactError, match="may be of what was at a"):
            apply_update({"a.b": 1}, whole, None)


@pytest.mark.parametrize(
    "update",
    [
        {"updatedFields": {"a.$oid": "0" * 24}},
        {"updatedFields": {"b.$numberLong": 1}},
        {"removedFields": ["c.x"]},
    ],
)
def test_an_object_that_would_read_as_a_value_of_another_type_is_refused(
    update: dict[str, Any],
) -> None:
    document: dict[str, Any] = {"a": {}, "b": {}, "c": {"x": 1, "$date": 2}}
    with pytest.raises(InexactError, match="another type"):
        apply_update(document, update, {})


def test_a_name_with_a_dollar_is_a_name() -> None:
    document: dict[str, Any] = {"a": {"$x": {"y": 1}}, "$b": 1}
    update = {"updatedFields": {"a.$x.y": 2, "a.$z": 3, "$b": 4, "": 5, "a.": 6}}
    expected = {"a": {"$x": {"y": 2}, "$z": 3, "": 6}, "$b": 4, "": 5}
    assert apply_update(document, update, {}) == expected
