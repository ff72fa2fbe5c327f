"""A client of GraphQL, made of `websockets` and plain sockets."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from penstock.serve.captures.graphql.routes import GraphqlRoutes
from penstock.serve.captures.service import CaptureService
from penstock.serve.captures.sockets import ScopeOf
from penstock.subscribe.scope import EVERYTHING
from penstock.testing.contracts.capturing import Asked, Heard, StreamEndedError
from tests.captures import sockets
from tests.captures.sockets import listening, said, send

GRAPHQL = Subprotocol("graphql-transport-ws")

ITEM = """
    __typename progress requestIds
    ... on Capture { version index area operation entityType }
    ... on Transaction { mutationCount matched }
    ... on Confirmation { version waiting }
"""


@asynccontextmanager
async def graphql_server(
    service: CaptureService, *, scope_of: ScopeOf = lambda _, __: EVERYTHING
) -> AsyncGenerator[str]:
    """A real server of /graphql; its address."""
    routes = GraphqlRoutes(service).routes(scope_of=scope_of)
    async with listening(service, routes) as address:
        yield address


@asynccontextmanager
async def answered_by(service: CaptureService) -> AsyncGenerator[str]:
    """The same, with the service's own following."""
    async with service.running(), graphql_server(service) as address:
        yield address


def socket(address: str, **options: Any) -> AbstractAsyncContextManager[ClientConnection]:
    """A WebSocket that holds little itself."""
    return sockets.socket(address, "/graphql", **{"subprotocols": [GRAPHQL], **options})


def opened(address: str, **options: Any) -> AbstractAsyncContextManager[ClientConnection]:
    """A WebSocket that was acknowledged."""
    return sockets.opened(address, "/graphql", **{"subprotocols": [GRAPHQL], **options})


async def subscribe(connection: ClientConnection, query: str, name: str = "s", **more: Any) -> None:
    await send(connection, "subscribe", id=name, payload={"query": query, **more})


async def items(connection: ClientConnection, count: int) -> list[dict[str, Any]]:
    """The next captures of the one operation there is; items of which nothing is selected, and
    other ones, are passed by."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        message = await said(connection)
        assert message["type"] == "next", message
        assert "errors" not in message["payload"], message
        (item,) = message["payload"]["data"].values()
        if item and item.get("__typename") not in {"Confirmation", "Maintenance"}:
            found.append(item)
    return found


async def ended(connection: ClientConnection) -> dict[str, Any]:
    """The message that ends the one operation there is."""
    while (message := await said(connection))["type"] == "next":
        pass
    return message


async def post(
    address: str,
    body: bytes,
    *,
    kind: str = "application/json",
    host: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, Any]]:
    """The status and answer of a POST to /graphql."""
    name, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    head = (
        f"POST /graphql HTTP/1.1\r\nHost: {host or address}\r\nConnection: close\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        + "".join(f"{one}: {value}\r\n" for one, value in (headers or {}).items())
        + "\r\n"
    )
    writer.write(head.encode() + body)
    told = await reader.read()
    writer.close()
    first, _, rest = told.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(rest) if rest.startswith(b"{") else {}


async def asked(address: str, query: str, **variables: Any) -> dict[str, Any]:
    """The answer of a query."""
    _, answer = await post(address, json.dumps({"query": query, "variables": variables}).encode())
    return answer


# --- the contract's client ------------------------------------------------------------------------


_VARIABLES = (
    "$id: String, $since: Since, $criteria: [Criterion!], $content: Content, $completeAfter: Long"
)
_ARGUMENTS = (
    'catalog: "shop", id: $id, since: $since, criteria: $criteria, content: $content, '
    "completeAfter: $completeAfter"
)
FOLLOW = (
    f"subscription({_VARIABLES}) {{ onCatalogChangeUntyped({_ARGUMENTS}) {{ {ITEM} "
    "... on UntypedChange { body } } }"
)


def variables_of(request: Asked) -> dict[str, Any]:
    """A request of the contract, as variables."""
    found = dict(request)
    since = found.get("since")
    if since == "beginning":
        found["since"] = {"beginning": True}
    elif isinstance(since, str):
        found["since"] = {"progress": since}
    found["content"] = found.get("content", "header").upper()
    criteria = [dict(one) for one in found.get("criteria", ())]
    for one in criteria:
        one["area"] = None if one.get("area") in {None, "any"} else one["area"].upper()
    return found | {"criteria": criteria}


def heard_of(item: dict[str, Any]) -> Heard:
    """An item, in the contract's words."""
    ids: tuple[str, ...] = tuple(item["requestIds"])
    progress: str = item["progress"] or ""
    match item["__typename"]:
        case "Confirmation":
            return Heard(
                kind="confirmed",
                ids=ids,
                progress=progress,
                version=int(item["version"]),
                waiting=item["waiting"],
            )
        case "Maintenance":
            positions = dict.fromkeys(ids, progress) if progress else {}
            return Heard(kind="maintenance", progress=progress, positions=positions)
        case _:
            return Heard(
                kind="capture",
                ids=ids,
                progress=progress,
                version=int(item["version"]),
                index=int(item["index"]),
                area=item["area"],
                operation=item["operation"],
                entity_type=item["entityType"] or "",
                body=item.get("body"),
                mutation_count=int(item.get("mutationCount", 0)),
                matched={ids[0]: int(item["matched"])} if "matched" in item else {},
            )


class GraphqlClient:
    """One operation: a `CaptureClient` of one request."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids: tuple[str, ...] = ()
        self._over = False

    async def next(self) -> Heard:
        if self._over:
            raise StreamEndedError
        try:
            message = await said(self._connection)
        except ConnectionClosed:
            raise StreamEndedError from None
        assert message["id"] == "s"
        if message["type"] == "next":
            assert list(message["payload"]) == ["data"]
            heard = heard_of(message["payload"]["data"]["onCatalogChangeUntyped"])
            self._ids = heard.ids or self._ids
            return heard
        self._over = True
        if message["type"] == "complete":
            return Heard(kind="finished", ids=self._ids)
        (error,) = message["payload"]
        more = error["extensions"]
        if more["code"].startswith("service."):
            raise StreamEndedError(more["code"])
        return Heard(
            kind="finished" if self._ids else "refused",
            ids=self._ids,
            code=more["code"],
            # GraphQL checks variables itself, and names the place inside each.
            message=error["message"].replace("$criteria' has invalid value at ", "criteria"),
            oldest=more.get("oldest", more.get("after", "")),
        )

    async def abort(self) -> None:
        self._connection.transport.abort()

    async def extend(self, *requests: Asked) -> None:
        raise NotImplementedError

    async def change(self, request: Asked) -> None:
        raise NotImplementedError

    async def limit(self, *ids: str) -> None:
        raise NotImplementedError

    async def cancel_all(self) -> None:
        raise NotImplementedError

    async def request(self, count: int) -> None:
        raise NotImplementedError


class GraphqlEndpointClient:
    """A `CaptureEndpoint` of a server."""

    def __init__(self, address: str) -> None:
        self._address = address

    @asynccontextmanager
    async def connect(
        self, *requests: Asked, credit: int | None = None, envelope: str = ""
    ) -> AsyncGenerator[GraphqlClient]:
        assert credit is None
        assert not envelope
        (request,) = requests
        async with opened(self._address) as connection:
            await subscribe(connection, FOLLOW, variables=variables_of(request))
            yield GraphqlClient(connection)
