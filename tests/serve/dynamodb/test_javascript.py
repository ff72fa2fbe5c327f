"""The AWS SDK for JavaScript as it is sold: the data plane and streams of a store, and of a log."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.serve.dynamodb.captured import captured
from tests.serve.dynamodb.changes import told
from tests.serve.dynamodb.support import served
from tests.serve.nodejs import ENVIRONMENT, NODE, installed
from tests.subscribe.events import commit

pytestmark = pytest.mark.server


@pytest.fixture(scope="session")
def project() -> Path:
    """The Node project, installed."""
    with installed(Path(__file__).parent / "node") as home:
        return home


def run(project: Path, script: str, *arguments: str) -> list[dict[str, Any]]:
    """What a script says."""
    done = subprocess.run(
        [str(NODE), script, *arguments],
        cwd=project,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_it_writes_and_reads_items_and_their_stream(project: Path, tmp_path: Path) -> None:
    with served(tmp_path / "store") as everything:
        endpoint = f"http://{everything.address}"
        (said,) = run(project, "items.mjs", endpoint)
        ada = {"user": {"S": "ada"}, "line": {"N": "1"}, "count": {"N": "2"}}
        assert said["bytes"] == [0, 255]
        assert said["updated"] == ada
        assert said["condition"] == [True, ada]
        assert said["cancelled"] == [True, ["None", "ConditionalCheckFailed"]]
        assert said["query"] == ["4", "1"]
        assert said["capacity"] == 0.5
        assert (said["scanned"], said["batch"]) == (3, 2)
        stream, refused = run(project, "streams.mjs", endpoint, "carts")
        assert refused == {"refused": True}
        assert stream["arn"] == said["arn"]
        assert stream["keys"] == ["user", "line"]
        events = [
            f"{one['event']} {one['keys']['user']['S']} {one['keys']['line']['N']}"
            for one in stream["records"]
        ]
        assert events == [
            "INSERT ada 1",
            "MODIFY ada 1",
            "INSERT ada 2",
            "INSERT ada 3",
            "INSERT ada 4",
            "REMOVE ada 2",
            "INSERT bob 1",
            "REMOVE ada 3",
        ]
        assert all(one["created"] for one in stream["records"])


def test_it_reads_the_streams_of_a_captured_collection(project: Path, tmp_path: Path) -> None:
    with captured(tmp_path, shard_bytes=1024) as service:
        for n in range(1, 8):
            service.append(commit(told(n, {"_id": n, "text": "x" * 400})))
        service.append(commit(told(9, None, None, key={"_id": 1})))
        endpoint = f"http://{service.address}"
        first, second, refused = run(project, "streams.mjs", endpoint, "shop.db.orders")
        assert refused == {"refused": True}
        assert [first["status"], second["status"]] == ["DISABLED", "ENABLED"]
        assert [first["view"], second["view"]] == ["NEW_AND_OLD_IMAGES", "NEW_IMAGE"]
        assert [one["keys"]["_id"]["N"] for one in first["records"]] == list("1234567")
        assert [one["event"] for one in second["records"]] == ["REMOVE"]
        numbers = [one["number"] for one in first["records"] + second["records"]]
        assert numbers == sorted(numbers)
