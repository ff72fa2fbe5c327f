"""Every principal before every transport of capture subscriptions: what is seen."""

import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock._generated.penstock.v1 import captures_pb2 as pb
from penstock.event import Operation
from penstock.extjson import encode
from penstock.progress import parse_progress
from penstock.wire import HIDDEN_KEY
from tests.access.capturing import (
    ALL_OF_IT,
    IMAGE,
    OLD,
    SECRET,
    TEXT,
    altered,
    headers,
    shop,
    socket,
)
from tests.access.support import ALL, Service, bearer, issue, revoke, service
from tests.captures.graphql import post, variables_of
from tests.captures.graphql import socket as graphql_socket
from tests.captures.grpc_client import SUBSCRIBE, request_of
from tests.captures.sockets import get, send
from tests.state.histories import copied_whole
from tests.subscribe.events import change, commit

# --- each transport: its status, or all that it sends until it has come to the log's end ----------


def is_at_end(served: Service, progress: str) -> bool:
    """Whether maintenance covers the log; without a marker nothing is asked for any more."""
    if not progress:
        return True
    return parse_progress(progress).sequence >= served.log.bounds_now().head


async def over_socket(served: Service, token: str | None, asked: Any, catalog: str) -> list[bytes]:
    """`catalog` is given as a criterion: it is the system's socket."""
    del catalog
    found: list[bytes] = []
    try:
        async with socket(served, token) as connection:
            await send(connection, "connection_init")
            while True:
                message = await connection.recv(decode=False)
                kind = json.loads(message)["type"]
                if kind == "connection_ack":
                    await send(connection, "subscribe", id="s", payload=asked)
                    continue
                if b'"maintenance":' in message:
                    told = json.loads(message)["payload"]["data"]["maintenance"]
                    if is_at_end(served, told.get("progress", "")):
                        return found
                    continue
                found.append(message)
                if kind != "next":
                    return found
    except InvalidStatus as refused:
        return [str(refused.response.status_code).encode()]
    except ConnectionClosed as over:
        return [b"" if over.rcvd is None else str(over.rcvd.code).encode()]


async def over_events(served: Service, token: str | None, asked: Any, catalog: str) -> list[bytes]:
    path = f"/rest/{catalog}/events?request={quote(json.dumps(asked))}"
    async with get(served.http, path, headers=headers(token)) as answer:
        if answer.status != 200:
            return [str(answer.status).encode()]
        found: list[bytes] = []
        while True:
            event = await answer.event()
            if event["event"] != "maintenance":
                found.append(json.dumps(event).encode())
            elif is_at_end(served, event.get("id", "")):
                return found


async def over_history(served: Service, token: str | None, asked: Any, catalog: str) -> list[bytes]:
    path = f"/rest/{catalog}/changes?request={quote(json.dumps({**asked, 'since': 'beginning'}))}"
    async with get(served.http, path, headers=headers(token)) as answer:
        if answer.status != 200:
            return [str(answer.status).encode()]
        return [json.dumps(await answer.json()).encode()]


async def over_grpc(served: Service, token: str | None, asked: Any, catalog: str) -> list[bytes]:
    del catalog
    async with grpc.aio.insecure_channel(served.grpc) as channel:
        untyped: Any = channel
        call = untyped.unary_stream(SUBSCRIBE)(
            pb.CaptureSubscribeRequest(requests=[request_of(asked)]).SerializeToString(),
            metadata=None if token is None else bearer(token),
        )
        found: list[bytes] = []
        try:
            while True:
                message: Any = await call.read()
                for one in pb.CaptureMessage.FromString(message).outputs:
                    if not one.HasField("maintenance"):
                        found.append(one.SerializeToString())
                    elif is_at_end(served, one.maintenance.progress):
                        return found
        except grpc.aio.AioRpcError as error:
            return [error.code().name.encode()]
        finally:
            call.cancel()


_CHANGE = """... on Change {
    id tenant version index area operation mutation catalog source entityType entityPrimaryKey
    timestamp transaction schemaVersion }
    ... on DataChange { documentId snapshot } ... on UntypedChange { body }
    ... on UntypedSchemaChange { body } ... on UntypedSystemChange { body }
    ... on Transaction { version index catalog source transaction mutationCount matched digest }"""
_ITEM = f"__typename progress requestIds {_CHANGE}"


def asked_by(asked: Any, catalog: str) -> dict[str, Any]:
    """The variables of a request."""
    said_of = variables_of({**asked, "id": "a"})
    return {**said_of, "beforeImages": True, "catalog": catalog}


async def over_graphql(served: Service, token: str | None, asked: Any, catalog: str) -> list[bytes]:
    """With the token in connection_init."""
    query = (
        "subscription($catalog: String!, $id: String, $since: Since, $content: Content, "
        "$criteria: [Criterion!], $beforeImages: Boolean) { "
        f"onCatalogChangeUntyped(catalog: $catalog, id: $id, since: $since, content: $content, "
        f"criteria: $criteria, beforeImages: $beforeImages) {{ {_ITEM} }} }}"
    )
    found: list[bytes] = []
    try:
        async with graphql_socket(served.http) as connection:
            await send(connection, "connection_init", payload={"token": token})
            while True:
                message = await connection.recv(decode=False)
                kind = json.loads(message)["type"]
                if kind == "connection_ack":
                    payload = {"query": query, "variables": asked_by(asked, catalog)}
                    await send(connection, "subscribe", id="s", payload=payload)
                    continue
                if b'"Maintenance"' in message:
                    (told,) = json.loads(message)["payload"]["data"].values()
                    if is_at_end(served, told["progress"]):
                        return found
                    continue
                found.append(message)
                if kind != "next":
                    return found
    except ConnectionClosed as over:
        return [b"" if over.rcvd is None else str(over.rcvd.code).encode()]


async def over_queries(served: Service, token: str | None, asked: Any, catalog: str) -> list[bytes]:
    query = (
        "query($catalog: String!, $since: Since, $content: Content, $criteria: [Criterion!], "
        "$beforeImages: Boolean) { history(catalog: $catalog, since: $since, content: $content, "
        "criteria: $criteria, beforeImages: $beforeImages, untyped: true) { "
        f"captures {{ {_ITEM} }} pageInfo {{ startCursor endCursor hasNextPage }} }} }}"
    )
    variables = {**asked_by(asked, catalog), "since": {"beginning": True}}
    body = json.dumps({"query": query, "variables": variables}).encode()
    status, answer = await post(served.http, body, headers=headers(token))
    return [str(status).encode() if status != 200 else json.dumps(answer).encode()]


TRANSPORTS: dict[str, Callable[..., Any]] = {
    "graphql": over_graphql,
    "queries": over_queries,
    "websocket": over_socket,
    "sse": over_events,
    "history": over_history,
    "grpc": over_grpc,
}
REFUSED = {
    "websocket": (b"401", b"4403"),
    "sse": (b"401", b"403"),
    "history": (b"401", b"403"),
    "grpc": (b"UNAUTHENTICATED", b"PERMISSION_DENIED"),
    "graphql": (b"4403", b"4403"),
    "queries": (b"401", b"403"),
}

EVERYTHING = frozenset({"orders", "lines", SECRET, OLD, IMAGE, TEXT, "digest"})
TABLE: dict[str, tuple[dict[str, Any] | None, frozenset[str] | int]] = {
    # who: grant; then what of all the marks is seen, or which of the refusals
    "nobody": (None, 0),
    "wrong": (None, 0),
    "revoked": ({}, 0),
    "over": ({"expires_at": 1.0}, 0),
    "operator": ({"verbs": ("admin",)}, 1),
    "everything": ({"verbs": ALL}, EVERYTHING),
    "shop": ({"verbs": ALL, "sources": ("shop",)}, EVERYTHING),
    "reader": ({}, frozenset({"orders", "lines", SECRET})),
    "images": (
        {"verbs": ("read", "before-images")},
        frozenset({"orders", "lines", SECRET, OLD, IMAGE}),
    ),
    "orders": ({"collections": ("shop/orders",)}, frozenset({"orders", SECRET})),
    "crm": ({"sources": ("crm",)}, frozenset()),
    "masked": (
        {"verbs": ALL, "sources": ("shop",), "hidden": ("ssn", "card.no")},
        frozenset({"orders", "lines", IMAGE, HIDDEN_KEY}),
    ),
}


@pytest.mark.slow
async def test_each_principal_sees_what_it_may_over_each_transport(tmp_path: Path) -> None:
    """And no token, and nothing that is hidden, is in anything that is sent or logged."""
    tokens = tmp_path / "access.json"
    issued = {who: issue(tokens, who, **grant) for who, (grant, _) in TABLE.items() if grant}
    issued["reader"] = issue(tokens, "reader")
    issued["revoked"] = issue(tokens, "revoked")
    issued["wrong"] = issue(tmp_path / "another.json", "wrong")
    revoke(tokens, "revoked")
    asked = {**ALL_OF_IT, "criteria": [{"site": {"catalog": "shop"}}]}
    with capture_logs() as logs:
        async with shop(tmp_path) as served:
            for transport, (who, (_, expected)) in product(TRANSPORTS, TABLE.items()):
                sent = await TRANSPORTS[transport](served, issued.get(who), asked, "shop")
                if isinstance(expected, int):
                    refused = REFUSED[transport][expected]
                    # Who says nothing in the handshake still may in connection_init.
                    silent = transport == "websocket" and who == "nobody"
                    assert sent == [b"4403" if silent else refused], (transport, who)
                    continue
                text = b"".join(sent).decode(errors="replace")
                digest = "digest"
                marks = {*EVERYTHING, HIDDEN_KEY} - {digest}
                seen = {mark for mark in marks if mark in text}
                assert seen == expected - {digest}, (transport, who)
                assert _has_digest(transport, sent) is (digest in expected), (transport, who)
                assert not any(token in text for token in issued.values())
    told = repr(logs)
    assert not any(token in told for token in issued.values())
    assert not any(mark in told for mark in (SECRET, OLD, IMAGE, TEXT))


def _has_digest(transport: str, sent: list[bytes]) -> bool:
    if transport == "grpc":
        return any(pb.CaptureOutput.FromString(one).boundary.HasField("digest") for one in sent)
    return any(re.search(rb'digest\\?": ?\\?"', one) for one in sent)


@pytest.mark.slow
async def test_what_is_denied_and_what_is_absent_are_told_in_the_same_bytes(
    tmp_path: Path,
) -> None:
    token = issue(tmp_path / "access.json", "orders", collections=("shop/orders",), hidden=("ssn",))

    def site(**named: Any) -> dict[str, Any]:
        return {**ALL_OF_IT, "criteria": [{"area": "data", "site": named}]}

    async with shop(tmp_path) as served:
        for (transport, ask), (denied, absent) in product(
            TRANSPORTS.items(),
            (
                (site(entityType="lines"), site(entityType="enils")),
                # A guess at a key of which something is hidden.
                (
                    site(entityType="orders", entityPrimaryKey={"ssn": SECRET, "_id": 3}),
                    site(entityType="orders", entityPrimaryKey={"ssn": SECRET[::-1], "_id": 3}),
                ),
            ),
        ):
            answers = [await ask(served, token, one, "shop") for one in (denied, absent)]
            answers[1] = [
                one.replace(b"enils", b"lines").replace(SECRET[::-1].encode(), SECRET.encode())
                for one in answers[1]
            ]
            assert answers[0] == answers[1], transport
        for ask in (over_events, over_history, over_graphql, over_queries):
            answers = list[list[bytes]]()
            for catalog in ("crm", "mrc"):
                one = await ask(served, token, ALL_OF_IT, catalog)
                answers.append([part.replace(b"mrc", b"crm") for part in one])
            assert answers[0] == answers[1], ask


@pytest.mark.slow
async def test_a_filter_tells_nothing_of_what_is_hidden(tmp_path: Path) -> None:
    """However its path is written; and a key is found as it is shown."""
    token = issue(tmp_path / "access.json", "masked", hidden=("ssn", "card.no"))
    async with shop(tmp_path) as served:
        names = ("ssn", "card", "card.no", "card.0.no", r"card\.no", "ssn.0", "ssn.x")
        for ask, name in product(TRANSPORTS.values(), names):
            asked = {
                **ALL_OF_IT,
                "criteria": [{"area": "data", "site": {"fields": [name]}}],
            }
            (said_, *_) = await ask(served, token, asked, "shop")
            assert said_ in {b"400", b"INVALID_ARGUMENT"} or b"not there in every" in said_, name
        whole = await over_history(served, token, ALL_OF_IT, "shop")
        (shown,) = [
            one["entityPrimaryKey"]
            for one in json.loads(whole[0])["changes"]
            if HIDDEN_KEY in one.get("entityPrimaryKey", {})
        ]
        asked = {
            **ALL_OF_IT,
            "criteria": [{"area": "data", "site": {"entityPrimaryKey": shown}}],
        }
        for ask in TRANSPORTS.values():
            text = b"".join(await ask(served, token, asked, "shop"))
            assert shown[HIDDEN_KEY].encode() in text, ask


@pytest.mark.slow
async def test_the_name_of_a_transaction_that_is_denied_is_that_of_none(tmp_path: Path) -> None:
    tokens = tmp_path / "access.json"
    token, crm = issue(tokens, "orders", sources=("shop",)), issue(tokens, "crm", sources=("crm",))
    async with shop(tmp_path) as served:
        named = altered(change(2, source="crm"), transaction="crm-7")
        await served.log.append([commit(named), commit(change(9))])
        said_: list[Any] = []
        for who, name in ((token, "crm-7"), (token, "crm-8"), (crm, "crm-7")):
            path = f"/rest/shop/changes?sinceTransaction={name}"
            async with get(served.http, path, headers=headers(who)) as answer:
                said_.append((answer.status, await answer.body() if answer.status > 200 else None))
        assert said_[0] == said_[1]
        assert [one[0] for one in said_] == [400, 400, 200]


async def past(served: Service, token: str, path: str) -> tuple[int, Any]:
    async with get(served.http, f"/rest/{path}", headers=headers(token)) as answer:
        return answer.status, await answer.body()


@pytest.mark.slow
async def test_a_document_as_it_was_is_shown_as_its_changes_are(tmp_path: Path) -> None:
    tokens = tmp_path / "access.json"
    reader, masked = issue(tokens, "reader"), issue(tokens, "masked", hidden=("ssn", "card.no"))
    orders = issue(tokens, "orders", collections=("shop/orders",))
    operator = issue(tokens, "operator", verbs=("admin",))
    images = issue(tokens, "images", verbs=("read", "before-images"))
    first = "shop.db/entities/orders/1"
    digest, other = (quote(json.dumps({"_row": one * 16})) for one in "ab")
    async with shop(tmp_path) as served:
        row = altered(change(9), event_id="of a row", key=encode({"_row": "a" * 16}))
        await served.log.append([commit(row)])
        await served.caught_up()
        assert (await past(served, images, f"shop.db/entities/orders/{digest}"))[0] == 200
        status, found = await past(served, reader, f"{first}?asOf=1")
        assert (status, found["fullDocument"]["ssn"]) == (200, SECRET)
        status, found = await past(served, masked, f"{first}?asOf=1")
        assert (status, found["fullDocument"]) == (200, {"_id": 1, "at": 1, "card": {}})
        assert (await past(served, operator, first))[0] == 403
        async with get(served.http, f"/rest/{first}") as answer:
            assert answer.status == 401
        # A guess at a hidden key, and what may not be read, are as what never was.
        for who, denied, absent in (
            (orders, "shop.db/entities/lines/2", "shop.db/entities/absent/2"),
            (orders, "crm.db/entities/orders/1", "mrc.db/entities/orders/1"),
            (
                masked,
                f"shop.db/entities/orders/{quote(json.dumps({'ssn': SECRET, '_id': 3}))}",
                f"shop.db/entities/orders/{quote(json.dumps({'ssn': OLD, '_id': 3}))}",
            ),
            # A guess at all fields of a row, or at those that it had.
            *(
                (who, f"shop.db/entities/orders/{digest}", f"shop.db/entities/orders/{other}")
                for who in (masked, reader)
            ),
        ):
            for moment in ("", "?asOf=2", "?asOf=2023-11-14T22:13:22Z"):
                said_ = [await past(served, who, one + moment) for one in (denied, absent)]
                assert said_[0] == said_[1], (denied, moment)
                assert said_[0][0] == 410


@pytest.mark.slow
async def test_an_image_before_is_no_past_for_who_may_not_see_images(tmp_path: Path) -> None:
    """What lies before the log is known from the image before the change that comes next."""
    tokens = tmp_path / "access.json"
    reader, images = (
        issue(tokens, "reader"),
        issue(tokens, "images", verbs=("read", "before-images")),
    )
    async with service(tmp_path) as served:
        changed = altered(
            change(2, key=1, operation=Operation.REPLACE),
            full_document_before_change=encode({"_id": 1, "was": IMAGE}),
        )
        await served.log.append([commit(change(1, collection="lines")), commit(changed)])
        await served.caught_up()
        path = "shop.db/entities/orders/1?asOf=1"
        assert (await past(served, images, path))[1]["fullDocument"]["was"] == IMAGE
        status, found = await past(served, reader, path)
        assert (status, IMAGE in json.dumps(found)) == (410, False)


@pytest.mark.slow
async def test_a_current_row_is_shown_as_its_changes_are(tmp_path: Path) -> None:
    """Also a guess at a hidden key of one, where the log is too long to be searched."""
    tokens = tmp_path / "access.json"
    reader, masked = issue(tokens, "reader"), issue(tokens, "masked", hidden=("ssn",))
    crm = issue(tokens, "crm", sources=("crm",))
    small = {"captures": {"scan_bytes_max": 1 << 20}}
    async with service(tmp_path, serve=small) as served:
        await served.log.append(copied_whole("shop"))
        told = change(3, key=1, document={"_id": 1, "ssn": SECRET})
        row = altered(told, full_document_as_of_event=True)
        keyed = altered(row, event_id="keyed", key=encode({"ssn": SECRET}), document_id="7")
        digest = altered(keyed, event_id="digest", key=encode({"_row": SECRET}), document_id="8")
        rows = (row, *(altered(one, position="3") for one in (keyed, digest)))
        await served.log.append([commit(*rows)])
        for position in range(4, 8):
            large = change(position, collection="lines", document={"_id": 1, "x": "x" * (1 << 20)})
            await served.log.append([commit(large)])
        await served.caught_up()
        path = "shop.db/entities/orders"
        assert (await past(served, reader, f"{path}/1"))[1]["fullDocument"]["ssn"] == SECRET
        assert (await past(served, masked, f"{path}/1"))[1]["fullDocument"] == {"_id": 1}
        right, wrong = (quote(json.dumps({"ssn": one})) for one in (SECRET, OLD))
        assert (await past(served, reader, f"{path}/{right}"))[0] == 200
        guesses = [await past(served, masked, f"{path}/{one}") for one in (right, wrong)]
        assert guesses[0] == guesses[1]
        for who in (masked, reader):
            digests = [quote(json.dumps({"_row": one})) for one in (SECRET, OLD)]
            guesses = [await past(served, who, f"{path}/{one}") for one in digests]
            assert guesses[0] == guesses[1]
        for moment in ("", "?asOf=2023-11-14T22:13:21Z"):
            denied, absent = [
                await past(served, crm, f"{source}.db/entities/orders/{right}{moment}")
                for source in ("shop", "mrc")
            ]
            assert denied == absent, moment


@pytest.mark.slow
async def test_the_record_has_who_asked_for_what_and_no_key(tmp_path: Path) -> None:
    tokens, record = tmp_path / "access.json", tmp_path / "record.jsonl"
    token, operator = issue(tokens, "reader"), issue(tokens, "operator", verbs=("admin",))
    async with shop(tmp_path, record=record) as served:
        await past(served, token, f"shop.db/entities/orders/{SECRET}")
        await over_socket(served, token, ALL_OF_IT, "")
        await over_events(served, operator, ALL_OF_IT, "shop")
        await over_grpc(served, token, ALL_OF_IT, "")
    text = record.read_text()
    assert SECRET not in text
    assert "since" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(one["who"], one["endpoint"], one["allowed"]) for one in lines] == [
        ("token:reader", "http /rest/shop.db/entities/orders", True),
        ("token:reader", "websocket /rest/system/change-captures", True),
        ("token:operator", "http /rest/shop/events", True),
        ("token:operator", "http /rest/shop/events", False),
        ("token:reader", f"grpc {SUBSCRIBE}", True),
    ]
    assert all(
        one["at"] and one["peer"] == "127.0.0.1" for one in lines if "http" in one["endpoint"]
    )
