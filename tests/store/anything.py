"""Values, items, paths and conditions of every kind."""

from decimal import Decimal

from hypothesis import strategies as st

from penstock.store.conditions import (
    Attr,
    BeginsWith,
    Between,
    Comparator,
    Comparison,
    Condition,
    Contains,
    Exists,
    In,
    Literal,
    Not,
    NotExists,
    Operand,
    Size,
    TypeIs,
)
from penstock.store.kinds import ValueType
from penstock.store.paths import Path
from penstock.store.values import Item, Value


def decimal(negative: bool, digits: int, power: int) -> Decimal:
    """Not by `scaleb`, which rounds to the context's 28 digits."""
    return Decimal(f"{'-' if negative else ''}{digits}E{power}")


# Few of each, so that values meet: in the item, in the condition, and on both sides of a change.
NAMES = ("a", "b", "c", "the.dotted")
small_numbers = st.one_of(
    st.integers(-2, 3), st.sampled_from([Decimal("0.5"), Decimal("-1.5"), Decimal("2.0")])
)
exact_numbers = st.one_of(
    st.integers(-(10**38) + 1, 10**38 - 1),
    st.builds(decimal, st.booleans(), st.integers(1, 10**38 - 1), st.integers(-130, 87)),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
small_texts = st.text("abé𝄞", max_size=3)
small_bytes = st.binary(max_size=2)


def _values(
    numbers: st.SearchStrategy[int | Decimal],
    strings: st.SearchStrategy[str],
    binaries: st.SearchStrategy[bytes],
    names: st.SearchStrategy[str],
) -> st.SearchStrategy[Value]:
    leaves: st.SearchStrategy[Value] = st.one_of(
        st.none(),
        st.booleans(),
        strings,
        binaries,
        numbers,
        st.sets(strings, min_size=1, max_size=3),
        st.sets(binaries, min_size=1, max_size=3),
        st.sets(numbers, min_size=1, max_size=3),
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=8,
    )


values = _values(exact_numbers, texts, st.binary(max_size=6), texts.filter(bool))
items = st.dictionaries(texts.filter(bool), values, max_size=4)
small_values = _values(small_numbers, small_texts, small_bytes, st.sampled_from(NAMES))
small_items: st.SearchStrategy[Item] = st.dictionaries(
    st.sampled_from(NAMES), small_values, max_size=4
)


def paths_of_names(names: st.SearchStrategy[str], index_max: int) -> st.SearchStrategy[Path]:
    """Paths of a few of these names and indexes."""

    def path(name: str, rest: list[str | int]) -> Path:
        return (name, *rest)

    return st.builds(path, names, st.lists(names | st.integers(0, index_max), max_size=3))


paths = paths_of_names(st.sampled_from(NAMES), 3)

attributes = st.builds(Attr, paths)
literals = st.builds(Literal, small_values)
operands: st.SearchStrategy[Operand] = st.one_of(
    attributes, literals, st.builds(Size, attributes), st.builds(Size, literals)
)
simple_conditions: st.SearchStrategy[Condition] = st.one_of(
    st.builds(Comparison, st.sampled_from(Comparator), operands, operands),
    st.builds(Between, operands, operands, operands),
    st.builds(In, operands, st.lists(operands, min_size=1, max_size=3).map(tuple)),
    st.builds(BeginsWith, operands, operands),
    st.builds(Contains, operands, operands),
    st.builds(Exists, paths),
    st.builds(NotExists, paths),
    st.builds(TypeIs, paths, st.sampled_from(ValueType)),
)


def _both(one: Condition, other: Condition) -> Condition:
    return one & other


def _either(one: Condition, other: Condition) -> Condition:
    return one | other


def combined(simple: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    """Conditions of these, with and, or and not between."""
    return st.recursive(
        simple,
        lambda inner: st.one_of(
            st.builds(_both, inner, inner), st.builds(_either, inner, inner), st.builds(Not, inner)
        ),
        max_leaves=6,
    )


conditions = combined(simple_conditions)
