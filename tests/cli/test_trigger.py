"""`penstock trigger` as its users start and stop it."""

import json
import os
from pathlib import Path

import pytest

from tests.children import Child
from tests.cli.service import COMMAND, penstock
from tests.serve.dynamodb.support import served

FUNCTION = """
import json


async def handle(event, context):
    with open("seen", "a") as file:
        for record in event["Records"]:
            print(record["dynamodb"]["Keys"]["id"]["S"], file=file)
    print("not an answer")
"""


@pytest.mark.slow
def test_it_calls_a_function_from_here_and_ends_on_sigterm(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(FUNCTION)
    environment = {**os.environ, "PYTHONWARNINGS": "error", "AWS_EC2_METADATA_DISABLED": "true"}
    with served(tmp_path / "store") as everything:
        table = everything.table()
        table.put_item(Item={"id": "a"})
        options = ("--table", table.name, "--endpoint", f"http://{everything.address}")
        with Child(
            *(*COMMAND, "trigger", "app:handle", *options, "--state", "state", "--json"),
            cwd=tmp_path,
            env=environment,
        ) as process:
            ready = json.loads(process.line())
            seen = tmp_path / "seen"
            process.wait_until(lambda: seen.exists() and seen.read_text())
            assert process.stop() == 0
            stopped = json.loads(process.rest())
        assert ready == {"event": "ready", "name": "app.handle", "stream": everything.arn(table)}
    assert stopped["event"] == "stopped"
    assert (stopped["handled"], stopped["calls"]) == (1, 1)
    assert (tmp_path / "state" / "app.handle" / "checkpoint.json").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "say one of table and stream"),
        (("--table", "t", "--stream", "a"), "say one of table and stream"),
        (("--table", "t", "--batch-size", "0"), "--batch-size"),
        (("--table", "t", "--batching-window", "301s"), "--batching-window"),
        (("--table", "t", "--parallelization-factor", "11"), "--parallelization-factor"),
        (("--table", "t", "--filter", '{"a": 1}'), "--filter: a must be a list"),
        (("--table", "t", "--maximum-retry-attempts", "3"), "nothing says where it goes"),
        (("--table", "t", "--maximum-record-age", "1h"), "nothing says where it goes"),
        (("--table", "t", "--on-failure", "discard"), "never used while retries go on for ever"),
        (
            ("--table", "t", "--maximum-retry-attempts", "3", "--on-failure", "sqs"),
            "on_failure is file:PATH",
        ),
        (("--table", "t", "--starting-position", "AT_TIMESTAMP"), "goes with AT_TIMESTAMP"),
        (("--table", "t", "--name", "../up"), "--name"),
        (("--table", "t", "--timeout", "soon"), "is not a duration"),
    ],
)
def test_options_that_cannot_be_are_a_sentence_and_start_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: tuple[str, ...], text: str
) -> None:
    state = tmp_path / "state"
    done = penstock(capsys, "trigger", "app:handle", "--state", str(state), *options)
    assert done.code == 2
    assert text in " ".join(done.err.split())
    assert "Nothing was started" in " ".join(done.err.split())
    assert not state.exists()
