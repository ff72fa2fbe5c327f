"""docs/how-to/zero.md from its beginning to its end, on a real MongoDB, zero-cache and client.

Its mutations are proven with it: a client's is confirmed by what its server wrote to MongoDB, which
reached the client through Penstock, and by nothing else.
"""

import json
import subprocess
import threading
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from penstock.errors import ConfigError
from tests.children import Child
from tests.cli.service import penstock
from tests.e2e.test_zero import Deployed
from tests.waiting import wait_until
from tests.zero.how_to import blocks, configuration
from tests_support.servers import ZERO, MongoReplicaSet, PostgresServer

LOG = '[log]\npath = "data/log"\n'
SERVE = '[serve]\nhttp = "127.0.0.1:8080"\n'
THEN = """
const lines = (await import('node:readline')).createInterface({input: process.stdin});
for await (const line of lines) rename(...JSON.parse(line)).catch(e => console.log(String(e)));
process.exit(0);
"""


class Pushed:
    """The server of the mutations: the page's, behind a socket."""

    def __init__(self, shop: Any) -> None:
        (example,) = blocks("python")
        self._page: dict[str, Any] = {}
        exec(example, self._page)
        self.names: list[str] = []
        """Those of the mutations that came."""
        self.answers = threading.Event()
        """While it is not set, it does what it should and does not answer."""
        self.answers.set()
        self._shop = shop

    @contextmanager
    def served(self) -> Generator[str]:
        pushed = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                pushed.names += [one["name"] for one in body["mutations"]]
                answer = json.dumps(pushed._page["push"](pushed._shop, body)).encode()
                pushed.answers.wait()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/push"
            finally:
                pushed.answers.set()
                server.shutdown()
                thread.join()


class Client:
    """The page's client, and what it has said."""

    def __init__(self, folder: Path, url: str) -> None:
        (example,) = blocks("js")
        assert "http://127.0.0.1:4848" in example
        script = folder / "client.mjs"
        quiet = "for (const l of ['debug', 'info', 'warn', 'error']) console[l] = () => {};\n"
        script.write_text(quiet + example.replace("http://127.0.0.1:4848", url) + THEN)
        (folder / "node_modules").symlink_to(ZERO.modules)
        self._child = Child(ZERO.program(), script.name, cwd=folder, stdin=subprocess.PIPE)

    @property
    def said(self) -> list[Any]:
        return [json.loads(line) for line in list(self._child.lines)]

    def rename(self, key: int, name: str) -> dict[str, Any]:
        """What a mutation came to."""
        before = len(self.results())
        self._child.write(json.dumps([key, name]))
        self._child.wait_until(lambda: len(self.results()) > before, "the mutation to be confirmed")
        return self.results()[-1]

    def results(self) -> list[dict[str, Any]]:
        return [one["result"] for one in self.said if "result" in one]

    def names(self) -> list[str]:
        """The names of all items, as it sees them."""
        found: list[list[str]] = [one["names"] for one in self.said if "names" in one]
        return found[-1] if found else []

    def end(self) -> None:
        with self._child as child:
            child.close_stdin()
            child.wait()


@pytest.mark.slow
def test_whoever_follows_the_page_has_rows_and_confirmed_mutations_in_a_client(
    mongo: MongoReplicaSet,
    mongo_database: str,
    zero_state: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Z6: `clients` and `mutations` are live."""
    monkeypatch.setenv("MONGO_URI", mongo.uri)

    def here(text: str) -> str:
        assert LOG in text
        assert SERVE in text
        text = text.replace(LOG, "").replace(SERVE, "").replace('"shop.', f'"{mongo_database}.')
        return text.replace('database = "shop"', f'database = "{mongo_database}"')

    with MongoClient[dict[str, Any]](mongo.uri) as connection:
        shop = connection[mongo_database]
        shop.items.insert_many(
            [
                {"_id": 1, "name": "tea", "price": 4.5, "tags": ["hot"]},
                {"_id": 2, "name": "jam", "price": 3, "tags": []},
            ]
        )
        pushed = Pushed(shop)
        with pushed.served() as url:
            environment = {"ZERO_MUTATE_URL": url}
            begun, whole = (here(configuration("mongodb", zero=zero)) for zero in (False, True))
            deployed = Deployed(begun, zero_state, tmp_path, environment=environment)
            config = tmp_path / "penstock.toml"
            assert config.exists()
            client = None
            try:
                deployed.service.start()
                proposed = wait_until(
                    lambda: proposal(capsys, config), "rows", diagnose=deployed.service.tail
                )
                shown = tomllib.loads(whole)["serve"]["zero"]["tables"]
                assert proposed == shown
                deployed.service.stop()
                config.write_text(config.read_text().replace(begun, whole))
                deployed.start()
                client = Client(tmp_path, deployed.cache.url)
                wait_until(
                    lambda: client.names() == ["tea", "jam"],
                    "the rows",
                    diagnose=deployed.service.tail,
                )
                shop.items.update_one({"_id": 2}, {"$set": {"name": "plum jam"}})
                wait_until(lambda: client.names() == ["tea", "plum jam"], "the change")

                pushed.answers.clear()
                assert client.rename(1, "green tea") == {"type": "success"}
                pushed.answers.set()
                assert shop.items.count_documents({"name": "green tea"}) == 1
                (row,) = shop.zero_clients.find()
                assert row["lastMutationID"] == 1
                assert client.names() == ["green tea", "plum jam"]

                refused = client.rename(1, "")
                assert refused["type"] == "error"
                assert "an item needs a name" in json.dumps(refused)
                wait_until(lambda: client.names() == ["green tea", "plum jam"], "the rollback")
                wait_until(lambda: not shop.zero_mutations.count_documents({}), "the clean-up")
                assert client.rename(2, "fig jam") == {"type": "success"}
                assert pushed.names.count("items|rename") == 3
            finally:
                if client is not None:
                    client.end()
                deployed.stop()


def proposal(capsys: pytest.CaptureFixture[str], config: Path) -> dict[str, Any] | None:
    """The tables that are proposed; None while nothing is known to propose."""
    done = penstock(capsys, "zero", "propose", "shop", "--config", str(config))
    if done.code != 0:
        assert done.code == ConfigError.exit_code, done.err
        return None
    found: dict[str, Any] = tomllib.loads(done.out)["serve"]["zero"]["tables"]
    return found
