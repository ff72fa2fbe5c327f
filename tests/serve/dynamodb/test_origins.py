"""Which pages a browser lets ask the endpoint."""

import http.client
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pydantic import ValidationError

from penstock.serve.dynamodb.config import DynamoConfig
from tests.captures.test_browser import chromium, debugger, page
from tests.serve.dynamodb.support import served
from tests.waiting import PATIENCE_SECONDS

__all__ = ["chromium", "debugger"]  # fixtures

LIST = "DynamoDB_20120810.ListTables"
OURS, OTHERS = "https://app.example.com", "https://evil.example.com"
PAGE = """<!doctype html><script>
fetch("http://ADDRESS/", {
  method: "POST", body: "{}",
  headers: {"content-type": "application/x-amz-json-1.0", "x-amz-target": "LIST",
            "amz-sdk-invocation-id": "1"},
}).then(async answer => {
  const said = await answer.json();
  window.told = [answer.status, answer.headers.has("x-amz-crc32"), said.TableNames];
}).catch(() => { window.told = "refused"; });
</script>"""


def asked(address: str, method: str, origin: str, **headers: str) -> http.client.HTTPResponse:
    line = http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)
    line.request(method, "/", b"{}", {"Origin": origin, "X-Amz-Target": LIST, **headers})
    answer = line.getresponse()
    answer.read()
    line.close()
    return answer


def preflight(address: str, origin: str, **headers: str) -> http.client.HTTPResponse:
    wanted = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-amz-target,amz-sdk-request",
    }
    return asked(address, "OPTIONS", origin, **wanted, **headers)


def test_pages_of_the_origins_that_are_named_may_ask(tmp_path: Path) -> None:
    with served(tmp_path, origins=[OURS]) as server:
        said = preflight(server.address, OURS)
        assert said.status == 200
        assert said.headers["Access-Control-Allow-Origin"] == OURS
        assert said.headers["Access-Control-Allow-Headers"] == "x-amz-target,amz-sdk-request"
        assert preflight(server.address, OTHERS).headers["Access-Control-Allow-Origin"] is None
        answer = asked(server.address, "POST", OURS)
        assert answer.status == 200
        assert answer.headers["Access-Control-Allow-Origin"] == OURS
        assert "x-amz-crc32" in answer.headers["Access-Control-Expose-Headers"]
        assert preflight(server.address, OURS, Host="evil.example.com").status == 400


def test_where_none_is_named_no_page_may(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert preflight(server.address, OURS).status == 405
        assert asked(server.address, "POST", OURS).headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize(
    "origin", ["*", "app.example.com", "https://app.example.com/", "https://*"]
)
def test_an_origin_is_one_as_a_browser_writes_it(origin: str) -> None:
    with pytest.raises(ValidationError, match="origins"):
        DynamoConfig.model_validate({"address": "127.0.0.1:0", "origins": [origin]})


class Site:
    """A page at an origin of its own, which asks the endpoint at `asks`."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.asks = ""


@contextmanager
def showing() -> Generator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(PAGE.replace("ADDRESS", site.asks).replace("LIST", LIST).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site = Site(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("named", [True, False])
async def test_a_browser_lets_a_page_ask_whose_origin_is_named(
    debugger: str, tmp_path: Path, *, named: bool
) -> None:
    with showing() as site:
        origins = [site.origin if named else OURS]
        with served(tmp_path, origins=origins) as server:
            site.asks, table = server.address, server.table().name
            async with page(debugger, site.origin) as shown:
                await shown.until("window.told", [200, True, [table]] if named else "refused")
