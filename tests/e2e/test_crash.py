"""The main promise, kept through kill -9 of everything: collection == consumer == Delta table.

Seeded writers work on a real MongoDB while the service, each of its two processes, the consumer
and the Spark driver are killed at random. The seed is printed; PENSTOCK_SEED repeats a run's
choices (the moments remain the machine's).
"""

import random
import signal
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from penstock.client.flight import LogClient
from penstock.progress import Progress
from tests.e2e.comparison import (
    NESTED,
    balances_of_every_version,
    collection_rows,
    folded,
    rejects,
    stored_collection,
    table_rows,
)
from tests.e2e.consumer import CHANGES
from tests.e2e.processes import Process, Service
from tests.e2e.workload import ACCOUNTS, COLLECTIONS, ITEMS, Writers, prepare
from tests.seeds import seed_of
from tests.waiting import wait_until
from tests_support.servers import MongoReplicaSet, free_ports

VICTIMS = ("service", "capture", "serve", "consumer", "driver")


class Deployment:
    """One MongoDB, one service, one consumer, one Spark driver."""

    def __init__(self, uri: str, folder: Path, *, images: bool) -> None:
        self.uri = uri
        self.folder = folder
        self.images = images
        self.database = f"crash_{ObjectId()}"
        grpc, flight = free_ports(2)
        self.grpc, self.flight = f"127.0.0.1:{grpc}", f"127.0.0.1:{flight}"
        self.config = folder / "penstock.toml"
        self.config.write_text(
            f"""
            [log]
            path = "{folder}/log"
            [sources.shop]
            type = "mongodb"
            uri = "{uri}"
            database = "{self.database}"
            start = "snapshot"
            full_document = "{"whenAvailable" if images else "updateLookup"}"
            [serve]
            grpc = "{self.grpc}"
            flight = "{self.flight}"
            http = "127.0.0.1:0"
            [pipelines.shop]
            source = "shop"
            collections = {list(COLLECTIONS)}
            path = "{folder}/lake"
            max_events_per_batch = 2000
            """
        )
        self.service = Service(self.config, folder)
        pipeline = ["-m", "penstock.cli", "pipeline", "run", "shop"]
        pipeline += ["--config", str(self.config), "--json"]
        self.driver = Process("driver", pipeline, folder)
        self.consumer = Process("consumer", [], folder)
        self.processes: tuple[Process, ...] = (self.consumer, self.driver, self.service)
        self.kills: dict[str, int] = dict.fromkeys(VICTIMS, 0)

    def start(self) -> None:
        self.service.start()
        self.service.fact("ready")
        with LogClient(self.flight) as client:
            empty_log = Progress(client.bounds().log_id, 0, 0)
        program = str(Path(__file__).parent / "consumer.py")
        self.consumer.command = [program, self.grpc, str(self.folder), str(empty_log)]
        self.consumer.start()
        self.driver.start()

    def stop(self) -> None:
        for process in self.processes:
            if process.running:
                process.kill()

    def kill(self, victim: str) -> None:
        """kill -9, and start it again, as an operator's init system would."""
        if victim in ("capture", "serve"):
            self.service.kill_role(victim)
        else:
            process = next(p for p in self.processes if p.name == victim)
            process.kill()
            process.start()
        self.kills[victim] += 1

    def filed(self, text: bytes) -> bool:
        """Whether the consumer has filed a change that says `text`."""
        path = self.folder / CHANGES
        return path.exists() and text in path.read_bytes()

    def applied(self) -> int:
        """The last sequence that the driver of this life has said is in the tables."""
        sequences: list[int] = [fact.get("sequence", 0) for fact in list(self.driver.facts)]
        return max(sequences, default=0)


@contextmanager
def deployment(uri: str, folder: Path, *, images: bool) -> Generator[Deployment]:
    with ExitStack() as stack:
        deployed = Deployment(uri, folder, images=images)
        stack.callback(deployed.stop)
        yield deployed


def crash_run(uri: str, folder: Path, *, kills: int, seed: int, images: bool) -> None:
    """Kill each victim `kills` times while writers write; then compare everything.

    With `images`, MongoDB keeps each update's own document, so every version of a table must show
    whole transactions. Without, it looks the document up later, and a balance may be ahead (P25).
    """
    rng = random.Random(seed)
    plan = list(VICTIMS) * kills
    rng.shuffle(plan)
    client: MongoClient[dict[str, Any]] = MongoClient(uri, tz_aware=True)
    with client, deployment(uri, folder, images=images) as deployed:
        prepare(client, deployed.database, rng, images=images)
        deployed.start()
        # The snapshot's rows have come through before anything is written or killed: rows are
        # copied one by one, so until then no sum of balances has to hold.
        wait_until(
            lambda: deployed.applied() and deployed.filed(b'"snapshot_completed"'),
            "the snapshot to come through",
            diagnose=deployed.driver.tail,
        )
        with Writers(uri, deployed.database, seed=seed) as writers:
            for victim in plan:
                # Driven by what was written and not by a clock, a slow machine kills as often in
                # the middle of things as a fast one.
                target = writers.writes + rng.randrange(20, 200)
                wait_until(partial(writers.wrote, target), "writers to go on")
                if victim == "driver":
                    # A driver that is always killed while it starts would prove nothing.
                    wait_until(deployed.applied, "the driver", diagnose=deployed.driver.tail)
                deployed.kill(victim)
            written, transactions = writers.writes, writers.transactions
        print(f"kills {deployed.kills}, writes {written}, transactions {transactions}")
        assert transactions, "a run without transactions shows nothing about commits"
        compare(client, deployed)
        if images:
            # Transfers move money and never make it: a commit seen in part would show.
            assert set(balances_of_every_version(folder / "lake" / ACCOUNTS)) <= {0}


def compare(client: MongoClient[dict[str, Any]], deployed: Deployment) -> None:
    """Everything has arrived, once, whole, in order, and equal."""
    database = client[deployed.database]
    # A last write that everyone can be seen to reach.
    database[ACCOUNTS].insert_one({"_id": -1, "balance": 0})
    deployed.service.fact("ready")
    wait_until(
        lambda: deployed.filed(b'"documentId":"-1"'),
        "the consumer to reach the end",
        diagnose=deployed.consumer.tail,
        moving=lambda: (deployed.folder / CHANGES).stat().st_size,
    )
    fold = folded(deployed.folder / CHANGES)
    fold.check_order()
    for name in COLLECTIONS:
        assert fold.documents("shop", name) == stored_collection(database[name]), name

    last = fold.last_sequence_of(*COLLECTIONS)
    wait_until(
        lambda: deployed.applied() >= last,
        f"the table to reach {last}",
        diagnose=deployed.driver.tail,
        moving=deployed.applied,
    )
    assert deployed.consumer.stop() in (0, -signal.SIGTERM)
    assert deployed.driver.stop() == 0
    assert deployed.service.stop() == 0
    for name in COLLECTIONS:
        columns = NESTED | {"_id"} if name == ITEMS else NESTED
        rows = table_rows(deployed.folder / "lake" / name, json_columns=columns)
        assert rows == collection_rows(database[name], json_columns=columns), name
    rejected = rejects(deployed.folder / "lake_rejects")
    if deployed.images:
        assert rejected == []
    # Looked up too late, an update has no document, and its description may not fit a row that an
    # earlier look-up made newer. It is seen in the rejects, and the delete that follows heals it.
    assert {(one["operation_type"], one["full_document"]) for one in rejected} <= {("update", None)}


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_collection_consumer_and_table_are_equal_after_kill_9_of_every_process(
    mongo: MongoReplicaSet, tmp_path: Path
) -> None:
    """P4, P30, S10; invariants 1, 2, 3 and 7: one kill of each. No version of a table shows a part
    of a transaction, as far as a reader of the lake can see."""
    crash_run(mongo.uri, tmp_path, kills=1, seed=seed_of("crash"), images=True)


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("images", [False, True])
def test_the_same_through_twenty_kills_of_each(
    mongo: MongoReplicaSet, tmp_path: Path, images: bool
) -> None:
    """The long run of the above."""
    crash_run(mongo.uri, tmp_path, kills=20, seed=seed_of("soak"), images=images)
