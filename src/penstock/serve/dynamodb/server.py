"""The endpoint as an HTTP server: what comes in is bounded and checked, and done in threads.

All writes go through one thread, reads through a few, and the event loop never touches the store.
"""

import asyncio
import base64
import os
import zlib
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final

from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock.clocks import Clock
from penstock.serve.dynamodb.captured.endpoint import CapturedEndpoint
from penstock.serve.dynamodb.captured.index import CapturedIndex, CapturedLog
from penstock.serve.dynamodb.captured.operations import CAPTURED_OPERATIONS
from penstock.serve.dynamodb.config import (
    CapturedConfig,
    DynamoConfig,
    EndpointConfig,
)
from penstock.serve.dynamodb.endpoint import Endpoint
from penstock.serve.dynamodb.errors import WireError
from penstock.serve.dynamodb.operations import OPERATIONS
from penstock.serve.dynamodb.requests import Answer, Operation, Served, answer, refused
from penstock.serve.dynamodb.signing import Sent, verify
from penstock.serve.listen import listen
from penstock.store import Store

JSON_TYPE: Final = "application/x-amz-json-1.0"
_LOOPBACK_HOSTS: Final = ["localhost", "127.0.0.1", "[::1]"]
_KEEP_ALIVE_SECONDS: Final = 60


class _Server:
    """Answers requests for one endpoint."""

    def __init__(
        self,
        endpoint: Served,
        operations: Mapping[str, Operation],
        config: EndpointConfig,
        keys: Mapping[str, SecretStr],
    ) -> None:
        self._endpoint = endpoint
        self._operations = operations
        self.config = config
        self._keys = {key: secret.get_secret_value() for key, secret in keys.items()}
        self._writer = ThreadPoolExecutor(1, "dynamodb-writes")
        self._readers = ThreadPoolExecutor(config.reader_threads, "dynamodb-reads")

    @property
    def guarded(self) -> bool:
        """Whether requests must be signed."""
        return bool(self._keys)

    async def post(self, request: Request) -> Response:
        """Answer an operation."""
        operation = self._operations.get(request.headers.get("x-amz-target", ""))
        try:
            body = await self._body(request)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody hears it
        if body is None:
            limit = self.config.request_bytes_max
            told = WireError(
                "RequestEntityTooLargeException",
                f"Request body is larger than {limit} bytes",
                status=413,
            )
            return _response(refused(told))
        sent = Sent(
            method=request.method,
            path=request.url.path,
            query=request.url.query,
            headers=_joined(request),
            body=body,
        )
        pool = self._writer if operation is not None and operation.writes else self._readers
        loop = asyncio.get_running_loop()
        return _response(await loop.run_in_executor(pool, self._answer, operation, sent))

    def _answer(self, operation: Operation | None, sent: Sent) -> Answer:
        if self._keys:
            try:
                verify(sent, self._keys, now_ms=self._endpoint.now_ms)
            except WireError as error:
                return refused(error)
        if operation is None:
            return refused(WireError("UnknownOperationException", "Unknown operation"))
        return answer(self._endpoint, operation, sent.body)

    async def _body(self, request: Request) -> bytes | None:
        """The request's body; None for one over the limit, which is not read on."""
        limit = self.config.request_bytes_max
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            return None
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > limit:
                return None
        return bytes(body)

    def close(self) -> None:
        """Wait for what is under way."""
        self._writer.shutdown()
        self._readers.shutdown()


@asynccontextmanager
async def serving_dynamodb(
    store: Store, config: DynamoConfig, *, clock: Clock | None = None
) -> AsyncGenerator[str]:
    """Serve a store by DynamoDB's protocol inside the block; yields the address, host:port.

    The store's only writer must be this process. What was asked is answered at the end. Raises
    ConfigError if the port is taken.
    """
    endpoint = await asyncio.to_thread(Endpoint, store, config, clock)
    async with _serving(_Server(endpoint, OPERATIONS, config, config.keys)) as address:
        yield address


@asynccontextmanager
async def serving_captured(
    log: CapturedLog,
    index: CapturedIndex,
    config: CapturedConfig,
    *,
    keys: Mapping[str, SecretStr] | None = None,
    clock: Clock | None = None,
) -> AsyncGenerator[str]:
    """Serve what is captured as DynamoDB Streams inside the block; yields the address, host:port.

    Starts the log's index, and closes it. What was asked is answered at the end. Raises ConfigError
    if the port is taken.
    """
    try:
        endpoint = await asyncio.to_thread(CapturedEndpoint, log, index, config, clock)
        index.start()
        async with _serving(_Server(endpoint, CAPTURED_OPERATIONS, config, keys or {})) as address:
            yield address
    finally:
        await asyncio.to_thread(index.close)


@asynccontextmanager
async def _serving(server: _Server) -> AsyncGenerator[str]:
    config = server.config
    try:
        async with await listen(
            _application(server),
            config.address,
            connections_max=config.connections_max,
            advice="give another address",
            keep_alive_seconds=_KEEP_ALIVE_SECONDS,
        ) as listening:
            yield listening.address
    finally:
        await asyncio.to_thread(server.close)


def _application(server: _Server) -> Starlette:
    async def alive(request: Request) -> Response:
        return PlainTextResponse(f"healthy: {request.url.netloc}\n")

    # Without keys, a page in a browser must not reach it under a name of its own.
    hosts = [] if server.guarded else [Middleware(TrustedHostMiddleware, _LOOPBACK_HOSTS)]
    return Starlette(
        routes=[
            Route("/{path:path}", alive, methods=["GET", "HEAD"]),
            Route("/{path:path}", server.post, methods=["POST"]),
        ],
        middleware=hosts,
    )


def _response(answer: Answer) -> Response:
    return Response(
        answer.body,
        status_code=answer.status,
        media_type=JSON_TYPE,
        headers={
            "x-amzn-RequestId": base64.b32encode(os.urandom(35))[:52].decode(),
            "x-amz-crc32": str(zlib.crc32(answer.body)),
        },
    )


def _joined(request: Request) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers
