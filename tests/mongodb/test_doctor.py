"""What is missing before a MongoDB can be captured is said with what to run."""

import gc
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from penstock.checks import Check, Level
from penstock.errors import ConfigError, SourceUnavailableError
from penstock.sources.mongodb import doctor
from penstock.sources.mongodb.deployment import Deployment
from penstock.sources.mongodb.positions import MongoPosition, Server, Token
from tests.access.certificates import Authority
from tests.mongodb.support import config, reading, source
from tests_support.servers import MariaDbServer, MongoReplicaSet, free_ports

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


def granted(root: Client, command: str) -> None:
    """Run what mongosh would: the role, unless it is there, and what is granted."""
    made, given = command.split("; ")
    role = re.fullmatch(
        r'db\.getSiblingDB\("admin"\)\.getRole\("(\w+)"\) \|\| '
        r'db\.getSiblingDB\("admin"\)\.createRole\((.*)\)',
        made,
    )
    user = re.fullmatch(r'db\.getSiblingDB\((".*")\)\.grantRolesToUser\((".*"), (\[.*\])\)', given)
    assert role is not None
    assert user is not None
    if not root["admin"].command("rolesInfo", role[1])["roles"]:
        described = _literal(role[2])
        root["admin"].command("createRole", described.pop("role"), **described)
    where, name = json.loads(user[1]), json.loads(user[2])
    root[where].command("grantRolesToUser", name, roles=_literal(user[3]))


def _literal(text: str) -> Any:
    return json.loads(re.sub(r"(\w+):", r'"\1":', text))


async def test_a_grant_that_is_missing_is_named_and_granting_it_is_enough(guarded: str) -> None:
    """Least privilege: what the fix grants, and nothing more, to the user that is there. Once."""

    def uri(user: str, database: str = "admin") -> str:
        return f"mongodb://{user}:{user[0]}@{guarded}&authSource={database}"

    hosts = guarded.partition("/")[0]
    with Client(uri("root")) as root:
        root["shop"]["orders"].insert_one({"_id": 1})
        root["shop"].command("createUser", "no%body", pwd="n", roles=[])
        root["admin"].command("createUser", "whole", pwd="w", roles=[])
        read = {"role": "read", "db": "shop"}
        root["admin"].command("createUser", "reader", pwd="r", roles=[read])
        nobody = uri("no%25body", "shop")

        for user, database in ((nobody, "shop"), (uri("whole"), None)):
            checks = by_name(await doctor("shop", config(user, database=database)))
            assert checks["privileges"].level is Level.ERROR
            assert (
                f"lacks a privilege at {hosts} (Unauthorized (13))" in checks["privileges"].detail
            )
            async with source(user, database=database) as opened:
                with pytest.raises(ConfigError, match="lacks a privilege") as error:
                    await anext(opened.changes(position=None))
            fixes = [check.fix for check in checks.values() if "grantRolesToUser" in check.fix]
            assert len(fixes) == 1
            assert "createUser" not in fixes[0] + str(error.value)
            command = fixes[0].partition("mongosh: ")[2]
            assert str(error.value).endswith(f"run in mongosh: {command}")
            granted(root, command)
            after = await doctor("shop", config(user, database=database))
            assert [check.name for check in after if not check.ok] == ["version"]
            async with reading(user, database=database, start="beginning") as told:
                await told.until(lambda r: bool(r.changes))

        # `read` alone captures; what else the grant gives is for safety.
        reader = by_name(await doctor("shop", config(uri("reader"), database="shop")))
        wrong = {name: check.level for name, check in reader.items() if not check.ok}
        assert wrong == dict.fromkeys(("version", "privileges", "identity", "oplog"), Level.WARNING)
        assert [name for name, check in reader.items() if "grant" in check.fix] == ["privileges"]
        async with reading(uri("reader"), database="shop", start="snapshot") as told:
            await told.until(lambda r: bool(r.changes))
            assert Server("rs0").is_other_than(Server("rs1"))
        granted(root, reader["privileges"].fix.partition("mongosh: ")[2])
        after = await doctor("shop", config(uri("reader"), database="shop"))
        assert [check.name for check in after if not check.ok] == ["version"]

    # Who we are, and whether we are anybody.
    for strange, sentences in (
        (uri("root").replace(":r@", ":s3cret@"), ("user name or password of 'root'", "'admin'")),
        (uri("root", "shop"), ("user name or password of 'root'", "'shop'", "authSource")),
        (f"mongodb://{guarded}", ("asks for a user, and uri has none", "createUser")),
    ):
        found = await doctor("shop", config(strange, database="shop"))
        (wrong_one,) = [check for check in found if check.level is Level.ERROR]
        async with source(strange, database="shop") as opened:
            with pytest.raises(ConfigError) as error:
                await anext(opened.changes(position=None))
        for said in (f"{wrong_one.detail} {wrong_one.fix}", str(error.value)):
            assert all(sentence in said for sentence in (hosts, *sentences)), said
            assert ("grant" in said) is False
            assert "s3cret" not in said


async def unreached(uri: str, **options: Any) -> str:
    """What a source tries again after; the doctor says the same sentence."""
    (check,) = await doctor("shop", config(uri, **options))
    assert (check.name, check.level) == ("connection", Level.ERROR)
    async with source(uri, **options) as opened:
        with pytest.raises(SourceUnavailableError) as error:
            await anext(opened.changes(position=None))
    assert str(error.value) == check.detail
    return check.detail


@pytest.mark.slow
async def test_where_no_mongodb_answers_the_host_the_port_and_the_cause_are_said(
    mongo: MongoReplicaSet, mariadb: MariaDbServer
) -> None:
    (free,) = free_ports(1)
    address = mongo.addresses[0]
    causes = {
        f"mongodb://nowhere.invalid:27018,127.0.0.1:{free}/?replicaSet=rs0": (
            "nowhere.invalid:27018 is a host name that is not known",
            f"127.0.0.1:{free} refuses connections: nothing listens there",
            "Correct the host in uri",
        ),
        f"mongodb://{address}/?replicaSet=rs9": (
            f"no MongoDB at {address} is a member of the replica set that uri names",
            "Correct replicaSet in uri",
        ),
        f"mongodb://{address}/?replicaSet=rs0&tls=true": (
            f"{address} does not speak TLS as we do",
            "Correct tls in uri",
        ),
        f"mongodb://127.0.0.1:{mariadb.port}": (
            f"127.0.0.1:{mariadb.port} is no MongoDB",
            "Correct host and port in uri",
        ),
        "mongodb+srv://nowhere.invalid/": ("no hosts for nowhere.invalid", "mongodb+srv"),
    }
    options: dict[str, Any] = {"heartbeat_seconds": 0.2, "heartbeat_deadline_seconds": 0.5}
    for uri, sentences in causes.items():
        said = await unreached(uri, **options)
        for sentence in (*sentences, "tries again by itself"):
            assert sentence in said, said
    gc.collect()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_a_certificate_that_does_not_fit_and_tls_on_one_side_are_told(
    start_mongo: StartMongo, tmp_path: Path
) -> None:
    authority = Authority()
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate)
    signed = authority.sign("db.test")  # and for 127.0.0.1
    both = tmp_path / "server.pem"
    both.write_bytes(signed.certificate + signed.key)
    tls = ("--tlsMode", "allowTLS", "--tlsCertificateKeyFile", str(both))
    mongo = start_mongo(extra_args=tls)
    port = mongo.addresses[0].rpartition(":")[2]
    options: dict[str, Any] = {"heartbeat_seconds": 0.2, "heartbeat_deadline_seconds": 0.5}

    def uri(host: str, said: str) -> str:
        return f"mongodb://{host}:{port}/?directConnection=true{said}"

    untrusted = await unreached(uri("127.0.0.1", "&tls=true"), **options)
    assert f"127.0.0.1:{port} has a certificate that is not trusted" in untrusted
    assert "Correct tlsCAFile in uri" in untrusted
    other = await unreached(uri("localhost", f"&tls=true&tlsCAFile={ca}"), **options)
    assert f"localhost:{port} has a certificate that is for another name (Hostname" in other
    assert "Correct the host in uri to a name that the certificate has" in other
    with Client(mongo.uri) as client:
        for mode in ("preferTLS", "requireTLS"):
            client["admin"].command("setParameter", 1, tlsMode=mode)
    trusted = uri("127.0.0.1", f"&tls=true&tlsCAFile={ca}")
    renewed = tmp_path / "renewed.pem"
    renewed.write_bytes(Authority("another authority").certificate)
    late = uri("127.0.0.1", f"&tls=true&tlsCAFile={renewed}")
    async with source(late, **options) as opened:
        with pytest.raises(SourceUnavailableError, match="a certificate that is not trusted"):
            await anext(opened.changes(position=None))
        for _ in range(3):
            renewed.write_bytes(authority.certificate + b"\n")
            assert (await anext(opened.changes(position=None))).source == "shop"
            for content in (None, b"", b"no certificate"):  # as while it is being renewed
                renewed.unlink() if content is None else renewed.write_bytes(content)
                assert (await anext(opened.changes(position=None))).source == "shop"
    proof = tmp_path / "proof.pem"
    ours, others = authority.sign("us.test"), authority.sign("others.test")
    shown = uri("127.0.0.1", f"&tls=true&tlsCAFile={ca}&tlsCertificateKeyFile={proof}")
    proof.write_bytes(ours.certificate + ours.key)
    async with source(shown, **options) as opened:
        assert (await anext(opened.changes(position=None))).source == "shop"
        for content in (b"", b"no certificate", ours.certificate + others.key):
            proof.write_bytes(content)
            assert (await anext(opened.changes(position=None))).source == "shop"
            async with source(shown, **options) as begun:
                with pytest.raises(SourceUnavailableError, match=r"a file of TLS .* used \("):
                    await anext(begun.changes(position=None))
    for content in (None, b""):
        renewed.unlink() if content is None else renewed.write_bytes(content)
        async with source(late, **options) as opened:
            with pytest.raises(SourceUnavailableError, match=r"a file of TLS .* cannot be used"):
                await anext(opened.changes(position=None))
    assert (await doctor("shop", config(trusted)))[0].detail == "reached rs0"
    plain = await unreached(uri("127.0.0.1", ""), **options)
    assert f"127.0.0.1:{port} closes the connection at once" in plain
    assert "Correct tls in uri if the server requires TLS" in plain
    gc.collect()
