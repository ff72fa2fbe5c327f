"""What the HTTP endpoints of the serve process tell: of both processes, and of the log."""

import asyncio
import base64
import time
import zlib
from typing import Any

from penstock import __version__
from penstock.cli.config import Settings
from penstock.cli.control import request
from penstock.errors import PenstockError
from penstock.ports import LogReader
from penstock.serve.config import ServeConfig
from penstock.serve.consumers import Consumers
from penstock.serve.health import Facts, Health, health
from penstock.serve.http import Told
from penstock.subscribe.current import CurrentState
from penstock.telemetry import (
    REGISTRY,
    SERVE_REGISTRY,
    STATE_FAILED,
    STATE_LAG_EVENTS,
    exposition,
)

_ASK_SECONDS = 3.0


async def metrics(_: dict[str, Any]) -> dict[str, Any]:
    """The answer of capture to the request `metrics`: compressed, for an answer has a limit."""
    return {"exposition": base64.b64encode(zlib.compress(exposition(REGISTRY))).decode()}


class Page:
    """Asks capture over its socket, and the log."""

    def __init__(
        self,
        settings: Settings,
        log: LogReader,
        consumers: Consumers,
        *,
        started_at: int,
        current: CurrentState | None = None,
    ) -> None:
        """`started_at`: Unix milliseconds. `consumers` says how the current rows are kept up."""
        self._settings = settings
        self._serve = settings.serve
        self._log = log
        self._consumers = consumers
        self._started_at = started_at
        self._current = current

    def told(self) -> Told:
        """What the endpoints ask."""
        return Told(
            health=self._health,
            ready=self._ready,
            metrics=self._metrics,
            current=self._current,
            batch_bytes_max=lambda: self._serve.batch_bytes_max,
        )

    def configure(self, config: ServeConfig) -> None:
        """Answer by the limits of `config` from now on."""
        self._serve = config

    async def _ask(self, name: str) -> dict[str, Any] | None:
        """What capture answers; None if it does not."""
        folder = self._settings.log.path
        try:
            return await asyncio.to_thread(request, folder, name, timeout_seconds=_ASK_SECONDS)
        except PenstockError:
            return None

    async def _health(self) -> Health:
        status = self._consumers.status()
        facts = Facts(
            capture=await self._ask("status"),
            sources=await self._log.sources(),
            consumers=len(status.readers),
            head=(await self._log.bounds()).head,
            current=status.current,
            buffer_size=(self._settings.log.path / "data.mdb").stat().st_blocks * 512,
        )
        return health(
            facts,
            version=__version__,
            started_at=self._started_at,
            now_ms=time.time_ns() // 1_000_000,
            lag_seconds_max=self._serve.health_lag_max,
        )

    async def _ready(self) -> bool:
        return await self._ask("status") is not None

    async def _metrics(self) -> bytes:
        answer = await self._ask("metrics")
        current = self._consumers.status().current
        if current is not None:
            head = (await self._log.bounds()).head
            STATE_LAG_EVENTS.set(max(0, head - current.sequence))
            STATE_FAILED.set(bool(current.code))
        captured, up = b"", "0"
        if answer is not None:
            captured, up = zlib.decompress(base64.b64decode(answer["exposition"])), "1"
        return (
            captured
            + exposition(SERVE_REGISTRY)
            + b"# HELP penstock_capture_up Whether the capture process answered.\n"
            + b"# TYPE penstock_capture_up gauge\n"
            + f"penstock_capture_up {up}\n".encode()
        )
