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
    assert apply_update({"a": {"b": [1, 2]}}, cut) == {"a": {"b": [1]}}


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
