"""The processes that run a function: when they begin, end, die, and fork."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.trigger.environments import Environments
from penstock.trigger.mapping import run_trigger
from tests.serve.dynamodb.support import Served
from tests.trigger.support import Calls, configured, put, running
from tests.waiting import patience, until


def ends_with(calls: Calls, item: str) -> bool:
    return calls.items()[-1:] == [item]


@pytest.mark.slow
async def test_a_stop_begins_no_call_that_waits_for_a_process(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    """Else a stop takes as long as all lanes' calls, one behind the other."""
    table = shared.table()
    put(table, [f"k{number}={number}" for number in range(20)])
    calls.spoil("anything")
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        function="hang",
        batch_size=1,
        parallelization_factor=10,
        environments_max=1,
    )
    async with running(config) as trigger:
        await trigger.until(calls.batches)
        trigger.stop.set()
        await asyncio.sleep(0)
        calls.spoil()
        await trigger.end()
    assert len(calls.batches()) == 1
    async with running(config) as trigger:
        await trigger.until(lambda: len(set(calls.items())) == 20)


@pytest.mark.slow
async def test_a_stop_does_not_wait_for_a_function_that_never_loads(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    table = shared.table()
    function = "tests.trigger.functions_endless:handle"
    config = configured(shared, tmp_path, table=table.name, function=function)
    stop = asyncio.Event()
    task = asyncio.create_task(run_trigger(config, stop=stop))
    pids = await until_it_loads(task)
    stop.set()
    await task
    await until(lambda: not still_there(pids))


def still_there(pids: list[str]) -> list[str]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def until_it_loads(task: "asyncio.Task[Any]") -> list[str]:
    """The processes of this one's that run a function."""
    found = list[str]()

    def loading() -> list[str]:
        children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
        for pid in " ".join(one.read_text() for one in children).split():
            if b"functions_endless" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        return found

    await until(loading, task=task)
    return found


@pytest.mark.slow
async def test_a_process_that_died_between_calls_fails_no_batch(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    """With no retry to spare a record would be given up that the function never saw."""
    table = shared.table()
    letters = tmp_path / "letters"
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        maximum_retry_attempts=0,
        on_failure=f"file:{letters}",
    )
    async with running(config) as trigger:
        put(table, ["k=1"])
        await trigger.until(lambda: "AFTER" in (tmp_path / "state/t/checkpoint.json").read_text())
        pid = calls.all()[0]["pid"]
        os.kill(pid, signal.SIGKILL)
        await trigger.until(lambda: not Path(f"/proc/{pid}").exists())
        put(table, ["k=2"])
        await trigger.until(lambda: letters.exists() or calls.items()[-1:] == ["k=2"])
    assert not letters.exists()


@pytest.mark.slow
async def test_what_a_function_forked_does_not_hold_the_trigger(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    table = shared.table()
    put(table, ["k=1"])
    calls.spoil("anything")
    config = configured(shared, tmp_path, table=table.name, function="fork_away")
    try:
        for item in ("k=1", "k=2"):
            put(table, [item])
            async with running(config) as trigger:
                await trigger.until(partial(ends_with, calls, item))
    finally:
        calls.spoil()


@pytest.mark.slow
async def test_an_answer_that_is_too_large_is_told_with_its_size_and_the_limit(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    """It is no crash; the process that has more to say is ended all the same."""
    table = shared.table()
    letters = tmp_path / "letters"
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        function="large_answer",
        maximum_retry_attempts=0,
        on_failure=f"file:{letters}",
    )
    calls.spoil("anything")
    async with patience(), running(config) as trigger:
        put(table, ["k=1"])
        await trigger.until(lambda: letters.exists() and letters.read_text().endswith("\n"))
        calls.spoil()
        put(table, ["k=2"])
        await trigger.until(partial(ends_with, calls, "k=2"))
    told = msgspec.json.decode(letters.read_text())["responseContext"]
    assert told["errorType"] == "AnswerTooLarge"
    size, limit = (int(word) for word in told["errorMessage"].split() if word.isdecimal())
    assert size > limit == 6 << 20
    first, second = (call["pid"] for call in calls.all())
    assert first != second
    await until(lambda: not still_there([str(first)]))


@pytest.mark.slow
async def test_an_answer_that_json_cannot_hold_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    """As in Lambda. NaN was written as null: a null list of failures, which is success."""
    with (tmp_path / "lock").open("w") as lock:
        processes = Environments(
            "tests.trigger.functions:answer_of",
            name="t",
            arn="a",
            timeout_seconds=60,
            count_max=1,
            lock=lock.fileno(),
            stop=asyncio.Event(),
        )
        async with processes:
            for name in ("nan", "infinity", "surrogate", "object", "deep"):
                outcome = await processes.call(msgspec.json.encode({"answer": name}))
                assert outcome.error == "InvalidAnswer", name
                assert "JSON cannot hold this" in outcome.message, name
            outcome = await processes.call(b'{"answer":"number"}')
            assert (outcome.error, outcome.answer) == ("", {"total": 1.5, "none": None})
