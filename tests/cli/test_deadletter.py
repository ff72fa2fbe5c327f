"""`penstock deadletter`: what cannot be decoded is listed, and dealt with, while capture runs."""

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from penstock.cli.control import request
from tests.cli.service import Service, configure, penstock
from tests.mongodb.test_documents import document, element
from tests.waiting import wait_until
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]

MONGO = """
[log]
path = "log"
free_bytes_min = 0
[sources.shop]
type = "mongodb"
uri = "{uri}"
database = "{database}"
start = "snapshot"
on_undecodable = "dead_letter"
heartbeat_seconds = 0.5
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "127.0.0.1:0"
"""


def twice(key: int) -> RawBSONDocument:
    """A document that the server stores and that has no exact form."""
    fields = element(0x10, b"k", b"\1\0\0\0") * 2
    return RawBSONDocument(document(element(0x10, b"_id", struct.pack("<i", key)), fields))


@pytest.mark.slow
def test_letters_are_listed_replayed_and_settled_and_the_source_is_degraded_until_then(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
) -> None:
    """P6: dead-letter record, metric, health, and a way to make it good."""
    orders = mongo_client[mongo_database].create_collection("orders")
    orders.insert_many([twice(1), twice(2), {"_id": 3}])
    config = configure(tmp_path, MONGO.format(uri=mongo.uri, database=mongo_database))

    def run(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        done = penstock(capsys, "deadletter", *arguments, "--config", str(config), "--json")
        return done.code, [json.loads(line) for line in done.out.splitlines()]

    def told(name: str, value: object) -> dict[str, Any]:
        """The source's status, once it says so."""

        def asked() -> dict[str, Any] | None:
            (status,) = request(tmp_path / "log", "status")["sources"]
            return status if status[name] == value else None

        return wait_until(asked, f"{name} is {value}")

    with Service(config):
        assert told("deadLetters", 2)["health"] == "degraded"
        code, letters = run("list", "shop")
        assert code == 0
        assert [letter["isRow"] for letter in letters] == [True, True]
        orders.replace_one({"_id": 1}, {"v": "mended"})

        code, outcomes = run("replay", "shop")
        assert code == 1, "one is damaged still"
        assert [(one["letter"], one["done"]) for one in outcomes] == [
            (letters[0]["_id"], True),
            (letters[1]["_id"], False),
        ]
        assert run("list", "shop")[1] == letters[1:]
        assert run("replay", "shop", letters[0]["_id"])[0] == 2

        assert run("settle", "shop")[0] == 2, "everything only if that was said"
        assert run("settle", "shop", "--all")[0] == 0
        assert run("list", "shop") == (0, [])
        told("health", "ok")
        packed = request(tmp_path / "log", "metrics")["exposition"]
        text = zlib.decompress(base64.b64decode(packed)).decode()
        assert 'penstock_dead_letters_total{source="shop"} 2.0' in text
        assert 'penstock_dead_letters_outstanding{source="shop"} 0.0' in text
