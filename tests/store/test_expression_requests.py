"""What whole requests of DynamoDB's API ask: key conditions, legacy parameters, and mixtures."""

from typing import Any

import pytest

from penstock.store.attributevalue import encode_attribute
from penstock.store.conditions import Condition, attr, holds
from penstock.store.errors import (
    InvalidConditionError,
    MalformedValueError,
    RefusedError,
    UpdateTypeMismatchError,
    dynamodb_text,
)
from penstock.store.expressions.keys import KeyClause, KeyCondition, key_condition
from penstock.store.expressions.legacy import read_attributes_to_get
from penstock.store.expressions.request import (
    RequestExpressions,
    read_expressions,
    refuse_mixture,
)
from penstock.store.keys import KeyAttribute, KeyType
from penstock.store.updates import WRONG_TYPE_LEGACY, Update, apply
from penstock.store.values import Item, Value
from tests.store.support import name_of

PK = KeyAttribute("pk", KeyType.STRING)
SK = KeyAttribute("sk", KeyType.NUMBER)
TEXT_SK = KeyAttribute("sk", KeyType.STRING)
VALUES: dict[str, Any] = {
    ":p": {"S": "x"},
    ":a": {"N": "1"},
    ":b": {"N": "2"},
    ":t": {"S": "t"},
    ":e": {"S": ""},
}
INVALID = "One or more parameter values were invalid: "


def using(**parameters: object) -> dict[str, object]:
    """A request, with those of the values that its expressions use."""
    texts = " ".join(str(text) for text in parameters.values())
    used = {name: value for name, value in VALUES.items() if name in texts}
    return {**parameters, "ExpressionAttributeValues": used} if used else parameters


def read_request(request: dict[str, Any], operation: str) -> RequestExpressions:
    refuse_mixture(request, operation)
    return read_expressions(request, operation)


def queried(text: str, sort: KeyAttribute | None = SK) -> KeyCondition:
    clauses = read_request(using(KeyConditionExpression=text), "Query").key
    assert clauses is not None
    return key_condition(clauses, PK, sort)


# --- key conditions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "op", "values"),
    [
        ("pk = :p AND sk = :a", "eq", (1,)),
        ("sk < :a AND :p = pk", "lt", (1,)),
        ("pk = :p AND (sk <= :a)", "le", (1,)),
        ("(pk = :p) AND (:a <= sk)", "ge", (1,)),
        ("pk = :p AND :a < sk", "gt", (1,)),
        ("pk = :p AND :a >= sk", "le", (1,)),
        ("pk = :p AND :a = sk", "eq", (1,)),
        ("pk = :p AND sk BETWEEN :a AND :b", "between", (1, 2)),
    ],
)
def test_a_query_asks_for_a_partition_and_a_part_of_it(
    text: str, op: str, values: tuple[Value, ...]
) -> None:
    assert queried(text) == KeyCondition("x", KeyClause("sk", op, values))


def test_a_query_may_ask_for_a_beginning_or_for_the_whole_partition() -> None:
    assert queried("pk = :p AND begins_with(sk, :t)", TEXT_SK) == KeyCondition(
        "x", KeyClause("sk", "begins_with", ("t",))
    )
    assert queried("pk = :p") == queried("pk = :p", None) == KeyCondition("x", None)


IN_KEYS = "Invalid operator used in KeyConditionExpression: "
CONDITION = "Invalid condition in KeyConditionExpression: "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pk = :p OR sk = :a", f"{IN_KEYS}OR"),
        ("NOT pk = :p", f"{IN_KEYS}NOT"),
        ("pk IN (:p)", f"{IN_KEYS}IN"),
        ("pk <> :p", f"{IN_KEYS}<>"),
        ("attribute_exists(pk)", f"{IN_KEYS}attribute_exists"),
        ("pk = :p AND contains(sk, :a)", f"{IN_KEYS}contains"),
        ("size(pk) = :a", "KeyConditionExpressions cannot contain nested operations"),
        ("pk = sk", f"{CONDITION}Multiple attribute names used in one condition"),
        (":p = :t", f"{CONDITION}No key attribute specified"),
        (
            ":a BETWEEN pk AND :b",
            f"{CONDITION}BETWEEN operator must have the key attribute as its first operand",
        ),
        (
            "begins_with(:p, pk)",
            f"{CONDITION}begins_with operator must have the key attribute as its first operand",
        ),
        ("pk.a = :p", "KeyConditionExpressions cannot have conditions on nested attributes"),
        (
            "pk = :p AND sk > :a AND sk < :b",
            "KeyConditionExpressions must only contain one condition per key",
        ),
        ("pk = :p AND sk > :a AND z = :b", "Conditions can be of length 1 or 2 only"),
        ("sk = :a", "Query condition missed key schema element: pk"),
        ("pk = :p AND z = :a", "Query condition missed key schema element: sk"),
        ("pk > :p", "Query key condition not supported"),
        ("pk = :a", f"{INVALID}Condition parameter type does not match schema type"),
        ("pk = :p AND sk = :t", f"{INVALID}Condition parameter type does not match schema type"),
        (
            "pk = :e",
            (
                "One or more parameter values are not valid. The AttributeValue for a key "
                "attribute cannot contain an empty string value. Key: pk"
            ),
        ),
        (
            "pk = :p AND",
            'Invalid KeyConditionExpression: Syntax error; token: "<EOF>", near: "AND"',
        ),
    ],
    ids=lambda text: text[:40],
)
def test_what_no_query_can_ask_is_refused_in_dynamodbs_words(text: str, said: str) -> None:
    with pytest.raises(InvalidConditionError) as refused:
        queried(text)
    assert str(refused.value) == said


def test_a_table_without_a_sort_key_takes_no_second_clause() -> None:
    with pytest.raises(InvalidConditionError, match=r"^Query key condition not supported$"):
        queried("pk = :p AND sk = :a", None)


# --- legacy parameters ----------------------------------------------------------------------------


def legacy(operator: str, *values: Value) -> dict[str, Any]:
    listed = [encode_attribute(value) for value in values]
    return {"ComparisonOperator": operator, "AttributeValueList": listed}


NOTHING: set[str] = set()


A: dict[str, Item] = {
    "number": {"a": 1},
    "text": {"a": "text"},
    "set": {"a": {"te", "x"}},
    "null": {"a": None},
    "absent": {"b": 1},
}


@pytest.mark.parametrize(
    ("given", "matching"),
    [
        (legacy("EQ", 1), {"number"}),
        (legacy("NE", 1), {"text", "set", "null", "absent"}),
        (legacy("LT", 2), {"number"}),
        (legacy("LE", 1), {"number"}),
        (legacy("GT", 1), NOTHING),
        (legacy("GE", "t"), {"text"}),
        (legacy("IN", 1, 2), {"number"}),
        (legacy("BETWEEN", 1, 2), {"number"}),
        (legacy("BEGINS_WITH", "te"), {"text"}),
        (legacy("CONTAINS", "te"), {"text", "set"}),
        (legacy("NOT_CONTAINS", "te"), {"number", "null"}),
        (legacy("NULL"), {"absent"}),
        (legacy("NOT_NULL"), {"number", "text", "set", "null"}),
    ],
    ids=name_of,
)
def test_a_legacy_operator_matches_what_its_expression_would(
    given: dict[str, Any], matching: set[str]
) -> None:
    for parameter, operation in [("ScanFilter", "Scan"), ("Expected", "PutItem")]:
        condition = read_request({parameter: {"a": given}}, operation).condition
        assert condition is not None
        assert {name for name, item in A.items() if holds(condition, item)} == matching


@pytest.mark.parametrize(
    ("expected", "operator", "condition"),
    [
        ({"a": {"Value": {"N": "1"}}}, None, attr("a").eq(1)),
        ({"a": {"Value": {"N": "1"}, "Exists": True}}, None, attr("a").eq(1)),
        ({"a": {"Exists": False}}, None, attr("a").not_exists()),
        ({"a.b": {"Exists": False}}, None, attr(("a.b",)).not_exists()),
        (
            {"a": {"ComparisonOperator": "GT", "Value": {"N": "1"}}},
            None,
            attr("a").gt(1),
        ),
        (
            {"a": legacy("EQ", 1), "b": legacy("NULL")},
            None,
            attr("a").eq(1) & attr("b").not_exists(),
        ),
        (
            {"a": legacy("EQ", 1), "b": legacy("NULL")},
            "OR",
            attr("a").eq(1) | attr("b").not_exists(),
        ),
        ({}, None, None),
    ],
)
def test_expected_is_a_condition(
    expected: dict[str, Any], operator: str | None, condition: Condition | None
) -> None:
    request = {"Expected": expected, "ConditionalOperator": operator}
    for operation in ("PutItem", "DeleteItem", "UpdateItem"):
        assert read_request(request, operation).condition == condition


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Value must be provided when Exists is null for Attribute: a"),
        ({"Exists": True}, "Value must be provided when Exists is true for Attribute: a"),
        (
            {"Exists": False, "Value": {"N": "1"}},
            "Value cannot be used when Exists is false for Attribute: a",
        ),
        (
            {"AttributeValueList": []},
            "AttributeValueList can only be used with a ComparisonOperator for Attribute: a",
        ),
        (
            {"AttributeValueList": [], "Value": {"N": "1"}},
            "Value and AttributeValueList cannot be used together for Attribute: a",
        ),
        (
            {**legacy("EQ", 1), "Exists": True},
            "Exists and ComparisonOperator cannot be used together for Attribute: a",
        ),
        (
            {"ComparisonOperator": "EQ"},
            "Value or AttributeValueList must be used with ComparisonOperator: EQ for Attribute: a",
        ),
        (legacy("EQ"), "Invalid number of argument(s) for the EQ ComparisonOperator"),
        (legacy("NULL", 1), "Invalid number of argument(s) for the NULL ComparisonOperator"),
        (legacy("IN"), "Invalid number of argument(s) for the IN ComparisonOperator"),
        (legacy("BETWEEN", 1), "Invalid number of argument(s) for the BETWEEN ComparisonOperator"),
        (
            legacy("IN", 1, "x"),
            "AttributeValues inside AttributeValueList must be of same type",
        ),
        (
            legacy("BEGINS_WITH", 1),
            "ComparisonOperator BEGINS_WITH is not valid for N AttributeValue type",
        ),
    ],
    ids=name_of,
)
def test_what_expected_cannot_mean_is_refused_in_dynamodbs_words(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidConditionError) as refused:
        read_request({"Expected": {"a": given}}, "PutItem")
    assert str(refused.value) == INVALID + said


def test_a_legacy_between_needs_its_bounds_in_order() -> None:
    with pytest.raises(InvalidConditionError) as refused:
        read_request({"ScanFilter": {"a": legacy("BETWEEN", 2, 1)}}, "Scan")
    assert str(refused.value) == (
        "The BETWEEN condition was provided a range where the lower bound is greater than the "
        "upper bound"
    )


@pytest.mark.parametrize(
    "request_",
    [
        {"Expected": {"a": legacy("LIKE", 1)}},
        {"Expected": {"a": {"ComparisonOperator": None, "AttributeValueList": []}}},
        {"Expected": {"a": legacy("EQ", 1)}, "ConditionalOperator": "XOR"},
        {"Expected": {"a": legacy("EQ", 1)}, "ConditionalOperator": []},
        {"Expected": {"a": {"ComparisonOperator": ["EQ"], "Value": {"N": "1"}}}},
        {"Expected": [1]},
        {"Expected": {"a": 1}},
        {"Expected": {"a": {"Value": {"N": "x"}}}},
        {"Expected": {"a": {"Value": 1}}},
        {"ConditionExpression": 5},
        {"ConditionExpression": "a = :a", "ExpressionAttributeValues": [1]},
        {"ConditionExpression": "#a = #b", "ExpressionAttributeNames": {"#a": 1}},
    ],
    ids=name_of,
)
def test_no_malformed_request_is_an_error_of_ours(request_: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        read_request(request_, "PutItem")


def test_attribute_updates_are_an_update() -> None:
    request = {
        "AttributeUpdates": {
            "a.b": {"Value": {"S": "x"}},
            "n": {"Value": {"N": "2"}, "Action": "ADD"},
            "l": {"Value": {"L": [{"N": "3"}]}, "Action": "ADD"},
            "new": {"Value": {"L": [{"N": "4"}]}, "Action": "ADD"},
            "s": {"Value": {"SS": ["x"]}, "Action": "DELETE"},
            "gone": {"Action": "DELETE"},
        }
    }
    update = read_request(request, "UpdateItem").update
    assert update is not None
    assert apply(update, {"n": 1, "l": [1], "s": {"x", "y"}, "gone": 1}) == {
        "a.b": "x",
        "n": 3,
        "l": [1, 3],
        "new": [4],
        "s": {"y"},
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Only DELETE action is allowed when no attribute value is specified"),
        ({"Action": "ADD"}, "Only DELETE action is allowed when no attribute value is specified"),
        (
            {"Action": "ADD", "Value": {"S": "x"}},
            "ADD action is not supported for the type S",
        ),
        (
            {"Action": "DELETE", "Value": {"N": "1"}},
            "DELETE action with value is not supported for the type N",
        ),
    ],
)
def test_what_attribute_updates_cannot_mean_is_refused_in_dynamodbs_words(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidConditionError) as refused:
        read_request({"AttributeUpdates": {"a": given}}, "UpdateItem")
    assert str(refused.value) == INVALID + said


@pytest.mark.parametrize("value", [{"N": "1"}, {"L": []}])
def test_a_mismatch_of_attribute_updates_has_its_own_words(value: dict[str, Any]) -> None:
    request = {"AttributeUpdates": {"a": {"Action": "ADD", "Value": value}}}
    update = read_request(request, "UpdateItem").update
    assert update is not None
    with pytest.raises(UpdateTypeMismatchError) as refused:
        apply(update, {"a": "text"})
    assert dynamodb_text(refused.value) == WRONG_TYPE_LEGACY


def test_key_conditions_are_clauses() -> None:
    request = {"KeyConditions": {"pk": legacy("EQ", "x"), "sk": legacy("BETWEEN", 1, 2)}}
    clauses = read_request(request, "Query").key
    assert clauses is not None
    assert key_condition(clauses, PK, SK) == KeyCondition("x", KeyClause("sk", "between", (1, 2)))
    bad = read_request({"KeyConditions": {"pk": legacy("NE", "x")}}, "Query").key
    assert bad is not None
    with pytest.raises(
        InvalidConditionError,
        match=r"^Attempted conditional constraint is not an indexable operation$",
    ):
        key_condition(bad, PK, SK)


def test_attributes_to_get_are_whole_attributes() -> None:
    assert read_request({"AttributesToGet": ["a.b", "c"]}, "GetItem").projection == (
        ("a.b",),
        ("c",),
    )
    with pytest.raises(InvalidConditionError) as refused:
        read_request({"AttributesToGet": ["a", "a"]}, "Scan")
    assert str(refused.value) == f"{INVALID}Duplicate value in attribute name: a"


def test_the_names_of_attributes_to_get_are_not_compared_one_by_one() -> None:
    compared = list[str]()

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(self)
            return str.__eq__(self, other)

    names = [Name(f"n{at}") for at in range(500)]
    assert len(read_attributes_to_get(names)) == 500
    assert len(compared) < 50, "only names whose hashes meet"


# --- whole requests -------------------------------------------------------------------------------


def test_a_request_is_read_whole() -> None:
    request = using(
        UpdateExpression="SET a = :a",
        ConditionExpression="attribute_not_exists(#k)",
        ExpressionAttributeNames={"#k": "key"},
    )
    assert read_request(request, "UpdateItem") == RequestExpressions(
        update=Update().set("a", 1), condition=attr("key").not_exists()
    )
    request = using(
        KeyConditionExpression="pk = :p",
        FilterExpression="a > :a",
        ProjectionExpression="a, b[0]",
    )
    assert read_request(request, "Query") == RequestExpressions(
        condition=attr("a").gt(1),
        projection=(("a",), ("b", 0)),
        key=(KeyClause("pk", "eq", ("x",)),),
    )
    assert read_request({}, "Scan") == RequestExpressions()


@pytest.mark.parametrize(
    ("operation", "request_", "said"),
    [
        (
            "UpdateItem",
            using(UpdateExpression="SET a = :a", Expected={}),
            (
                "Can not use both expression and non-expression parameters in the same request: "
                "Non-expression parameters: {Expected} Expression parameters: {UpdateExpression}"
            ),
        ),
        (
            "Query",
            using(
                FilterExpression="a = :a",
                KeyConditionExpression="pk = :p",
                KeyConditions={},
                AttributesToGet=["a"],
            ),
            (
                "Can not use both expression and non-expression parameters in the same request: "
                "Non-expression parameters: {AttributesToGet, KeyConditions} "
                "Expression parameters: {FilterExpression, KeyConditionExpression}"
            ),
        ),
        (
            "PutItem",
            {"ExpressionAttributeNames": {"#a": "a"}},
            "ExpressionAttributeNames can only be specified when using expressions",
        ),
        (
            "PutItem",
            {"ExpressionAttributeValues": {":a": {"N": "1"}}},
            (
                "ExpressionAttributeValues can only be specified when using expressions: "
                "ConditionExpression is null"
            ),
        ),
        (
            "UpdateItem",
            {"ExpressionAttributeValues": {":a": {"N": "1"}}},
            (
                "ExpressionAttributeValues can only be specified when using expressions: "
                "UpdateExpression and ConditionExpression are null"
            ),
        ),
        (
            "Scan",
            {"ProjectionExpression": "a", "ExpressionAttributeValues": {":a": {"N": "1"}}},
            (
                "ExpressionAttributeValues can only be specified when using expressions: "
                "FilterExpression is null"
            ),
        ),
        (
            "PutItem",
            {
                "ConditionExpression": "a = :a",
                "ExpressionAttributeValues": {":a": {"N": "1"}, ":b": {"N": "1"}},
            },
            "Value provided in ExpressionAttributeValues unused in expressions: keys: {:b}",
        ),
        (
            "Query",
            {},
            (
                "Either the KeyConditions or KeyConditionExpression parameter must be specified in "
                "the request."
            ),
        ),
    ],
)
def test_what_a_request_cannot_ask_together_is_refused_in_dynamodbs_words(
    operation: str, request_: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidConditionError) as refused:
        read_request(request_, operation)
    assert str(refused.value) == said


def test_key_conditions_go_with_expressions() -> None:
    request = using(FilterExpression="a = :a", KeyConditions={"pk": legacy("EQ", "x")})
    assert read_request(request, "Query").key == (KeyClause("pk", "eq", ("x",)),)


NESTED = (
    "Key attributes must be scalars; list random access '[]' and map lookup '.' are not allowed: "
    "Key: pk"
)


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("PutItem", using(ConditionExpression="pk.a = :a")),
        ("UpdateItem", using(UpdateExpression="SET a = pk[0]")),
        ("GetItem", {"ProjectionExpression": "pk.x"}),
    ],
)
def test_a_path_into_a_key_is_refused(operation: str, request_: dict[str, Any]) -> None:
    read = read_request(request_, operation)
    read.refuse_keys(("other",))
    with pytest.raises(InvalidConditionError) as refused:
        read.refuse_keys(("pk", "sk"))
    assert str(refused.value) == NESTED


@pytest.mark.parametrize(
    ("request_", "parameter"),
    [
        (using(KeyConditionExpression="pk = :p", FilterExpression="sk > :a"), "Filter Expression"),
        (
            {"KeyConditions": {"pk": legacy("EQ", "x")}, "QueryFilter": {"sk": legacy("GT", 1)}},
            "QueryFilter",
        ),
    ],
)
def test_a_querys_filter_has_no_key(request_: dict[str, Any], parameter: str) -> None:
    read = read_request(request_, "Query")
    read.refuse_keys(("pk", "sk"))
    with pytest.raises(InvalidConditionError) as refused:
        read.refuse_keys(("pk", "sk"), query=True)
    assert str(refused.value) == (
        f"{parameter} can only contain non-primary key attributes: Primary key attribute: sk"
    )


def test_what_is_no_json_of_dynamodb_is_told_apart() -> None:
    with pytest.raises(MalformedValueError):
        read_request(
            {"ConditionExpression": "a = :a", "ExpressionAttributeValues": {":a": {"S": 1}}},
            "PutItem",
        )
