"""Updates of an item."""

import copy
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.store.attributevalue import encode_attribute
from penstock.store.conditions import Attr, Literal, attr
from penstock.store.errors import (
    InvalidConditionError,
    KeyAttributeUpdateError,
    NumberRefusedError,
    UpdateTypeMismatchError,
    dynamodb_text,
)
from penstock.store.paths import ABSENT, Path, read
from penstock.store.updates import (
    MISSING,
    WRONG_PATH,
    WRONG_TYPE,
    WRONG_TYPE_LEGACY,
    Action,
    AddAction,
    DeleteAction,
    IfNotExists,
    ListAppend,
    Minus,
    Plus,
    RemoveAction,
    SetAction,
    SetValue,
    Update,
    apply,
    if_not_exists,
    list_append,
    minus,
    plus,
)
from penstock.store.values import Item, Number, Value, encode_item
from tests.store.anything import exact_numbers, literals, paths, small_items
from tests.store.support import name_of

ONE: set[Number] = {1}
TWO: set[Number] = {1, 2}
ITEM: Item = {
    "id": "k",
    "n": 5,
    "half": Decimal("0.5"),
    "s": "text",
    "tags": {"x", "y"},
    "l": [1, 2, 3],
    "m": {"k": {"deep": 1}},
    "gone": None,
}


def changed(update: Update) -> Item:
    """What an update makes different."""
    after = apply(update, ITEM)
    return {
        name: after.get(name, "REMOVED")
        for name in {*ITEM, *after}
        if encode_attribute(ITEM.get(name, [])) != encode_attribute(after.get(name, []))
    }


@pytest.mark.parametrize(
    ("update", "after"),
    [
        (Update().set("a", 1), {"a": 1}),
        (Update().set("m.k.new", [1]), {"m": {"k": {"deep": 1, "new": [1]}}}),
        (Update().set(("a.b",), 1), {"a.b": 1}),
        (Update().set("l[0]", "z"), {"l": ["z", 2, 3]}),
        (Update().set("l[7]", 7).set("l[5]", 5), {"l": [1, 2, 3, 5, 7]}),
        (Update().set("c", attr("m.k.deep")), {"c": 1}),
        (Update().set("n", attr("s")).set("s", attr("n")), {"n": "text", "s": 5}),
        (Update().set("n", plus(attr("n"), attr("half"))), {"n": Decimal("5.5")}),
        (Update().set("n", minus(attr("n"), 5)), {"n": 0}),
        (Update().set("n", minus(attr("half"), Decimal("0.5"))), {"n": 0}),
        (Update().set("z", plus(if_not_exists("z", 0), 1)), {"z": 1}),
        (Update().set("n", plus(if_not_exists("n", 0), 1)), {"n": 6}),
        (Update().set("gone", if_not_exists("gone", 1)), {}),
        (Update().set("l", list_append(attr("l"), [4])), {"l": [1, 2, 3, 4]}),
        (Update().set("l", list_append([0], attr("l"))), {"l": [0, 1, 2, 3]}),
        (Update().remove("n", "z"), {"n": "REMOVED"}),
        (Update().remove("m.k.deep"), {"m": {"k": {}}}),
        (Update().remove("l[0]", "l[2]", "l[9]"), {"l": [2]}),
        (Update().add("n", Decimal("-0.5")), {"n": Decimal("4.5")}),
        (Update().add("z", 3), {"z": 3}),
        (Update().add("n", 0), {}),
        (Update().add("m.k.deep", 1), {"m": {"k": {"deep": 2}}}),
        (Update().add("tags", {"y", "z"}), {"tags": {"x", "y", "z"}}),
        (Update().add("new", TWO), {"new": {1, 2}}),
        (Update().delete("tags", {"x", "q"}), {"tags": {"y"}}),
        (Update().delete("tags", {"x", "y"}), {"tags": "REMOVED"}),
        (Update().delete("z", {"x"}), {}),
        (Update().set("l[1]", "b").remove("l[0]"), {"l": ["b", 3]}),
        (Update(), {}),
    ],
    ids=name_of,
)
def test_an_update_changes_what_it_says(update: Update, after: Item) -> None:
    assert changed(update) == after


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (Update().set("a.b", 1), WRONG_PATH),
        (Update().set("s.b", 1), WRONG_PATH),
        (Update().set("l.b", 1), WRONG_PATH),
        (Update().set("m[0]", 1), WRONG_PATH),
        (Update().set("l[9][0]", 1), WRONG_PATH),
        (Update().remove("a.b"), WRONG_PATH),
        (Update().add("a.b", 1), WRONG_PATH),
        (Update().delete("s[0]", {"x"}), WRONG_PATH),
        (Update().set("a", attr("z")), MISSING),
        (Update().set("a", plus(attr("z"), 1)), MISSING),
        (Update().set("a", list_append(attr("z"), [1])), MISSING),
        (Update().set("a", plus(attr("s"), 1)), WRONG_TYPE),
        (Update().set("a", minus(1, attr("l"))), WRONG_TYPE),
        (Update().set("a", list_append(attr("s"), [1])), WRONG_TYPE),
        (Update().set("a", plus(if_not_exists("s", 0), 1)), WRONG_TYPE),
        (Update().add("s", 1), WRONG_TYPE),
        (Update().add("n", ONE), WRONG_TYPE),
        (Update().add("tags", ONE), WRONG_TYPE),
        (Update().add("gone", 1), WRONG_TYPE),
        (Update().delete("tags", ONE), WRONG_TYPE),
        (Update().delete("n", ONE), WRONG_TYPE),
        # A wrong type is told before what is missing, and a parent of a wrong kind before both.
        (Update().set("a", attr("z")).add("s", 1), WRONG_TYPE),
        (Update().set("a", attr("z")).set("q.r", 1), WRONG_PATH),
        (Update().add("s", 1).set("q.r", 1), WRONG_TYPE),
        (Update().add("s", 1).set("s2", 1).remove("n.r"), WRONG_PATH),
        (Update(legacy=True).add("s", 1), WRONG_TYPE_LEGACY),
    ],
    ids=name_of,
)
def test_what_does_not_fit_the_item_is_refused_in_dynamodbs_words(
    update: Update, said: str
) -> None:
    with pytest.raises(UpdateTypeMismatchError) as refused:
        apply(update, ITEM)
    assert dynamodb_text(refused.value) == said
    assert "Nothing was changed." in str(refused.value)
    assert refused.value.facts() == {"path": refused.value.path}


@pytest.mark.parametrize(
    "update",
    [
        Update().set("id", "k"),
        Update().remove("id"),
        Update().add("id", 1),
        Update().set("id.x", 1),
    ],
    ids=name_of,
)
def test_a_key_attribute_never_changes(update: Update) -> None:
    with pytest.raises(KeyAttributeUpdateError) as refused:
        apply(update, ITEM, keys=("id",))
    assert dynamodb_text(refused.value) == (
        "One or more parameter values were invalid: Cannot update attribute id. "
        "This attribute is part of the key"
    )


def test_what_an_update_cannot_mean_is_refused() -> None:
    with pytest.raises(InvalidConditionError, match="overlap"):
        Update().set("a", 1).remove("a.b")
    with pytest.raises(InvalidConditionError, match="conflict"):
        Update().set("a[0]", 1).set("a.b", 1)
    with pytest.raises(InvalidConditionError, match="operator: ADD, operand type: STRING"):
        Update().add("a", "x")
    with pytest.raises(InvalidConditionError, match="operator: DELETE, operand type: NUMBER"):
        Update().delete("a", 1)


@pytest.mark.parametrize(
    ("update", "creates"),
    [
        (Update(), True),
        (Update().set("a", 1), True),
        (Update().add("a", 1), True),
        (Update().remove("a"), False),
        (Update().delete("a", ONE), False),
        (Update().remove("a").set("b", 1), True),
    ],
)
def test_what_only_takes_away_makes_no_item(update: Update, creates: bool) -> None:
    assert update.creates is creates


def test_an_update_says_what_it_changes_and_reads() -> None:
    update = Update().set("a", plus(if_not_exists("b.c", attr("d")), attr("e"))).remove("f")
    assert update.paths == (("a",), ("f",))
    assert list(update.reads()) == [("b", "c"), ("d",), ("e",)]


# --- exact numbers (F15) --------------------------------------------------------------------------


@given(exact_numbers, exact_numbers, st.booleans())
def test_a_sum_is_exact_or_refused_whatever_the_context(
    one: int | Decimal, other: int | Decimal, subtract: bool
) -> None:
    """F15."""
    item: Item = {"n": one}
    value = minus(attr("n"), other) if subtract else plus(attr("n"), other)
    exact = Fraction(one) - Fraction(other) if subtract else Fraction(one) + Fraction(other)
    with localcontext() as context:
        context.prec = 3
        try:
            after = apply(Update().set("n", value), item)["n"]
        except NumberRefusedError:
            assert not fits(exact)
            return
        assert isinstance(after, int | Decimal)
        assert Fraction(after) == exact
        assert fits(exact)
        if not subtract:
            assert apply(Update().add("n", other), item) == {"n": after}


def fits(number: Fraction) -> bool:
    """Whether a number has 38 digits or fewer, from a place that DynamoDB has."""
    scaled = abs(number * 10**200)
    assert scaled.denominator == 1
    text = str(scaled.numerator)
    return not number or (
        len(text.rstrip("0")) <= 38 and 10**70 <= scaled.numerator < 10 ** (200 + 126)
    )


def test_sums_keep_what_a_float_loses() -> None:
    """F15."""
    assert apply(Update().add("n", 1), {"n": 2**53}) == {"n": 2**53 + 1}
    assert apply(Update().add("n", Decimal("0.1")), {"n": Decimal("0.2")}) == {"n": Decimal("0.3")}


@pytest.mark.parametrize(
    ("number", "added", "said"),
    [
        (10**38 - 1, Decimal("0.1"), "Attempting to store more than 38 significant digits"),
        (10**37, Decimal("1E-130"), "Attempting to store more than 38 significant digits"),
        ((10**38 - 1) * 10**88, (10**38 - 1) * 10**88, "Number overflow"),
        (Decimal("1.1E-130"), Decimal("-1E-130"), "Number underflow"),
    ],
)
def test_a_sum_out_of_range_is_refused(
    number: int | Decimal, added: int | Decimal, said: str
) -> None:
    with pytest.raises(NumberRefusedError, match=said) as refused:
        apply(Update().add("n", added), {"n": number})
    assert dynamodb_text(refused.value).startswith(said)


# --- against a naive model ------------------------------------------------------------------------

set_values: st.SearchStrategy[SetValue] = st.recursive(
    st.one_of(literals, st.builds(Attr, paths)),
    lambda inner: st.one_of(
        st.builds(IfNotExists, paths, inner),
        st.builds(ListAppend, inner, inner),
        st.builds(Plus, inner, inner),
        st.builds(Minus, inner, inner),
    ),
    max_leaves=3,
)
sums = st.builds(Literal, st.integers(-2, 2))
some = st.builds(Literal, st.sets(st.integers(-2, 2), min_size=1)) | st.builds(
    Literal, st.sets(st.sampled_from(["", "a", "b"]), min_size=1)
)
actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(SetAction, paths, set_values),
    st.builds(RemoveAction, paths),
    st.builds(AddAction, paths, sums | some),
    st.builds(DeleteAction, paths, some),
)


@pytest.mark.slow
@given(small_items, st.lists(actions, min_size=1, max_size=4))
def test_apply_does_what_a_naive_model_does_in_place(item: Item, several: list[Action]) -> None:
    try:
        update = Update(tuple(several))
    except InvalidConditionError:
        assume(False)
    before = encode_item(item)
    expected = model(item, several)
    try:
        after: Item | None = apply(update, item)
    except UpdateTypeMismatchError:
        after = None
    assert encode_item(item) == before
    assert (after is None) == (expected is None)
    if after is not None and expected is not None:
        assert encode_item(after) == encode_item(expected)


class Misfit(Exception):  # noqa: N818
    """An action does not fit."""


def model(item: Item, several: list[Action]) -> Item | None:
    """Change a copy in place: what is there, then removals from behind, then what is appended."""
    result: Any = copy.deepcopy(item)
    removals, appends = list[tuple[Any, Any]](), list[tuple[int, Any, Any]]()
    parents = {action.path: place(result, action.path[:-1]) for action in several}
    try:
        for action in several:
            value, parent, last = outcome(action, item), parents[action.path], action.path[-1]
            if not holds_at(parent, last):
                return None
            if value is ABSENT:
                removals.append((last, parent))
            elif isinstance(last, int) and last >= len(parent):
                appends.append((last, parent, value))
            else:
                parent[last] = copy.deepcopy(value)
    except Misfit:
        return None
    for last, parent in sorted(removals, key=lambda one: str(one[0]), reverse=True):
        if last in parent if isinstance(last, str) else last < len(parent):
            del parent[last]
    for _, parent, value in sorted(appends, key=lambda one: one[0]):
        parent.append(copy.deepcopy(value))
    return dict(result)


def holds_at(parent: Any, element: str | int) -> bool:
    return isinstance(parent, dict if isinstance(element, str) else list)


def place(document: Any, path: Path) -> Any:
    for element in path:
        try:
            document = document[element]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def kind(value: Value) -> str:
    return next(iter(encode_attribute(value)))


def outcome(action: Action, item: Item) -> Any:
    match action:
        case SetAction(_, value):
            return worked_out(value, item)
        case RemoveAction():
            return ABSENT
        case AddAction() | DeleteAction():
            was: Any = read(item, action.path)
            given: Any = action.value.value
            if was is ABSENT:
                return given if isinstance(action, AddAction) else ABSENT
            if kind(was) != kind(given):
                raise Misfit
            if isinstance(action, DeleteAction):
                return was - given or ABSENT
            return was + given if kind(was) == "N" else was | given


def worked_out(value: SetValue, item: Item) -> Any:
    match value:
        case Literal(literal):
            return literal
        case Attr(path):
            found = read(item, path)
            if found is ABSENT:
                raise Misfit
            return found
        case IfNotExists(path, otherwise):
            found = read(item, path)
            return worked_out(otherwise, item) if found is ABSENT else found
        case ListAppend(left, right) | Plus(left, right) | Minus(left, right):
            one, other = worked_out(left, item), worked_out(right, item)
            wanted = "L" if isinstance(value, ListAppend) else "N"
            if (kind(one), kind(other)) != (wanted, wanted):
                raise Misfit
            return one - other if isinstance(value, Minus) else one + other
