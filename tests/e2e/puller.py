"""One service with three MongoDBs, its published copy, and consumers of every kind."""

import asyncio
import random
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from bson import ObjectId
from pymongo import MongoClient

from penstock.capture.lineage import Standing, standing
from penstock.cli.config import load
from penstock.client import FileProgress
from penstock.event import ChangeEvent
from penstock.log import LmdbLogReader
from penstock.ports import Bounds, Checkpoint, SourceState
from penstock.progress import Progress, parse_progress
from penstock.sources.mongodb.positions import parse_position
from penstock.subscribe.shards import Shards
from penstock.testing.contracts.entries import read_all
from tests.checkpoints.support import etcd_section, published
from tests.e2e.comparison import Fold, folded
from tests.e2e.consumer import CHANGES, PROGRESS, REBUILDS, Wishes
from tests.e2e.processes import Process, Service
from tests.e2e.workload import ACCOUNTS, ITEMS, ORDERS, Writers
from tests.waiting import wait_until
from tests_support.servers import EtcdServer, MongoReplicaSet, free_ports

Client = MongoClient[dict[str, Any]]

STEADY = (ORDERS, ACCOUNTS, ITEMS)
"""The collections that are neither dropped nor renamed: all that whoever takes no control events,
and so is not told of that, can keep equal."""
FIELD = "quantity"
"""By this, a document moves between shards with nearly every write."""
SHARDS = 2


def _shards(by: str, number: int) -> Shards:
    return Shards(by=(by,), count=SHARDS, ids=frozenset({number}))


WISHES = {
    "raw": Wishes(),
    # It saves within windows, so that a kill finds it there.
    "merged": Wishes(coalesce=True, save_each=True),
    "plain": Wishes(control_events=False, collections=STEADY, coalesce=True),
    **{f"key-{n}": Wishes(shards=_shards("documentId", n)) for n in range(SHARDS)},
    **{f"field-{n}": Wishes(shards=_shards(FIELD, n), coalesce=True) for n in range(SHARDS)},
}
"""Of each consumer. Where changes were lost, most are told so in their place (TOLD), and need do
nothing: copied rows and deletes follow. The others are stopped there (DATA_LOSS), and rebuild, as
`consumer.py` says: the `plain` one because it takes no control events, and those of shards by a
field because nobody knows where a document was before."""
TOLD = tuple(
    name
    for name, wishes in WISHES.items()
    if wishes.control_events and not (wishes.shards and wishes.shards.by_field)
)
COALESCING = tuple(name for name, wishes in WISHES.items() if wishes.coalesce)
CATCH_UP_THRESHOLD = 60
_REST_SECONDS_MAX = 0.06
"""So that three databases together are written to as one is in `test_crash.py`."""
_AHEAD_MAX = 1000
"""Writes to one database that nobody waited for: a machine that is slow to start a process again
must not be drowned meanwhile."""


class Upstream(NamedTuple):
    """A database that a source captures."""

    source: str
    uri: str
    database: str
    client: Client
    images: bool


class Puller:
    """The deployment: what runs, how it is killed, and what it says."""

    def __init__(self, upstreams: Sequence[Upstream], etcd: EtcdServer, folder: Path) -> None:
        self.upstreams = upstreams
        self.etcd = etcd
        self.folder = folder
        self.machine = folder / "machine"
        """What is gone with the machine's disk."""
        grpc, flight = free_ports(2)
        self.grpc, self.flight = f"127.0.0.1:{grpc}", f"127.0.0.1:{flight}"
        config = folder / "penstock.toml"
        config.write_text(self._configuration())
        self.settings = load(config, environment={})
        self.service = Service(config, folder)
        self.consumers = {name: Process(name, [], folder) for name in WISHES}
        self.victims = ("service", "capture", "serve", "etcd", *WISHES)
        self.kills: dict[str, int] = dict.fromkeys(self.victims, 0)
        self._told: list[bytes] = []
        self._told_bytes = 0

    def _configuration(self) -> str:
        sources = [
            f"""
            [sources.{up.source}]
            type = "mongodb"
            uri = "{up.uri}"
            database = "{up.database}"
            start = "snapshot"
            on_position_lost = "snapshot"
            full_document = "{"whenAvailable" if up.images else "updateLookup"}"
            heartbeat_seconds = 1
            snapshot_chunk_documents = 40
            """
            for up in self.upstreams
        ]
        return f"""
            [log]
            path = "{self.machine}/log"
            [serve]
            grpc = "{self.grpc}"
            flight = "{self.flight}"
            http = "127.0.0.1:0"
            heartbeat_interval = "500ms"
            catch_up_threshold = {CATCH_UP_THRESHOLD}
            coalesce_window_events = 150
            {etcd_section(self.etcd, f"puller-{ObjectId()}")}
            {"".join(sources)}
            """

    # --- what an operator and the init system do ------------------------------------------------

    def start(self) -> None:
        """The service, and each consumer from the log's first entry."""
        self.service.start()
        self.service.fact("ready")
        empty_log = Progress(self.bounds().log_id, 0, 0)
        program = str(Path(__file__).parent / "consumer.py")
        for name, consumer in self.consumers.items():
            (self.folder / name).mkdir()
            wishes = msgspec.json.encode(WISHES[name]).decode()
            folder = str(self.folder / name)
            consumer.command = [program, self.grpc, folder, str(empty_log), wishes]
            consumer.start()

    def stop(self) -> None:
        for process in (*self.consumers.values(), self.service):
            if process.running:
                process.kill()

    def kill(self, victim: str, *, meanwhile: Callable[[], None] = lambda: None) -> None:
        """kill -9, and start it again, as an init system would; after `meanwhile`."""
        self.kills[victim] += 1
        if victim in ("capture", "serve"):
            self.service.kill_role(victim)
            self.check_published()
            return
        if victim == "etcd":
            self.etcd.kill()
            meanwhile()
            self.etcd.restart()
            return
        process = self.service if victim == "service" else self.consumers[victim]
        process.kill()
        if victim == "service":
            self.check_published()
        meanwhile()
        process.start()

    # --- what it says ---------------------------------------------------------------------------

    def bounds(self) -> Bounds:
        """Those of the log, by what is durable."""
        return asyncio.run(self._standing())[0]

    def copy(self) -> Checkpoint:
        """What is published."""
        copy = asyncio.run(published(self.settings))
        assert copy is not None
        return copy

    def position(self, source: str) -> SourceState:
        """Where a source stands, by what is durable."""
        return next(one for one in asyncio.run(self._standing())[1] if one.source == source)

    async def _standing(self) -> tuple[Bounds, list[SourceState]]:
        async with LmdbLogReader(self.settings.log.path) as log:
            return await log.bounds(), await log.sources()

    def check_published(self) -> None:
        """The published copy says nothing that is not durable (P33)."""
        asyncio.run(self._check_published())

    async def _check_published(self) -> None:
        copy = await published(self.settings)
        if copy is None:
            return
        async with LmdbLogReader(self.settings.log.path) as log:
            bounds = await log.bounds()
            check = await log.check_at(copy.sequence)
            assert copy.sequence <= bounds.head, "the copy leads the log"
            assert standing(copy, bounds, check=check) is Standing.OURS
            later = await read_all(log, after=copy.sequence)
        places = {one.source: parse_position(one.position).token.data for one in copy.sources}
        for entry in later:
            event = entry.event
            if isinstance(event, ChangeEvent) and not event.snapshot and event.source in places:
                # Else a log that begins above the copy would never tell this change.
                assert event.position > places[event.source], "its position needs a later entry"

    def saved(self, name: str) -> Progress:
        """How far a consumer has come, by what it saved."""
        marker = FileProgress(self.folder / name / PROGRESS).load()
        return parse_progress(marker) if marker else Progress(0, 0, 0)

    def beyond(self, name: str, sequence: int) -> bool:
        """Whether a consumer has saved a place after that."""
        return self.saved(name).sequence > sequence

    def at_the_end(self, name: str) -> bool:
        """Whether a consumer has saved that it is at the end of the log."""
        bounds, saved = self.bounds(), self.saved(name)
        return saved.log_id == bounds.log_id and saved.sequence >= bounds.head

    def wait_for_all(self, names: Iterable[str]) -> None:
        """Wait until these consumers have saved that they are at the end of the log."""
        for name in names:
            wait_until(
                partial(self.at_the_end, name),
                f"{name} to reach the end",
                diagnose=self.consumers[name].tail,
            )

    def filed(self, name: str) -> bytes:
        path = self.folder / name / CHANGES
        return path.read_bytes() if path.exists() else b""

    def fold(self, name: str) -> Fold:
        return folded(self.folder / name / CHANGES)

    def told(self) -> list[bytes]:
        """The control events that `raw`, which is given all, has filed."""
        path = self.folder / "raw" / CHANGES
        with path.open("rb") as file:
            file.seek(self._told_bytes)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._told_bytes += end
        self._told += [line for line in data[:end].splitlines() if b'"kind":"data"' not in line]
        return self._told

    def rebuilds(self, name: str) -> list[str]:
        """The gaps that a consumer was stopped by, and rebuilt after."""
        path = self.folder / name / REBUILDS
        return path.read_text().split() if path.exists() else []


class Crowd:
    """The writers of all upstreams."""

    def __init__(self, upstreams: Sequence[Upstream], *, seed: int) -> None:
        self._all = [
            Writers(up.uri, up.database, seed=seed + number, rest_seconds_max=_REST_SECONDS_MAX)
            for number, up in enumerate(upstreams)
        ]

    @contextmanager
    def writing(self) -> Generator[None]:
        with ExitStack() as stack:
            for writers in self._all:
                stack.enter_context(writers)
            yield

    @property
    def writes(self) -> int:
        return sum(writers.writes for writers in self._all)

    @property
    def transactions(self) -> list[int]:
        return [writers.transactions for writers in self._all]

    def go_on(self, writes: int) -> None:
        """Wait until so many more are acknowledged. A clock would make a slow machine's kills hit
        nothing."""
        target = self.writes + writes
        for writers in self._all:
            writers.writes_max = writers.writes + writes + _AHEAD_MAX

        def wrote() -> bool:
            for writers in self._all:
                writers.wrote(0)
            return self.writes >= target

        wait_until(wrote, "writers to go on")


def upstream(source: str, server: MongoReplicaSet, *, images: bool = False) -> Upstream:
    """A database of its own in `server`; close its client."""
    client = Client(server.uri, tz_aware=True)
    return Upstream(source, server.uri, f"puller_{source}_{ObjectId()}", client, images)


def plan_of(rng: random.Random, victims: Sequence[str], *, kills: int, losses: int) -> list[str]:
    """Each victim `kills` times in some order, and `losses` losses of history spread in it."""
    plan = list(victims) * kills
    rng.shuffle(plan)
    for number in range(losses):
        plan.insert((number + 1) * len(plan) // (losses + 1), LOSS)
    return plan


LOSS = "oplog"
"""In a plan: the service is killed, and one oplog rolls over before it is started again."""
