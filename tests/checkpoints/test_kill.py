"""kill -9 between an append and its publication, and then the disk is gone (P33, P4)."""

import asyncio
import os
import random
import shutil
import signal
import sys
import uuid
from pathlib import Path

import pytest

from penstock.capture.lineage import Standing, standing
from penstock.cli.config import Settings
from penstock.event import Entry, Kind, kind_of
from penstock.log import LmdbLogReader
from penstock.ports import Checkpoint
from penstock.testing.contracts.entries import read_all, require_whole_commits
from tests.checkpoints.support import etcd_section, machine, published
from tests.cli.service import Service
from tests.waiting import until
from tests_support.servers import EtcdServer, MongoReplicaSet

pytestmark = pytest.mark.slow

SERVE = '[serve]\ngrpc = "127.0.0.1:0"\nflight = "127.0.0.1:0"\nhttp = "off"\n'
SHOP = '[sources.shop]\ntype = "script"\nevents_per_second = 2000\nheartbeat_seconds = 0.2\n'


@pytest.fixture(params=["etcd", "mongodb"])
def section(request: pytest.FixtureRequest) -> str:
    """An instance of this test's own, in either store."""
    instance = f"test-{uuid.uuid4().hex[:12]}"
    if request.param == "etcd":
        server: EtcdServer = request.getfixturevalue("etcd")
        return etcd_section(server, instance)
    mongo: MongoReplicaSet = request.getfixturevalue("mongo")
    database: str = request.getfixturevalue("mongo_database")
    return (
        f'[checkpoint]\nstore = "mongodb"\ninstance = "{instance}"\nuri = "{mongo.uri}"\n'
        f'database = "{database}"\ninterval = "50ms"\n'
    )


async def published_at(settings: Settings, sequence: int) -> Checkpoint:
    """Wait until the published copy has come that far."""

    async def copy() -> Checkpoint | None:
        found = await published(settings)
        return found if found is not None and found.sequence >= sequence else None

    return await until(copy)


def run_and_kill(settings: Settings, *, events: int) -> None:
    """Run the service until `events` more are published, and kill capture and its parent."""
    with Service(settings.path) as service:
        pids = service.ready["pids"]
        start = asyncio.run(published_at(settings, 0)).sequence
        asyncio.run(published_at(settings, start + events))
        # The parent first, so that nothing is started again; its children die with it.
        service.process.send_signal(signal.SIGKILL)
        os.kill(pids["capture"], signal.SIGKILL)
        service.process.wait()


async def look(settings: Settings) -> tuple[Checkpoint, list[Entry]]:
    """What was published and what is durable, compared."""
    copy = await published(settings)
    assert copy is not None
    async with LmdbLogReader(settings.log.path) as log:
        bounds = await log.bounds()
        check = await log.check_at(copy.sequence)
        assert standing(copy, bounds, check=check) is Standing.OURS
        assert copy.sequence <= bounds.head, "the copy leads the log"
        assert copy.check == check
        entries = await read_all(log, after=bounds.trimmed)
    require_whole_commits(entries)
    (state,) = copy.sources
    # What says that capture began stands where the source is, and no position comes from it.
    of_shop = [entry for entry in entries if kind_of(entry.event) is not Kind.SYSTEM]
    needed = [entry.sequence for entry in of_shop if told(entry) <= told_at(state.position)]
    assert max(needed, default=0) <= copy.sequence, "the position needs a later entry"
    return copy, entries


def told_at(position: str) -> int:
    return int(position.split(":")[1])


def told(entry: Entry) -> int:
    return told_at(entry.event.position)


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_no_kill_leaves_a_copy_ahead_of_the_log_and_the_next_machine_misses_nothing(
    tmp_path: Path, section: str, kills: int
) -> None:
    seed = random.randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    random_ = random.Random(seed)
    settings = machine(tmp_path / "a", section, SHOP + SERVE)
    for _ in range(kills):
        run_and_kill(settings, events=random_.randrange(1, 3000))
        asyncio.run(look(settings))
    copy, entries = asyncio.run(look(settings))
    shutil.rmtree(tmp_path / "a" / "log")
    new = machine(tmp_path / "b", section, SHOP + SERVE)
    run_and_kill(new, events=1000)
    after_copy, after = asyncio.run(look(new))
    assert after_copy.log_id != copy.log_id
    assert after[0].sequence == copy.sequence + 1
    assert kind_of(after[0].event) is Kind.GAP
    # Every transaction of the shop is in what was published of the one log, or in the other.
    kept = {told(one) for one in entries if one.sequence <= copy.sequence}
    again = {told(one) for one in after[1:]} - {0}
    last = max(again)
    assert kept | again >= set(range(1, last + 1))
