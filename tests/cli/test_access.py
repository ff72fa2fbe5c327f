"""`penstock run` with a door, as its users run it."""

import json
import signal
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.config import load
from penstock.errors import ConfigError
from penstock.event import Commit
from penstock.log.memory import MemoryLog
from tests.access.certificates import Authority
from tests.children import Child
from tests.cli.service import COMMAND, Service, configure, penstock
from tests.state.histories import change, copied_whole
from tests.state.test_keeper import all_steps, keeping
from tests.waiting import wait_until

ACCESS = """
[access]
tokens = "access.json"
log = "access.log"

[serve.tls]
certificate = "server.crt"
key = "server.key"
"""


def guarded(folder: Path) -> Path:
    """A configuration with a door and certificates."""
    authority = Authority()
    authority.sign("localhost").write(folder, "server")
    (folder / "ca.crt").write_bytes(authority.certificate)
    config = configure(folder)
    config.write_text(config.read_text() + ACCESS)
    return config


def tail(config: Path, endpoint: str, *options: object) -> Child:
    return Child(
        *(*COMMAND, "tail", "--config", config, "--endpoint", endpoint, "--json"),
        *("--tls-ca", config.parent / "ca.crt", *options),
    )


def refused(reader: Child) -> str:
    """What a reader wrote that was not let in, or no longer."""
    assert reader.wait() == 12
    said = reader.errors()
    assert json.loads(said.splitlines()[-1])["error"]["code"] == "access.unauthenticated"
    return said


@pytest.mark.slow
def test_a_reader_comes_in_with_its_token_and_leaves_when_it_is_revoked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = guarded(tmp_path)
    with Service(config) as service:
        # Made while the service runs.
        made = penstock(capsys, "access", "create", "app", "--config", str(config), "--json")
        token = json.loads(made.out)["token"]
        file = tmp_path / "app.token"
        file.write_text(f"{token}\n")
        endpoint = service.ready["grpc"].replace("127.0.0.1", "localhost")
        with tail(config, endpoint) as stranger:
            refused(stranger)
        with tail(config, endpoint, "--token-file", file) as reader:
            assert json.loads(reader.line())["kind"] == "data"
            assert penstock(capsys, "access", "revoke", "app", "--config", str(config)).code == 0
            said = refused(reader)
        written = service.errors() + (tmp_path / "access.log").read_text()
    secret = token.split("_", 2)[2]
    for text in (written, (tmp_path / "access.json").read_text(), said):
        assert token not in text
        assert secret not in text
    assert '"who":"token:app"' in written


async def test_names_in_a_grant_that_nothing_has_are_told_with_the_nearest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A field that is hidden by a wrong name is shown; a limit to one shows nothing."""
    config = guarded(tmp_path)
    (tmp_path / "log").mkdir()
    log = MemoryLog()
    rows: list[dict[str, Any]] = [
        {"_id": 1, "email": "a", "lines": [{"sku": 1}]},
        {"_id": 2, "phone": None},
    ]
    events = tuple(
        change("shop", "orders", n, document=row, position=n) for n, row in enumerate(rows, 3)
    )
    await log.append([*copied_whole("shop"), Commit(source="shop", position="9", events=events)])
    with keeping(log, tmp_path / "log") as keeper:
        all_steps(keeper)
    await log.close()

    def told(*options: str) -> list[str]:
        create = ("access", "create", "app", *options, "--config", str(config))
        done = penstock(capsys, *create, "--json")
        assert done.code == 0, done.err
        sentences: list[str] = json.loads(done.out)["unmatched"]
        assert sentences == [
            line.removeprefix("warning: ") for line in done.err.splitlines() if "warning" in line
        ]
        assert penstock(capsys, "access", "revoke", "app", "--config", str(config)).code == 0
        return sentences

    right = ("--collection", "orders", "--hide", "email", "--hide", "phone", "--hide", "lines.sku")
    assert told("--source", "shop", *right) == []
    assert told("--collection", "shop/orders") == []
    (source,) = told("--source", "shopp")
    assert source == "--source 'shopp' matches nothing that is configured; the nearest are shop"
    (collection,) = told("--collection", "order")
    assert collection.startswith("--collection 'order' matches nothing that the log has told of")
    assert "orders" in collection
    email, sku = told("--hide", "emial", "--hide", "lines.skew")
    assert email.endswith("the nearest are email")
    assert "'lines.skew' matches nothing in the first 1,000 rows of each collection" in sku


@pytest.mark.slow
def test_metrics_want_an_operator_and_show_a_new_certificate_after_a_reload(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = guarded(tmp_path)
    made = penstock(
        capsys, "access", "create", "ops", "--verb", "admin", "--config", str(config), "--json"
    )
    token = json.loads(made.out)["token"]
    with Service(config) as service:

        def status(authority: bytes, path: str, **headers: str) -> int:
            context = ssl.create_default_context(cadata=authority.decode())
            asked = urllib.request.Request(
                f"https://{service.ready['http']}{path}", headers=headers
            )
            try:
                with urllib.request.urlopen(asked, context=context) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code
            except ssl.SSLError:
                return 0
            except urllib.error.URLError:
                return 0

        before = (tmp_path / "ca.crt").read_bytes()
        shown = {"Authorization": f"Bearer {token}"}
        assert status(before, "/ready") == 200
        assert status(before, "/metrics") == 401
        assert status(before, "/metrics", **shown) == 200
        after = Authority("after")
        after.sign("localhost").write(tmp_path, "server")
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: status(after.certificate, "/ready") == 200)
        assert status(before, "/ready") == 0
        assert status(after.certificate, "/metrics", **shown) == 200


@pytest.mark.parametrize("missing", ["tls", "access", "required"])
def test_an_address_that_others_reach_needs_both(tmp_path: Path, missing: str) -> None:
    config = guarded(tmp_path)
    text = config.read_text().replace('grpc = "127.0.0.1:0"', 'grpc = "0.0.0.0:0"')
    assert "0.0.0.0" in text
    config.write_text(text)
    load(config)
    if missing == "tls":
        text = text[: text.index("[serve.tls]")]
    elif missing == "access":
        text = text.replace('tokens = "access.json"\n', "")
    else:
        text = text.replace("[access]\n", "[access]\nrequired = false\n")
    config.write_text(text)
    with pytest.raises(ConfigError, match="both TLS"):
        load(config)
