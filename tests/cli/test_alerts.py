"""Alerts reach a real HTTP server and a real program, and never hold anything up."""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import structlog
from pydantic import ValidationError

from penstock.capture.alerts import Alert, Kind
from penstock.cli.alerts import QUEUE_MAX, AlertsConfig, Sender
from penstock.telemetry import REGISTRY
from tests.cli.service import Service, commands_alive, configure, penstock
from tests.waiting import patience, until, wait_until

SECRET = "t0ken-in-the-url"


class Webhook:
    """An HTTP server that keeps what is posted; it answers with `answers`, then with 200."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = hook.answers.pop(0) if hook.answers else 200
                if code == 200:
                    hook.bodies.append(json.loads(body))
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook?token={SECRET}"


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    hook = Webhook()
    thread = Thread(target=hook.server.serve_forever)
    thread.start()
    yield hook
    hook.server.shutdown()
    thread.join()
    hook.server.server_close()


def counted(what: str) -> float:
    """How many alerts about a stopped source were `sent`, or `failed`."""
    names = {"sent": "penstock_alerts_sent_total", "failed": "penstock_alerts_failed_total"}
    return REGISTRY.get_sample_value(names[what], {"alert": "stopped"}) or 0.0


def alert(kind: Kind = Kind.STOPPED, number: int = 0) -> Alert:
    return Alert(
        id=f"{kind}:{number}",
        alert=kind,
        status="raised",
        source="shop",
        code="source.changed",
        message="The capture of shop has stopped.",
        since_ms=1,
        at_ms=2,
    )


@asynccontextmanager
async def sending(**options: Any) -> AsyncGenerator[Sender]:
    sender = Sender(AlertsConfig.model_validate({"retry_delay": 0.01, **options}))
    task = asyncio.ensure_future(sender.run())
    async with patience():
        try:
            yield sender
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.slow
async def test_a_webhook_gets_the_alert_as_json(webhook: Webhook) -> None:
    async with sending(webhook=webhook.url) as sender:
        assert sender.offer(alert())
        await until(lambda: webhook.bodies)
    (body,) = webhook.bodies
    assert body == {
        "id": "stopped:0",
        "alert": "stopped",
        "status": "raised",
        "source": "shop",
        "code": "source.changed",
        "message": "The capture of shop has stopped.",
        "sinceMs": 1,
        "atMs": 2,
        "facts": {},
    }


@pytest.mark.slow
async def test_a_webhook_that_fails_or_redirects_is_tried_again_and_then_given_up(
    webhook: Webhook,
) -> None:
    webhook.answers = [500, 302, 200, *[503] * 3]
    before = counted("sent"), counted("failed")
    with structlog.testing.capture_logs() as lines:
        async with sending(webhook=webhook.url, attempts=3) as sender:
            sender.offer(alert(number=1))
            await until(lambda: webhook.bodies)
            sender.offer(alert(number=2))
            sender.offer(alert(number=3))
            # The webhook has it a moment before the sender has its answer.
            await until(lambda: counted("sent") == before[0] + 2)
    assert [body["id"] for body in webhook.bodies] == ["stopped:1", "stopped:3"]
    reasons = [line["reason"] for line in lines if line["event"] == "alert not delivered"]
    assert reasons == ["HTTP 500", "HTTP 302", *["HTTP 503"] * 3]
    assert [line["event"] for line in lines].count("alert given up") == 1
    assert (counted("sent"), counted("failed")) == (before[0] + 2, before[1] + 1)
    assert SECRET not in str(lines)


@pytest.mark.slow
async def test_an_alert_counts_as_delivered_once_somebody_took_it_and_never_if_it_was_given_up(
    webhook: Webhook,
) -> None:
    """What a restart may leave out: what the webhook or the command has."""
    delivered: list[str] = []
    webhook.answers = [503]
    async with sending(webhook=webhook.url, attempts=1) as sender:
        sender.on_delivered = lambda alert: delivered.append(alert.id)
        for number in (1, 2):
            sender.offer(alert(number=number))
        await until(lambda: delivered)
        sender.configure(AlertsConfig.model_validate({}))
        sender.offer(alert(number=3))
        sender.configure(AlertsConfig.model_validate({"webhook": webhook.url}))
        sender.offer(alert(number=4))
        await until(lambda: len(delivered) == 2)
    assert delivered == ["stopped:2", "stopped:4"]


async def test_a_command_gets_the_alert_on_its_stdin(tmp_path: Path) -> None:
    got = tmp_path / "got.json"
    script = f"import pathlib, sys; pathlib.Path({str(got)!r}).write_text(sys.stdin.read())"
    async with sending(command=[sys.executable, "-c", script]) as sender:
        sender.offer(alert())
        await until(lambda: got.exists() and got.read_text())
    assert json.loads(got.read_text())["alert"] == "stopped"


@pytest.mark.slow
async def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    async with sending(
        command=["sh", "-c", f"echo $$ > {pid}; sleep 1000 & wait"], timeout=0.5, attempts=1
    ) as sender:
        numbers = itertools.count(1)

        async def hung() -> bool:
            """Whether it was not killed before it began."""
            with structlog.testing.capture_logs() as lines:
                sender.offer(alert(number=next(numbers)))
                await until(lambda: any(line["event"] == "alert given up" for line in lines))
            return pid.exists() and pid.read_text().endswith("\n")

        await until(hung)
    assert commands_alive([int(pid.read_text())]) == []


async def test_a_full_queue_refuses_and_nothing_waits() -> None:
    """P18, invariant 6: a webhook that is down holds up no capture and takes no memory."""
    sender = Sender(AlertsConfig.model_validate({"command": ["true"]}))
    taken = [sender.offer(alert(number=n)) for n in range(QUEUE_MAX + 5)]
    assert taken == [True] * QUEUE_MAX + [False] * 5


@pytest.mark.parametrize("url", ["ftp://host/t0ken", "host/t0ken", "https:///t0ken"])
def test_a_webhook_must_be_an_http_url_and_is_never_quoted(url: str) -> None:
    with pytest.raises(ValidationError, match="http://") as error:
        AlertsConfig.model_validate({"webhook": url})
    assert "t0ken" not in str(error.value.errors(include_input=False, include_context=False))


@pytest.mark.slow
def test_a_source_that_stops_is_told_once_and_its_end_as_well(
    tmp_path: Path, webhook: Webhook
) -> None:
    """The real processes: the position is of another shop, so that capture stops at it."""
    text = """
[log]
path = "log"
free_bytes_min = 0
[sources.shop]
type = "script"
seed = {seed}
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "127.0.0.1:0"
[alerts]
webhook = "{url}"
"""
    with Service(configure(tmp_path, text.format(seed=1, url=webhook.url)), "--one-process"):
        pass
    configure(tmp_path, text.format(seed=2, url=webhook.url))
    with Service(tmp_path / "penstock.toml", "--one-process"):
        wait_until(lambda: webhook.bodies)
    (body,) = webhook.bodies
    assert (body["alert"], body["status"], body["code"]) == ("stopped", "raised", "source.changed")


@pytest.mark.slow
def test_a_gap_that_a_command_wrote_is_told_by_the_service_even_if_it_was_down(
    tmp_path: Path, webhook: Webhook, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real processes. Told once: what was delivered is known after a restart, killed or not."""
    text = f"""
[log]
path = "log"
free_bytes_min = 0
[sources.shop]
type = "script"
transactions = 20
heartbeat_seconds = 0.2
[sources.other]
type = "script"
transactions = 20
heartbeat_seconds = 0.2
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "127.0.0.1:0"
[alerts]
webhook = "{webhook.url}"
"""
    config = configure(tmp_path, text)

    def moved(source: str) -> None:
        done = penstock(capsys, "checkpoint", "set", source, "1:2", "-c", str(config))
        assert done.code == 0, done.err

    def told() -> list[tuple[str, str]]:
        return [(body["alert"], body["source"]) for body in webhook.bodies]

    with Service(config):
        pass
    moved("shop")
    with Service(config) as service:
        wait_until(lambda: told() == [("gap", "shop")], "the alert")
        # On the disk before the kill: the service has written that it was delivered.
        kept = tmp_path / "log" / "alerts.json"
        wait_until(lambda: b'"told":[{' in kept.read_bytes(), "its delivery to be kept")
        service.kill("capture", service.ready["pids"]["capture"])
        # A capture that has just come back takes no requests yet.
        wait_until(lambda: penstock(capsys, "pause", "other", "-c", str(config)).code == 0)
        moved("other")
        wait_until(lambda: len(told()) > 1, "the other alert")
    assert told() == [("gap", "shop"), ("gap", "other")]
    assert "penstock snapshot shop" in webhook.bodies[0]["message"]
