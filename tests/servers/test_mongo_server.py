"""The servers that other tests stand on are real, and leave nothing behind."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.client_session import ClientSession

from tests.children import Child
from tests.waiting import wait_until
from tests_support.servers import MongoReplicaSet, ServerStartError

Client = MongoClient[dict[str, Any]]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def wait_until_gone(pid: int) -> None:
    wait_until(lambda: not alive(pid), f"process {pid} to end with its owner")


def test_the_changes_of_a_transaction_reach_a_change_stream(
    mongo_client: Client, mongo_database: str
) -> None:
    orders = mongo_client[mongo_database]["orders"]
    orders.insert_one({"_id": 0})

    def place(session: ClientSession) -> None:
        orders.insert_one({"_id": 1}, session=session)
        orders.update_one({"_id": 0}, {"$set": {"paid": True}}, session=session)

    with orders.watch() as stream, mongo_client.start_session() as session:
        session.with_transaction(place)
        changes = [next(stream), next(stream)]

    assert [change["operationType"] for change in changes] == ["insert", "update"]
    assert len({change["clusterTime"] for change in changes}) == 1
    assert len({change["txnNumber"] for change in changes}) == 1


def test_6_0_27_splits_a_large_event(mongo6027: MongoReplicaSet) -> None:
    megabytes = 10 << 20
    with Client(mongo6027.uri) as client:
        assert client.server_info()["version"] == "6.0.27"
        database = client["split"]
        blobs = database.create_collection("blobs", changeStreamPreAndPostImages={"enabled": True})
        blobs.insert_one({"_id": 1, "body": "a" * megabytes})
        pipeline: list[dict[str, Any]] = [{"$changeStreamSplitLargeEvent": {}}]
        with blobs.watch(
            pipeline, full_document="required", full_document_before_change="required"
        ) as stream:
            blobs.update_one({"_id": 1}, {"$set": {"body": "b" * megabytes}})
            first = next(stream)
    assert first["splitEvent"]["fragment"] == 1
    assert first["splitEvent"]["of"] > 1


def test_fail_points_can_be_switched_on(start_mongo: Callable[..., MongoReplicaSet]) -> None:
    mongo = start_mongo(parameters={"enableTestCommands": "1"})
    with Client(mongo.uri) as client:
        client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


def test_killing_the_primary_of_three_lets_writes_and_the_stream_go_on(
    start_mongo: Callable[..., MongoReplicaSet],
) -> None:
    mongo = start_mongo(members=3)
    # A getMore whose member is already known to be gone waits for it this long (30 s by default).
    with Client(mongo.uri, w="majority", serverSelectionTimeoutMS=5000) as client:
        orders = client["shop"]["orders"]
        orders.insert_one({"_id": 0})
        with orders.watch() as stream:
            orders.insert_one({"_id": 1})
            killed = mongo.primary_index()
            mongo.kill(killed)
            orders.insert_one({"_id": 2})
            assert [next(stream)["documentKey"]["_id"] for _ in range(2)] == [1, 2]
        assert mongo.primary_index() != killed

        mongo.restart(killed)
        assert mongo.members[killed].running
        assert orders.count_documents({}) == 3


def test_a_restarted_member_keeps_its_port_and_its_data(
    start_mongo: Callable[..., MongoReplicaSet],
) -> None:
    mongo = start_mongo()
    uri = mongo.uri
    with Client(uri, w="majority", journal=True) as client:
        client["shop"]["orders"].insert_one({"_id": 1})
    mongo.kill(0)
    mongo.restart(0)
    assert mongo.uri == uri
    with Client(uri) as client:
        assert client["shop"]["orders"].find_one() == {"_id": 1}


def test_nothing_is_left_after_stop(start_mongo: Callable[..., MongoReplicaSet]) -> None:
    mongo = start_mongo()
    (member,) = mongo.members
    folder = member.log_path.parent
    assert alive(member.pid)
    mongo.stop()
    assert not alive(member.pid)
    assert not folder.exists()
    mongo.stop()


def test_a_server_started_from_a_thread_outlives_that_thread(
    start_mongo: Callable[..., MongoReplicaSet],
) -> None:
    sets: list[MongoReplicaSet] = []
    thread = threading.Thread(target=lambda: sets.append(start_mongo()))
    thread.start()
    thread.join()
    # Whatever the kernel sends at a thread's end is sent when it is no task any more.
    wait_until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists(), "the thread's end")
    with Client(sets[0].uri, serverSelectionTimeoutMS=2_000) as client:
        assert client.admin.command("ping")["ok"]


@pytest.mark.server
def test_killing_the_test_run_kills_its_servers_and_the_next_start_removes_their_data(
    start_mongo: Callable[..., MongoReplicaSet],
) -> None:
    owner_code = (
        "import time; from tests_support.servers import MongoReplicaSet\n"
        "mongo = MongoReplicaSet(); mongo.start(); member = mongo.members[0]\n"
        "print(member.pid, member.log_path.parent, flush=True); time.sleep(900)"
    )
    with Child(sys.executable, "-c", owner_code) as owner:
        pid, folder = owner.line().split()
        assert alive(int(pid))
    wait_until_gone(int(pid))

    start_mongo()
    assert not Path(folder).exists()


def test_a_server_that_cannot_start_shows_the_end_of_its_log(
    start_mongo: Callable[..., MongoReplicaSet],
) -> None:
    with pytest.raises(ServerStartError, match="noSuchParameter"):
        start_mongo(parameters={"noSuchParameter": "1"})
