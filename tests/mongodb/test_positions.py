"""A position is read back as it was written, and tells one server from another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.event import ClusterTime
from penstock.sources.mongodb.positions import (
    Copying,
    MongoPosition,
    PositionWriter,
    Scope,
    Server,
    Token,
    parse_position,
)

TOKENS = st.builds(
    Token, st.just("826B00207E00000014" + "AB" * 30), st.none() | st.binary(max_size=9)
)
SERVERS = st.builds(Server, st.text(max_size=5), st.none() | st.text(max_size=5))
COPYING = st.builds(
    Copying,
    snapshot=st.just("826B00207E000000142B"),
    pending=st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=3).map(tuple),
    announced=st.booleans(),
    after=st.none() | st.binary(max_size=20),
    copies=st.integers(0, 5),
    documents=st.integers(0, 1 << 40),
    read_at=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)


SCOPES = st.builds(
    Scope,
    st.none() | st.text(max_size=5),
    *(st.lists(st.text(max_size=9), max_size=3).map(tuple) for _ in range(2)),
)
ENTRIES = st.tuples(st.integers(0, 1 << 31), st.integers(0, 9), st.integers(0, 9))
POSITIONS = st.builds(
    MongoPosition,
    *(SERVERS, TOKENS, st.none() | COPYING, st.none() | SCOPES, st.none() | ENTRIES),
    gap_said=st.booleans(),
)


@given(POSITIONS, TOKENS)
def test_a_position_is_read_back_as_it_was_written(position: MongoPosition, other: Token) -> None:
    writer = PositionWriter(position)
    assert parse_position(position.text()) == position
    assert writer.at(position.token) == position.text()
    assert parse_position(writer.at(other)) == writer.position(other)
    assert writer.position(other).gap_said == (position.gap_said and other == position.token)


def test_a_position_of_a_version_that_kept_no_scope_is_read() -> None:
    text = '{"server":{"name":"rs0"},"token":{"data":"826B00207E000000142B0229296E04"},"v":1}'
    assert parse_position(text).scope is None


def test_a_token_begins_with_its_cluster_time() -> None:
    assert Token("826B00207E000000142B0229296E04").time == ClusterTime(0x6B00207E, 0x14)


@pytest.mark.parametrize("text", ["", "0/16B3748", "{}", '{"v":2}', "[]"])
def test_the_position_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="position"):
        parse_position(text)


@pytest.mark.parametrize(
    ("known", "found", "other"),
    [
        (Server("rs0", "a"), Server("rs0", "a"), False),
        (Server("rs0", "a"), Server("rs0", "b"), True),
        (Server("rs0", "a"), Server("rs1", "a"), False),
        (Server("rs0", "a"), Server("rs0"), False),
        (Server("rs0"), Server("rs1", "b"), True),
    ],
)
def test_a_server_is_known_by_its_id_and_else_by_its_name(
    known: Server, found: Server, other: bool
) -> None:
    """S6."""
    assert known.is_other_than(found) is other
