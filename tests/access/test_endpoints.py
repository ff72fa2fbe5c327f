"""Every principal before every endpoint: who gets in, and what they see."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pyarrow.flight as fl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.client import Credentials, follow, snapshot
from penstock.client.flight import LogClient, ReadRequest, RowsRequest
from penstock.client.whole import commits
from penstock.errors import (
    ConfigError,
    PartialViewError,
    PenstockError,
    RateLimitedError,
    RequestError,
    UnauthenticatedError,
)
from penstock.event import event_id
from penstock.extjson import encode
from penstock.serve.access import Access, AccessConfig, Presented, Principal
from penstock.subscribe.resume import oldest
from penstock.subscribe.scope import EVERYTHING as EVERYTHING_SCOPE
from tests.access.support import ALL, Clock, Service, bearer, issue, revoke, service
from tests.seeds import cases
from tests.serve.calls import failure, subscribe
from tests.state.histories import copied_whole
from tests.subscribe.events import change, commit, one_each
from tests.waiting import until, wait_until

pytestmark = pytest.mark.slow

SENTENCE = str(UnauthenticatedError())


@asynccontextmanager
async def shop(folder: Path, **access: Any) -> AsyncGenerator[Service]:
    """Two collections in one transaction, then one of another source."""
    async with service(folder, **access) as served:
        document = encode({"_id": 1, "at": 1, "ssn": "hidden-1"})
        await served.log.append(copied_whole("shop"))
        await served.log.append(
            [commit(change(3, key=1, document=document), change(3, ordinal=1, collection="lines"))]
        )
        await served.log.append(one_each(1, 2, source="crm"))
        yield served


def get(address: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body."""
    asked = urllib.request.Request(f"http://{address}{path}", headers=headers)
    if path.startswith("/ticket"):
        asked.method = "POST"
    try:
        with urllib.request.urlopen(asked) as answer:
            return int(answer.status), dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


async def over_grpc(served: Service, token: str | None) -> str:
    """What a subscription comes to: the collections, or the status."""
    after = str(oldest(await served.log.bounds()))
    async with grpc.aio.insecure_channel(served.grpc) as channel:
        untyped: Any = channel
        call = untyped.unary_stream(
            "/penstock.v1.PullerService/SubscribeBatch",
            request_serializer=pb.SubscribeRequest.SerializeToString,
            response_deserializer=pb.EventBatch.FromString,
        )(pb.SubscribeRequest(after=after), metadata=None if token is None else bearer(token))
        try:
            batch = await call.read()
        except grpc.aio.AioRpcError as error:
            return error.code().name
        finally:
            call.cancel()
        return ",".join(f"{one.source}/{one.collection}" for one in batch.events)


async def over_flight(served: Service, token: str | None) -> str:
    bounds = await served.log.bounds()

    def read() -> str:
        shown = Credentials(token=token or "")
        with LogClient(served.flight, patience_seconds=0, credentials=shown) as client:
            request = ReadRequest(
                log_id=bounds.log_id,
                after=0,
                until=bounds.head,
                columns=("source", "collection", "kind"),
            )
            try:
                rows = [row for batch in client.read(request) for row in batch.to_pylist()]
            except PenstockError as error:
                return type(error).__name__
            return ",".join(
                f"{one['source']}/{one['collection']}" for one in rows if one["kind"] == 0
            )

    return await asyncio.to_thread(read)


async def over_http(served: Service, token: str | None, path: str) -> str:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    status, _, body = await asyncio.to_thread(lambda: get(served.http, path, **headers))
    if path != "/snapshot" or status != 200:
        return str(status)
    rows = [json.loads(line) for line in body.splitlines()]
    return ",".join(f"{one['source']}/{one['collection']}" for one in rows[:-1])


EVERYTHING = "shop/orders,shop/lines,crm/orders,crm/orders"
NOTHING = ("UNAUTHENTICATED", "UnauthenticatedError", "401", "401")

TABLE: dict[str, tuple[dict[str, Any] | None, tuple[str, str, str, str]]] = {
    # who: grant, then what gRPC, Flight, /metrics and /snapshot of one source answer
    "nobody": (None, NOTHING),
    "wrong": (None, NOTHING),
    "revoked": ({}, NOTHING),
    "over": ({"expires_at": 1.0}, NOTHING),
    "admin": ({"verbs": ALL}, (EVERYTHING, EVERYTHING, "200", "200")),
    "reader": ({}, (EVERYTHING, EVERYTHING, "403", "200")),
    # To it, the shop is a source that nobody ever captured.
    "crm": (
        {"sources": ("crm",)},
        ("crm/orders,crm/orders", "crm/orders,crm/orders", "403", "409"),
    ),
    "orders": (
        {"collections": ("shop/orders",)},
        ("shop/orders", "shop/orders", "403", "200"),
    ),
    "operator": ({"verbs": ("admin",)}, ("", "ForbiddenError", "200", "403")),
}


@pytest.mark.parametrize("who", TABLE)
async def test_each_principal_gets_what_it_may_from_each_endpoint(tmp_path: Path, who: str) -> None:
    grant, (grpc_says, flight_says, metrics_says, snapshot_says) = TABLE[who]
    tokens = tmp_path / "access.json"
    token = None if grant is None else issue(tokens, who, **grant)
    if who == "wrong":
        token = issue(tmp_path / "another.json", who)
    if who == "revoked":
        revoke(tokens, who)
    async with shop(tmp_path) as served:
        await served.caught_up()
        if grpc_says:
            assert await over_grpc(served, token) == grpc_says
        assert await over_flight(served, token) == flight_says
        assert await over_http(served, token, "/metrics") == metrics_says
        # Rows of the shop are whole: its copy is in the log.
        status = await over_http(served, token, "/snapshot?collection=shop/orders")
        assert status == snapshot_says
        assert await over_http(served, token, "/health") == "200"
        assert await over_http(served, token, "/ready") == "200"


async def test_health_is_told_in_full_to_operators_alone(tmp_path: Path) -> None:
    tokens = tmp_path / "access.json"
    shown = {who: issue(tokens, who, **(grant or {})) for who, (grant, _) in TABLE.items()}
    revoke(tokens, "revoked")
    told_all = set[str]()
    async with shop(tmp_path) as served:
        asked: dict[str, dict[str, str]] = {
            who: {"Authorization": f"Bearer {token}"} for who, token in shown.items()
        }
        for who, headers in {**asked, "stranger": {}, "none": {"Authorization": "x"}}.items():
            status, _, body = await asyncio.to_thread(
                partial(get, served.http, "/health", **headers)
            )
            assert status == 200
            if json.loads(body) != {"status": "ok"}:
                told_all.add(who)
    assert told_all == {"admin", "operator"}


async def test_health_is_told_as_to_a_stranger_where_nobody_can_be_recorded(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    token = issue(tmp_path / "access.json", "operator", verbs=("admin",))
    async with service(tmp_path, record=record, flights=False) as served:
        ask = partial(get, served.http, "/health", Authorization=f"Bearer {token}")
        assert len(json.loads((await asyncio.to_thread(ask))[2])) > 1
        record.unlink()
        record.symlink_to("/dev/full")
        status, _, body = await asyncio.to_thread(ask)
    assert (status, json.loads(body)) == (200, {"status": "ok"})


async def test_the_refusal_is_the_same_sentence_everywhere(tmp_path: Path) -> None:
    async with shop(tmp_path) as served:
        async with grpc.aio.insecure_channel(served.grpc) as channel:
            code, sentence, trailers = await failure(subscribe(channel))
        assert (code, sentence) == (grpc.StatusCode.UNAUTHENTICATED, SENTENCE)
        assert trailers["penstock-code"] == "access.unauthenticated"
        status, headers, body = await asyncio.to_thread(get, served.http, "/snapshot")
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert json.loads(body)["error"] == {"code": "access.unauthenticated", "message": SENTENCE}

        def ask() -> str:
            client = fl.connect(f"grpc://{served.flight}")
            with client, pytest.raises(fl.FlightUnauthenticatedError) as caught:
                list(client.do_action(fl.Action("bounds", b"")))
            return str(caught.value)

        assert SENTENCE in await asyncio.to_thread(ask)


async def test_a_collection_that_is_denied_looks_like_one_that_is_absent(tmp_path: Path) -> None:
    token = issue(tmp_path / "access.json", "orders", collections=("shop/orders",))
    async with shop(tmp_path) as served:
        await served.caught_up()
        after = str(oldest(await served.log.bounds()))
        answers: list[Any] = []
        for name in ("lines", "crm/orders", "absent", "crm/absent"):
            async with grpc.aio.insecure_channel(served.grpc) as channel:
                untyped: Any = channel
                request = pb.SubscribeRequest(
                    after=after, collections=["shop/orders", name], control_events=True
                )
                call = untyped.unary_stream("/penstock.v1.PullerService/SubscribeBatch")(
                    request.SerializeToString(), metadata=bearer(token)
                )
                over_grpc = await call.read()
                call.cancel()
                snapshots = untyped.unary_stream("/penstock.v1.PullerService/Snapshot")(
                    pb.SnapshotRequest(collections=[name]).SerializeToString(),
                    metadata=bearer(token),
                )
                try:
                    rows: Any = await snapshots.read()
                except grpc.aio.AioRpcError as error:
                    rows = (error.code(), (error.details() or "").replace(name, "NAME"))
            path = f"/snapshot?collection={name}"
            ask = partial(get, served.http, path, Authorization=f"Bearer {token}")
            http = await asyncio.to_thread(ask)
            http_said = (http[0], http[2].replace(name.encode(), b"NAME"))
            answers.append((over_grpc, rows, http_said))
        bare, qualified = answers[0::2], answers[1::2]
        assert bare[0] == bare[1]
        assert qualified[0][0] == qualified[1][0]
        said = [str(one).replace("crm/orders", "X").replace("crm/absent", "X") for one in qualified]
        assert said[0] == said[1]


async def test_hidden_fields_come_over_no_transport(tmp_path: Path) -> None:
    token = issue(tmp_path / "access.json", "masked", verbs=ALL, hidden=("ssn", "_id"))
    async with shop(tmp_path) as served:
        await served.caught_up()
        after = str(oldest(await served.log.bounds()))
        shown = Credentials(token=token)
        keys: list[str] = []
        async with follow(served.grpc, after=after, credentials=shown) as changes:
            change_seen = await anext(changes)
            assert b"hidden-1" not in change_seen.message
            assert change_seen.document == {"at": 1}
            assert change_seen.entry.commit_digest == change_seen.entry.commit_rows == 0
            keys.append(change_seen.document_id)
            ids = [change_seen.entry.event.event_id]
        async with snapshot(served.grpc, collections=["shop/orders"], credentials=shown) as rows:
            found = [row async for row in rows]
        ids += [row.event.event_id for row in found]
        assert [row.document for row in found] == [{"at": 1}]
        keys += [row.document_id for row in found]

        def columns() -> list[dict[str, Any]]:
            bounds = served.log.bounds_now()
            with LogClient(served.flight, credentials=shown) as client:
                request = ReadRequest(log_id=bounds.log_id, after=0, until=bounds.head)
                entries = [row for batch in client.read(request) for row in batch.to_pylist()]
                of_shop = RowsRequest(collections=("shop/orders",))
                return entries + [r for batch in client.rows(of_shop) for r in batch.to_pylist()]

        flown = [
            one
            for one in await asyncio.to_thread(columns)
            if one["kind"] == 0 and (one["source"], one["collection"]) == ("shop", "orders")
        ]
        assert len(flown) == 2
        assert "hidden-1" not in str(flown)
        assert [one["full_document"] for one in flown] == ['{"at":1}'] * 2
        assert all(one["check"] is one["commit_digest"] is one["commit_rows"] for one in flown)
        keys += [one["document_id"] for one in flown]
        ids += [one["event_id"] for one in flown]
        assert (len(set(ids)), event_id("shop", "3", 0) in ids) == (1, False)
        assert len(set(keys)) == 1
        assert len(keys[0]) == 32
        assert len({one["key_hash"] for one in flown}) == 1


async def test_whoever_sees_a_part_is_told_so_before_a_commit_is_called_whole(
    tmp_path: Path,
) -> None:
    token = issue(tmp_path / "access.json", "orders", verbs=ALL, collections=("orders",))
    async with shop(tmp_path) as served:
        after = str(oldest(await served.log.bounds()))
        shown = Credentials(token=token)
        async with follow(
            served.grpc, after=after, control_events=True, credentials=shown
        ) as changes:
            with pytest.raises(RequestError, match="cannot be told complete"):
                await anext(commits(changes))
        with LogClient(served.flight, credentials=shown) as client:
            seen = await asyncio.to_thread(client.seen)
            with pytest.raises(PartialViewError):
                await asyncio.to_thread(client.position, "shop")
        assert (seen.name, seen.partial) == ("orders", True)


# --- staying ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
async def test_an_open_stream_ends_when_its_token_is_revoked(tmp_path: Path, batched: bool) -> None:
    tokens = tmp_path / "access.json"
    token, other = issue(tokens, "one"), issue(tokens, "other")
    async with shop(tmp_path) as served, grpc.aio.insecure_channel(served.grpc) as channel:
        calls = [_open(channel, bearer(one), batched=batched) for one in (token, other)]
        for call in calls:
            await call.initial_metadata()
        revoke(tokens, "one")
        code, sentence, _ = await failure(calls[0])
        assert (code, sentence) == (grpc.StatusCode.UNAUTHENTICATED, SENTENCE)
        await served.log.append(one_each(3, 3, source="crm"))
        assert await calls[1].read() is not grpc.aio.EOF
        calls[1].cancel()


async def test_a_stream_that_waits_for_its_client_ends_too(tmp_path: Path) -> None:
    tokens = tmp_path / "access.json"
    token = issue(tokens, "slow")
    async with shop(tmp_path) as served, grpc.aio.insecure_channel(served.grpc) as channel:
        text = encode({"_id": 1, "text": "x" * 100_000})
        await served.log.append([commit(change(n, document=text)) for n in range(4, 104)])
        call = _open(channel, bearer(token), after=str(oldest(await served.log.bounds())))
        await call.initial_metadata()
        await asyncio.to_thread(revoke, tokens, "slow")
        await until(lambda: not served.access.visitors)
        code, _, _ = await failure(call)
        assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_read_over_flight_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    tokens = tmp_path / "access.json"
    token = issue(tokens, "bulk", verbs=ALL)
    async with shop(tmp_path) as served:
        text = encode({"_id": 1, "text": "x" * 200_000})
        await served.log.append([commit(change(n, document=text)) for n in range(4, 204)])
        bounds = await served.log.bounds()
        principal = served.access.authenticate(Presented(authorization=f"Bearer {token}"), "test")

        def read() -> int:
            shown = Credentials(token=token)
            with LogClient(served.flight, patience_seconds=0, credentials=shown) as client:
                request = ReadRequest(
                    log_id=bounds.log_id, after=0, until=bounds.head, batch_bytes=1
                )
                batches = client.read_covered(request)
                _, covered = next(batches)
                revoke(tokens, "bulk")
                wait_until(lambda: not served.access.holds(principal))
                with pytest.raises(UnauthenticatedError) as caught:
                    for _, covered in batches:  # noqa: B007
                        pass
                assert str(caught.value) == SENTENCE
                return covered

        assert await asyncio.to_thread(read) < bounds.head


async def test_an_open_stream_ends_when_its_token_is_over(tmp_path: Path) -> None:
    wall = Clock()
    token = issue(tmp_path / "access.json", "brief", expires_at=wall.now + 1.0)
    async with (
        shop(tmp_path, wall=wall) as served,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        call = _open(channel, bearer(token))
        await call.initial_metadata()
        wall.now += 1.0
        code, sentence, _ = await failure(call)
        assert (code, sentence) == (grpc.StatusCode.UNAUTHENTICATED, SENTENCE)


def _open(
    channel: grpc.aio.Channel,
    metadata: list[tuple[str, str]],
    *,
    batched: bool = True,
    after: str = "",
) -> Any:
    untyped: Any = channel
    name = "SubscribeBatch" if batched else "Subscribe"
    return untyped.unary_stream(f"/penstock.v1.PullerService/{name}")(
        pb.SubscribeRequest(after=after).SerializeToString(), metadata=metadata
    )


# --- limits -------------------------------------------------------------------------------------


async def test_one_client_reaches_its_limits_and_another_does_not(tmp_path: Path) -> None:
    tokens = tmp_path / "access.json"
    token, other = issue(tokens, "one", verbs=ALL), issue(tokens, "other", verbs=ALL)
    async with shop(tmp_path, requests_per_second=0.01, requests_burst=3) as served:
        assert [await over_http(served, token, "/metrics") for _ in range(4)] == [
            *("200", "200", "200"),
            "429",
        ]
        assert await over_grpc(served, token) == "RESOURCE_EXHAUSTED"
        assert await over_http(served, other, "/metrics") == "200"
    async with shop(tmp_path, connections_max=1) as served:
        async with grpc.aio.insecure_channel(served.grpc) as channel:
            call = _open(channel, bearer(token))
            await call.initial_metadata()
            assert await over_grpc(served, token) == "RESOURCE_EXHAUSTED"
            assert await over_grpc(served, other) == EVERYTHING
            call.cancel()
            await until(lambda: not served.access.visitors)
        assert await over_grpc(served, token) == EVERYTHING


async def test_whoever_is_refused_too_often_waits(tmp_path: Path) -> None:
    async with shop(tmp_path, refusals_per_second=1, clock=Clock()) as served:
        statuses = [await over_http(served, "pst_x", "/metrics") for _ in range(7)]
        assert statuses[:5] == ["401"] * 5
        assert statuses[-1] == "429"


# --- tickets and origins ------------------------------------------------------------------------


async def test_a_ticket_opens_the_door_once(tmp_path: Path) -> None:
    tokens = tmp_path / "access.json"
    token = issue(tokens, "page", verbs=ALL)
    async with shop(tmp_path, origins=["https://app.example.com"]) as served:
        asked = {"Authorization": f"Bearer {token}", "Origin": "https://app.example.com"}
        status, headers, body = await asyncio.to_thread(
            lambda: get(served.http, "/ticket", **asked)
        )
        assert status == 200
        assert headers["cache-control"] == "no-store"
        assert headers["access-control-allow-origin"] == "https://app.example.com"
        ticket = json.loads(body)["ticket"]
        path = f"/metrics?ticket={ticket}"
        assert [await over_http(served, None, path) for _ in range(2)] == ["200", "401"]
        _, headers, body = await asyncio.to_thread(
            lambda: get(served.http, "/ticket", **{**asked, "Origin": "https://evil.example"})
        )
        assert "access-control-allow-origin" not in headers
        ticket = json.loads(body)["ticket"]
        await asyncio.to_thread(revoke, tokens, "page")

        async def is_revoked() -> bool:
            return await over_http(served, token, "/metrics") == "401"

        await until(is_revoked)
        assert await over_http(served, None, f"/metrics?ticket={ticket}") == "401"
        assert served.access.allows_origin("https://app.example.com")
        assert served.access.allows_origin(None)
        assert not served.access.allows_origin("https://evil.example")
        assert not served.access.allows_origin("null")


# --- secrets ------------------------------------------------------------------------------------


async def test_no_log_line_and_no_record_has_a_secret(tmp_path: Path) -> None:
    token = issue(tmp_path / "access.json", "orders", verbs=ALL, hidden=("ssn",))
    record = tmp_path / "access.log"
    with capture_logs() as lines:
        async with shop(tmp_path, record=record) as served:
            await served.caught_up()
            await over_grpc(served, token)
            await over_flight(served, token)
            await over_http(served, token, "/metrics?ticket=secret-ticket")
            await over_http(served, None, "/metrics?ticket=secret-ticket")
            await over_http(served, "pst_0123456789abcdef_" + "x" * 43, "/metrics")
            await over_http(served, "secret-jwt.a.b", "/snapshot?collection=shop/orders")
            shown = repr((Presented(authorization=token, ticket=token), Credentials(token=token)))
    written = record.read_text() + str(lines) + shown
    for secret in (token, token.split("_", 2)[2], "secret-", "hidden-1", "x" * 43):
        assert secret not in written
    told = [json.loads(line) for line in record.read_text().splitlines()]
    assert {one["who"] for one in told} == {"token:orders", ""}
    assert {one["allowed"] for one in told} == {True, False}
    assert (record.stat().st_mode & 0o777, (tmp_path / "access.json").stat().st_mode & 0o777) == (
        *(0o600,),
        0o600,
    )


async def test_a_client_sends_no_token_in_the_clear() -> None:
    shown = Credentials(token="pst_x")
    with pytest.raises(ConfigError, match="unencrypted"):
        LogClient("192.0.2.1:50052", credentials=shown)
    with pytest.raises(ConfigError, match="unencrypted"):
        async with follow("192.0.2.1:50051", credentials=shown) as changes:
            await anext(changes)


# --- hostile input ------------------------------------------------------------------------------

_HEADERS = st.one_of(
    st.text(max_size=60),
    st.text(max_size=60).map(lambda text: f"Bearer {text}"),
    st.from_regex(r"(?i)bearer +pst_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", fullmatch=True),
    st.from_regex(r"Bearer [A-Za-z0-9_-]{0,20}\.[A-Za-z0-9_-]{0,20}\.[A-Za-z0-9_-]{0,9}"),
    st.binary(max_size=40).map(lambda data: "Bearer " + data.decode("latin-1")),
)


@given(_HEADERS)
@settings(
    max_examples=cases(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_header_but_a_token_opens_the_door(tmp_path: Path, header: str) -> None:
    tokens = tmp_path / "access.json"
    if not tokens.exists():
        issue(tokens, "one")
    config = AccessConfig(tokens=tokens, refusals_per_second=1e6)
    with pytest.raises(UnauthenticatedError) as caught:
        Access(config).authenticate(Presented(authorization=header), "test")
    assert str(caught.value) == SENTENCE


def test_the_id_of_a_token_without_its_secret_opens_nothing(tmp_path: Path) -> None:
    tokens = tmp_path / "access.json"
    token, other = issue(tokens, "one"), issue(tokens, "other")
    access = Access(AccessConfig(tokens=tokens))
    number, secret = token[: len(token) - 43], other[len(other) - 43 :]
    for wrong in (number + secret, token[:-1] + ("A" if token[-1] != "A" else "B"), token + " x"):
        with pytest.raises(UnauthenticatedError):
            access.authenticate(Presented(authorization=f"Bearer {wrong}"), "test")
    assert access.authenticate(Presented(authorization=f"bearer  {token}"), "test").name == "one"


def test_a_file_that_is_damaged_lets_nobody_in_until_it_is_whole(tmp_path: Path) -> None:
    tokens, clock = tmp_path / "access.json", Clock()
    token = issue(tokens, "one")
    access = Access(AccessConfig(tokens=tokens), clock=clock)
    presented = Presented(authorization=f"Bearer {token}")
    principal = access.authenticate(presented, "test")
    whole = tokens.read_bytes()
    for damage in (b"{", b"", b"[]", whole.replace(b"collections", b"collection")):
        tokens.write_bytes(damage)
        clock.now += 1
        assert not access.holds(principal)
        with pytest.raises(UnauthenticatedError):
            access.authenticate(presented, "test")
        with pytest.raises(ConfigError, match="Nobody was let in"):
            Access(AccessConfig(tokens=tokens))
    tokens.write_bytes(whole)
    clock.now += 1
    assert access.holds(principal)
    assert access.authenticate(presented, "test") == principal


def test_a_ticket_is_over_in_time_and_they_are_bounded(tmp_path: Path) -> None:
    tokens, clock = tmp_path / "access.json", Clock()
    issue(tokens, "one")
    config = AccessConfig(tokens=tokens, ticket_seconds=30, tickets_max=16)
    access = Access(config, clock=clock)
    one, other = (
        Principal(name=name, scope=EVERYTHING_SCOPE, way="nobody") for name in ("one", "other")
    )
    first, seconds = access.ticket(one)
    assert seconds == 30
    access.ticket(one)
    with pytest.raises(RateLimitedError):
        access.ticket(one)
    access.ticket(other)
    clock.now += 30
    with pytest.raises(UnauthenticatedError):
        access.authenticate(Presented(ticket=first), "test")
    second, _ = access.ticket(one)
    assert access.authenticate(Presented(ticket=second), "test") == one
    with pytest.raises(UnauthenticatedError):
        access.authenticate(Presented(ticket=second), "test")
