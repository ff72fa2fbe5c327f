"""What every command promises: text for people, JSON for programs, and stable exit codes."""

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec import structs

from penstock.cli import check
from penstock.cli.app import app
from penstock.cli.config import SourceSettings, load
from penstock.client import follow_sync
from penstock.client.flight import LogClient, PipelineReport
from penstock.errors import PenstockError, SourceUnavailableError
from penstock.log import LmdbLog
from penstock.state.tables import open_state, read_applied, state_path, write_applied
from tests.capture.doubles import commit
from tests.cli.service import SHOP, Service, configure, penstock
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(configure(tmp_path_factory.mktemp("service")), "--one-process") as running:
        yield running


def addressed(service: Service) -> str:
    """A configuration that says where this service really listens."""
    text = service.config.read_text()
    for name in ("grpc", "flight"):
        text = text.replace(f'{name} = "127.0.0.1:0"', f'{name} = "{service.ready[name]}"')
    path = service.config.with_name("addressed.toml")
    path.write_text(text)
    return str(path)


@pytest.mark.slow
def test_tail_shows_changes_from_the_beginning_as_json_lines(
    capsys: pytest.CaptureFixture[str], service: Service
) -> None:
    done = penstock(
        capsys,
        *("tail", "--config", addressed(service), "--json"),
        *("--from-beginning", "--control", "--limit", "5"),
    )
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["sequence"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["kind"] for line in lines[:2]] == ["system", "schema"]
    assert lines[0]["operationType"] == "started"
    again = penstock(
        capsys,
        *("tail", "--config", addressed(service), "--json"),
        *("--after", lines[2]["progress"], "--control", "--limit", "1"),
    )
    assert json.loads(again.out) == lines[3]


def test_tail_shows_changes_to_people_one_a_line(
    capsys: pytest.CaptureFixture[str], service: Service
) -> None:
    done = penstock(
        capsys, "tail", "--config", addressed(service), "--collections", "orders", "--limit", "3"
    )
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 3
    assert all("shop/orders" in line for line in done.out.splitlines())


def test_tail_with_a_marker_that_is_none_ends_with_its_sentence(
    capsys: pytest.CaptureFixture[str], service: Service
) -> None:
    """P28: a marker that cannot be resumed from is not retried for ever."""
    done = penstock(capsys, "tail", "--config", addressed(service), "--after", "yesterday")
    assert done.code == 5
    assert "not a progress marker" in done.err
    assert "Traceback" not in done.err


def test_status_says_how_everything_is(
    capsys: pytest.CaptureFixture[str], service: Service
) -> None:
    done = penstock(capsys, "status", "--config", addressed(service), "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["capture"] is True
    assert said["serve"] is True
    (source,) = said["sources"]
    assert source["state"] == "running"
    assert source["position"].startswith("1:")
    assert source["events"] <= said["log"]["head"]
    assert 0 <= said["state"]["lagEvents"] <= said["log"]["head"]
    assert (said["state"]["code"], said["state"]["message"]) == ("", "")
    assert source["rows"] == "incomplete"
    people = penstock(capsys, "status", "--config", addressed(service))
    assert "running" in people.out
    assert "current rows: " in people.out


@pytest.mark.slow
def test_status_says_how_far_the_current_rows_are_behind_with_the_service_down(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And of each source by itself whether its rows are current."""
    late = '[sources.late]\ntype = "script"\ntransactions = 5\n[serve]\n'
    config = configure(tmp_path, SHOP.format(rate=300.0).replace("[serve]\n", late))
    with Service(config, "--one-process"):
        pass
    settings = load(config)

    async def move_on() -> int:
        async with LmdbLog(settings.log) as log:
            head = (await log.bounds()).head
            await log.append([commit(1, rows=3, source="late")])
            return head

    asyncio.run(move_on())
    said = json.loads(penstock(capsys, "status", "--config", str(config), "--json").out)
    behind = said["state"]["lagEvents"]
    assert behind == said["log"]["head"] - said["state"]["sequence"] >= 3
    sources = {one["source"]: one for one in said["sources"]}
    assert sources["late"]["rowsLagEvents"] >= 3
    # A source that was never copied may have rows that nobody has heard of.
    assert sources["late"]["rows"] == "incomplete"
    assert "penstock snapshot late" in sources["late"]["rowsMessage"]
    assert sum(one["rowsLagEvents"] for one in sources.values()) == behind
    people = penstock(capsys, "status", "--config", str(config)).out
    assert f"current rows: {behind:,} entries behind the log" in people
    config.write_text(config.read_text() + "[state]\nenabled = false\n")
    said = json.loads(penstock(capsys, "status", "--config", str(config), "--json").out)
    assert said["state"] is None
    assert {one["rows"] for one in said["sources"]} == {None}


@pytest.mark.slow
def test_status_with_current_rows_of_another_version_says_everything_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = configure(tmp_path)
    with Service(config, "--one-process"):
        pass
    with open_state(state_path(load(config).log.path)) as env, env.write() as txn:
        applied = read_applied(txn, env)
        assert applied is not None
        write_applied(txn, env, structs.replace(applied, format=applied.format + 1))
    said = json.loads(penstock(capsys, "status", "--config", str(config), "--json").out)
    assert said["state"]["code"] == "log.format"
    assert "built again from the log" in said["state"]["message"]
    assert said["state"]["lagEvents"] == said["log"]["head"]
    assert said["sources"][0]["position"].startswith("1:")
    assert "built again" in penstock(capsys, "status", "--config", str(config)).out


@pytest.mark.slow
def test_status_reads_the_log_itself_when_the_service_is_down(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = configure(tmp_path)
    with Service(config, "--one-process"):
        pass
    done = penstock(capsys, "status", "--config", str(config), "--json")
    assert done.code == 1
    said = json.loads(done.out)
    assert said["capture"] is False
    (source,) = said["sources"]
    assert source["state"] == "down"
    assert source["position"].startswith("1:")


def test_status_before_the_first_run_is_no_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done = penstock(capsys, "status", "--config", str(configure(tmp_path)), "--json")
    assert done.code == 1
    assert json.loads(done.out)["log"] is None


def test_config_check_says_what_is_configured_and_no_secret(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2")
    config = configure(
        tmp_path, '[sources.a]\ntype = "mongodb"\nuri = "mongodb://u:${PASSWORD}@h/?replicaSet=r"'
    )
    done = penstock(capsys, "config", "check", "--config", str(config))
    assert done.code == 0, done.err
    assert "hunter2" not in done.out + done.err
    done = penstock(capsys, "config", "check", "--config", str(config), "--json")
    assert json.loads(done.out)["sources"] == {"a": "mongodb"}
    assert "hunter2" not in done.out + done.err


def test_config_check_waits_for_no_server_longer_than_it_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the source's own patience: a thread that waits would hold the command up."""
    monkeypatch.setattr(check, "ANSWER_SECONDS_MAX", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = configure(
            tmp_path,
            f"""[sources.a]
            type = "mysql"
            host = "127.0.0.1"
            port = {silent.getsockname()[1]}
            user = "u"
            password = "p"
            include = ["db.t"]
            connect_timeout = 3600
            """,
        )
        done = penstock(capsys, "config", "check", "--config", str(config), "--json")
    assert done.code == 0, done.err
    (told,) = json.loads(done.out)["remarks"]
    assert told.startswith("sources.a: not compared with what is there")


def test_config_check_says_of_a_source_that_it_cannot_open_that_nothing_was_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: SourceSettings) -> Any:
        raise SourceUnavailableError("shop: away. Nothing was read. Wait.")

    monkeypatch.setattr(SourceSettings, "open", refuse)
    done = penstock(capsys, "config", "check", "--config", str(configure(tmp_path)), "--json")
    assert done.code == 0, done.err
    assert "not compared" in " ".join(json.loads(done.out)["remarks"])


@pytest.mark.parametrize(("images", "told"), [("updateLookup", True), ("required", False)])
def test_config_check_says_where_a_zero_cache_may_see_a_part_of_a_transaction(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, images: str, told: bool
) -> None:
    """Z10: documents that are looked up may be ahead of their transaction."""
    config = configure(
        tmp_path,
        f"""[sources.a]
        type = "mongodb"
        uri = "mongodb://h/?replicaSet=r"
        full_document = "{images}"
        [serve]
        http = "127.0.0.1:8080"
        [serve.zero.sources.a]
        """,
    )
    done = penstock(capsys, "config", "check", "--config", str(config))
    assert done.code == 0, done.err
    assert ("part of a later transaction" in " ".join(done.out.split())) is told
    done = penstock(capsys, "config", "check", "--config", str(config), "--json")
    assert bool(json.loads(done.out)["remarks"]) is told


@pytest.mark.parametrize("command", [("config", "check"), ("run",), ("status",), ("tail",)])
def test_a_configuration_that_is_not_there_is_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = penstock(capsys, *command, "--config", str(tmp_path / "none.toml"), "--json")
    assert done.code == 2
    assert json.loads(done.err)["error"]["code"] == "config"
    assert done.out == ""


def test_a_wrong_option_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert penstock(capsys, "run", "--sideways").code == 2


def test_help_says_every_exit_code_with_the_errors_that_end_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = " ".join(penstock(capsys, "--help").out.replace("\u2502", " ").split())
    listed = said[said.index("Exit codes") :]
    kinds: list[type[PenstockError]] = [PenstockError]
    while kinds:
        kind = kinds.pop()
        kinds.extend(kind.__subclasses__())
        if "exit_code" in vars(kind) and kind is not PenstockError:
            entry = next(one for one in listed.split("; ") if one.startswith(f"{kind.exit_code} "))
            assert kind.code in entry
    for entry in ("0 done", "1 failed", "2 usage", "130 interrupted"):
        assert entry in listed


def commands(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A command and all below it, with the words that name each."""
    yield words, command
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), *words, name)


COMMANDS = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(
    ("words", "command"), COMMANDS, ids=[" ".join(words) or "penstock" for words, _ in COMMANDS]
)
def test_help_shows_words_in_brackets(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    command: Any,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    shown = penstock(capsys, *words, "--help").out
    texts = [
        getattr(part, text, None) or ""
        for part in (command, *command.params)
        for text in ("help", "short_help", "epilog")
    ]
    bracketed = {word for text in texts for word in re.findall(r"\[[^\[\]]+\]", text)}
    assert [word for word in sorted(bracketed) if word not in shown] == []
    assert "\\[" not in shown


@pytest.mark.slow
def test_a_source_that_is_no_longer_configured_is_said_and_is_no_failure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = configure(tmp_path)
    with Service(config, "--one-process") as service, follow_sync(service.ready["grpc"]) as changes:
        next(changes)
    config.write_text(config.read_text().replace("[sources.shop]", "[sources.other]"))
    with Service(config, "--one-process"):
        done = penstock(capsys, "status", "--config", str(config), "--json")
        people = penstock(capsys, "status", "--config", str(config))
    states = {one["source"]: one["state"] for one in json.loads(done.out)["sources"]}
    assert states["shop"] == "not configured"
    assert states["other"] in {"starting", "running"}
    assert done.code == people.code == 0
    assert "not configured" in people.out


@pytest.mark.slow
def test_status_says_how_fast_a_pipeline_is_from_its_last_two_reports(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = configure(tmp_path)

    def pipeline() -> dict[str, Any]:
        done = penstock(capsys, "status", "--config", str(config), "--json")
        (found,) = json.loads(done.out)["pipelines"]
        return dict(found)

    with (
        Service(config, "--one-process") as service,
        LogClient(service.ready["flight"]) as client,
    ):
        wait_until(lambda: client.bounds().head >= 2)
        log_id = client.bounds().log_id
        for sequence in (1, 2):
            client.report(PipelineReport(pipeline="p", log_id=log_id, sequence=sequence))
    said = pipeline()
    assert said["sequence"] == 2
    assert said["eventsPerSecond"] > 0
    assert "/s" in penstock(capsys, "status", "--config", str(config)).out


HEAVY = {"boto3", "grpc", "lmdb", "numpy", "pyarrow", "pydantic", "structlog"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "heavy"), [("--help", HEAVY), ("--version", HEAVY | {"asyncio", "rich"})]
)
def test_what_is_asked_of_no_command_loads_nothing_of_what_they_do(
    option: str, heavy: set[str]
) -> None:
    script = (
        "import atexit, sys\nfrom penstock.cli.app import main\n"
        f"atexit.register(lambda: print('loaded', *sorted({heavy} & set(sys.modules))))\n"
        f"sys.argv = ['penstock', {option!r}]\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded"
