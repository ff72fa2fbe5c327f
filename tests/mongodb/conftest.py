"""Servers that several tests of the MongoDB source share."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from tests.conftest import started
from tests_support.servers import MongoReplicaSet


@pytest.fixture(scope="module")
def mongo_with_fail_points() -> Iterator[MongoReplicaSet]:
    """A replica set that fails on command; only commands of our own connections are to fail."""
    with ExitStack() as stack:
        yield started(stack, MongoReplicaSet(parameters={"enableTestCommands": "1"}))


@pytest.fixture
def guarded(start_mongo: Callable[..., MongoReplicaSet], tmp_path: Path) -> str:
    """The address of a set that asks for passwords; `root` may do everything."""
    key = tmp_path / "key"
    key.write_text("c2VjcmV0c2VjcmV0")
    key.chmod(0o600)
    assert key.stat().st_uid == os.getuid()
    mongo = start_mongo(extra_args=("--keyFile", str(key)))
    address = mongo.uri.removeprefix("mongodb://")
    with MongoClient[dict[str, Any]](mongo.uri) as client:
        client["admin"].command("createUser", "root", pwd="r", roles=["root"])
    return address
