"""A changed configuration is taken over while the service runs, or not at all."""

import json
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from msgspec import structs
from pydantic import BaseModel

from penstock.cli.config import Settings, load
from penstock.cli.live import LIVE
from penstock.cli.named_files import files_of, plan_files
from penstock.cli.reload import keeping, plan
from tests.access.certificates import Authority
from tests.access.support import issue
from tests.cli.service import Service, configure, penstock
from tests.waiting import wait_until

SHOP = """
[sources.{name}]
type = "script"
seed = {seed}
events_per_second = {rate}
heartbeat_seconds = 0.2
"""
REST = """
[log]
path = "log"
free_bytes_min = 0
{log}
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "127.0.0.1:0"
"""


def shop(name: str, seed: int, rate: float = 300.0) -> str:
    return SHOP.format(name=name, seed=seed, rate=rate)


def rest(log: str = "") -> str:
    return REST.format(log=log)


def settings_of(folder: Path, name: str, text: str) -> Settings:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return load(path, environment={"TOKEN": "t0ken"})


def test_a_plan_says_what_starts_stops_and_restarts_and_what_must_wait(tmp_path: Path) -> None:
    """Every setting is one or the other; no value is in a plan, so no secret."""
    before = settings_of(tmp_path, "a", rest() + shop("a", 1) + shop("b", 2) + shop("c", 3))
    after = settings_of(
        tmp_path,
        "b",
        rest('retention = "1d"\ncache_bytes = "1MiB"')
        + shop("b", 2)
        + shop("c", 4)
        + shop("d", 5)
        + '[alerts]\nwebhook = "https://alerts/${TOKEN}"\n'
        + '[capture]\nsilent_after = "1h"\n[logging]\nlevel = "error"\n'
        + "[processes]\nhung_after = 120\n",
    )
    found = plan(before, after)
    assert (found.added, found.removed, found.changed) == (["d"], ["a"], ["c"])
    assert sorted(found.applied) == [
        "alerts.webhook",
        "capture.silent_after",
        "log.retention",
        "logging.level",
    ]
    assert sorted(found.needs_restart) == ["log.cache_bytes", "processes.hung_after"]
    assert "t0ken" not in str(found)
    same = plan(after, after)
    assert not any((same.added, same.removed, same.changed, same.applied, same.needs_restart))


SECTIONS: dict[str, type[BaseModel]] = {
    section: kind
    for section, kind in Settings.__annotations__.items()
    if isinstance(kind, type) and issubclass(kind, BaseModel)
}


ANOTHER = {"another": 1}
"""A value that no setting has."""


@pytest.mark.parametrize(
    ("section", "key"),
    [(section, key) for section, kind in SECTIONS.items() for key in kind.model_fields],
)
def test_every_setting_is_either_live_or_said_by_name_to_need_a_restart(
    tmp_path: Path, section: str, key: str
) -> None:
    """And what needs one is named by each reload, for it keeps its old value."""
    before = settings_of(tmp_path, "a", rest() + shop("a", 1))
    changed = getattr(before, section).model_copy(update={key: ANOTHER})
    after = structs.replace(before, **{section: changed})
    found, name = plan(before, after), f"{section}.{key}"
    live = LIVE.get(section, frozenset())
    if live is None or key in live:
        assert (found.applied, found.needs_restart) == ([name], [])
        assert plan(keeping(before, after), after).applied == []
    else:
        assert (found.applied, found.needs_restart) == ([], [name])
        assert plan(keeping(before, after), after).needs_restart == [name]


def test_what_is_called_live_is_a_setting() -> None:
    for section, keys in LIVE.items():
        assert (keys or frozenset()) <= set(SECTIONS[section].model_fields)


class Running:
    """A service, and its commands."""

    def __init__(self, capsys: pytest.CaptureFixture[str], service: Service) -> None:
        self._capsys = capsys
        self.service = service

    def reload(self) -> dict[str, Any]:
        done = penstock(self._capsys, "reload", "--config", str(self.service.config), "--json")
        assert done.code == 0, done.err
        answer: dict[str, Any] = json.loads(done.out)
        return answer

    def sources(self) -> dict[str, Any]:
        done = penstock(self._capsys, "status", "--config", str(self.service.config), "--json")
        return {one["source"]: one for one in json.loads(done.out)["sources"]}

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        # In a tuple: there may be none.
        (found,) = wait_until(lambda: (sources,) if condition(sources := self.sources()) else None)
        return found


@pytest.mark.slow
def test_sources_start_stop_and_restart_alone_while_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Invariant 8; a source that comes back goes on from where it stood (invariant 2)."""
    config = configure(tmp_path, rest() + shop("kept", 1) + shop("gone", 2) + shop("faster", 3))
    with Service(config, "--one-process") as service:
        run = Running(capsys, service)
        run.until(lambda now: all(one["state"] == "running" for one in now.values()))
        configure(tmp_path, rest() + shop("kept", 1) + shop("faster", 3, 400.0) + shop("new", 4))
        answer = run.reload()
        assert (answer["added"], answer["removed"], answer["changed"]) == (
            ["new"],
            ["gone"],
            ["faster"],
        )
        now = run.until(lambda now: now["new"]["state"] == now["faster"]["state"] == "running")
        assert now["gone"]["state"] == "not configured"
        assert now["kept"]["restarts"] == 0
        still = now["gone"]["position"]
        configure(tmp_path, rest() + shop("kept", 1) + shop("faster", 3, 400.0) + shop("gone", 2))
        run.reload()
        back = run.until(lambda now: now["gone"]["state"] == "running")
        assert int(back["gone"]["position"].partition(":")[2]) >= int(still.partition(":")[2])
        assert run.sources()["new"]["state"] == "not configured"


def flat(text: str) -> str:
    """Without the line breaks of a terminal."""
    return " ".join(text.split())


@pytest.mark.slow
def test_a_file_with_an_error_changes_nothing_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in whose environment a variable is missing: the command's, or the service's."""
    config = configure(tmp_path, rest() + shop("kept", 1))
    with Service(config, "--one-process") as service:
        run = Running(capsys, service)
        configure(tmp_path, rest() + shop("kept", 1) + '[logging]\nlevel = "${LEVEL}"\n')
        done = penstock(capsys, "reload", "--config", str(config))
        assert "LEVEL, which is not set in the environment of this command" in flat(done.err)
        monkeypatch.setenv("LEVEL", "warning")
        done = penstock(capsys, "reload", "--config", str(config))
        without = f"the running service (process {service.process.pid}) was started without"
        assert without in flat(done.err)
        assert "restart the service with LEVEL set" in flat(done.err)
        configure(tmp_path, rest() + shop("new", 4) + "[sources.kept]\ntype = 'mysterious'\n")
        done = penstock(capsys, "reload", "--config", str(config), "--json")
        # The command reads the file as well, to know where the log is.
        assert done.code == 2
        assert "sources.kept.type" in json.loads(done.err)["error"]["message"]
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "everything goes on as it was" in service.errors())
        configure(tmp_path, rest() + shop("kept", 1))
        assert set(run.sources()) == {"kept"}
        assert run.reload()["added"] == []


@pytest.mark.slow
def test_sighup_reaches_both_processes_and_what_needs_a_restart_is_named_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(tmp_path, rest() + shop("kept", 1))
    with Service(config) as service:
        run = Running(capsys, service)
        pids = service.ready["pids"]
        configure(tmp_path, rest('cache_bytes = "1MiB"') + shop("kept", 1) + shop("new", 2))
        service.process.send_signal(signal.SIGHUP)
        run.until(lambda now: now.get("new", {}).get("state") == "running")
        for _ in range(2):
            assert run.reload()["needsRestart"] == ["log.cache_bytes"]
        # Neither ended for it: a process without a handler would have.
        for pid in pids.values():
            os.kill(pid, 0)
        assert service.stop() == 0


@pytest.mark.slow
def test_retention_is_taken_over_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(tmp_path, rest() + shop("kept", 1, 2000.0))
    with Service(config, "--one-process") as service:
        run = Running(capsys, service)
        run.until(lambda now: now["kept"]["events"] > 1000)
        configure(tmp_path, rest("retention_events = 10") + shop("kept", 1, 2000.0))
        assert run.reload()["applied"] == ["log.retention_events"]

        def trimmed() -> int:
            done = penstock(capsys, "status", "--config", str(config), "--json")
            return int(json.loads(done.out)["log"]["trimmed"])

        wait_until(lambda: trimmed() != 0)


@pytest.mark.slow
def test_people_are_told_what_was_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configure(tmp_path, rest() + shop("kept", 1))
    with Service(config, "--one-process"):
        done = penstock(capsys, "reload", "--config", str(config))
        assert done.out.strip() == "nothing has changed"
        configure(tmp_path, rest() + shop("new", 1))
        done = penstock(capsys, "reload", "--config", str(config))
        assert done.out.strip() == "added: new; removed: kept"


TLS = """
[serve.tls]
certificate = "server.crt"
key = "server.key"
client_ca = "clients.crt"
require_client_certificate = true
[access]
tokens = "access.json"
jwks = "keys.json"
issuer = "https://login.example.com"
audience = "penstock"
log = "record.jsonl"
[sources.crm]
type = "mysql"
user = "penstock"
tls = "verify"
ca = "crm.crt"
"""


def test_of_every_file_that_a_setting_names_it_is_said_what_became_of_it(tmp_path: Path) -> None:
    """Renewed, waiting for a restart, or of no use, and then named again until it is mended."""
    authority = Authority()
    authority.sign("localhost").write(tmp_path, "server")
    (tmp_path / "clients.crt").write_bytes(authority.certificate)
    (tmp_path / "crm.crt").write_bytes(authority.certificate)
    public = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 2048).public_key())
    keys = json.dumps({"keys": [{**json.loads(public), "kid": "a"}]})
    (tmp_path / "keys.json").write_text(keys)
    issue(tmp_path / "access.json", "one")
    settings = settings_of(tmp_path, "a", rest() + TLS)
    files = files_of(settings)
    tls = ["serve.tls.certificate", "serve.tls.key"]
    assert set(files) == {
        *tls,
        *("serve.tls.client_ca", "access.tokens", "access.jwks", "sources.crm.ca"),
    }
    issue(tmp_path / "access.json", "two")
    (tmp_path / "record.jsonl").write_text("{}")
    (tmp_path / "crm.crt").write_bytes(Authority().certificate)
    done = plan_files(files, settings)
    assert done.renewed == ["access.tokens", "sources.crm.ca"]
    assert done.sources == frozenset({"crm"})
    assert not done.failed + done.needs_restart
    assert not plan_files(done.files, settings).renewed

    new = authority.sign("localhost")
    (tmp_path / "server.crt").write_bytes(new.certificate)
    (tmp_path / "clients.crt").write_bytes(Authority().certificate)
    (tmp_path / "keys.json").write_text("{")
    (tmp_path / "access.json").chmod(0o644)
    (tmp_path / "access.json").write_text("{}")
    (tmp_path / "crm.crt").unlink()
    for _ in range(2):
        done = plan_files(done.files, settings)
        assert not done.renewed
        assert done.needs_restart == ["serve.tls.client_ca"]
        said = " ".join(done.failed)
        assert all(name in said for name in ("server.crt", "keys.json", "access.json", ".ca:"))
    new.write(tmp_path, "server")
    (tmp_path / "keys.json").write_text(keys + " ")
    (tmp_path / "access.json").unlink()
    (tmp_path / "crm.crt").write_bytes(authority.certificate)
    issue(tmp_path / "access.json", "three")
    done = plan_files(done.files, settings)
    assert sorted(done.renewed) == ["access.jwks", "access.tokens", *tls, "sources.crm.ca"]
    assert done.needs_restart == [*(f"{name} (Flight)" for name in tls), "serve.tls.client_ca"]
    assert not done.failed


@pytest.mark.slow
def test_a_certificate_that_cannot_be_used_is_an_error_of_the_reload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority()
    authority.sign("localhost").write(tmp_path, "server")
    tls = '[serve.tls]\ncertificate = "server.crt"\nkey = "server.key"\n'
    config = configure(tmp_path, rest() + tls + shop("kept", 1))
    with Service(config, "--one-process"):
        new = authority.sign("localhost")
        (tmp_path / "server.crt").write_bytes(new.certificate)
        for _ in range(2):
            done = penstock(capsys, "reload", "--config", str(config))
            assert done.code != 0
            assert "server.crt" in done.err
            assert "nothing has changed" not in done.out
        new.write(tmp_path, "server")
        done = penstock(capsys, "reload", "--config", str(config))
        assert done.code == 0
        assert "renewed: serve.tls.certificate, serve.tls.key" in done.out
        assert "(Flight)" in done.out
        done = penstock(capsys, "reload", "--config", str(config))
        assert done.out.strip() == "nothing has changed"


@contextmanager
def reading(service: Service) -> Generator[Iterator[bytes]]:
    """A reader of everything from now on, without our client and its retries."""
    with grpc.insecure_channel(service.ready["grpc"]) as channel:
        untyped: Any = channel
        yield untyped.unary_stream("/penstock.v1.PullerService/Subscribe")(b"")


def refusals_are(service: Service, times: int) -> bool:
    return service.errors().count("goes on as it was") == times


def refused(service: Service) -> bool:
    """Whether one reader more is refused."""
    try:
        with reading(service) as events:
            next(events)
    except grpc.RpcError as error:
        answered: Any = error
        assert answered.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--one-process",)])
def test_limits_of_readers_hold_without_a_restart_and_an_address_is_said_to_need_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    """P18: a service that refuses readers can be told to take more, and nobody is disconnected."""
    text = rest() + "max_connections = 1\n" + shop("kept", 1)
    config = configure(tmp_path, text)
    with Service(config, *options) as service:
        run = Running(capsys, service)

        with reading(service) as first:
            next(first)
            assert refused(service)
            text = text.replace("max_connections = 1\n", "max_connections = 2\n")
            configure(tmp_path, text.replace("127.0.0.1:0", "localhost:0"))
            answer = run.reload()
            assert answer["applied"] == ["serve.max_connections"]
            assert answer["needsRestart"] == ["serve.grpc", "serve.flight", "serve.http"]
            wait_until(lambda: not refused(service), "room for another reader")
            next(first)
        said = penstock(capsys, "reload", "--config", str(config)).out
        assert "needs a restart of `penstock run`: serve.grpc" in said
        assert "settings keep their old values until a restart" in service.errors()


@pytest.mark.slow
def test_what_capture_refuses_serve_has_not_taken_over_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processes are all or nothing as one is: the file is right, and a source does not open."""
    text = rest('retention = "1d"') + "max_connections = 1\n" + shop("kept", 1)
    config = configure(tmp_path, text)
    with Service(config) as service:
        run = Running(capsys, service)
        run.until(lambda now: now["kept"]["state"] == "running")
        damaged = tmp_path / "log" / "quota-kept.json"
        damaged.write_bytes(b"{")
        text = text.replace("max_connections = 1\n", "max_connections = 2\n")
        configure(tmp_path, text + '[capture]\nquotas = { kept = "1GiB" }\n')
        with reading(service) as first:
            next(first)
            # The second is refused when whoever was told of the first has long read the file.
            for times in (1, 2):
                service.process.send_signal(signal.SIGHUP)
                wait_until(partial(refusals_are, service, times))
            assert refused(service)
            damaged.unlink()
            service.process.send_signal(signal.SIGHUP)
            wait_until(lambda: not refused(service), "room for another reader")
            next(first)


@pytest.mark.slow
def test_a_reload_that_capture_died_of_reaches_serve_when_capture_is_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = rest() + "max_connections = 1\n" + shop("kept", 1)
    config = configure(tmp_path, text)
    with Service(config) as service, reading(service) as first:
        next(first)
        assert refused(service)
        configure(tmp_path, text.replace("max_connections = 1\n", "max_connections = 2\n"))
        # As if it had died before it could say that it has taken the file over.
        service.kill("capture", service.ready["pids"]["capture"])
        wait_until(lambda: not refused(service), "room for another reader")


@pytest.mark.slow
def test_a_reload_does_not_end_a_service_that_was_started_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGHUP does, so capture must not tell its parent by it."""
    text = rest() + "max_connections = 1\n" + shop("kept", 1)
    config = configure(tmp_path, text)
    ours, terminal = os.openpty()
    try:
        with Service(config, stdin=terminal) as service, reading(service) as first:
            next(first)
            assert refused(service)
            configure(tmp_path, text.replace("max_connections = 1\n", "max_connections = 2\n"))
            Running(capsys, service).reload()
            wait_until(lambda: not refused(service), "room for another reader")
    finally:
        os.close(terminal)
        os.close(ours)
