"""Paths into a document."""

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.errors import InvalidConditionError
from penstock.store.paths import (
    ABSENT,
    INDEX_MAX,
    Path,
    format_path,
    parse_path,
    read,
    refuse_overlaps,
    rewrite,
)
from penstock.store.values import Item, Value, encode_item
from tests.store.anything import paths, paths_of_names, small_items, small_values, texts

written_names = texts.filter(lambda name: name and not set(name) & set(".[]"))
written_paths = paths_of_names(written_names, INDEX_MAX)


@given(written_paths)
def test_a_path_is_read_as_it_was_written(path: Path) -> None:
    assert parse_path(format_path(path)) == path


@given(st.text("ab.[]019 ", max_size=8))
def test_a_text_is_a_path_or_refused(text: str) -> None:
    try:
        path = parse_path(text)
    except InvalidConditionError:
        return
    assert parse_path(format_path(path)) == path


def test_a_path_has_names_and_indexes() -> None:
    assert parse_path("a.b[3].c") == ("a", "b", 3, "c")
    assert parse_path("a[0][1]") == ("a", 0, 1)
    assert parse_path("a b.é") == ("a b", "é")


def test_a_name_with_a_dot_is_given_as_an_element() -> None:
    assert parse_path(("the.name", 0)) == ("the.name", 0)
    assert read({"the.name": [5]}, parse_path(("the.name", 0))) == 5


@pytest.mark.parametrize(
    "path",
    [
        *["", ".a", "a.", "a..b", "[0]", "a[b]", "a[-1]", "a[1", "a]", "a[0]b", "a.[0]", (), (0,)],
        *[("a", ""), ("a", -1), ("a", True), ("a", 1.0), "a[2147483648]", f"a[{'9' * 5000}]"],
        "a" + ".a" * 32,
    ],
)
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidConditionError):
        parse_path(path)


def test_nothing_there_is_not_null() -> None:
    item: Item = {"a": None, "b": [None], "m": {"x": None}}
    for path in ("a", "b[0]", "m.x"):
        assert read(item, parse_path(path)) is None
    for path in ("z", "b[1]", "m.z", "a.x", "a[0]", "b.x", "m[0]"):
        assert read(item, parse_path(path)) is ABSENT


@given(small_items, paths, small_values)
def test_what_was_put_is_read_and_the_item_is_as_it_was(
    item: Item, path: Path, value: Value
) -> None:
    before = encode_item(item)
    was = read(item, path)
    try:
        after = rewrite(item, [(path, value)])
    except KeyError:
        assert was is ABSENT
        assert len(path) > 1
        return
    assert encode_item(item) == before
    if was is ABSENT and isinstance(path[-1], int):
        appended = read(after, path[:-1])
        assert isinstance(appended, list)
        assert appended[-1] == value
    else:
        assert read(after, path) == value
    if was is ABSENT and not isinstance(path[-1], int):
        assert encode_item(rewrite(after, [(path, ABSENT)])) == before


def test_indexes_are_those_of_the_item_as_it_was() -> None:
    item: Item = {"l": [0, 1, 2, 3, {"x": 4}]}
    changes: list[tuple[Path, Value]] = [(("l", 9), "z"), (("l", 4, "x"), 5), (("l", 7), "y")]
    removed = [(("l", 0), ABSENT), (("l", 2), ABSENT), (("l", 30), ABSENT)]
    assert rewrite(item, [*changes, *removed]) == {"l": [1, 3, {"x": 5}, "y", "z"]}


@given(st.lists(paths, max_size=5))
def test_paths_overlap_if_one_leads_into_another_or_takes_a_map_for_a_list(
    several: list[Path],
) -> None:
    def clash(one: Path, other: Path) -> bool:
        for mine, theirs in zip(one, other, strict=False):
            if type(mine) is not type(theirs):
                return True
            if mine != theirs:
                return False
        return True

    pairs = [(one, other) for at, one in enumerate(several) for other in several[:at]]
    if any(clash(one, other) for one, other in pairs):
        with pytest.raises(InvalidConditionError, match="Two document paths"):
            refuse_overlaps(several)
    else:
        refuse_overlaps(several)


def steps(several: list[Path]) -> int:
    """How many instructions it takes to see that paths do not overlap; those of whoever the garbage
    collector ends meanwhile are not counted."""
    taken = 0

    def step(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal taken
        if frame.f_code.co_filename != refuse_overlaps.__code__.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        taken += event == "opcode"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        refuse_overlaps(several)
    finally:
        sys.settrace(before)
    return taken


@pytest.mark.parametrize("within", [(), ("m",), ("m", 0)])
def test_twice_as_many_paths_are_no_more_than_twice_the_work(within: Path) -> None:
    few, many = ([(*within, f"n{at}") for at in range(count)] for count in (100, 200))
    assert steps(many) < 2.1 * steps(few)
