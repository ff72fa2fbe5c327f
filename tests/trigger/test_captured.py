"""A trigger over the streams of what is captured: the log is served, and no store."""

import asyncio
from collections import defaultdict
from collections.abc import Generator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.children import Child
from tests.cli.service import COMMAND, Service, configure
from tests.serve.dynamodb.captured import Captured, captured
from tests.serve.dynamodb.changes import told
from tests.serve.dynamodb.test_captured_service import Endpoint
from tests.subscribe.events import commit
from tests.trigger.support import Calls, configured, running
from tests.trigger.test_crash import LOCKED
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
TABLE = "shop.db.orders"


async def written(service: Captured, position: int) -> None:
    """One more order is captured; its source's time is long gone."""
    order: dict[str, object] = {"id": f"k{position}", "v": position}
    change = commit(told(position, order, key={"id": order["id"]}))
    await asyncio.to_thread(service.append, change)


@pytest.mark.parametrize("before", [0, 3])
async def test_latest_misses_nothing_that_is_captured_later_than_it_was_changed(
    calls: Calls, tmp_path: Path, before: int
) -> None:
    """A record's time is its source's: what was changed before the trigger began may be captured
    behind that, while the trigger is down."""
    with captured(tmp_path) as service:
        for position in range(1, before + 2):
            await written(service, position)
        config = configured(service, tmp_path, table=TABLE, starting_position="LATEST")
        async with running(config) as trigger:
            await trigger.end()
        await written(service, 10)
        async with running(config) as trigger:
            await trigger.until(calls.items)
        assert calls.items() == ["k10=10"]


SHOP = """
[log]
path = "log"
free_bytes_min = 0
[sources.shop]
type = "script"
events_per_second = 200
heartbeat_seconds = 0.2
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "off"
[serve.dynamodb]
address = "127.0.0.1:0"
shard_bytes = "16KiB"
"""


def start(endpoint: Endpoint, table: str, folder: Path) -> Child:
    """A trigger over what the shop's service serves."""
    options = (
        "tests.trigger.functions:whole",
        *("--endpoint", f"http://{endpoint.address}", "--table", table, "--name", "t"),
        *("--state", str(folder / "state"), "--batch-size", "7", "--parallelization-factor", "3"),
        *("--poll-interval", "10ms", "--retry-delay", "10ms", "--json"),
    )
    return Child(*COMMAND, "trigger", *options)


@contextmanager
def started_again(endpoint: Endpoint, table: str, calls: Calls) -> Generator[Child]:
    """The same once the calls of the one that was killed are over."""
    known = len(calls.all())
    while True:
        with start(endpoint, table, calls.path.parent) as process:
            wait_until(partial(has_ended_or_called, process, calls, known), diagnose=process.tail)
            if not process.ended():
                yield process
                return
            assert process.code == LOCKED, process.tail()


def has_ended_or_called(process: Child, calls: Calls, known: int) -> bool:
    return process.ended() or len(calls.all()) > known


def handled(calls: Calls) -> list[tuple[str, int]]:
    """The item and the number of every record that the function got."""
    return [numbered(record) for call in calls.all() for record in call["event"]["Records"]]


def numbered(record: Any) -> tuple[str, int]:
    change = record["dynamodb"]
    return str(change["Keys"]), int(change["SequenceNumber"])


def test_a_trigger_over_a_captured_shop_survives_kills_of_both(
    tmp_path: Path, calls: Calls
) -> None:
    """Every record of every shard, at least once, and in order for each item."""
    table = "shop.shop.orders"
    with Service(configure(tmp_path, SHOP)) as service:
        endpoint = Endpoint(service.ready["dynamodb"])
        arn = endpoint.latest(table)
        with closing(endpoint):
            with start(endpoint, table, tmp_path) as process:
                process.wait_until(lambda: len(handled(calls)) > 50)
            with started_again(endpoint, table, calls) as process:
                service.kill("serve", service.ready["pids"]["serve"])
                process.wait_until(lambda: len(endpoint.shards(arn)) > 3)
                written = [numbered(record) for record in endpoint.records(arn)]
                process.wait_until(lambda: set(handled(calls)) >= set(written))
                assert process.stop() == 0, process.tail()
    order = defaultdict[str, list[int]](list)
    for item, number in dict.fromkeys(handled(calls)):
        order[item].append(number)
    assert all(numbers == sorted(numbers) for numbers in order.values())
