"""Sends alerts to a webhook and to a command. Nothing of capture ever waits for it.

Alerts wait in a bounded queue; a full one refuses, and whoever raised the alert offers it again.
They are taken in their order, and each gets a bounded number of attempts.
"""

import asyncio
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog
from pydantic import Field, SecretStr, field_validator

from penstock.capture.alerts import Alert, Kind
from penstock.config import Config, Seconds
from penstock.programs import start_program
from penstock.telemetry import ALERTS_FAILED, ALERTS_SENT

logger = structlog.get_logger(__name__)

QUEUE_MAX: Final = 64
_RETRY_SECONDS_MAX: Final = 60.0


class AlertsConfig(Config):
    """Who is told of a gap, a stopped source, a source near loss and a full log.

    Each is told once, and once more when it is over. An alert is a JSON object with `alert`,
    `status` (raised, resolved), `source`, `code`, `message`, `sinceMs`, `atMs`, `facts` and `id`;
    it never carries a document or an address.
    """

    webhook: SecretStr | None = Field(
        None, description="POST the alert as JSON to this http or https URL; any 2xx is success."
    )
    command: tuple[str, ...] = Field(
        (),
        description="Run this program with these arguments, the alert as JSON on its stdin; exit "
        "code 0 is success. No shell is involved.",
    )
    timeout: Seconds = Field(10.0, gt=0, le=300, description="For each attempt.")
    attempts: int = Field(5, ge=1, le=20, description="Attempts before an alert is given up.")
    retry_delay: Seconds = Field(
        1.0, gt=0, le=60, description="Wait after the first attempt; it doubles with each."
    )

    @field_validator("webhook")
    @classmethod
    def _url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            url = urlsplit(value.get_secret_value())
            if url.scheme not in {"http", "https"} or not url.hostname:
                raise ValueError("must be an http:// or https:// URL")
        return value

    @field_validator("command")
    @classmethod
    def _argv(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value and not value[0]:
            raise ValueError("must begin with the name of a program")
        return value


class Sender:
    """Delivers alerts while `run` runs. `configure` changes where to, at any time."""

    def __init__(self, config: AlertsConfig) -> None:
        self._config = config
        self._queue: asyncio.Queue[Alert] = asyncio.Queue(QUEUE_MAX)
        self.on_delivered: Callable[[Alert], None] = lambda _: None
        """Told of each alert that the webhook or the command took."""
        for kind in Kind:
            ALERTS_SENT.labels(kind)
            ALERTS_FAILED.labels(kind)

    def configure(self, config: AlertsConfig) -> None:
        """Deliver by `config` from the next attempt on."""
        self._config = config

    def offer(self, alert: Alert) -> bool:
        """Take an alert to deliver; False if there are too many waiting. Never blocks."""
        if not self._config.webhook and not self._config.command:
            return True  # nobody wants to be told: `status`, health and metrics say it all the same
        try:
            self._queue.put_nowait(alert)
        except asyncio.QueueFull:
            return False
        return True

    async def run(self) -> None:
        """Deliver, for ever."""
        while True:
            alert = await self._queue.get()
            if any(
                await asyncio.gather(
                    self._deliver(alert, self._post), self._deliver(alert, self._execute)
                )
            ):
                self.on_delivered(alert)

    async def _deliver(
        self, alert: Alert, send: Callable[[Alert], Coroutine[Any, Any, "str | bool"]]
    ) -> bool:
        """Whether it arrived this way."""
        for attempt in range(1, self._config.attempts + 1):
            failure = await send(alert)
            if isinstance(failure, bool):
                return failure
            logger.warning(
                "alert not delivered", alert=alert.alert, attempt=attempt, reason=failure
            )
            if attempt < self._config.attempts:
                wait_seconds = self._config.retry_delay * 2.0 ** (attempt - 1)
                await asyncio.sleep(min(_RETRY_SECONDS_MAX, wait_seconds))
        ALERTS_FAILED.labels(alert.alert).inc()
        logger.error("alert given up", alert=alert.alert, source=alert.source)
        return False

    async def _post(self, alert: Alert) -> str | bool:
        """True once it was posted, False if it need not be; or why it could not be."""
        config = self._config
        if config.webhook is None:
            return False
        url, body = config.webhook.get_secret_value(), msgspec.json.encode(alert)
        reason = await asyncio.to_thread(_post, url, body, config.timeout)
        if reason is None:
            ALERTS_SENT.labels(alert.alert).inc()
        return reason or True

    async def _execute(self, alert: Alert) -> str | bool:
        """As `_post`, by the command."""
        config = self._config
        if not config.command:
            return False
        reason = await _execute(config.command, msgspec.json.encode(alert), config.timeout)
        if reason is None:
            ALERTS_SENT.labels(alert.alert).inc()
        return reason or True


class _NoRedirect(urllib.request.HTTPErrorProcessor):
    """A redirected POST would become a GET without its body: better said than silently lost."""

    def http_response(self, request: Any, response: Any) -> Any:
        if not 200 <= response.status < 300:
            raise urllib.error.HTTPError(
                request.full_url, response.status, response.reason, response.headers, response
            )
        return response

    https_response = http_response


def _post(url: str, body: bytes, timeout_seconds: float) -> str | None:
    """Blocks. The reason never quotes the URL, which may hold a token."""
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked by the configuration
        url, data=body, headers={"Content-Type": "application/json", "User-Agent": "penstock"}
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout_seconds):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        return type(error).__name__


async def _execute(command: tuple[str, ...], body: bytes, timeout_seconds: float) -> str | None:
    try:
        process = await start_program(
            command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        return type(error).__name__
    try:
        async with asyncio.timeout(timeout_seconds):
            await process.communicate(body)
    except TimeoutError:
        return "timeout"
    finally:
        if process.returncode is None:
            # With all that it started: nothing may pile up behind an alert.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return None if process.returncode == 0 else f"exit code {process.returncode}"
