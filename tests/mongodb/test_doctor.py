"""What is missing before a MongoDB can be captured is said with what to run."""

import gc
import importlib
from collections.abc import Callable
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from penstock.checks import Check, Level
from penstock.errors import ConfigError, SourceUnavailableError
from penstock.sources.mongodb import doctor
from penstock.sources.mongodb.deployment import Deployment
from penstock.sources.mongodb.positions import MongoPosition, Server, Token
from penstock.testing.servers import MongoReplicaSet, free_ports
from tests.mongodb.support import config, reading, source

source_module = importlib.import_module("penstock.sources.mongodb.source")
doctor_module = importlib.import_module("penstock.sources.mongodb.doctor")
Client = MongoClient[dict[str, Any]]
StartMongo = Callable[..., MongoReplicaSet]


def by_name(checks: list[Check]) -> dict[str, Check]:
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


async def test_a_fit_server_passes_every_check(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    mongo_client[mongo_database].create_collection(
        "orders", changeStreamPreAndPostImages={"enabled": True}
    )
    async with reading(mongo.uri, database=mongo_database) as read:
        position = read.position
    checks = await doctor("shop", config(mongo.uri, database=mongo_database), position=position)
    # This one does not split events over 16 MiB.
    assert [check.name for check in checks if not check.ok] == ["version"]
    assert by_name(checks)["version"].level is Level.WARNING
    assert list(by_name(checks)) == [
        "connection",
        "replica set",
        "version",
        "privileges",
        "identity",
        "oplog",
        "pre- and post-images",
    ]
    assert "hours of changes from loss" in by_name(checks)["oplog"].detail


# The driver drops the socket of a connection that it was still trying to make.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_a_server_that_is_away_is_a_check_that_failed_and_an_error_to_retry() -> None:
    (port,) = free_ports(1)
    uri = f"mongodb://127.0.0.1:{port}/?replicaSet=rs0"
    options: dict[str, Any] = {"heartbeat_seconds": 0.1, "heartbeat_deadline_seconds": 0.2}
    (check,) = await doctor("shop", config(uri, **options))
    assert (check.name, check.ok) == ("connection", False)
    async with source(uri, **options) as opened:
        with pytest.raises(SourceUnavailableError, match="does not answer"):
            await anext(opened.changes(position=None))
    gc.collect()


async def test_a_connection_string_that_is_none_is_a_configuration_error() -> None:
    async with source("mongodb://user:secret@:::/") as opened:
        with pytest.raises(ConfigError, match="connection string") as error:
            await anext(opened.changes(position=None))
    assert "secret" not in str(error.value)


async def test_a_position_older_than_the_oplog_is_told(
    mongo: MongoReplicaSet, mongo_database: str
) -> None:
    old = MongoPosition(Server("rs0"), Token("8200000001000000012B0229296E04")).text()
    checks = await doctor("shop", config(mongo.uri, database=mongo_database), position=old)
    oplog = by_name(checks)["oplog"]
    assert not oplog.ok
    assert "replSetResizeOplog" in oplog.fix


async def test_required_images_that_a_collection_does_not_store_are_told(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    mongo_client[mongo_database].create_collection("orders")
    required = config(mongo.uri, database=mongo_database, full_document="required")
    images = by_name(await doctor("shop", required))["pre- and post-images"]
    assert not images.ok
    assert 'collMod: "orders"' in images.fix
    optional = config(mongo.uri, database=mongo_database)
    assert by_name(await doctor("shop", optional))["pre- and post-images"].ok


@pytest.mark.parametrize(
    ("sharded", "match"),
    [(True, "mongos.*not supported yet"), (False, r"standalone server.*--replSet")],
)
async def test_what_has_no_usable_change_streams_is_refused_with_what_to_do(
    mongo: MongoReplicaSet, monkeypatch: pytest.MonkeyPatch, sharded: bool, match: str
) -> None:
    """No mongos can be started here, so only what the server says of itself is made up."""
    made_up = Deployment(server=Server("x"), version=(6, 0, 5), replicated=False, sharded=sharded)

    async def describe(_client: object) -> Deployment:
        return made_up

    monkeypatch.setattr(source_module, "describe", describe)
    monkeypatch.setattr(doctor_module, "describe", describe)
    async with source(mongo.uri) as opened:
        with pytest.raises(ConfigError, match=match):
            await anext(opened.changes(position=None))
    _, check = await doctor("shop", config(mongo.uri))
    assert not check.ok
    assert check.fix


async def test_a_shard_that_is_reached_directly_is_refused(start_mongo: StartMongo) -> None:
    """Chunks that move to it, and databases, come without change events."""
    mongo = start_mongo(version="6.0.27", extra_args=("--shardsvr",))
    identity = {
        "_id": "shardIdentity",
        "shardName": "rs0",
        "clusterId": ObjectId(),
        "configsvrConnectionString": "config/127.0.0.1:1",
    }
    async with source(mongo.uri) as opened:
        await anext(opened.changes(position=None))  # not one of a cluster yet
    with Client(mongo.uri) as client:
        client["admin"]["system.version"].insert_one(identity)
    async with source(mongo.uri) as opened:
        with pytest.raises(
            ConfigError, match=r"a shard of a sharded cluster.*moves between shards"
        ):
            await anext(opened.changes(position=None))
    _, check = await doctor("shop", config(mongo.uri))
    assert not check.ok
    assert "moves between shards" in check.detail
    mongo.kill(0)  # it would look for its cluster for a while


async def test_a_grant_that_is_missing_is_named_and_granting_it_is_enough(guarded: str) -> None:
    """Least privilege: what the fix grants, and nothing more."""

    def uri(user: str) -> str:
        return f"mongodb://{user}:{user[0]}@{guarded}&authSource=admin"

    with Client(uri("root")) as root:
        root["shop"]["orders"].insert_one({"_id": 1})
        root["admin"].command("createUser", "nobody", pwd="n", roles=[])
        root["admin"].command(
            "createUser", "reader", pwd="r", roles=[{"role": "read", "db": "shop"}]
        )

        nobody = by_name(await doctor("shop", config(uri("nobody"), database="shop")))
        assert not nobody["privileges"].ok
        assert 'createUser({user: "penstock"' in nobody["privileges"].fix
        async with source(uri("nobody"), database="shop") as opened:
            with pytest.raises(ConfigError, match=r'Unauthorized \(13\).*role: "read", db: "shop"'):
                await anext(opened.changes(position=None))
        async with source(uri("other"), database="shop") as opened:
            with pytest.raises(ConfigError, match=r"AuthenticationFailed \(18\)"):
                await anext(opened.changes(position=None))

        # `read` alone captures; what else the grant gives is for safety.
        reader = by_name(await doctor("shop", config(uri("reader"), database="shop")))
        assert {name for name, check in reader.items() if not check.ok} == {
            *("version", "identity", "oplog")
        }
        assert all(check.level is not Level.ERROR for check in reader.values())
        async with reading(uri("reader"), database="shop", start="snapshot") as read:
            await read.until(lambda r: bool(r.changes))
            assert Server("rs0").is_other_than(Server("rs1"))

        # As grant_command says it.
        root["admin"].command(
            "createRole",
            "penstockCapture",
            privileges=[
                {"resource": {"cluster": True}, "actions": ["replSetGetConfig"]},
                {"resource": {"db": "local", "collection": "oplog.rs"}, "actions": ["find"]},
            ],
            roles=[],
        )
        for user, role in (
            ("penstock", {"role": "read", "db": "shop"}),
            ("whole", {"role": "readAnyDatabase", "db": "admin"}),
        ):
            root["admin"].command("createUser", user, pwd=user[0], roles=[role, "penstockCapture"])
    for user, database in (("penstock", "shop"), ("whole", None)):
        checks = await doctor("shop", config(uri(user), database=database))
        assert [check.name for check in checks if not check.ok] == ["version"]
        async with reading(uri(user), database=database, start="beginning") as read:
            await read.until(lambda r: bool(r.changes))
