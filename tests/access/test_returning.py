"""A browser's EventSource comes back by itself, and nobody else does in its place."""

import json
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route
from websockets.exceptions import InvalidStatus

from penstock.errors import UnauthenticatedError
from penstock.log.memory import MemoryLog
from penstock.serve.access import Access, AccessConfig, Presented, Principal
from penstock.serve.access.returning import cookie_name
from penstock.serve.listen import listen
from penstock.subscribe.scope import EVERYTHING, Grant, Scope
from tests.access.capturing import headers, socket
from tests.access.support import Clock, Service, issue, revoke, service
from tests.access.test_jwt import jwk, signed
from tests.captures.sockets import get
from tests.captures.test_browser import Page, chromium, debugger, page
from tests.subscribe.events import change, commit
from tests.waiting import until

__all__ = ["chromium", "debugger"]  # fixtures


async def ticket_of(served: Service, token: str) -> str:
    async with get(served.http, "/ticket", headers=headers(token), method="POST") as answer:
        given: str = (await answer.body())["ticket"]
        return given


async def status(served: Service, path: str, cookie: str = "", **more: str) -> int:
    asked = {**({"Cookie": cookie} if cookie else {}), **more}
    async with get(served.http, path, headers=asked) as answer:
        return answer.status


async def opened(served: Service, path: str, **more: str) -> str:
    """The cookie of a stream that a ticket opens, as the browser sends it back."""
    async with get(served.http, path, headers=more) as answer:
        assert answer.status == 200
        cookie, *limits = answer.headers["set-cookie"].split("; ")
        assert limits == ["Path=/rest", "HttpOnly", "SameSite=Strict"]
        return cookie


@pytest.mark.slow
async def test_a_stream_that_a_ticket_opened_comes_back_with_its_cookie_and_address(
    tmp_path: Path,
) -> None:
    tokens, app = tmp_path / "access.json", "https://app.example"
    token, other = issue(tokens, "page", collections=("shop/orders",)), issue(tokens, "other")
    async with service(tmp_path, origins=(app,)) as served:
        ticket = await ticket_of(served, token)
        path = f"/rest/shop/events?since=beginning&ticket={ticket}"
        cookie = await opened(served, path, Origin=app)
        beside = f"a=b; {cookie}; c=d"
        assert await status(served, path, beside, Origin=app) == 200
        again = await opened(served, path, Cookie=beside)
        assert await status(served, path, again) == 200
        theirs = await ticket_of(served, other)
        others = await opened(served, f"/rest/shop/events?ticket={theirs}")
        name, _, value = cookie.partition("=")
        for what, address, shown, more in (
            ("no cookie", path, "", {}),
            ("no ticket", "/rest/shop/events", cookie, {}),
            ("somebody else's", path, others, {}),
            ("under our name", path, f"{name}={others.partition('=')[2]}", {}),
            ("altered", path, cookie[:-4] + "AAA=", {}),
            ("no base64", path, f"{name}=*", {}),
            ("empty", path, f"{name}=", {}),
            ("a foreign page", path, cookie, {"Origin": "https://evil.example"}),
            ("a page without origin", path, cookie, {"Origin": "null"}),
            ("history", path.replace("/events", "/changes"), cookie, {}),
            ("another place", f"/snapshot/events?ticket={ticket}", cookie, {}),
            ("metrics", f"/metrics?ticket={ticket}", cookie, {}),
        ):
            assert await status(served, address, shown, **more) == 401, what
        with pytest.raises(InvalidStatus) as caught:
            async with socket(served, None, f"?ticket={ticket}", origin=app):
                pass
        assert caught.value.response.status_code == 401
        async with get(
            served.http, f"/ticket?ticket={ticket}", headers={"Cookie": cookie}, method="POST"
        ) as answer:
            assert answer.status == 401
        assert value not in repr(Presented(cookie=value))
    # Another process knows it too.
    async with service(tmp_path / "again", tokens=tokens) as served:
        assert await status(served, path, cookie) == 200
        revoke(tokens, "page")

        async def is_revoked() -> bool:
            return await status(served, path, cookie) == 401

        await until(is_revoked)


@pytest.mark.slow
async def test_only_a_stream_that_a_ticket_opened_gets_a_cookie(tmp_path: Path) -> None:
    token = issue(tmp_path / "access.json", "page")
    async with service(tmp_path) as served:
        async with get(served.http, "/rest/shop/events", headers=headers(token)) as answer:
            assert (answer.status, "set-cookie" in answer.headers) == (200, False)
        for path in ("/rest/shop/changes", "/rest/shop/events?since=nonsense"):
            sign = "&" if "?" in path else "?"
            asked = f"{path}{sign}ticket={await ticket_of(served, token)}"
            async with get(served.http, asked) as answer:
                assert "set-cookie" not in answer.headers, path
    token = issue(tmp_path / "off" / "access.json", "page")
    async with service(tmp_path / "off", reconnect_seconds=0) as served:
        path = f"/rest/shop/events?ticket={await ticket_of(served, token)}"
        async with get(served.http, path) as answer:
            assert (answer.status, "set-cookie" in answer.headers) == (200, False)


def test_who_comes_back_does_so_until_the_token_is_over_or_it_was_long_ago(
    tmp_path: Path,
) -> None:
    wall, clock = Clock(), Clock()
    key = rsa.generate_private_key(65537, 2048)
    keys, tokens = tmp_path / "jwks.json", tmp_path / "access.json"
    wall.now = time.time()
    keys.write_text(json.dumps({"keys": [jwk(key, "rsa")]}))
    issued = issue(tokens, "brief", expires_at=wall.now + 50)
    config = AccessConfig(
        tokens=tokens,
        jwks=keys,
        issuer="https://issuer.example",
        audience="penstock",
        reconnect_seconds=100,
    )
    access = Access(config, wall=wall, clock=clock)
    for token, lasts in ((issued, 50.0), (signed(key, exp=wall.now + 70), 80.0), (None, 100.0)):
        shown = Presented(authorization=f"Bearer {token or issue(tokens, 'long')}")
        clock.now += 1
        began = wall.now
        principal = access.authenticate(shown, "test")
        ticket, _ = access.ticket(principal)
        access.authenticate(Presented(ticket=ticket), "test")
        cookie = access.cookie(principal)
        back = Presented(ticket=ticket, cookie=cookie)
        wall.now = began + lasts - 1
        assert access.authenticate(back, "test") == principal
        wall.now = began + lasts
        with pytest.raises(UnauthenticatedError):
            access.authenticate(back, "test")
        wall.now = began
    # Who came with a JWT leaves when its key does.
    principal = access.authenticate(
        Presented(authorization=f"Bearer {signed(key, exp=wall.now + 70)}"), "test"
    )
    ticket, _ = access.ticket(principal)
    back = Presented(ticket=f"{ticket[:8]}used", cookie=access.cookie(principal))
    assert access.authenticate(back, "test") == principal
    other = rsa.generate_private_key(65537, 2048)
    keys.write_text(json.dumps({"keys": [jwk(other, "rsa")]}))
    clock.now += 1
    with pytest.raises(UnauthenticatedError):
        access.authenticate(back, "test")


def test_who_has_too_many_grants_for_a_cookie_and_who_is_nobody_get_none(tmp_path: Path) -> None:
    tokens = tmp_path / "access.json"
    issue(tokens, "one")
    access = Access(AccessConfig(tokens=tokens))
    many = Scope((Grant(collections=frozenset(f"collection-{n}" for n in range(400))),))
    assert access.cookie(Principal(name="x", scope=many, way="jwt", id="kid#0")) is None
    assert access.cookie(Principal(name="", scope=EVERYTHING, way="nobody")) is None
    assert cookie_name("0123456789") == "penstock_01234567"


PAGE = """<!doctype html><script>
window.versions = []; window.opened = 0; window.failed = "";
(async () => {
  const service = "http://%(service)s";
  const asked = {method: "POST", headers: {authorization: "Bearer %(token)s"}};
  const {ticket} = await (await fetch(service + "/ticket", asked)).json();
  const source = new EventSource(
    service + "/rest/shop/events?since=beginning&area=data&ticket=" + ticket,
    {withCredentials: true});
  source.addEventListener("confirmed", () => window.opened++);
  source.addEventListener("capture", e => window.versions.push(JSON.parse(e.data).version));
  source.onerror = () => { if (source.readyState === 2) window.failed = "closed"; };
})().catch(error => { window.failed = String(error); });
</script>"""


@pytest.mark.slow
@pytest.mark.server
async def test_a_browser_comes_back_by_itself_through_the_door_and_misses_nothing(
    tmp_path: Path,
    debugger: str,
) -> None:
    """A page of another origin, with one ticket: its EventSource connects to a new service."""
    tokens = tmp_path / "access.json"
    token = issue(tokens, "page")
    served: Service | None = None

    async def shown(_: Any) -> HTMLResponse:
        assert served is not None
        return HTMLResponse(PAGE % {"service": served.http, "token": token})

    app = Starlette(routes=[Route("/page", shown)])
    async with AsyncExitStack() as stack:
        web = await stack.enter_async_context(
            await listen(app, "127.0.0.1:0", connections_max=8, advice="")
        )
        origin = f"http://{web.address}"
        found: Page | None = None
        log = MemoryLog()
        stack.push_async_callback(log.close)
        for versions in (20, 40, 60):
            folder = tmp_path / str(versions)
            address = {} if served is None else {"http": served.http}
            async with service(
                folder, log=log, tokens=tokens, origins=(origin,), serve=address
            ) as served:
                for position in range(versions - 19, versions + 1):
                    await log.append([commit(change(position))])
                if found is None:
                    found = await stack.enter_async_context(page(debugger, f"{origin}/page"))
                await found.until("versions.length + failed", str(versions))
                assert await found.value("versions") == list(range(1, versions + 1))
        assert found is not None
        assert await found.value("opened") == 3
