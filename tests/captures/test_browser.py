"""Plain `EventSource` and `WebSocket` in a real browser: they need no library, and miss nothing."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route
from websockets.asyncio.client import connect

from penstock.log.lmdb import LmdbLog
from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.service import CaptureService
from penstock.serve.captures.web import routes
from penstock.serve.listen import HttpServer, StreamLimits, listen
from penstock.subscribe.scope import EVERYTHING
from penstock.testing.contracts.capturing import opened_log, singles
from tests.children import Child
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.server]

PACKAGE = "chromium"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-port=0",
)
PAGE = """<!doctype html><script>
window.events = []; window.messages = []; window.opened = 0;
const source = new EventSource("/rest/shop/events?since=beginning&area=data");
source.addEventListener("confirmed", () => window.opened++);
source.addEventListener("capture", e => window.events.push(JSON.parse(e.data).version));
const address = `ws://${location.host}/rest/shop/change-captures`;
const socket = new WebSocket(address, "rest-transport-ws");
socket.onopen = () => socket.send(JSON.stringify({type: "connection_init"}));
socket.onmessage = e => {
  const message = JSON.parse(e.data);
  if (message.type === "connection_ack")
    socket.send(JSON.stringify({type: "subscribe", id: "s", payload: {
      since: "beginning", criteria: [{area: "data"}]}}));
  if (message.type === "next" && "version" in message.payload.data)
    window.messages.push(message.payload.data.version);
};
socket.onclose = e => { window.ended = e.code; };
</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    """The browser, installed if it can be."""
    if shutil.which(PACKAGE) is None:
        script = Path(__file__).parents[2] / "scripts" / "debian-packages"
        done = subprocess.run([script, PACKAGE], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no browser, and none can be installed: {done.stderr.strip()[-300:]}")
    found = shutil.which(PACKAGE)
    assert found is not None
    return found


@pytest.fixture
def debugger(chromium: str) -> Generator[str]:
    """The address of DevTools of a new browser with an empty profile."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        Child(chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank") as browser,
    ):
        found = browser.wait_until(
            lambda: re.search(r"DevTools listening on (\S+)\n", browser.errors())
        )
        yield found[1]
        browser.stop()


@asynccontextmanager
async def page(debugger: str, url: str) -> AsyncGenerator["Page"]:
    """A page of the browser, over its DevTools."""
    async with connect(debugger, max_size=None, compression=None, proxy=None) as line:
        found = Page(line)
        target = await found.call("Target.createTarget", url=url)
        attached = await found.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        found.session = attached["sessionId"]
        yield found


class Page:
    """https://chromedevtools.github.io/devtools-protocol/"""

    def __init__(self, line: Any) -> None:
        self._line = line
        self._calls = 0
        self.session = ""

    async def call(self, method: str, **params: Any) -> Any:
        self._calls += 1
        said: dict[str, Any] = {"id": self._calls, "method": method, "params": params}
        if self.session:
            said["sessionId"] = self.session
        await self._line.send(json.dumps(said))
        while (answer := json.loads(await self._line.recv())).get("id") != self._calls:
            pass
        return answer["result"]

    async def value(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    async def until(self, expression: str, expected: object) -> None:
        async def is_so() -> bool:
            return bool(await self.value(expression) == expected)

        await until(is_so, f"{expression} to be {expected!r}")


@asynccontextmanager
async def serving(log: LmdbLog, address: str) -> AsyncGenerator[HttpServer]:
    """The service, with the page beside it: one origin."""
    config = CapturesConfig(maintenance_interval=0.2)

    async def shown(_: object) -> HTMLResponse:
        return HTMLResponse(PAGE)

    service = CaptureService(log, lambda: config)
    app = Starlette(
        routes=[Route("/page", shown), *routes(service, scope_of=lambda _, __: EVERYTHING)]
    )
    limits = StreamLimits(message_bytes_max=1 << 20, liveness_seconds=60)
    async with (
        await listen(app, address, connections_max=64, advice="no", streams=limits) as server,
        service.running(),
    ):
        yield server


async def test_a_browser_goes_on_behind_a_restart_and_misses_nothing(debugger: str) -> None:
    """The browser's own EventSource connects again with Last-Event-ID, and its own WebSocket
    follows until it is told that the service stops."""
    async with opened_log() as log, AsyncExitStack() as browsing:
        await log.append(singles(1, 20))
        async with serving(log, "127.0.0.1:0") as server:
            address = server.address
            shown = await browsing.enter_async_context(page(debugger, f"http://{address}/page"))
            await shown.until("events.length", 20)
            await shown.until("messages.length", 20)
            await log.append(singles(21, 40))
            await shown.until("events.length", 40)
            await shown.until("messages.length", 40)
        await shown.until("window.ended", 1012)
        await log.append(singles(41, 60))
        async with serving(log, address):
            await log.append(singles(61, 80))
            await shown.until("events.length >= 80", True)
            assert await shown.value("events") == list(range(1, 81))
            assert await shown.value("messages") == list(range(1, 41))
            assert await shown.value("opened") == 2
