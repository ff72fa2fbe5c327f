"""The trigger is killed anywhere: every record is handled at least once, in order for each item."""

import json
import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.store.shards import ShardLimits
from tests.children import Child
from tests.cli.service import COMMAND
from tests.seeds import seed_of
from tests.serve.dynamodb.support import Served, served
from tests.trigger.support import Calls, put
from tests.waiting import wait_until

KEYS, RECORDS, KILLS = 6, 200, 8
LOCKED = 11


def start(everything: Served, table: str, folder: Path, *, function: str = "handle") -> Child:
    options = (
        f"tests.trigger.functions:{function}",
        *("--endpoint", f"http://{everything.address}", "--table", table),
        *("--state", str(folder / "state"), "--name", "t"),
        *("--batch-size", "7", "--parallelization-factor", "3", "--poll-interval", "10ms"),
        *("--maximum-retry-attempts", "1", "--bisect-batch-on-function-error"),
        *("--on-failure", f"file:{folder / 'letters'}", "--retry-delay", "5ms", "--json"),
    )
    return Child(*COMMAND, "trigger", *options)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_kills_lose_nothing_and_keep_the_order_of_each_item(tmp_path: Path, calls: Calls) -> None:
    chance = random.Random(seed_of("trigger"))
    items = [f"k{chance.randrange(KEYS)}={number}" for number in range(RECORDS)]
    bad = chance.sample(items, 5)
    calls.spoil(*bad)
    limits = ShardLimits(age_seconds=3600, bytes_max=2000)
    with served(tmp_path / "store", shards=limits) as everything:
        table = everything.table()
        written = 0
        for _ in range(KILLS):
            some = chance.randint(5, 30)
            put(table, items[written : written + some])
            written += some
            target = lines(calls.path) + chance.randint(0, 4)
            with start(everything, table.name, tmp_path) as process:
                deadline = time.monotonic() + 5 * chance.random()
                while lines(calls.path) < target and time.monotonic() < deadline:
                    if process.ended():
                        assert process.code == LOCKED, process.tail()
                        break
                    let_others_run()
                if chance.random() < 0.3:
                    kill_function(calls, chance)
        put(table, items[written:])
        finish(everything, table.name, tmp_path, calls, items, bad)
        assert len(everything.shards(everything.arn(table))) > 3
    kept = {item for letter in letters(tmp_path) for item in letter}
    assert set(bad) <= kept, "given up without a letter"
    assert kept == set(bad), "a good record was given up"
    for key in range(KEYS):
        check_order(
            [one for one in items if one.startswith(f"k{key}=")],
            [one for one in calls.items() if one.startswith(f"k{key}=")],
        )


@pytest.mark.slow
def test_a_call_does_not_outlive_its_trigger(tmp_path: Path, calls: Calls) -> None:
    """Else it could write behind a newer call, and an item's changes would come out of order."""
    calls.spoil("anything")
    with served(tmp_path / "store") as everything:
        table = everything.table()
        put(table, ["k=0"])
        with start(everything, table.name, tmp_path, function="hang") as process:
            process.wait_until(calls.all)
        (call,) = calls.all()
        wait_until(lambda: not Path(f"/proc/{call['pid']}").exists())
        # The lock went with it.
        with start(everything, table.name, tmp_path, function="hang") as process:
            process.wait_until(lambda: len(calls.all()) == 2)
            calls.spoil()
            assert process.stop() == 0, process.tail()


def let_others_run() -> None:
    """The server is a thread of this process."""
    threading.Event().wait(0.005)


def finish(
    everything: Served, table: str, folder: Path, calls: Calls, items: list[str], bad: list[str]
) -> None:
    """Run it to the end of the stream, and stop it as its users do."""

    def is_through() -> bool:
        kept = {item for letter in letters(folder) for item in letter}
        return set(calls.items()) == set(items) and kept >= set(bad)

    def ends_in_order() -> bool:
        with start(everything, table, folder) as process:
            wait_until(lambda: process.ended() or is_through(), diagnose=process.tail)
            code = process.stop()
            assert code in {0, LOCKED}, process.tail()
        return code == 0

    wait_until(ends_in_order)


def kill_function(calls: Calls, chance: random.Random) -> None:
    """Kill a process that runs the function, if one still lives.

    Its pid may be another's by now, on a machine that starts as many as tests do.
    """
    pids = [call["pid"] for call in calls.all()][-3:]
    if pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            pid = chance.choice(pids)
            if f"={calls.path}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)


def letters(folder: Path) -> list[list[str]]:
    from tests.trigger.functions import item_of

    found = list[list[str]]()
    path = folder / "letters"
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            letter: Any = json.loads(line)
        except ValueError:
            continue  # cut short by a kill; it came again
        found.append([item_of(one) for one in json.loads(letter["payload"])["Records"]])
    return found


def check_order(written: list[str], called: list[str]) -> None:
    """What was called begins at the first, never jumps ahead, and reaches the last."""
    places = {item: place for place, item in enumerate(written)}
    reached = -1
    for item in called:
        assert places[item] <= reached + 1, f"{item} came before what was written before it"
        reached = max(reached, places[item])
    assert reached == len(written) - 1
