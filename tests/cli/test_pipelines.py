"""Pipelines as their users see them: the service knows how each is, whatever dies."""

import json
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from penstock.cli.config import load
from penstock.cli.spark_settings import spark_settings, with_conf
from penstock.client.flight import LogClient
from penstock.client.pipelines import PipelineTold
from penstock.errors import ConfigError, MalformedProgressError
from penstock.serve.flight import FlightServer
from penstock.serve.pipelines import PipelineBook
from penstock.spark.destinations import known_destinations
from penstock.spark.plan import CollectionPlan, RunPlan
from tests.children import Child
from tests.cli.service import COMMAND, SHOP, Done, Service, configure, penstock
from tests.flight.blocks import BlockLog
from tests.spark.tables import put
from tests.waiting import wait_until

PIPELINES = """
[pipelines.orders]
source = "shop"
path = "lake/orders"
trigger = 0.2
[pipelines.copy]
source = "shop"
path = "lake/copy"
trigger = 0.2
"""


def lines(done: Done) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in done.out.splitlines()]
    return {one["pipeline"]: one for one in found}


@pytest.mark.slow
def test_a_pipeline_is_listed_stopped_and_forgotten_and_outlives_the_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(tmp_path, SHOP.format(rate=300) + PIPELINES)
    with Service(config) as service, LogClient(service.ready["flight"]) as client:

        def ask(*words: str) -> Done:
            at = ("--config", str(config), "--json", "--endpoint", service.ready["flight"])
            return penstock(capsys, "pipeline", *words, *at)

        assert {name: one["state"] for name, one in lines(ask("list")).items()} == {
            "copy": "never run",
            "orders": "never run",
        }
        assert ask("lag", "orders").code == 1
        text = config.read_text()
        config.write_text(text.replace('lake/copy"', 'lake/copy"\ncollections = ["ordrs"]'))
        wait_until(lambda: lines(ask("list"))["copy"]["unmatched"])
        found = lines(ask("list"))["copy"]["unmatched"]
        near = "matches nothing that the log has told of; the nearest are orders"
        sentence = f"collections 'ordrs' {near}"  # others that are near may follow
        assert found[0].startswith(sentence)
        assert lines(ask("list"))["orders"]["unmatched"] == []
        at = ("--config", str(config))
        said = json.loads(penstock(capsys, "status", *at, "--json").out)["unmatched"]
        assert list(said) == ["copy"]
        assert said["copy"][0].startswith(sentence)
        for words in (["status"], ["config", "check"]):
            assert sentence in " ".join(penstock(capsys, *words, *at).out.split())
        config.write_text(text.replace('lake/copy"', 'lake/copy"\ncollections = ["orders"]'))
        assert lines(ask("list"))["copy"]["unmatched"] == []
        config.write_text(text)
        told = PipelineTold(
            pipeline="orders",
            run="1",
            source="shop",
            to="table",
            place=client.marker(log_id=client.bounds().log_id, sequence=1),
            batches=1,
            rejected=3,
        )
        client.tell(told)
        found = lines(ask("list"))["orders"]
        assert (found["state"], found["sequence"], found["configured"]) == ("running", 1, True)
        assert found["lagEntries"] > 0
        assert found["heldUntilMs"] > found["toldAtMs"]
        assert ask("lag", "orders").code == 0
        assert ask("lag", "order").code == 2
        plan = json.loads(ask("plan", "orders").out)
        assert (plan["sequence"], plan["entries"] > 0) == (0, True)
        assert not (tmp_path / "lake").exists()
        for words in (["reset", "orders", "--to", "beginning"], ["backfill", "orders"]):
            done = ask(*words, "--yes")
            assert done.code == 7
            assert "it is running" in done.err
        with urllib.request.urlopen(f"http://{service.ready['http']}/metrics") as page:
            assert 'penstock_query_rejected{pipeline="orders"} 3.0' in page.read().decode()
        with urllib.request.urlopen(f"http://{service.ready['http']}/health") as page:
            assert [one["pipeline"] for one in json.load(page)["pipelines"]] == ["orders"]

        assert json.loads(ask("stop", "orders", "--wait", "0").out)["state"] == "stopping"
        service.kill("serve", service.ready["pids"]["serve"])
        assert client.tell(told).stop
        assert lines(ask("list"))["orders"]["stopping"]
        assert ask("forget", "orders").code == 2  # it says that it runs
    with Service(config) as service, LogClient(service.ready["flight"]) as client:
        assert client.tell(told).stop
        client.tell(structs.replace(told, state="stopped"))
        assert lines(ask("list"))["orders"]["state"] == "stopped"
        said = json.loads(penstock(capsys, "status", "--config", str(config), "--json").out)
        assert [(one["name"], one["sequence"]) for one in said["pipelines"]] == [("orders", 1)]
        assert ask("forget", "orders").code == 0
        assert lines(ask("list"))["orders"]["state"] == "never run"


def test_a_plan_is_told_with_what_retention_has_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(tmp_path, SHOP.format(rate=1) + PIPELINES)
    found = RunPlan(
        pipeline="orders",
        to="table",
        source="shop",
        after="",
        sequence=4,
        why="so it is",
        until=1010,
        entries=4,
        bytes=10,
        control_events=1,
        lost=1003,
        batches=1,
        collections=[CollectionPlan(collection="orders", entries=3, table="lake/orders")],
        unknown=[],
    )

    def planned(*_: object, **__: object) -> RunPlan:
        return found

    monkeypatch.setattr("penstock.spark.plan.plan_of", planned)
    done = penstock(capsys, "pipeline", "plan", "orders", "--config", str(config))
    assert done.out.splitlines() == [
        "orders would begin after entry 4: so it is.",
        "It would read 4 entries of source shop up to 1,010, 10 B, in 1 batches or more.",
        (
            "1,003 entries were removed by retention before it read them; it would write a gap for "
            "them."
        ),
        "1 of them are no data: gaps, or changes of shape.",
        "  orders: 3 -> lake/orders",
    ]


@pytest.mark.slow
def test_a_command_names_the_table_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends with its exit code and a sentence, whatever storage raises."""
    config = configure(tmp_path, SHOP.format(rate=1) + PIPELINES)
    log = BlockLog()
    log.append([[put(1, n=1)]])
    book = PipelineBook(tmp_path / "consumers", log, hold_seconds=60, hold_bytes=0)
    server = FlightServer(log, book=book)
    server.start()
    for table in ("orders/_penstock_standing", "orders_rejects"):
        (tmp_path / "lake" / table).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lake" / table).write_text("no folder")
    try:
        for words in (
            ("plan", "orders", "--endpoint", server.address),
            ("reset", "orders", "--to", "oldest", "--yes", "--endpoint", server.address),
            ("rejects", "orders"),
            ("replay", "orders", "--endpoint", server.address),
            ("tidy", "orders"),
        ):
            done = penstock(capsys, "pipeline", *words, "--config", str(config))
            assert (words[0], done.code) == (words[0], 7)
            assert "lake/orders" in done.err
            assert "in the way of a folder" in done.err
            assert "Traceback" not in done.err
    finally:
        server.stop()
        book.close()


@pytest.mark.soak
@pytest.mark.spark
def test_a_driver_that_was_killed_finds_all_that_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Retention would have passed it long ago; the service is killed meanwhile, too. A pipeline
    that is new by then cannot begin, and stops neither of the others."""
    text = SHOP.format(rate=300) + PIPELINES
    config = configure(tmp_path, text)
    with Service(config) as service:
        at = ("--config", str(config), "--json", "--endpoint", service.ready["flight"])

        def listed() -> dict[str, dict[str, Any]]:
            return lines(penstock(capsys, "pipeline", "list", *at))

        with Child(*COMMAND, "pipeline", "run", *at) as driver:
            driver.line()
            # It tells the service on a thread of its own, a little later.
            told = listed()
            while not all(one["sequence"] for one in told.values()):
                assert not driver.ended(), driver.tail()
                told = listed()
            # And the service writes it down once a second: what is younger, its own end takes back.
            while any(
                one["toldAtMs"] < told[name]["toldAtMs"] + 3000 for name, one in listed().items()
            ):
                assert not driver.ended(), driver.tail()
        places = {name: one["sequence"] for name, one in listed().items()}
        service.kill("serve", service.ready["pids"]["serve"])
        text = text.replace("[log]", "[log]\nretention_events = 50")
        config.write_text(text + '[pipelines.new]\nsource = "shop"\npath = "lake/new"\n')
        service.process.send_signal(signal.SIGHUP)
        with LogClient(service.ready["flight"]) as client:
            wait_until(lambda: client.bounds().head >= max(places.values()) + 1000)
            wait_until(lambda: client.bounds().trimmed)
            assert client.bounds().trimmed <= min(places.values())
        driver_done = subprocess.run(
            [*COMMAND, "pipeline", "run", "--once", *at],
            capture_output=True,
            text=True,
            check=False,
        )
        assert driver_done.returncode == 7, driver_done.stderr
        assert "[new] pipeline.history_trimmed" in driver_done.stderr
        found = listed()
        assert {name: one["state"] for name, one in found.items()} == {
            "copy": "ended",
            "new": "never run",
            "orders": "ended",
        }
        for name, place in places.items():
            assert found[name]["sequence"] >= place + 1000
            assert found[name]["rejected"] == 0


DESTINATIONS = {
    "audit": 'uri = "mongodb://127.0.0.1/trail"',
    "replicate": 'uri = "postgresql://me@127.0.0.1/copy"\ncollections = ["orders"]',
    "view": 'path = "view"\nquery = "SELECT status, count(*) AS n FROM orders GROUP BY status"',
    "history": 'path = "history"',
    "changelog": 'path = "changes"',
}


COMPARED = {"table", "history", "changelog", "view", "replicate"}


@pytest.mark.parametrize("to", [to for to in known_destinations() if to not in COMPARED])
def test_what_is_not_compared_says_what_to_do_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    text = f'[pipelines.o]\nsource = "shop"\nto = "{to}"\n{DESTINATIONS[to]}\n'
    config = configure(tmp_path, SHOP.format(rate=1) + text)
    done = penstock(capsys, "pipeline", "verify", "o", "--config", str(config))
    assert done.code == 2
    assert f"pipeline o goes to '{to}'" in done.err
    assert "Nothing was compared." in done.err
    assert "penstock audit verify o" in done.err


@pytest.mark.parametrize("to", sorted(COMPARED - {"table"}))
def test_only_tables_of_current_rows_are_compared_with_the_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    text = f'[pipelines.o]\nsource = "shop"\nto = "{to}"\n{DESTINATIONS[to]}\n'
    config = configure(tmp_path, SHOP.format(rate=1) + text)
    command = ("pipeline", "verify", "o", "--against", "source", "--config", str(config))
    done = penstock(capsys, *command)
    assert done.code == 2
    assert "tables of current rows alone" in done.err
    assert "Nothing was compared. Leave --against out" in done.err


@pytest.mark.parametrize("asked", ["nonsense", "42", "Beginning", ""])
def test_a_reset_to_no_place_says_which_there_are(asked: str) -> None:
    from penstock.spark.resetting import reset_place

    nobody: Any = None
    with pytest.raises(MalformedProgressError) as caught:
        reset_place(nobody, asked, nobody)
    said = str(caught.value)
    assert said.startswith(f"{asked!r} is no place of the log: say beginning, oldest or a marker.")
    assert "Nothing was changed" in said
    assert "last event" not in said


def test_what_a_user_tells_spark_wins(tmp_path: Path) -> None:
    from penstock.spark.session import LOCAL_SETTINGS, SETTINGS, chosen_settings, users_own

    text = (
        SHOP.format(rate=1)
        + '[spark]\n"spark.driver.memory" = "4g"\nsql.shuffle.partitions = 7\nui.enabled = true\n'
    )
    written = load(configure(tmp_path, text)).spark
    assert written == {
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "7",
        "spark.ui.enabled": "true",
    }
    assert with_conf(written, ["spark.driver.memory=8g"])["spark.driver.memory"] == "8g"
    (tmp_path / "spark-defaults.conf").write_text(
        "# own\nspark.driver.memory  3g\nspark.log.level=INFO\nspark.master spark://host:7077\n"
    )
    own = users_own({"SPARK_CONF_DIR": str(tmp_path)})
    assert own["spark.log.level"] == "INFO"
    chosen = chosen_settings(None, written, own)
    assert chosen["spark.driver.memory"] == "4g"
    assert chosen["spark.master"] == "spark://host:7077"
    assert "spark.log.level" not in chosen  # Spark reads it by itself
    assert "spark.driver.host" not in chosen  # others must reach it
    assert SETTINGS.items() <= chosen.items()
    assert LOCAL_SETTINGS.items() <= chosen_settings(None, {}, {}).items()
    # A Python process that dies is tried again.
    assert chosen_settings(None, {}, {})["spark.master"] == "local[*,4]"
    assert chosen_settings("local[2]", {}, own)["spark.master"] == "local[2]"
    assert users_own({}) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: spark_settings({"a": [1]}, where="spark"),
        lambda: spark_settings({"a": 1, "spark.a": 2}, where="spark"),
        lambda: with_conf({}, ["spark.a"]),
        lambda: with_conf({}, ["a=b"]),
    ],
)
def test_what_spark_could_not_read_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        wrong()
