"""Which names a pattern is of."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.sources.mysql import MysqlSourceConfig
from penstock.sources.mysql.patterns import matches
from penstock.sources.mysql.scope import Scope

names = st.text(st.sampled_from("ab.*?/\\[\n$ž "), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("pattern", "is_of", "is_not_of"),
    [
        ("shop.orders", ["shop.orders"], ["shop.orders2", "xshop.orders", "shopxorders"]),
        ("shop.*", ["shop.orders", "shop.a.b"], ["shops.orders"]),
        ("shop.order?", ["shop.orders"], ["shop.order", "shop.orders2"]),
        (
            "/shop\\.(orders|items)/",
            ["shop.orders", "shop.items"],
            ["shop.orders2", "a.shop.items"],
        ),
        ("/(?i)shop\\..*/", ["SHOP.Orders"], ["shops.a"]),
        ("/.*\\..*/", ["a.b"], ["ab"]),
        ("/^shop\\.[^_].*$/", ["shop.orders"], ["shop._orders_gho"]),
    ],
)
def test_a_pattern_is_of_whole_names(pattern: str, is_of: list[str], is_not_of: list[str]) -> None:
    assert [name for name in is_of if not matches([pattern], name)] == []
    assert [name for name in is_not_of if matches([pattern], name)] == []


@given(names, names)
def test_wildcards_are_all_that_is_special_in_a_pattern_without_slashes(
    pattern: str, name: str
) -> None:
    if pattern[0] == pattern[-1] == "/":
        return
    said = "".join({"*": ".*", "?": "."}.get(one, re.escape(one)) for one in pattern)
    assert matches([pattern], name) == bool(re.fullmatch(said, name, re.DOTALL))


def test_no_pattern_takes_more_than_a_look_at_the_name() -> None:
    """These would take until the end of the world, if every way to match were tried."""
    name = f"{'a' * 64}.{'a' * 64}!"
    for pattern in (r"/(a+)+\.(a|a)*$/", r"/(.*)*(.*)*(.*)*x/", "*a" * 40 + "x.y"):
        assert not matches([pattern], name)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"include": ["a.b", "/a(b/"]}, r"(?s)include\.1.*missing \)"),
        ({"exclude": ["/a)|(b/"]}, r"(?s)exclude\.0.*unexpected \)"),
        ({"exclude": [r"/(a)\1/"]}, r"invalid escape sequence"),
        ({"include": ["/(?=a)b/"]}, r"invalid perl operator"),
        ({"include": ["orders"]}, r"is not `database.table`"),
        ({"columns": {"exclude": ["shop.orders"]}}, r"is not `database.table.column`"),
        ({"columns": {"mask": {"/[/": "x"}}}, r"is not a regular expression"),
        ({"columns": {"truncate": {"a.b.c": -1}}}, r"greater than or equal to 0"),
        ({"columns": {"hash": ["a.b.c"], "hash_salt": "short"}}, r"16 characters or more"),
        ({"columns": {"hash": ["a.b.c"]}}, r"16 characters or more"),
    ],
)
def test_a_pattern_that_is_none_is_refused_with_its_place(
    written: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        MysqlSourceConfig.model_validate({"user": "u", **written})


def test_the_scope_of_a_source_is_kept_as_it_is_written() -> None:
    config = MysqlSourceConfig.model_validate(
        {"user": "u", "include": ["/b\\..*/", "a.*"], "exclude": ["a.x"]}
    )
    assert config.scope == Scope(("/b\\..*/", "a.*"), ("a.x",))
    assert ("b", "x") in config.scope
    assert ("a", "x") in config.scope
    assert ("c", "x") not in config.scope
    assert ("a", "x") not in Scope((), ("a.x",))
    assert ("mysql", "user") not in Scope(("/.*/",))
