"""What the driver refuses is told by its cause, and not as a name service's."""

import pytest
from pymongo import MongoClient
from pymongo.errors import ConfigurationError
from pymongo.hello import Hello
from pymongo.server_description import ServerDescription
from pymongo.topology_description import updated_topology_description

from penstock.errors import ConfigError, PenstockError, SourceUnavailableError
from penstock.mongo_causes import Address, not_reached
from penstock.sources.mongodb.config import MongoSourceConfig
from penstock.sources.mongodb.failures import translated

PLAIN, NAMED = "mongodb://u:secret@db.test:1", "mongodb+srv://u:secret@db.test"
TOO_OLD = (
    "Server at db.test:1 reports wire version 6, but this version of PyMongo requires at least "
    "8 (MongoDB 4.2)."
)
TOO_NEW = (
    "Server at db.test:1 requires wire version 99, but this version of PyMongo only supports up "
    "to 29."
)
AWS = (
    "MONGODB-AWS authentication requires pymongo-auth-aws: install with: python -m pip install "
    "'pymongo[aws]'"
)
KERBEROS = 'The "kerberos" module must be installed to use GSSAPI authentication.'


@pytest.mark.parametrize(
    ("uri", "said", "error", "what"),
    [
        (PLAIN, TOO_OLD, ConfigError, "too old for the driver, which needs MongoDB 4.2"),
        (NAMED, TOO_OLD, ConfigError, "too old for the driver"),
        (PLAIN, TOO_NEW, ConfigError, "too new for the driver"),
        (PLAIN, AWS, ConfigError, "Install pymongo[aws]"),
        (NAMED, KERBEROS, ConfigError, "Install pymongo[gssapi]"),
        (PLAIN, "u:secret", ConfigError, "the MongoDB driver refuses what uri says of db.test:1"),
        (NAMED, "The DNS query name does not exist", SourceUnavailableError, "name service"),
    ],
)
def test_what_the_driver_refuses_is_told_by_its_cause(
    uri: str, said: str, error: type[PenstockError], what: str
) -> None:
    config = MongoSourceConfig.model_validate({"uri": uri})
    found = translated("db", config, ConfigurationError(said), None)
    assert type(found) is error
    assert what in str(found)
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    ("server", "what"),
    [({"setName": "rs1", "hosts": ["db.test:1"]}, "the replica set 'rs1'"), ({}, "no replica set")],
)
def test_a_server_of_another_replica_set_than_uri_names_says_so(
    server: dict[str, object], what: str
) -> None:
    uri = "mongodb://db.test:1/?replicaSet=rs0&directConnection=true"
    client: MongoClient[dict[str, object]] = MongoClient(uri, connect=False)
    hello = Hello({"ok": 1, "isWritablePrimary": True, "maxWireVersion": 21, **server})
    seen = updated_topology_description(
        client.topology_description, ServerDescription(("db.test", 1), hello)
    )
    client.close()
    said, remedy = not_reached(seen, Address.of(uri))
    assert f"db.test:1 is in {what}, and not in the one that uri names" in said
    assert remedy == "Correct replicaSet in uri"


def test_a_server_that_was_not_heard_of_yet_does_not_answer_and_is_no_secondary() -> None:
    uri = "mongodb://db.test:1"
    client: MongoClient[dict[str, object]] = MongoClient(uri, connect=False)
    said, remedy = not_reached(client.topology_description, Address.of(uri))
    client.close()
    assert said == "MongoDB is not reached: db.test:1 does not answer in time"
    assert "firewall" in remedy
