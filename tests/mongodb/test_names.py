"""A setting that names nothing which is there is told with the nearest names, until it does."""

import json
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from penstock.capture.watch import NamesWatch
from penstock.checks import Level
from penstock.sources.mongodb import doctor
from tests.cli.service import configure, penstock
from tests.mongodb.support import config, source
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]


async def test_a_slip_in_a_name_is_told_until_something_matches(
    mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str
) -> None:
    database = mongo_client[mongo_database]
    database["orders"].insert_one({"_id": 1})
    slips: dict[str, Any] = {
        "include": ["ordrs", f"{mongo_database}.orders", "o*s"],
        "exclude": ["secretz"],
    }
    said = [
        "include 'ordrs' matches nothing that is there; the nearest are orders",
        "exclude 'secretz' matches nothing that is there",
    ]
    checks = await doctor("shop", config(mongo.uri, database=mongo_database, **slips))
    (names,) = [check for check in checks if check.name == "names"]
    assert (names.level, names.detail) == (Level.WARNING, "; ".join(said))

    watch = NamesWatch()
    async with source(mongo.uri, database=mongo_database, **slips) as opened:
        await watch.ask([opened], running=(), steady_seconds=0)
        assert watch.unmatched == {}
        await watch.ask([opened], running={"shop"}, steady_seconds=0)
        assert watch.unmatched == {"shop": said}
        for name in ("ordrs", "secretz"):
            database.create_collection(name)
        await watch.ask([opened], running={"shop"}, steady_seconds=14)
        assert watch.unmatched == {"shop": said}
        await watch.ask([opened], running={"shop"}, steady_seconds=15)
        assert watch.unmatched == {"shop": []}
        database.drop_collection("ordrs")
        # What matched once was no slip.
        await watch.ask([opened], running={"shop"}, steady_seconds=10_000)
        assert watch.unmatched == {"shop": []}
    async with source(mongo.uri, include=[f"{mongo_database}x.*"]) as opened:
        (one,) = await opened.unmatched()
        assert f"the nearest are {mongo_database}.*" in one


def test_a_database_that_is_not_there_is_told_by_config_check(
    mongo: MongoReplicaSet,
    mongo_client: Client,
    mongo_database: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    mongo_client[mongo_database]["orders"].insert_one({"_id": 1})
    text = f"[sources.s]\ntype = 'mongodb'\nuri = '{mongo.uri}'\ndatabase = '{mongo_database}p'"
    path = str(configure(tmp_path, text))
    done = penstock(capsys, "config", "check", "--config", path, "--json")
    (remark,) = json.loads(done.out)["remarks"]
    assert done.code == 0
    assert remark == (
        f"sources.s: database '{mongo_database}p' matches nothing that is there; the nearest are "
        f"{mongo_database}"
    )
