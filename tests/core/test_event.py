"""Events refuse contradictions, and their identities never meet."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, structs

from penstock.event import (
    Kind,
    Operation,
    SchemaEvent,
    SystemEvent,
    event_id,
    kind_of,
)
from tests.core.strategies import texts
from tests.core.test_wire import change


def test_a_delete_has_no_document_after_it() -> None:
    with pytest.raises(ValueError, match="delete of 1 carries a full document"):
        change(operation=Operation.DELETE)
    assert change(operation=Operation.DELETE, full_document=None).full_document is None


@pytest.mark.parametrize("operation", sorted(set(Operation) - {Operation.UPDATE}))
def test_only_an_update_describes_one(operation: Operation) -> None:
    update = Raw(b'{"updatedFields":{}}')
    with pytest.raises(ValueError, match="describes an update"):
        change(operation=operation, full_document=None, update_description=update)
    assert change(operation=Operation.UPDATE, update_description=update).update_description


@pytest.mark.parametrize("operation", [Operation.UPDATE, Operation.REPLACE])
def test_only_an_insert_or_a_delete_can_be_of_a_copy(operation: Operation) -> None:
    with pytest.raises(ValueError, match="says it was copied"):
        change(operation=operation, full_document=None, snapshot=True)
    assert change(snapshot=True).snapshot
    assert change(operation=Operation.DELETE, full_document=None, snapshot=True).snapshot


@pytest.mark.parametrize(("field", "value"), [("operation", Operation.DELETE), ("tenant", "other")])
def test_nobody_can_alter_an_event(field: str, value: Any) -> None:
    with pytest.raises(AttributeError, match="immutable"):
        setattr(change(), field, value)


places = st.tuples(texts, texts, st.integers(0, 1 << 40))


@given(places, places)
def test_two_places_have_two_identities(one: Any, other: Any) -> None:
    """P2: source, position and ordinal each tell events apart."""
    assert (event_id(*one) == event_id(*other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b1", 0), ("ab", "1", 0)),
        (("a", "b\0c", 0), ("a\0b", "c", 0)),
        (("a", "p:1", 2), ("a", "p", 12)),
        (("a", "p", 1), ("a", "p", 2)),
        (("a", "1", 11), ("a", "11", 1)),
        (("1:a", "p", 0), ("1", "ap", 0)),
    ],
)
def test_identities_differ_where_names_and_positions_meet_elsewhere(one: Any, other: Any) -> None:
    """P2."""
    assert event_id(*one) != event_id(*other)


def test_an_identity_is_the_same_on_every_capture() -> None:
    """P2: stored logs and consumers hold these; another algorithm is another format."""
    assert event_id("shop", "p1", 0) == event_id("shop", "p1", 0)
    assert event_id("shop", "p1", 0) == "158c6b1dc6f7c74bb838efe886a12ea6"


def test_a_control_event_has_its_kind() -> None:
    common = structs.asdict(change())
    common = {name: common[name] for name in SchemaEvent.__struct_fields__ if name in common}
    common.pop("operation")
    assert kind_of(change()) is Kind.DATA
    assert kind_of(SchemaEvent(**common, operation="drop")) is Kind.SCHEMA
    assert kind_of(SystemEvent(**common, operation="started")) is Kind.SYSTEM
    assert kind_of(SystemEvent(**common, operation="gap")) is Kind.GAP
