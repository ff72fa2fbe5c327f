"""`penstock consume --exec`: a program of any language, killed or not, misses nothing."""

import json
import sys
from pathlib import Path

import pytest

from penstock.cli.tail import oldest
from penstock.client import follow_sync
from penstock.client.flight import LogClient
from penstock.event import Kind
from tests.children import Child
from tests.cli.service import COMMAND, Service, configure, penstock
from tests.waiting import wait_until

SHOP = """
[log]
path = "log"
free_bytes_min = 0
[sources.shop]
type = "script"
transactions = 300
events_per_second = 0
heartbeat_seconds = 0.2
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "off"
"""

PROGRAM = """
import json, sys
for line in sys.stdin:
    event = json.loads(line)
    with open("seen", "a") as seen:
        seen.write(event["eventId"] + "\\n")
    refused = event["collection"] == "customers" and event["operationType"] == "delete"
    print("error we keep our customers" if refused else "ok", flush=True)
"""


def consumer(folder: Path, service: Service) -> Child:
    """`penstock consume` in a process of its own, from the oldest entry or its progress on."""
    config = folder / "served.toml"
    config.write_text(
        SHOP.replace('grpc = "127.0.0.1:0"', f'grpc = "{service.ready["grpc"]}"').replace(
            'flight = "127.0.0.1:0"', f'flight = "{service.ready["flight"]}"'
        )
    )
    return Child(
        *(*COMMAND, "consume", "--config", config, "--from-beginning"),
        *("--exec", f"{sys.executable} program.py", "--progress", "progress"),
        *("--retries", "1", "--retry-pause", "0"),
        cwd=folder,
    )


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
def test_a_killed_consumer_goes_on_where_its_program_last_said_ok(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    seen, dead = tmp_path / "seen", tmp_path / "progress.dead.jsonl"
    with Service(configure(tmp_path, SHOP)) as service:
        with LogClient(service.ready["flight"]) as client:
            wait_until(lambda: client.bounds().head_commit >= 300 or None, "all commits")
            head = client.bounds().head
        expected: list[str] = []
        refused: list[str] = []
        with follow_sync(
            service.ready["grpc"], after=oldest(service.ready["flight"]), control_events=True
        ) as changes:
            for change in changes:
                if change.kind is Kind.DATA:
                    expected.append(change.event.event_id)
                    if change.collection == "customers" and change.operation == "delete":
                        refused.append(change.event.event_id)
                if change.sequence == head:
                    break
        with consumer(tmp_path, service) as first:
            first.wait_until(lambda: len(lines(seen)) > 10 or None, "ten changes")
        with consumer(tmp_path, service) as second:
            second.wait_until(lambda: set(expected) <= set(lines(seen)) or None, "all changes")
            second.wait_until(lambda: len(lines(dead)) == len(refused) or None, "the dead letters")
            assert second.stop() == 0
    order = list(dict.fromkeys(lines(seen)))
    assert order == expected
    assert refused
    letters = [json.loads(line) for line in lines(dead)]
    assert [one["event"]["eventId"] for one in letters] == refused
    assert all("we keep our customers" in one["reason"] for one in letters)


def test_an_empty_program_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    done = penstock(capsys, "consume", "--exec", " ", "--progress", str(tmp_path / "progress"))
    assert done.code == 2
    assert "--exec is empty" in done.err
