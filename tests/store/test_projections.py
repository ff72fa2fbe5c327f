"""Parts of an item."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.errors import InvalidConditionError
from penstock.store.paths import ABSENT, Path, read
from penstock.store.projections import project, projection
from penstock.store.values import Item, Value, encode_value
from tests.store.anything import paths, small_items

ITEM: Item = {
    "id": 1,
    "a": {"b": 2, "c": [{"d": 3, "e": 4}, 5, {"d": 6}]},
    "the.name": None,
}


def test_paths_are_projected_in_the_shape_of_the_item() -> None:
    assert project(ITEM, projection("a.b", ("the.name",))) == {"a": {"b": 2}, "the.name": None}


def test_elements_of_a_list_stand_behind_one_another_in_its_order() -> None:
    assert project(ITEM, projection("a.c[2].d", "a.c[0].e", "a.c[9]")) == {
        "a": {"c": [{"e": 4}, {"d": 6}]}
    }


def test_nothing_found_leaves_nothing() -> None:
    assert project(ITEM, projection("z", "id.x", "a.c[1].d", "a.b[0]")) == {}


def test_keys_are_kept_where_asked() -> None:
    assert project(ITEM, projection("a.b"), ["id"]) == {"id": 1, "a": {"b": 2}}
    assert project(ITEM, (), ["id", "sort"]) == {"id": 1}
    assert project(ITEM, ()) == {}


def test_paths_that_overlap_are_refused() -> None:
    with pytest.raises(InvalidConditionError, match=r"path one: \[a\], path two: \[a, b\]"):
        projection("a", "a.b")


@given(small_items, st.lists(paths, max_size=4))
def test_it_is_what_each_path_alone_would_give_put_together(
    item: Item, several: list[Path]
) -> None:
    try:
        wanted = projection(*several)
    except InvalidConditionError:
        return
    assert encode_value(project(item, wanted)) == encode_value(model(item, wanted))


def model(item: Item, wanted: tuple[Path, ...]) -> Item:
    """Which prefixes of paths lead to something, and what of the item stands at them."""
    found = [path for path in wanted if read(item, path) is not ABSENT]

    def part(value: Value, prefix: Path) -> Value:
        if prefix in found:
            return value
        inside = {path[len(prefix)] for path in found if path[: len(prefix)] == prefix}
        if isinstance(value, list):
            return [
                part(element, (*prefix, index))
                for index, element in enumerate(value)
                if index in inside
            ]
        assert isinstance(value, dict)
        return {
            name: part(element, (*prefix, name))
            for name, element in value.items()
            if name in inside
        }

    parted = part(item, ())
    assert isinstance(parted, dict)
    return parted
