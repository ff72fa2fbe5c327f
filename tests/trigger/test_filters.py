"""Filter patterns, as Lambda documents them."""

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from penstock.trigger.filters import matcher
from penstock.trigger.patterns import parse_pattern

RECORD: Any = {
    "eventName": "INSERT",
    "size": 7,
    "nothing": None,
    "tags": ["red", "green"],
    "none": [],
    "lines": {"L": [{"S": "a"}, {"M": {"n": {"N": "5"}}}]},
    "dynamodb": {"NewImage": {"name": {"S": "Pat Candella"}, "age": {"N": "41.5"}}},
}


def image(name: str, kind: str, condition: Any) -> Any:
    return {"dynamodb": {"NewImage": {name: {kind: [condition]}}}}


@pytest.mark.parametrize(
    "pattern",
    [
        {"eventName": ["INSERT"]},
        {"eventName": ["REMOVE", "INSERT"]},
        {"eventName": ["INSERT"], "size": [7]},
        {"size": [7.0]},
        {"nothing": [None]},
        {"tags": ["green"]},
        image("name", "S", {"prefix": "Pat"}),
        image("name", "S", {"suffix": "ella"}),
        image("name", "S", {"equals-ignore-case": "pat candella"}),
        image("name", "S", {"prefix": {"equals-ignore-case": "PAT"}}),
        image("name", "S", {"suffix": {"equals-ignore-case": "ELLA"}}),
        image("name", "S", {"wildcard": "P*C*a"}),
        image("name", "S", {"prefix": ["Max", "Pat"]}),
        image("name", "S", {"anything-but": {"prefix": ["Max", "Eve"]}}),
        image("name", "S", {"anything-but": {"wildcard": "*z*"}}),
        image("name", "S", {"anything-but": {"equals-ignore-case": ["PAT", "max"]}}),
        image("name", "S", {"anything-but": {"suffix": {"equals-ignore-case": "X"}}}),
        image("name", "S", {"exists": True}),
        image("other", "S", {"exists": False}),
        image("age", "N", {"numeric": [">", 41, "<=", 41.5]}),
        {"size": [{"numeric": ["=", 7]}]},
        {"eventName": [{"anything-but": "REMOVE"}]},
        {"eventName": [{"anything-but": ["REMOVE", "MODIFY"]}]},
        {"eventName": [{"anything-but": {"prefix": "RE"}}]},
        {"$or": [{"eventName": ["REMOVE"]}, {"size": [7]}]},
        {"absent": {"deep": [{"exists": False}]}},
        {"none": [{"exists": False}]},
        {"lines": {"L": {"S": ["a"]}}},
        {"lines": {"L": {"M": {"n": {"N": [{"numeric": [">", 4]}]}}}}},
    ],
)
def test_these_match(pattern: Any) -> None:
    assert matcher(pattern)(RECORD)


@pytest.mark.parametrize(
    "pattern",
    [
        {"eventName": ["insert"]},
        {"eventName": ["INSERT"], "size": [8]},
        {"size": ["7"]},
        {"size": [True]},
        {"nothing": ["x"]},
        {"absent": [None]},
        {"none": [{"exists": True}]},
        {"lines": {"L": {"S": ["b"]}}},
        {"lines": {"L": {"S": ["a"], "M": [{"exists": True}]}}},
        image("name", "S", {"prefix": "Bob"}),
        image("name", "N", {"exists": True}),
        image("name", "S", {"exists": False}),
        {"dynamodb": [{"exists": True}]},
        image("age", "N", {"numeric": [">", 42]}),
        image("name", "S", {"numeric": [">", 0]}),
        {"eventName": [{"anything-but": ["INSERT"]}]},
        {"eventName": [{"anything-but": {"prefix": ["DEL", "INS"]}}]},
        {"eventName": [{"anything-but": {"equals-ignore-case": "insert"}}]},
        {"eventName": [{"anything-but": {"wildcard": "I*T"}}]},
        {"size": [{"wildcard": "*"}]},
        {"absent": [{"anything-but": ["INSERT"]}]},
        {"$or": [{"eventName": ["REMOVE"]}, {"size": [8]}]},
        {"$or": [{"size": [7]}], "eventName": ["REMOVE"]},
    ],
)
def test_these_do_not(pattern: Any) -> None:
    assert not matcher(pattern)(RECORD)


@given(
    st.lists(st.sampled_from(["*", r"\*", r"\\", "a", "b", ".", "\n"]), max_size=7),
    st.text("ab*\\.\n", max_size=9),
)
@example(["a", "b", "*", "b", "a"], "aba")
def test_a_wildcard_is_the_regular_expression_that_it_means(parts: list[str], text: str) -> None:
    assume(("*", "*") not in pairwise(parts))
    expression = "".join(".*" if part == "*" else re.escape(part[-1]) for part in parts)
    expected = re.fullmatch(expression, text, re.DOTALL) is not None
    assert matcher({"a": [{"wildcard": "".join(parts)}]})({"a": text}) is expected


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        '{"a": []}',
        '{"a": {}}',
        '{"a": [["b"]]}',
        '{"a": [{"cidr": "10.0.0.0/8"}]}',
        '{"a": [{"exists": "yes"}]}',
        '{"a": [{"prefix": "b", "suffix": "c"}]}',
        '{"a": [{"numeric": [">"]}]}',
        '{"a": [{"numeric": ["!", 1]}]}',
        '{"a": [{"numeric": [">", "1"]}]}',
        '{"a": [{"anything-but": []}]}',
        '{"a": [{"anything-but": {"numeric": [">", 1]}}]}',
        '{"a": [{"wildcard": "a**b"}]}',
        r'{"a": [{"wildcard": "a\\b"}]}',
        r'{"a": [{"wildcard": "a\\"}]}',
        '{"a": [{"wildcard": {"equals-ignore-case": "a"}}]}',
        '{"a": [{"prefix": {"equals-ignore-case": 1}}]}',
        '{"a": [{"prefix": {"suffix": "a"}}]}',
        '{"a": [{"prefix": []}]}',
        '{"a": [{"prefix": 1}]}',
        '{"$or": {}}',
        '{"$or": [1]}',
    ],
)
def test_a_pattern_that_is_not_understood_is_refused(text: str) -> None:
    """It would match nothing, and all records would be passed."""
    with pytest.raises(ValueError, match=r"\w"):
        matcher(json.loads(text))


@pytest.mark.parametrize("text", ["", "[]", "{}", '"eventName"'])
def test_what_is_no_object_is_no_pattern(text: str) -> None:
    with pytest.raises(ValueError, match="a filter"):
        parse_pattern(text)


def dynamodb(**members: Any) -> Any:
    return {"dynamodb": members}


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            image("v", "N", {"numeric": bounds})
            for bounds in (
                [">", 5, "<", 3],
                [">", 5, "<=", 5],
                [">=", 5, "<", 5],
                ["<", 3, ">", 5],
                ["<", 5, "<", 3],
                [">=", 5, ">", 3],
                ["=", 5, "<", 3],
                ["=", 5, "=", 6],
            )
        ),
        {"eventname": ["INSERT"]},
        {"event_name": [{"exists": False}]},
        {"newImage": {"v": {"N": ["5"]}}},
        {"eventName": ["insert"]},
        {"eventName": ["INSERT", "DELETE"]},
        {"eventName": [{"prefix": "DEL"}]},
        {"eventName": [{"anything-but": ["INSERT", "MODIFY", "REMOVE"]}]},
        {"eventName": [{"exists": False}]},
        {"eventName": {"INSERT": [{"exists": True}]}},
        {"dynamodb": [{"exists": True}]},
        dynamodb(NewImage=["x"]),
        dynamodb(newImage={"v": {"N": ["5"]}}),
        dynamodb(StreamViewType=["BOTH"]),
        dynamodb(SizeBytes=["5"]),
        dynamodb(NewImage={"v": {"n": ["5"]}}),
        dynamodb(NewImage={"v": ["5"]}),
        dynamodb(NewImage={"v": {"M": {"w": {"Q": ["5"]}}}}),
        dynamodb(NewImage={"v": {"L": {"w": ["5"]}}}),
        dynamodb(NewImage={"v": {"N": ["5"], "S": ["5"]}}),
        image("v", "N", 5),
        image("v", "N", "five"),
        image("v", "S", 5),
        image("v", "S", {"numeric": [">", 5]}),
        image("v", "S", {"anything-but": {"prefix": ""}}),
        image("v", "S", {"anything-but": {"suffix": ["a", {"equals-ignore-case": ""}]}}),
        image("v", "S", {"anything-but": {"wildcard": "*"}}),
        image("v", "BOOL", "true"),
        image("v", "NULL", False),
        {"eventName": ["REMOVE"], **image("v", "N", "5")},
        {"eventName": ["INSERT"], **dynamodb(OldImage={"v": {"N": ["5"]}})},
        {"eventName": ["INSERT"], "$or": [{"eventName": ["INSERT"]}, {"eventName": ["REMOVE"]}]},
        {"$or": [{"eventName": ["INSERT"]}, {"eventNames": ["REMOVE"]}]},
    ],
)
def test_what_no_record_can_match_is_refused(pattern: Any) -> None:
    """It would pass every record unhandled."""
    with pytest.raises(ValueError, match=r"\w"):
        parse_pattern(json.dumps(pattern))


@pytest.mark.parametrize(
    "pattern",
    [
        {"eventName": [{"equals-ignore-case": "insert"}, "MODIFY"]},
        {"eventSource": ["aws:dynamodb"], "awsRegion": [{"prefix": "eu-"}]},
        {"userIdentity": {"type": ["Service"], "principalId": ["dynamodb.amazonaws.com"]}},
        {"userIdentity": {"type": [{"exists": False}]}},
        {"eventName": ["REMOVE"], **image("v", "N", {"exists": False})},
        {"$or": [dynamodb(SizeBytes=[{"numeric": [">", 9]}]), dynamodb(SequenceNumber=["1"])]},
        image("v", "N", {"numeric": [">=", 5, "<=", 5]}),
        image("v", "N", {"numeric": ["<", 5, ">", 3]}),
        image("v", "NS", {"numeric": ["=", 5]}),
        image("v", "BOOL", {"exists": False}),
        image("anything at all", "B", {"prefix": "aGk"}),
        dynamodb(Keys={"N": {"N": ["5"]}}, OldImage={"v": {"S": ["a", {"suffix": "b"}]}}),
        dynamodb(NewImage={"v": {"S": [{"prefix": "a"}], "N": [{"exists": False}]}}),
        dynamodb(NewImage={"v": {"L": {"M": {"w": {"SS": ["a"]}}}}}),
    ],
)
def test_what_some_record_matches_is_taken(pattern: Any) -> None:
    parse_pattern(json.dumps(pattern))


def test_an_image_that_the_stream_s_view_lacks_is_refused() -> None:
    new = json.dumps(image("v", "N", "5"))
    none = json.dumps(image("v", "N", {"exists": False}))
    for view in ("KEYS_ONLY", "OLD_IMAGE"):
        with pytest.raises(ValueError, match="has no NewImage"):
            parse_pattern(new, view=view)
        parse_pattern(none, view=view)
    parse_pattern(new, view="NEW_IMAGE")


def test_numeric_looks_into_sets_of_numbers() -> None:
    test = parse_pattern(json.dumps(image("v", "NS", {"numeric": [">", 5]})))
    for numbers, expected in ((["4", "6"], True), (["4", "5"], False)):
        assert test({"dynamodb": {"NewImage": {"v": {"NS": numbers}}}}) is expected


LEAVES = st.none() | st.booleans() | st.integers() | st.text()
TREES = st.recursive(
    st.dictionaries(st.sampled_from("abc"), LEAVES | st.lists(LEAVES), min_size=1),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
    max_leaves=8,
)


def pattern_of(tree: Any) -> Any:
    """The pattern that names every leaf of a tree."""
    inside: Any = tree
    if isinstance(tree, dict):
        return {name: pattern_of(value) for name, value in inside.items()}
    if isinstance(tree, list):
        return inside or [{"exists": False}]
    return [inside]


@given(TREES)
def test_what_names_every_leaf_matches_and_what_asks_for_one_more_does_not(tree: Any) -> None:
    pattern: Any = pattern_of(tree)
    assert matcher(pattern)(tree)
    pattern["more"] = [{"exists": True}]
    assert not matcher(pattern)(tree)
