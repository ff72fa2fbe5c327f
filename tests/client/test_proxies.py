"""Proxies of the environment are for services elsewhere."""

import pytest

from penstock.client import follow
from penstock.client.remote import SyncCall, receive
from penstock.errors import ServiceUnavailableError
from penstock.proxies import of_grpc
from tests.client.test_follow import QUICK, beginning, take
from tests.serve.conftest import Log, Serve
from tests.subscribe.events import one_each

NAMES = ("grpc_proxy", "https_proxy", "http_proxy")
PROXY = "http://me:sesame@127.0.0.1:9"


@pytest.mark.parametrize("name", NAMES)
async def test_a_service_on_this_machine_is_reached_without_one(
    log: Log, serve: Serve, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, PROXY)
    server = await serve(log)
    await log.append(one_each(1, 2))
    async with follow(server.address, after=await beginning(log), retry=QUICK) as changes:
        assert [one.sequence for one in await take(changes, 2)] == [1, 2]


@pytest.mark.parametrize("name", NAMES)
async def test_one_that_leads_nowhere_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, PROXY)
    elsewhere = "nowhere.invalid:50051"
    named = r"through the proxy http://127\.0\.0\.1:9, which the environment names"
    with pytest.raises(ServiceUnavailableError, match=named) as refused:
        _ = [one async for one in receive(elsewhere, b"")]
    assert "sesame" not in str(refused.value)
    call = SyncCall(elsewhere, b"")
    with pytest.raises(ServiceUnavailableError, match=named):
        _ = [*call.receive()]
    call.close()


def test_a_proxy_is_not_for_what_the_environment_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (*NAMES, "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert of_grpc("db.example.com") is None
    monkeypatch.setenv("http_proxy", PROXY)
    assert of_grpc("db.example.com") == "http://127.0.0.1:9"
    assert of_grpc("localhost") is None
    monkeypatch.setenv("no_proxy", "example.org,.example.com")
    assert of_grpc("db.example.com") is None
    monkeypatch.setenv("no_grpc_proxy", "example.net")
    assert of_grpc("db.example.com") == "http://127.0.0.1:9"
