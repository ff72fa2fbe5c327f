"""GraphQL at /graphql, whose libraries and types are loaded when somebody first asks for it.

They take a second of a processor and 40 MB, and most services have no client of GraphQL.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.service import CaptureService
from penstock.serve.captures.sockets import ScopeOf
from penstock.serve.health import Health

if TYPE_CHECKING:
    from penstock.serve.captures.graphql.endpoint import GraphqlEndpoint

PATH: Final = "/graphql"


class GraphqlRoutes:
    """The routes, and the endpoint behind them once there is one."""

    def __init__(
        self, service: CaptureService, *, health: Callable[[], Awaitable[Health]] | None = None
    ) -> None:
        self._service = service
        self._health = health
        self._making: asyncio.Task[GraphqlEndpoint] | None = None

    def routes(self, *, scope_of: ScopeOf) -> list[BaseRoute]:
        """The socket, and the queries; `scope_of` is asked what whoever connects may see."""

        async def follow(socket: WebSocket) -> None:
            await (await self.endpoint()).follow(socket, scope_of)

        async def answer(request: Request) -> Response:
            return await (await self.endpoint()).answer(request, scope_of)

        return [
            WebSocketRoute(PATH, follow, name="websocket graphql"),
            Route(PATH, answer, methods=["POST"], name="http graphql"),
        ]

    async def endpoint(self) -> "GraphqlEndpoint":
        """The endpoint, made once, with the types that the log holds then. If that fails, whoever
        comes next tries again."""
        if self._making is None:
            self._making = asyncio.create_task(self._make())
        making = self._making
        try:
            return await asyncio.shield(making)
        except BaseException:
            if making.done() and self._making is making:
                self._making = None
            raise

    def configure(self, config: CapturesConfig) -> None:
        """Make the types anew, if there are any: see `GraphqlEndpoint.configure`."""

        def made(making: "asyncio.Task[GraphqlEndpoint]") -> None:
            if not making.cancelled() and making.exception() is None:
                making.result().configure(config)

        if self._making is None:
            return
        if self._making.done():
            made(self._making)
        else:
            self._making.add_done_callback(made)

    async def _make(self) -> "GraphqlEndpoint":
        return await (await asyncio.to_thread(_load))(self._service, health=self._health)


def _load() -> "Callable[..., Awaitable[GraphqlEndpoint]]":
    from penstock.serve.captures.graphql.endpoint import graphql_endpoint

    return graphql_endpoint
