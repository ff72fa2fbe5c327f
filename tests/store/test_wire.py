"""What goes over a store's socket: exact values, strict requests, and every error as itself."""

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given

from penstock.errors import LogCorruptError, LogFullError, PenstockError
from penstock.store import (
    ConditionCheckFailedError,
    Item,
    RefusedError,
    StoreError,
    VersionMismatchError,
)
from penstock.store import errors as store_errors
from penstock.store.documents import from_json
from penstock.store.errors import (
    ChangesMissingError,
    CheckpointConflictError,
    DocumentTooLargeError,
    IndexAlreadyExistsError,
    IndexNotFoundError,
    IndexNotReadyError,
    KeyAttributeUpdateError,
    Missing,
    NumberRefusedError,
    StreamClosedError,
    StreamFullError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TrimmedDataError,
    UpdateTypeMismatchError,
)
from penstock.store.remote import errors as remote_errors
from penstock.store.remote.answers import written
from penstock.store.remote.forms import (
    read_error,
    read_expression,
    read_item,
    write_error,
    write_expression,
    write_item,
)
from penstock.store.remote.requests import GetItem, PutItem, decode_request, encode_line
from penstock.store.updates import if_not_exists, list_append, minus, plus
from penstock.store.values import encode_item
from tests.store.anything import attributes, items

ITEM: Item = {"id": "a", "raw": b"\x00", "n": 10**38 - 1}
MADE: dict[type[StoreError], StoreError] = {
    type(error): error
    for error in (
        DocumentTooLargeError(size=5, limit=4),
        TableNotFoundError("t"),
        TableAlreadyExistsError("t"),
        IndexNotFoundError("t", "by"),
        IndexAlreadyExistsError("t", "by"),
        IndexNotReadyError("t", "by"),
        ConditionCheckFailedError("t", ITEM),
        VersionMismatchError("t", expected=1, actual=2),
        TrimmedDataError("t", after=3, trimmed=5),
        ChangesMissingError([Missing("t", 1, 5)], after=3),
        StreamFullError("t", bytes_max=7),
        StreamClosedError("t", position="s.1:5"),
        CheckpointConflictError("t", "c", expected=None, actual="s.1:5"),
        KeyAttributeUpdateError("id"),
        UpdateTypeMismatchError("wrong", path="n", dynamodb="text"),
        NumberRefusedError("too long", dynamodb="text"),
    )
}
"""One of each error that takes more than a sentence."""


def kinds(kind: type[StoreError] = StoreError) -> list[type[StoreError]]:
    """A kind of error and all of its own."""
    return [kind, *(found for below in kind.__subclasses__() for found in kinds(below))]


def sent(fact: Any) -> Any:
    """What arrives."""
    return msgspec.json.decode(encode_line(fact))


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_error_arrives_as_itself_with_its_facts(kind: type[StoreError]) -> None:
    error = MADE.get(kind) or kind("what happened")
    line = sent(write_error("dynamodb", error))
    assert line["error"] == kind.name
    assert line["message"] == str(error)
    for name, fact in error.facts().items():
        assert line[name] == fact
    arrived = read_error("dynamodb", line)
    assert type(arrived) is kind
    assert str(arrived) == str(error)
    if isinstance(error, ConditionCheckFailedError):
        assert isinstance(arrived, ConditionCheckFailedError)
        assert arrived.item == ITEM
    if not isinstance(error, ChangesMissingError):
        assert isinstance(arrived, StoreError)
        assert arrived.facts() == error.facts()


@pytest.mark.parametrize(
    ("error", "name"), [(LogFullError("x"), "DiskFull"), (LogCorruptError("x"), "CorruptedPage")]
)
def test_errors_of_the_disk_have_names_of_their_own(error: PenstockError, name: str) -> None:
    line = sent(write_error("plain", error))
    assert line["error"] == name
    assert type(read_error("plain", line)) is type(error)


def test_no_two_kinds_of_error_have_one_code() -> None:
    codes = [kind.code for kind in kinds()]
    assert len(codes) == len(set(codes))


def test_the_trees_at_the_top_name_every_error() -> None:
    drawn = f"{store_errors.__doc__}{remote_errors.__doc__}"
    assert [kind.__name__ for kind in kinds() if kind.__name__ not in drawn] == []


@given(items)
def test_any_item_is_the_same_at_the_other_end(item: Item) -> None:
    """F15: as DynamoDB's JSON, which has every value."""
    arrived = read_item("dynamodb", sent(write_item("dynamodb", item)))
    assert encode_item(arrived).data == encode_item(item).data


def test_a_request_in_plain_json_keeps_every_digit() -> None:
    """F15: 2^53 + 1 and 38 digits are not the doubles next to them."""
    line = b"""{"op": "put_item", "table": "t", "item": {"id": "a", "n": 9007199254740993,
        "d": 0.12345678901234567890123456789012345678, "e": 1e-130, "z": null}}"""
    request = decode_request(line)
    assert isinstance(request, PutItem)
    assert read_item("plain", request.item) == {
        "id": "a",
        "n": 2**53 + 1,
        "d": Decimal("0.12345678901234567890123456789012345678"),
        "e": Decimal("1E-130"),
        "z": None,
    }


def test_an_answer_that_plain_json_cannot_say_says_that_it_is_dynamodbs() -> None:
    def answer(form: Any) -> dict[str, Any]:
        return {"item": write_item(form, ITEM)}

    digits = {"id": "a", "n": 10**38 - 1, "d": Decimal("0.1")}
    plain = encode_line(written(lambda form: {"item": write_item(form, digits)}, "plain"))
    assert from_json(plain) == {"ok": True, "item": digits}
    said = sent(written(answer, "plain"))
    assert said["values"] == "dynamodb"
    assert said["item"]["raw"] == {"B": "AA=="}
    assert read_item("dynamodb", said["item"]) == ITEM


def test_what_looks_like_a_value_of_dynamodb_is_taken_as_its_form_says() -> None:
    """The form is never guessed."""
    given = {"id": "a", "m": {"S": "x"}}
    assert read_item("plain", given) == given
    both = {"id": {"S": "a"}, "m": {"M": {"S": {"S": "x"}}}}
    assert read_item("dynamodb", both) == given
    with pytest.raises(StoreError):
        read_item("dynamodb", given)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "truncated"),
        (b"[]", "array"),
        (b"{}", "op"),
        (b'{"op": "drop_everything"}', "drop_everything"),
        (b'{"op": "get_item", "table": "t"}', "key"),
        (b'{"op": "get_item", "table": 1, "key": {}}', "table"),
        (b'{"op": "get_item", "table": "t", "key": {}, "keys": []}', "keys"),
        (b'{"op": "get_item", "table": "t", "key": {}, "values": "yaml"}', "yaml"),
        (b'{"op": "get_item", "table": "t", "key": {"id": "\xff"}}', "utf-8"),
        (b'{"op": "enable_stream", "table": "t", "view": "ALL"}', "ALL"),
        (b'{"op": "enable_stream", "table": "t", "view": "NEW_IMAGE", "unchanged": 1}', "bool"),
    ],
)
def test_a_request_that_means_nothing_is_refused_with_what_is_wrong(line: bytes, says: str) -> None:
    with pytest.raises(RefusedError) as refused:
        decode_request(line)
    assert says in str(refused.value)


def test_requests_are_written_as_they_are_documented() -> None:
    line = encode_line(GetItem(table="t", key={"id": "a"}))
    assert json.loads(line) == {"op": "get_item", "table": "t", "key": {"id": "a"}}
    assert decode_request(line) == GetItem(table="t", key={"id": "a"})


@given(attributes)
def test_expressions_are_the_same_at_the_other_end(attribute: Any) -> None:
    for expression in (
        plus(attribute, minus(1, attribute)),
        list_append(if_not_exists(attribute.path, [b"\x00"]), ["x"]),
    ):
        assert read_expression("dynamodb", sent(write_expression("dynamodb", expression))) == (
            expression
        )


@pytest.mark.parametrize("json_", [{}, {"Attr": 1}, {"Plus": [1]}, {"Times": [1, 2]}, [], None])
def test_what_is_no_expression_is_refused(json_: Any) -> None:
    with pytest.raises(RefusedError):
        read_expression("plain", json_)
