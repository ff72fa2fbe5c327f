"""Servers that several tests of the MongoDB source share."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.testing.servers import MongoReplicaSet
from tests.conftest import started


@pytest.fixture(scope="module")
def mongo_with_fail_points() -> Iterator[MongoReplicaSet]:
    """A replica set that fails on command; only commands of our own connections are to fail."""
    with ExitStack() as stack:
        yield started(stack, MongoReplicaSet(parameters={"enableTestCommands": "1"}))
