"""Pausing, resuming and rewinding a source of a running service, by the commands themselves."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client import follow_sync
from penstock.event import SystemEvent
from tests.cli.service import Service, configure, penstock
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

TWO = """
[log]
path = "log"
free_bytes_min = 0
[sources.shop]
type = "script"
events_per_second = 300
heartbeat_seconds = 0.2
[sources.other]
type = "script"
seed = 2
events_per_second = 300
heartbeat_seconds = 0.2
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "127.0.0.1:0"
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(configure(tmp_path, TWO), "--one-process") as running:
        yield running


class Commands:
    """The commands, against one service."""

    def __init__(self, capsys: pytest.CaptureFixture[str], config: Path) -> None:
        self._capsys = capsys
        self._config = str(config)

    def __call__(self, *words: str) -> dict[str, Any]:
        done = penstock(self._capsys, *words, "--config", self._config, "--json")
        assert done.code == 0, done.err
        answer: dict[str, Any] = json.loads(done.out)
        return answer

    def source(self, name: str) -> dict[str, Any]:
        done = penstock(self._capsys, "status", "--config", self._config, "--json")
        found = {one["source"]: one for one in json.loads(done.out)["sources"]}
        return dict(found[name])

    def moved(self, name: str, after: str) -> None:
        """Wait until a source stands elsewhere than at `after`."""
        wait_until(lambda: self.source(name)["position"] != after)

    def refused(self, *words: str) -> str:
        done = penstock(self._capsys, *words, "--config", self._config, "--json")
        assert done.code == 2, done.out
        return str(json.loads(done.err)["error"]["message"])


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], service: Service) -> Commands:
    return Commands(capsys, service.config)


def test_a_paused_source_stands_still_while_the_other_goes_on_and_goes_on_when_resumed(
    run: Commands,
) -> None:
    assert run("pause", "shop")["state"] == "paused"
    still, other = run.source("shop"), run.source("other")
    assert (still["state"], still["health"]) == ("paused", "degraded")
    run.moved("other", other["position"])
    assert run.source("shop")["position"] == still["position"]
    assert run("pause", "shop")["changed"] is False
    assert run("resume", "shop")["changed"] is True
    run.moved("shop", still["position"])


def test_a_pause_survives_a_restart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, service: Service
) -> None:
    run = Commands(capsys, service.config)
    position = run("pause", "shop")["position"]
    assert service.stop() == 0
    with Service(service.config, "--one-process"):
        other = run.source("other")
        run.moved("other", other["position"])
        assert run.source("shop")["state"] == "paused"
        assert run.source("shop")["position"] == position
        run("resume", "shop")
        run.moved("shop", position)


def test_a_rewound_source_tells_the_same_events_again(run: Commands, service: Service) -> None:
    """The same eventIds: whoever applies them twice ends where once would have ended (inv. 7)."""
    wait_until(lambda: int(run.source("shop")["position"].partition(":")[2]) >= 5)
    assert "pause shop" in run.refused("rewind", "shop", "--to", "1:2")
    run("pause", "shop")
    answer = run("rewind", "shop", "--to", "1:2")
    assert answer["position"] == "1:2"
    with follow_sync(service.ready["grpc"], control_events=True) as changes:
        next(changes)
        run("resume", "shop")
        resumed, again = False, ""
        for change in changes:
            event = change.event
            if isinstance(event, SystemEvent) and event.operation == "resumed":
                resumed = True
            elif resumed and event.source == "shop":
                again = event.position
                break
    assert again == "1:3"


def test_what_cannot_be_done_is_refused_with_what_can(run: Commands) -> None:
    assert "captured are: shop, other" in run.refused("pause", "shopp")
    assert "either --to" in run.refused("rewind", "shop")
    assert "not a duration" in run.refused("rewind", "shop", "--by", "soon")
    run("pause", "shop")
    assert "no position before" in run.refused("rewind", "shop", "--to", "1:999999999")


def test_people_are_told_in_a_sentence(
    capsys: pytest.CaptureFixture[str], service: Service
) -> None:
    config = str(service.config)
    assert "shop is paused at 1:" in penstock(capsys, "pause", "shop", "--config", config).out
    assert "captured again" in penstock(capsys, "resume", "shop", "--config", config).out
    rewound = penstock(capsys, "rewind", "shop", "--by", "1h", "--config", config)
    assert rewound.code == 2
    penstock(capsys, "pause", "shop", "--config", config)
    rewound = penstock(capsys, "rewind", "shop", "--by", "1h", "--config", config)
    assert "stands at 1:0 now" in rewound.out


def test_a_service_that_is_down_is_said_with_the_log_s_exit_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done = penstock(capsys, "pause", "shop", "--config", str(configure(tmp_path)))
    assert done.code == 4
    assert "nobody answers" in done.err
