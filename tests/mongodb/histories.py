"""Replica sets whose history becomes another."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from penstock.event import ClusterTime
from penstock.ports import ChangeSource
from penstock.sources.mongodb import MongoSource
from penstock.sources.mongodb.positions import parse_position
from tests.histories import Deployment, Write
from tests.mongodb.support import config
from tests.waiting import wait_until
from tests_support.servers import MongoReplicaSet

Client = MongoClient[dict[str, Any]]
MEMBERS = 3
OPTIONS: dict[str, Any] = {
    "members": MEMBERS,
    "oplog_mb": 16,
    "parameters": {"enableTestCommands": "1"},
    "extra_args": ("--syncdelay", "1"),
}
"""Of a set that rolls its oplog over soon, and of which members can be held back."""


def roll_over(client: Client, time: ClusterTime) -> None:
    """Write until the oplog no longer reaches back to `time`."""
    pads = client["pads"]["pads"]
    oplog = client["local"]["oplog.rs"]
    for _ in range(600):
        oldest = oplog.find_one({}, {"ts": 1}, sort=[("$natural", 1)])
        assert oldest is not None
        if (oldest["ts"].time, oldest["ts"].inc) > (time.t, time.i):
            return
        pads.insert_many({"body": "x" * (1 << 20)} for _ in range(4))
        pads.drop()
    raise AssertionError("the oplog was not truncated")


class MongoDeployment(Deployment):
    """A set of three members, each of which has every write of ours as soon as it is committed."""

    acts = ("purge", "copy", "restore", "replace", "promote", "promote", "promote behind")
    forgets = False  # what a majority does not have was never given to capture

    def __init__(self, mongo: MongoReplicaSet, folder: Path) -> None:
        self._mongo = mongo
        self._copy = folder / "copy"
        self._held_back: list[int] = []

    def source(self) -> ChangeSource:
        beats = {"heartbeat_seconds": 0.2, "heartbeat_deadline_seconds": 2.0}
        options: dict[str, Any] = {"database": "shop", "on_position_lost": "gap", **beats}
        return MongoSource("shop", config(self._mongo.uri, **options))

    def is_past(self, position: str) -> bool:
        return parse_position(position).token.time > self._end()

    def is_quiet(self, position: str) -> bool:
        return not parse_position(position).token.is_of_event

    def _end(self) -> ClusterTime:
        """Of the newest write of a majority."""
        with self._client() as client:
            newest = client.admin.command("hello")["lastWrite"]["majorityOpTime"]["ts"]
        return ClusterTime(newest.time, newest.inc)

    def _client(self) -> Client:
        if self._held_back:
            return Client(self._mongo.uri, w=1, journal=True)
        return Client(self._mongo.uri, w=MEMBERS)

    def write(self, writes: Sequence[Write]) -> None:
        with self._client() as client:
            rows = client["shop"]["rows"]
            for write in writes:
                if write.is_new:
                    rows.insert_one({"_id": write.id, "v": write.v})
                elif write.v is None:
                    rows.delete_one({"_id": write.id})
                else:
                    rows.replace_one({"_id": write.id}, {"v": write.v})

    def write_elsewhere(self) -> None:
        with self._client() as client:
            client["other"]["other"].insert_one({})

    def rows(self) -> dict[int, int]:
        with self._client() as client:
            return {row["_id"]: row["v"] for row in client["shop"]["rows"].find()}

    def purge(self) -> None:
        with self._client() as client:
            roll_over(client, self._end())

    def copy(self) -> None:
        """Of one that is not the primary: it has as much, with an entry of this primary's term. A
        mongod aborts that begins with the configuration of a term and no entry of it."""
        self.write_elsewhere()
        index = (self._mongo.primary_index() + 1) % MEMBERS
        self._mongo.members[index].stop()
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._mongo.data(index), self._copy)
        self._mongo.restart(index)

    def restore(self) -> None:
        self._mongo.restart_all(self._copy)

    def replace(self) -> None:
        self._mongo.replace()

    def replicate(self) -> None:
        """The others always do."""

    def hold_back(self) -> None:
        primary = self._mongo.primary_index()
        self._held_back = [index for index in range(MEMBERS) if index != primary]
        for index in self._held_back:
            self._replicates(index, "alwaysOn")

    def _replicates(self, index: int, mode: str) -> None:
        with self._member(index) as member:
            member.admin.command({"configureFailPoint": "stopReplProducer", "mode": mode})

    def _member(self, index: int) -> Client:
        return Client(self._mongo.addresses[index], directConnection=True)

    def promote(self) -> None:
        """By an election; where the others are behind, by the end of the primary, whose writes are
        rolled back when it is there again."""
        before = self._mongo.primary_index()
        if self._held_back:
            self._mongo.kill(before)
            for index in self._held_back:
                self._replicates(index, "off")
            self._held_back = []
            self._mongo.primary_index()
            self._mongo.restart(before)
            return
        with self._member(before) as member:
            member.admin.command({"replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 50})
        wait_until(lambda: self._mongo.primary_index() != before)
        with self._member(before) as member:
            member.admin.command({"replSetFreeze": 0})  # it may be elected again
