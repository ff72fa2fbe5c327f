"""`penstock doctor` says of a trail's MongoDB what would keep it from being written or lasting."""

import threading
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from pymongo import MongoClient

from penstock.audit.doctor import doctor
from penstock.audit.outages import Brief, Patience
from penstock.audit.querying import Querier
from penstock.audit.trail import Trail
from penstock.checks import Check, Level
from penstock.errors import AuditError, TrailUnavailableError
from tests.audit.support import row, trail_of, write
from tests_support.servers import MongoReplicaSet, free_ports

pytestmark = pytest.mark.server


def checks_of(trail: Trail, *, pipeline: str = "trail") -> dict[str, Check]:
    return {check.name: check for check in doctor("shop", pipeline, trail.config)}


def test_a_replica_set_with_a_trail_is_found_well(trail: Trail) -> None:
    found = checks_of(trail)
    wrong = {check.name: check.level for check in found.values() if not check.ok}
    assert wrong == {"copies": Level.WARNING, "rights": Level.WARNING}
    assert "no trail yet" in found["head"].detail
    write(trail, [row(1, after={"id": 1})])
    assert checks_of(trail)["head"].detail == "1 records in 1 batches"
    assert "no single disk" in found["copies"].fix
    assert not checks_of(trail, pipeline="other")["head"].ok


def test_another_seal_key_is_told(trail: Trail) -> None:
    uri, database = trail.config.uri.get_secret_value(), trail.config.database
    with (
        closing(trail_of(uri, database, seal_key="k" * 16)) as sealed,
        closing(trail_of(uri, database, seal_key="x" * 16)) as other,
    ):
        write(sealed, [row(1, after={"id": 1})])
        assert checks_of(sealed)["head"].ok
        check = checks_of(other)["head"]
        assert check.level is Level.ERROR
        assert "begun with another key" in check.detail
        assert "Set seal_key to the key" in check.fix


def test_a_server_without_transactions_is_said_to_cost_twice_the_writes(
    standalone: MongoReplicaSet, mongo_database: str
) -> None:
    """A21: probed, not found out by an error's text."""
    trail = trail_of(standalone.uri, mongo_database)
    trail.close()
    found = checks_of(trail)
    assert found["transactions"].level is Level.WARNING
    assert "rs.initiate()" in found["transactions"].fix


def test_a_mongodb_that_is_away_is_said_to_be(mongo_database: str) -> None:
    (port,) = free_ports(1)
    uri = f"mongodb://127.0.0.1:{port}/?serverSelectionTimeoutMS=200"
    trail = trail_of(uri, mongo_database, answer_seconds=1)
    trail.close()
    (check,) = doctor("shop", "trail", trail.config)
    assert (check.name, check.ok) == ("reachable", False)
    assert f"127.0.0.1:{port} refuses connections: nothing listens there" in check.detail
    assert check.fix == "Start the server, or correct host and port in uri."
    with closing(Trail("shop", trail.config)) as away:
        waiting = Brief(away, stopping=threading.Event())
        with pytest.raises(TrailUnavailableError) as told:
            waiting.once(away.head)
        with pytest.raises(TrailUnavailableError) as queried:
            Querier(away).head()
    for error in (told.value, queried.value):
        assert f"127.0.0.1:{port} refuses connections" in str(error)
        assert "Nothing was changed. Start the server" in str(error)


def test_a_user_who_may_not_write_is_told_what_to_be_granted(
    start_mongo: Any, tmp_path: Any
) -> None:
    key = tmp_path / "key"
    key.write_text("c2VjcmV0c2VjcmV0")
    key.chmod(0o600)
    mongo: MongoReplicaSet = start_mongo(extra_args=("--keyFile", str(key)))
    with MongoClient[dict[str, Any]](mongo.uri) as client:
        client["admin"].command("createUser", "root", pwd="r", roles=["root"])
    address = mongo.uri.removeprefix("mongodb://")
    with MongoClient[dict[str, Any]](f"mongodb://root:r@{address}&authSource=admin") as client:
        read = [{"role": "read", "db": "audit"}]
        write_too = [{"role": "readWrite", "db": "audit"}]
        client["admin"].command("createUser", "reader", pwd="r", roles=read)
        client["admin"].command("createUser", "writer", pwd="r", roles=write_too)
    for user, fine in (("reader", False), ("writer", True)):
        trail = trail_of(f"mongodb://{user}:r@{address}&authSource=admin", "audit")
        trail.close()
        found = {check.name: check for check in doctor("shop", "trail", trail.config)}
        assert found["rights"].ok is fine, found
        grant = f'grantRolesToUser("{user}", [{{role: "readWrite", db: "audit"}}])'
        assert (grant in found["rights"].fix) is not fine
        assert "clusterMonitor" in found["durable"].fix
    where = address.partition("/")[0]
    wrong = trail_of(f"mongodb://reader:s3cret@{address}&authSource=admin", "audit")
    nobody = trail_of(f"mongodb://{address}", "audit")
    reader = trail_of(f"mongodb://reader:r@{address}&authSource=admin", "audit")
    with closing(wrong), closing(nobody), closing(reader):
        (check,) = doctor("shop", "trail", wrong.config)
        assert f"MongoDB at {where} rejects the user name or password of 'reader'" in check.detail
        assert "authSource" in check.fix
        for trail, what, remedy in (
            (wrong, "rejects the user name or password of 'reader'", "Correct uri"),
            (nobody, f"MongoDB at {where} asks for a user, and uri has none", "createUser("),
            (reader, "'reader' lacks a privilege at", grant.replace("writer", "reader")),
        ):
            waiting = Patience(trail, stopping=threading.Event())
            with pytest.raises(AuditError, match=what) as told:
                waiting.call(partial(trail.heads.insert_one, {}))
            assert remedy in str(told.value)
            assert "s3cret" not in str(told.value)
