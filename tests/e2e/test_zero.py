"""Zero's promise: a MongoDB, captured and served, and the replica of the real zero-cache are equal.

Seeded writers work on MongoDB, in transactions too, while the service, each of its processes and
zero-cache are killed with -9 at random. In the end the replica holds exactly what the collections
hold; and no client ever saw a transaction in part.
"""

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient

from penstock.log import LmdbLogReader
from penstock.ports import Bounds
from tests.e2e.processes import Service
from tests.seeds import seed_of
from tests.waiting import wait_until
from tests.zero.real import real_client, replica
from tests_support.servers import (
    RESET_EXIT_CODE,
    MongoReplicaSet,
    PostgresServer,
    ServerStartError,
    ZeroCache,
    free_ports,
)

VICTIMS = ("service", "capture", "serve", "cache")
ACCOUNTS = 40
TOTAL = 100 * ACCOUNTS
STARTS_MAX = 5
Documents = dict[Any, dict[str, Any]]


class Deployed:
    """A service, and a zero-cache that follows it."""

    def __init__(
        self,
        settings: str,
        postgres: PostgresServer,
        folder: Path,
        *,
        log: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` are of the source and of [serve.zero]; `log` are of the log; `environment`
        is zero-cache's."""
        (http,) = free_ports(1)
        config = folder / "penstock.toml"
        config.write_text(
            f"""
            [log]
            path = "{folder}/log"
            free_bytes_min = 0
            {log}
            [serve]
            grpc = "127.0.0.1:0"
            flight = "127.0.0.1:0"
            http = "127.0.0.1:{http}"
            {settings}
            """
        )
        self.log_path = folder / "log"
        self.service = Service(config, folder)
        database = postgres.create(f"zero_{uuid4().hex[:12]}")
        upstream = f"ws://127.0.0.1:{http}/changes/v0/stream"
        self.cache = ZeroCache(upstream=upstream, database=database, environment=environment)
        self.kills: dict[str, int] = dict.fromkeys(VICTIMS, 0)

    def start(self) -> None:
        self.service.start()
        self.service.fact("ready")
        self.cache.waits = False
        self.cache.start()
        self.cache.waits = True
        self.start_cache()

    def start_cache(self) -> None:
        """Until it serves: it ends by itself when an initial sync breaks off, or must begin anew,
        and somebody is to start it again."""
        for left in reversed(range(STARTS_MAX)):
            try:
                self.cache.restart()
                return
            except ServerStartError:
                if not left:
                    raise

    def stop(self) -> None:
        self.cache.stop()
        if self.service.running:
            self.service.kill()

    def kill(self, victim: str) -> None:
        """kill -9, and start it again, as an operator's init system would."""
        match victim:
            case "cache":
                self.cache.kill()
                self.start_cache()
            case "service":
                self.service.kill()
                self.service.start()
            case _:
                self.service.kill_role(victim)
        self.kills[victim] += 1


class Deployment(Deployed):
    """A database of MongoDB, a service, and a zero-cache that follows it."""

    def __init__(
        self,
        mongo: MongoReplicaSet,
        database: str,
        postgres: PostgresServer,
        folder: Path,
        *,
        log: str = "",
        zero: str = "",
        source: str = "",
    ) -> None:
        """`log`, `zero` and `source` are settings more of theirs."""
        self.client: MongoClient[dict[str, Any]] = MongoClient(mongo.uri)
        self.database = self.client[database]
        settings = f"""
            [sources.shop]
            type = "mongodb"
            uri = "{mongo.uri}"
            include = ["{database}.*"]
            start = "snapshot"
            {source}
            [serve.zero]
            status_interval = 0.5
            {zero}
            [serve.zero.permissions.tables.item.row]
            select = [["allow", {{type = "and", conditions = []}}]]
            [serve.zero.permissions.tables.account.row]
            select = [["allow", {{type = "and", conditions = []}}]]
            [serve.zero.tables.item]
            source = "shop"
            collection = "{database}.items"
            key = ["id"]
            rest = "rest"
            [serve.zero.tables.item.columns]
            id = {{from = "_id", type = "int"}}
            name = "text"
            count = {{from = "inner.count", type = "int"}}
            tags = "text[]"
            [serve.zero.tables.account]
            source = "shop"
            collection = "{database}.accounts"
            key = ["id"]
            columns = {{id = {{from = "_id", type = "int"}}, balance = "int"}}
            [serve.zero.tables.note]
            source = "shop"
            collection = "{database}.notes"
            """
        super().__init__(settings, postgres, folder, log=log)

    def stop(self) -> None:
        super().stop()
        self.client.close()

    def expected(self) -> dict[str, Documents]:
        """What the collections hold, as the tables say it."""
        items = {
            one["_id"]: {
                "id": one["_id"],
                "name": one.get("name"),
                "count": one.get("inner", {}).get("count"),
                "tags": one.get("tags"),
            }
            for one in self.database.items.find()
        }
        accounts = {
            one["_id"]: {"id": one["_id"], "balance": one["balance"]}
            for one in self.database.accounts.find()
        }
        return {"item": items, "account": accounts}

    def replicated(self) -> dict[str, Documents]:
        """What the replica holds."""
        found = asyncio.run(replica(self.cache, "item", "account"))["tables"]
        rows: dict[str, Documents] = {
            name: {row["id"]: row for row in table} for name, table in found.items()
        }
        for row in rows.get("item", {}).values():
            row.pop("rest", None)
            row["tags"] = None if row["tags"] is None else json.loads(row["tags"])
        return rows

    def equal(self) -> bool:
        """Whether the two are the same."""
        return self.replicated() == self.expected()


@pytest.fixture
def deploy(
    mongo: MongoReplicaSet, mongo_database: str, zero_state: PostgresServer, tmp_path: Path
) -> Generator[Callable[..., Deployment]]:
    """Makes all of it, with accounts, not started."""
    with ExitStack() as stack:

        def made(**settings: str) -> Deployment:
            deployed = Deployment(mongo, mongo_database, zero_state, tmp_path, **settings)
            stack.callback(deployed.stop)
            for name in ("accounts", "items", "notes"):
                deployed.database.create_collection(
                    name, changeStreamPreAndPostImages={"enabled": True}
                )
            accounts = [{"_id": number, "balance": 100} for number in range(ACCOUNTS)]
            deployed.database.accounts.insert_many(accounts)
            deployed.database.items.insert_many(
                [{"_id": n, "name": f"item {n}", "inner": {"count": n}} for n in range(500)]
            )
            deployed.database.notes.insert_one({"_id": 1, "text": "first"})
            return deployed

        yield made


@pytest.fixture
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    """As `deploy` makes it."""
    return deploy()


class Writer:
    """Writes until it is told to stop: single documents, and transactions that keep the total."""

    def __init__(self, deployed: Deployment, seed: int) -> None:
        self._deployed = deployed
        self._random = random.Random(seed)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.writes = 0
        self.failure: BaseException | None = None

    @contextmanager
    def writing(self) -> Generator["Writer"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._ends.set()
            self._thread.join()
        assert self.failure is None, self.failure

    def go_on(self, writes: int) -> None:
        """Wait for so many more."""
        wanted = self.writes + writes
        wait_until(lambda: self.writes >= wanted or self.failure is not None, "the writer")

    def _write(self) -> None:
        try:
            while not self._ends.wait(0.005):
                self._one()
                self.writes += 1
        except BaseException as error:  # shown by the test's own thread
            self.failure = error
            raise

    def _one(self) -> None:
        rng, database = self._random, self._deployed.database
        key = rng.randrange(1000)
        match rng.randrange(5):
            case 0:
                database.items.delete_one({"_id": key})
            case 1:
                database.items.replace_one(
                    {"_id": key}, {"name": "n" * rng.randrange(50), "tags": ["a", "b"]}, upsert=True
                )
            case 2:
                database.items.update_one({"_id": key}, {"$inc": {"inner.count": 1}}, upsert=True)
            case _:
                self._transfer(rng)

    def _transfer(self, rng: random.Random) -> None:
        accounts = self._deployed.database.accounts
        giver, taker = rng.sample(range(ACCOUNTS), 2)
        amount = rng.randrange(1, 10)
        with self._deployed.client.start_session() as session, session.start_transaction():
            accounts.update_one({"_id": giver}, {"$inc": {"balance": -amount}}, session=session)
            accounts.update_one({"_id": taker}, {"$inc": {"balance": amount}}, session=session)


@pytest.mark.slow
def test_a_replica_begins_whole_and_follows_with_transactions(
    deploy: Callable[..., Deployment],
) -> None:
    """Z2, Z5, Z6, Z10. What capture comes late to read is as of its transaction, not of later."""
    deployment = deploy(source='full_document = "required"')
    deployment.start()
    wait_until(deployment.equal, "the first copy", diagnose=deployment.service.tail)
    with Writer(deployment, seed_of("zero")).writing() as writer:
        for _ in range(5):
            with deployment.service.paused("capture"):
                writer.go_on(100)
            accounts = deployment.replicated()["account"].values()
            assert sum(one["balance"] for one in accounts) == TOTAL, "a transaction in part"
    wait_until(
        deployment.equal,
        "the replica to be what the collections are",
        diagnose=deployment.service.tail,
    )


@pytest.mark.slow
def test_a_client_sees_what_is_written_to_mongodb(deployment: Deployment) -> None:
    """Z3, Z5: through the real client's query."""
    schema = {"account": {"columns": {"id": "number", "balance": "number"}, "key": ["id"]}}
    deployment.start()

    async def follow() -> None:
        async with real_client(deployment.cache, schema) as client:
            rows = await client.rows("account", lambda rows: len(rows) == ACCOUNTS)
            assert {row["balance"] for row in rows} == {100}
            accounts = deployment.database.accounts
            await asyncio.to_thread(accounts.insert_one, {"_id": 1000, "balance": 7})
            await client.rows("account", lambda rows: len(rows) == ACCOUNTS + 1)
            await asyncio.to_thread(accounts.update_one, {"_id": 1000}, {"$inc": {"balance": 1}})
            await client.rows("account", lambda rows: {"id": 1000, "balance": 8} in rows)
            await asyncio.to_thread(accounts.delete_one, {"_id": 1000})
            await client.rows("account", lambda rows: len(rows) == ACCOUNTS)

    asyncio.run(follow())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_any_moment_they_come_to_be_equal(deployment: Deployment) -> None:
    """Z2, Z3, Z4, Z10."""
    seed = seed_of("zero crash")
    rng = random.Random(seed)
    deployment.start()
    plan = list(VICTIMS)
    rng.shuffle(plan)
    with Writer(deployment, seed).writing() as writer:
        for victim in plan:
            writer.go_on(rng.randrange(20, 150))
            deployment.kill(victim)
        writer.go_on(50)
    print(f"kills {deployment.kills}, writes {writer.writes}")
    if not deployment.cache.process.running:
        deployment.start_cache()
    wait_until(
        deployment.equal,
        "the replica to be what the collections are",
        diagnose=deployment.service.tail,
    )


@pytest.mark.slow
def test_a_new_field_is_a_new_column_of_the_replica(deployment: Deployment) -> None:
    """Z7: it is announced before the first row that has it."""
    deployment.start()
    wait_until(deployment.equal, "the first copy", diagnose=deployment.service.tail)
    notes = deployment.database.notes
    notes.insert_one({"_id": 2, "text": "second", "color": "red"})

    def rows() -> list[dict[str, Any]]:
        found = asyncio.run(replica(deployment.cache, "note"))["tables"]["note"]
        return sorted(found, key=lambda row: str(row["_id"]))

    wait_until(lambda: len(rows()) == 2, "the second note", diagnose=deployment.service.tail)
    assert [(row["text"], row["color"]) for row in rows()] == [("first", None), ("second", "red")]


@pytest.mark.soak
def test_a_shard_that_retention_overtakes_begins_anew_and_is_whole(
    deploy: Callable[..., Deployment],
) -> None:
    """Z4, Z11: it is told so once, ends, and has everything when it is started again."""
    deployed = deploy(log="retention_events = 2000", zero="hold = 0")
    deployed.start()
    wait_until(deployed.equal, "the first copy", diagnose=deployed.service.tail)
    deployed.cache.kill()
    head = asyncio.run(bounds(deployed.log_path)).head
    later = [{"_id": 5000 + number, "name": "later"} for number in range(6000)]
    deployed.database.items.insert_many(later)
    wait_until(
        lambda: asyncio.run(bounds(deployed.log_path)).trimmed > head,
        "retention to go past the shard",
        diagnose=deployed.service.tail,
    )
    deployed.cache.waits = False
    deployed.cache.restart()
    assert deployed.cache.exit_code() == RESET_EXIT_CODE
    deployed.cache.waits = True
    deployed.start_cache()
    wait_until(deployed.equal, "the replica that began anew", diagnose=deployed.service.tail)


async def bounds(path: Path) -> Bounds:
    """What a log holds that another process writes."""
    view = LmdbLogReader(path)
    try:
        return await view.bounds()
    finally:
        await view.close()


@pytest.mark.soak
def test_a_hundred_thousand_rows_begin_a_replica(deployment: Deployment) -> None:
    """Z6: one transaction, however many rows it has."""
    for start in range(10_000, 110_000, 10_000):
        deployment.database.items.insert_many(
            [{"_id": n, "name": f"item {n}"} for n in range(start, start + 10_000)]
        )
    begun = time.monotonic()
    deployment.start()
    print(f"served {time.monotonic() - begun:.1f} s after its start")
    wait_until(deployment.equal, "the first copy", diagnose=deployment.service.tail)
