"""A trigger over a served store: Lambda's contract, and nothing passed in silence."""

import asyncio
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, TriggerLockedError
from penstock.trigger.config import TriggerConfig
from penstock.trigger.mapping import run_trigger
from tests.serve.dynamodb.support import Served
from tests.trigger.support import Calls, configured, put, running

ITEMS = [f"k{number}={number}" for number in range(10)]


def ends_with(calls: Calls, item: str) -> bool:
    return calls.items()[-1:] == [item]


@pytest.mark.slow
async def test_every_record_is_handled_in_order_in_batches(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    table = shared.table()
    put(table, ITEMS)
    config = configured(shared, tmp_path, table=table.name, batch_size=4)
    async with running(config) as trigger:
        await trigger.until(lambda: len(calls.items()) == 10)
        put(table, ["later=1"])
        await trigger.until(lambda: len(calls.items()) == 11)
        counts = await trigger.end()
    assert calls.items() == [*ITEMS, "later=1"]
    assert max(map(len, calls.batches())) == 4
    assert counts["handled"] == 11


async def test_an_endpoint_on_this_machine_is_asked_without_a_proxy(
    shared: Served, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = shared.table()
    put(table, ["k=1"])
    config = configured(shared, tmp_path, table=table.name)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    async with running(config) as trigger:
        await trigger.until(lambda: calls.items() == ["k=1"])


@pytest.mark.slow
async def test_a_trigger_goes_on_where_it_stopped(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    table = shared.table()
    config = configured(shared, tmp_path, table=table.name)
    for item in ("k=0", "k=1", "k=2"):
        put(table, [item])
        async with running(config) as trigger:
            await trigger.until(partial(ends_with, calls, item))
    assert calls.items() == ["k=0", "k=1", "k=2"]


async def test_an_event_is_what_lambda_gives(shared: Served, calls: Calls, tmp_path: Path) -> None:
    table = shared.table()
    arn = shared.arn(table)
    table.put_item(Item={"id": "k", "b": b"\x00\xff", "v": 5})
    config = configured(shared, tmp_path, stream=arn, function="whole", name="the-name")
    async with running(config) as trigger:
        await trigger.until(calls.all)
    told = calls.all()[0]
    (record,) = told["event"]["Records"]
    (read,) = shared.records(arn)
    created = record["dynamodb"].pop("ApproximateCreationDateTime")
    assert created == read["dynamodb"]["ApproximateCreationDateTime"].timestamp()
    assert isinstance(created, int)
    assert record == {
        "eventID": read["eventID"],
        "eventName": "INSERT",
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "eventSourceARN": arn,
        "awsRegion": "us-east-1",
        "dynamodb": {
            "Keys": {"id": {"S": "k"}},
            "NewImage": {"id": {"S": "k"}, "b": {"B": "AP8="}, "v": {"N": "5"}},
            "SequenceNumber": read["dynamodb"]["SequenceNumber"],
            "SizeBytes": read["dynamodb"]["SizeBytes"],
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        },
    }
    context = told["context"]
    assert context["function_name"] == "the-name"
    assert context["invoked_function_arn"] == (
        "arn:aws:lambda:us-east-1:000000000000:function:the-name"
    )
    assert 0 < context["remaining"] <= 60_000


@pytest.mark.slow
async def test_powertools_batch_processor_reports_what_is_tried_again(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    """aws-lambda-powertools, unmodified: the checkpoint is the lowest that failed."""
    table = shared.table()
    put(table, ITEMS)
    calls.spoil("k4=4", "k7=7")
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        function="tests.trigger.functions_powertools:powertools",
        report_batch_item_failures=True,
    )
    async with running(config) as trigger:
        await trigger.until(lambda: len(calls.batches()) >= 3)
        calls.spoil()
        await trigger.until(lambda: calls.batches()[-1] == calls.batches()[-2])
        put(table, ["end=1"])
        await trigger.until(lambda: calls.batches()[-1:] == [["end=1"]])
    first, *again, end = calls.batches()
    assert (first, end) == (ITEMS, ["end=1"])
    assert all(batch == ITEMS[4:] for batch in again), "a retried batch is the same batch"
    records = [call["record"] for call in calls.all() if "record" in call]
    assert set(records) == {*ITEMS, "end=1"}


@pytest.mark.slow
@pytest.mark.parametrize("function", ["handle", "handle_async", "die", "fork", "wrong_answer"])
async def test_a_batch_that_failed_is_tried_again_until_it_is_handled(
    shared: Served, calls: Calls, tmp_path: Path, function: str
) -> None:
    """Whether it raises, ends its process, forks one that returns, or answers what is no answer."""
    table = shared.table()
    put(table, ITEMS)
    calls.spoil("k4=4")
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        function=function,
        report_batch_item_failures=function == "wrong_answer",
    )
    async with running(config) as trigger:
        await trigger.until(lambda: len(calls.batches()) >= 3)
        calls.spoil()
        put(table, ["end=1"])
        await trigger.until(lambda: calls.items()[-1:] == ["end=1"])
        counts = await trigger.end()
    *batches, end = calls.batches()
    assert end == ["end=1"]
    assert all(batch == ITEMS for batch in batches)
    assert counts["failed_calls"] == len(batches) - 1
    assert counts["handled"] == 11


@pytest.mark.slow
async def test_a_call_that_hangs_is_killed_and_tried_again(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    table = shared.table()
    put(table, ["k=1"])
    calls.spoil("anything")
    config = configured(shared, tmp_path, table=table.name, function="hang", timeout=0.3)
    async with running(config) as trigger:
        await trigger.until(lambda: len(calls.batches()) >= 2)
        calls.spoil()
        put(table, ["k=2"])
        await trigger.until(lambda: calls.items()[-1:] == ["k=2"])
        counts = await trigger.end()
    assert len({call["pid"] for call in calls.all()}) >= 2
    assert counts["failed_calls"] >= 1


@pytest.mark.slow
async def test_what_failed_for_good_is_kept_whole_before_it_is_passed(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    table = shared.table()
    put(table, ITEMS)
    calls.spoil("k4=4")
    letters = tmp_path / "letters.jsonl"
    letters.write_text('{"cut short')
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        maximum_retry_attempts=2,
        bisect_batch_on_function_error=True,
        on_failure=f"file:{letters}",
    )
    async with running(config) as trigger:
        await trigger.until(lambda: calls.batches()[-1:] == [ITEMS[5:]])
        counts = await trigger.end()
    _, line = letters.read_text().splitlines()
    letter = json.loads(line)
    (record,) = shared.records(shared.arn(table))[4:5]
    number = record["dynamodb"]["SequenceNumber"]
    info = letter["DDBStreamBatchInfo"]
    assert letter["requestContext"]["condition"] == "RetryAttemptsExhausted"
    assert (info["startSequenceNumber"], info["endSequenceNumber"]) == (number, number)
    assert (info["batchSize"], info["streamArn"]) == (1, shared.arn(table))
    assert info["shardId"] == shared.shards(shared.arn(table))[0]["ShardId"]
    payload = json.loads(letter["payload"])
    assert [one["dynamodb"]["SequenceNumber"] for one in payload["Records"]] == [number]
    assert letter["responseContext"]["errorType"] == "BadItemError"
    assert counts["set_aside"] == 1
    assert counts["handled"] == 9
    # The bad one alone is tried once and twice again.
    assert calls.batches().count(["k4=4"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exec", "call"])
async def test_a_destination_may_be_a_command_or_a_function(
    shared: Served, calls: Calls, tmp_path: Path, kind: str
) -> None:
    table = shared.table()
    put(table, ["k=1"])
    calls.spoil("k=1")
    target = "call:tests.trigger.functions:keep"
    if kind == "exec":
        target = f"exec:sh -c 'cat > {tmp_path}/letter'"
    config = configured(
        shared, tmp_path, table=table.name, maximum_retry_attempts=0, on_failure=target
    )
    async with running(config) as trigger:
        await trigger.until(lambda: trigger.task is not None and calls.batches())
        put(table, ["k=2"])
        await trigger.until(lambda: calls.items()[-1:] == ["k=2"])
    letter: Any = (
        json.loads((tmp_path / "letter").read_text())
        if kind == "exec"
        else next(call["letter"] for call in calls.all() if "letter" in call)
    )
    assert letter["DDBStreamBatchInfo"]["batchSize"] == 1


@pytest.mark.slow
async def test_nothing_is_passed_while_the_destination_cannot_be_reached(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    table = shared.table()
    put(table, ["k=1"])
    calls.spoil("k=1")
    letters, tried = tmp_path / "letters", tmp_path / "tried"
    command = f"sh -c 'echo x >> {tried}; test -e {tmp_path}/open && cat >> {letters}'"
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        batch_size=1,
        maximum_retry_attempts=0,
        on_failure=f"exec:{command}",
    )
    async with running(config) as trigger:
        put(table, ["k=2"])
        await trigger.until(lambda: tried.exists() and len(tried.read_text()) > 4)
        assert calls.items() == ["k=1"]
        (tmp_path / "open").touch()
        await trigger.until(lambda: calls.items()[-1:] == ["k=2"])
    assert letters.exists()


@pytest.mark.slow
async def test_a_destination_that_hangs_is_ended_with_its_children(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    """And a letter larger than a pipe is tried again, which its first reader never took."""
    table = shared.table()
    table.put_item(Item={"id": "k", "text": "x" * 200_000})
    calls.spoil("k")
    letters, tried = tmp_path / "letters", tmp_path / "tried"
    command = f"sh -c 'test -e {tried} && exec cat > {letters}; touch {tried}; sleep 1000; exit 1'"
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        timeout=1.5,
        maximum_retry_attempts=0,
        on_failure=f"exec:{command}",
    )
    async with running(config) as trigger:
        await trigger.until(lambda: letters.exists() and letters.read_bytes()[-1:] == b"}")


@pytest.mark.parametrize("target", ["exec:sh -c 'cat", "exec: "])
def test_a_command_that_cannot_be_read_is_refused_at_the_start(tmp_path: Path, target: str) -> None:
    """Not when the first record has failed for good."""
    with pytest.raises(ValueError, match="on_failure"):
        TriggerConfig.model_validate(
            {
                "function": "a:b",
                "name": "t",
                "state": tmp_path,
                "table": "t",
                "maximum_retry_attempts": 0,
                "on_failure": target,
            }
        )


@pytest.mark.slow
async def test_records_that_are_too_old_go_to_the_destination_without_a_call(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    table = shared.table()
    put(table, ["k=1"])
    letters = tmp_path / "letters"
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        maximum_record_age=0.000001,
        on_failure=f"file:{letters}",
    )
    async with running(config) as trigger:
        await trigger.until(lambda: letters.exists() and letters.read_text().endswith("\n"))
    letter = json.loads(letters.read_text())
    assert letter["requestContext"]["condition"] == "RecordAgeExceeded"
    assert "responseContext" not in letter, "the function answered nothing"
    assert letter["requestContext"]["approximateInvokeCount"] == 0
    assert calls.items() == []


@pytest.mark.slow
async def test_a_letter_of_failures_that_were_reported_has_no_function_error(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    """As Lambda's: the function returned."""
    table = shared.table()
    put(table, ["k0=0", "k1=1"])
    calls.spoil("k1=1")
    letters = tmp_path / "letters"
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        function="report",
        report_batch_item_failures=True,
        maximum_retry_attempts=0,
        on_failure=f"file:{letters}",
    )
    async with running(config) as trigger:
        await trigger.until(lambda: letters.exists() and letters.read_text().endswith("\n"))
    letter = json.loads(letters.read_text())
    assert letter["DDBStreamBatchInfo"]["batchSize"] == 1
    assert letter["responseContext"] == {
        "statusCode": 200,
        "executedVersion": "$LATEST",
        "errorType": "BatchItemFailures",
    }


@pytest.mark.slow
async def test_a_clock_that_is_set_forward_makes_no_record_too_old(
    shared: Served, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows that it is right, and a record that is given up is never handled."""
    table = shared.table()
    config = configured(
        shared,
        tmp_path,
        table=table.name,
        maximum_record_age=3600.0,
        on_failure=f"file:{tmp_path / 'letters'}",
    )
    put(table, ["k=1"])
    calls.spoil("k=1")
    async with running(config) as trigger:
        await trigger.until(calls.items)
        real = time.time_ns
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: real() + 200 * 86_400 * 10**9)
            patch.setattr(time, "time", lambda: time.time_ns() / 1e9)
            # It is tried again by that clock, at least once.
            tried = len(calls.items())
            await trigger.until(lambda: len(calls.items()) > tried + 1)
        calls.spoil()
        counts = await trigger.end()
    assert counts["set_aside"] == 0
    assert not (tmp_path / "letters").exists()


@pytest.mark.slow
async def test_a_filter_of_an_image_that_the_stream_does_not_have_starts_nothing(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    table = shared.table(view="KEYS_ONLY")
    pattern = '{"dynamodb": {"NewImage": {"v": {"N": ["3"]}}}}'
    config = configured(shared, tmp_path, table=table.name, filters=(pattern,))
    with pytest.raises(ConfigError, match="KEYS_ONLY, has no NewImage"):
        await run_trigger(config, stop=asyncio.Event())


@pytest.mark.slow
async def test_filters_choose_what_the_function_is_called_for(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    """And the checkpoint passes the others."""
    table = shared.table()
    put(table, ITEMS)
    pattern = '{"dynamodb": {"NewImage": {"v": {"N": [{"numeric": [">=", 3, "<", 5]}]}}}}'
    other = '{"dynamodb": {"Keys": {"id": {"S": ["k9"]}}}}'
    config = configured(shared, tmp_path, table=table.name, filters=(pattern, other))
    async with running(config) as trigger:
        await trigger.until(lambda: len(calls.items()) == 3)
        counts = await trigger.end()
    assert calls.items() == ["k3=3", "k4=4", "k9=9"]
    assert counts["filtered"] == 7
    async with running(config) as trigger:
        put(table, ["k9=1"])
        await trigger.until(lambda: len(calls.items()) == 4)
    assert calls.items()[3:] == ["k9=1"]


@pytest.mark.slow
async def test_lanes_keep_the_order_of_an_item(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    table = shared.table()
    put(table, [f"k{number % 7}={number}" for number in range(60)])
    config = configured(shared, tmp_path, table=table.name, batch_size=3, parallelization_factor=4)
    async with running(config) as trigger:
        await trigger.until(lambda: len(calls.items()) == 60)
    assert len({call["pid"] for call in calls.all()}) > 1
    for key in range(7):
        values = [item for item in calls.items() if item.startswith(f"k{key}=")]
        assert values == [f"k{key}={number}" for number in range(60) if number % 7 == key]


@pytest.mark.slow
async def test_a_checkpoint_stays_behind_the_lowest_that_is_unfinished(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    """One lane fails for ever, the others go on; after a restart nothing is missing."""
    table = shared.table()
    items = [f"k{number}={number}" for number in range(40)]
    put(table, items)
    calls.spoil("k0=0")
    config = configured(shared, tmp_path, table=table.name, batch_size=1, parallelization_factor=4)
    async with running(config) as trigger:
        await trigger.until(lambda: calls.items().count("k0=0") > 2 and len(set(calls.items())) > 3)
    calls.spoil()
    calls.path.write_text("")
    async with running(config) as trigger:
        await trigger.until(lambda: set(calls.items()) == set(items))


@pytest.mark.slow
async def test_a_window_gathers_a_batch(shared: Served, calls: Calls, tmp_path: Path) -> None:
    table = shared.table()
    config = configured(shared, tmp_path, table=table.name, batch_size=3, batching_window=300)
    async with running(config) as trigger:
        put(table, ITEMS[:3])
        await trigger.until(calls.batches)
    assert calls.batches() == [ITEMS[:3]]


@pytest.mark.slow
async def test_latest_begins_with_what_is_written_once_it_is_ready(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    """Also after a restart before the first record."""
    table = shared.table()
    put(table, ["before=1"])
    config = configured(shared, tmp_path, table=table.name, starting_position="LATEST")
    async with running(config) as trigger:
        await trigger.end()
    put(table, ["between=1"])
    async with running(config) as trigger:
        put(table, ["after=1"])
        await trigger.until(lambda: "after=1" in calls.items())
    assert calls.items()[-2:] == ["between=1", "after=1"]


@pytest.mark.slow
async def test_one_trigger_of_a_name_runs_at_a_time(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    table = shared.table()
    config = configured(shared, tmp_path, table=table.name)
    async with running(config):
        with pytest.raises(TriggerLockedError, match="runs already"):
            async with running(config):
                pass
        async with running(config.model_copy(update={"name": "another"})):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("function", ["none", "BAD"])
async def test_a_function_that_cannot_be_loaded_starts_nothing(
    shared: Served, calls: Calls, tmp_path: Path, function: str
) -> None:
    table = shared.table()
    with pytest.raises(ConfigError, match="cannot be loaded"):
        async with running(configured(shared, tmp_path, table=table.name, function=function)):
            pass


async def test_an_endpoint_that_is_none_is_not_quoted(
    shared: Served, calls: Calls, tmp_path: Path
) -> None:
    """It may hold a password."""
    config = configured(shared, tmp_path, table="t", endpoint="user:hidden@nowhere")
    with pytest.raises(ConfigError, match="not a URL") as told:
        await run_trigger(config, stop=asyncio.Event())
    assert "hidden" not in str(told.value)


@pytest.mark.parametrize("name", [".", "..", ".hidden", "a/b", ""])
def test_a_name_is_a_folder_within_the_state(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        TriggerConfig.model_validate(
            {"function": "a:b", "name": name, "state": tmp_path, "table": "t"}
        )
