"""The endpoint as an HTTP server: what comes in is bounded and checked, and done in threads.

Writes of items that come together are kept together, in as many threads as then wait; what changes
tables goes through one thread, reads through a few, and the event loop never touches the store.
"""

import asyncio
import base64
import os
import zlib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final

from msgspec import structs
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock.clocks import Clock
from penstock.errors import ForbiddenError, RateLimitedError, UnauthenticatedError
from penstock.serve.access import Access, AccessConfig, Presented, Principal, TlsConfig
from penstock.serve.access.actions import ACTIONS, action
from penstock.serve.access.door import names_of
from penstock.serve.dynamodb.captured.endpoint import CapturedEndpoint
from penstock.serve.dynamodb.captured.index import CapturedIndex, CapturedLog
from penstock.serve.dynamodb.captured.operations import CAPTURED_OPERATIONS
from penstock.serve.dynamodb.config import (
    CapturedConfig,
    DynamoConfig,
    EndpointConfig,
)
from penstock.serve.dynamodb.encoding import packed, too_large, unpacked
from penstock.serve.dynamodb.endpoint import Endpoint
from penstock.serve.dynamodb.errors import WireError
from penstock.serve.dynamodb.operations import OPERATIONS
from penstock.serve.dynamodb.requests import (
    DESCRIBE_ENDPOINTS,
    Answer,
    Operation,
    Served,
    Work,
    answer,
    endpoints_at,
    refused,
    unknown,
)
from penstock.serve.dynamodb.signing import Sent, key_of, verify
from penstock.serve.listen import GRACE_SECONDS, HttpServer, listen
from penstock.store import Store
from penstock.store.together import WRITES_MAX

JSON_TYPE: Final = "application/x-amz-json-1.0"
_LOOPBACK_HOSTS: Final = ["localhost", "127.0.0.1", "[::1]"]
_KEEP_ALIVE_SECONDS: Final = 60
_STOP_SECONDS: Final = 10.0
_ALIVE: Final = "dynamodb alive"
_BODY_BYTES: Final = 64 << 10
"""Of every body, whatever others hold: enough for most requests."""
_LARGEST_BODIES: Final = 4
"""What all bodies together may hold beyond that, as many times the largest one."""


class _Room:
    """Memory for bodies, which are read before it is known whose they are."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    @contextmanager
    def held(self) -> Generator[Callable[[int], None]]:
        """Yields what is told how long a body has become; all is given back with the block.

        It raises WireError when there is no room. Nobody waits for some: those who hold a part
        each would wait for each other.
        """
        taken = 0

        def grow(length: int) -> None:
            nonlocal taken
            more = max(length - _BODY_BYTES, 0) - taken
            if more > self._left:
                raise WireError(
                    "ThrottlingException",
                    "Too many large requests are being read. Try again.",
                    status=503,
                )
            self._left -= more
            taken += more

        try:
            yield grow
        finally:
            self._left += taken


class _Server:
    """Answers requests for one endpoint."""

    def __init__(
        self,
        endpoint: Served,
        operations: Mapping[str, Operation],
        config: EndpointConfig,
        keys: Mapping[str, SecretStr],
        access: Access | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        self._access = access or Access(AccessConfig())
        self.tls = tls
        self._endpoint = endpoint
        self._operations = operations
        self.config = config
        self._keys = {key: secret.get_secret_value() for key, secret in keys.items()}
        self._pools: dict[Work, ThreadPoolExecutor] = {
            "reads": ThreadPoolExecutor(config.reader_threads, "dynamodb-reads"),
            "writes": ThreadPoolExecutor(WRITES_MAX, "dynamodb-writes"),
            "alters": ThreadPoolExecutor(1, "dynamodb-tables"),
        }
        self._room = _Room(_LARGEST_BODIES * config.request_bytes_max)

    @property
    def guarded(self) -> bool:
        """Whether requests must say whose they are."""
        return bool(self._keys) or self._access.is_guarded

    async def post(self, request: Request) -> Response:
        """Answer an operation."""
        with self._room.held() as grow:
            try:
                body = await self._body(request, grow)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody hears it
            except WireError as error:
                return _response(refused(error))
            return await self._post(request, body)

    async def _post(self, request: Request, body: bytes) -> Response:
        operation = self._operations.get(request.headers.get("x-amz-target", ""))
        sent = Sent(
            method=request.method,
            path=request.url.path,
            query=request.url.query,
            headers=_joined(request),
            body=body,
        )
        pool = self._pools["reads" if operation is None else operation.work]
        loop = asyncio.get_running_loop()
        target = f"dynamodb {sent.headers.get('x-amz-target', '')}"
        answered = partial(self._packed, operation, sent, _presented(request), target)
        return _response(await loop.run_in_executor(pool, answered))

    def _packed(
        self, operation: Operation | None, sent: Sent, presented: Presented, target: str
    ) -> Answer:
        told = self._answer(operation, sent, presented, target)
        body = packed(told.body, sent.headers.get("accept-encoding", ""))
        return told if body is None else Answer(told.status, body, is_packed=True)

    def _answer(
        self, operation: Operation | None, sent: Sent, presented: Presented, target: str
    ) -> Answer:
        try:
            principal = self._known(sent, presented, target)
            with self._access.visiting(principal, presented, target):
                self._require(principal, presented, target)
                if sent.headers.get("x-amz-target") == DESCRIBE_ENDPOINTS:
                    return endpoints_at(sent.headers.get("host", ""))
                if operation is None:
                    raise unknown(sent.headers.get("x-amz-target", ""))
                endpoint = self._endpoint
                if isinstance(endpoint, CapturedEndpoint):
                    endpoint = endpoint.seen_by(principal.scope)
                # Signatures are of what was sent, so it is unpacked once it is known whose it is.
                encoding = sent.headers.get("content-encoding", "")
                limit = self.config.request_bytes_max
                return answer(endpoint, operation, unpacked(sent.body, encoding, bytes_max=limit))
        except WireError as error:
            return refused(error)
        except RateLimitedError as error:
            return refused(WireError("ThrottlingException", str(error)))
        except ForbiddenError as error:
            return refused(WireError("AccessDeniedException", str(error)))
        except UnauthenticatedError as error:
            return refused(WireError("UnrecognizedClientException", str(error)))

    def _require(self, principal: Principal, presented: Presented, target: str) -> None:
        """Raises WireError for a call that is not in the table of actions."""
        if not self._access.is_on:
            return  # the keys of a store, which may do everything
        asked = ACTIONS.get(target)
        if asked is None:
            raise unknown(target.partition(" ")[2])
        self._access.require(principal, asked.needs, presented, target)

    def _known(self, sent: Sent, presented: Presented, target: str) -> Principal:
        """Who asks: by a token of ours as the session token of any client, else by a signature,
        else by the certificate of mutual TLS, where `[access]` says whose that is."""
        token = sent.headers.get("x-amz-security-token")
        if token is not None and self._access.is_on:
            shown = structs.replace(presented, authorization=f"Bearer {token}")
            return self._access.authenticate(shown, target)
        # Clients sign with whatever keys they have, also one that shows its certificate.
        by_certificate = bool(presented.certificate) and self._access.is_on
        if self._keys and (not by_certificate or key_of(sent) in self._keys):
            try:
                key = verify(sent, self._keys, now_ms=self._endpoint.now_ms)
            except WireError:
                self._access.refuse(presented, target)
                raise
            return self._access.of_key(key, presented, target)
        return self._access.authenticate(presented, target)

    async def _body(self, request: Request, grow: Callable[[int], None]) -> bytes:
        """The request's body. Raises WireError for one over the limit, or for which there is no
        room; it is not read on."""
        limit = self.config.request_bytes_max
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            raise too_large(limit)
        body = bytearray()
        async for part in request.stream():
            if len(body) + len(part) > limit:
                raise too_large(limit)
            grow(len(body) + len(part))
            body += part
        return bytes(body)

    def close(self) -> None:
        """Wait for what is under way."""
        for pool in self._pools.values():
            pool.shutdown()


@asynccontextmanager
async def serving_dynamodb(
    store: Store,
    config: DynamoConfig,
    *,
    clock: Clock | None = None,
    stop_seconds: float = _STOP_SECONDS,
) -> AsyncGenerator[str]:
    """Serve a store by DynamoDB's protocol inside the block; yields the address, host:port.
    One address beyond loopback has at most half of the connections.

    The store's only writer must be this process. What was asked is answered at the end, unless the
    store takes longer than `stop_seconds` for it: so whoever else writes the store, and may hold it
    for so long, has to have ended. DynamoDB's clients repeat what was not answered, and a write
    that had begun is done twice. Raises ConfigError if the port is taken.
    """
    endpoint = await asyncio.to_thread(Endpoint, store, config, clock)
    try:
        server = _Server(endpoint, OPERATIONS, config, config.keys)
        half = max(1, config.connections_max // 2)
        async with _serving(
            server, stop_seconds=stop_seconds, of_one_address=half, spares_loopback=True
        ) as address:
            yield address
    finally:
        await asyncio.to_thread(endpoint.close)


@asynccontextmanager
async def serving_captured(
    log: CapturedLog,
    index: CapturedIndex,
    config: CapturedConfig,
    *,
    keys: Mapping[str, SecretStr] | None = None,
    clock: Clock | None = None,
    access: Access | None = None,
    tls: TlsConfig | None = None,
    bound: Callable[[HttpServer], None] | None = None,
    of_one_address: int | None = None,
) -> AsyncGenerator[str]:
    """Serve what is captured as DynamoDB Streams inside the block; yields the address, host:port.
    `bound` is given its server. So many connections of one address are kept; None: any number.

    Starts the log's index, and closes it. What was asked is answered at the end. With `access`,
    whoever asks sees what their grants allow: a token of `penstock access` is the session token of
    a client, or one of `keys` has the grants of a token. Raises ConfigError if the port is taken.
    """
    try:
        endpoint = await asyncio.to_thread(CapturedEndpoint, log, index, config, clock)
        index.start()
        server = _Server(endpoint, CAPTURED_OPERATIONS, config, keys or {}, access, tls)
        async with _serving(server, bound, of_one_address=of_one_address) as address:
            yield address
    finally:
        await asyncio.to_thread(index.close)


@asynccontextmanager
async def _serving(
    server: _Server,
    bound: Callable[[HttpServer], None] | None = None,
    *,
    stop_seconds: float = GRACE_SECONDS,
    of_one_address: int | None = None,
    spares_loopback: bool = False,
) -> AsyncGenerator[str]:
    config = server.config
    try:
        async with await listen(
            _application(server),
            config.address,
            connections_max=config.connections_max,
            name="dynamodb",
            of_one_address=of_one_address,
            spares_loopback=spares_loopback,
            advice="give another address",
            keep_alive_seconds=_KEEP_ALIVE_SECONDS,
            tls=server.tls,
            stop_seconds=stop_seconds,
        ) as listening:
            if bound is not None:
                bound(listening)
            yield listening.address
    finally:
        await asyncio.to_thread(server.close)


def _application(server: _Server) -> Starlette:
    async def alive(request: Request) -> Response:
        return PlainTextResponse(f"healthy: {request.url.netloc}\n")

    # Without keys, a page in a browser must not reach it under a name of its own.
    action(_ALIVE)  # whatever has no line there is not served
    before = [] if server.guarded else [Middleware(TrustedHostMiddleware, _LOOPBACK_HOSTS)]
    if server.config.origins:
        # Behind them, so that a page of an origin that is let in comes by a name of ours, too.
        pages = Middleware(
            CORSMiddleware,
            allow_origins=server.config.origins,
            allow_methods=["POST"],
            allow_headers=["*"],  # each SDK has some of its own
            expose_headers=["x-amzn-requestid", "x-amz-crc32"],
        )
        before.append(pages)
    return Starlette(
        routes=[
            Route("/{path:path}", alive, methods=["GET", "HEAD"], name=_ALIVE),
            Route("/{path:path}", server.post, methods=["POST"]),
        ],
        middleware=before,
    )


def _response(answer: Answer) -> Response:
    return Response(
        answer.body,
        status_code=answer.status,
        media_type=JSON_TYPE,
        headers={
            "x-amzn-RequestId": base64.b32encode(os.urandom(35))[:52].decode(),
            # Of what is sent, compressed or not: so clients check it.
            "x-amz-crc32": str(zlib.crc32(answer.body)),
            **({"Content-Encoding": "gzip"} if answer.is_packed else {}),
        },
    )


def _presented(request: Request) -> Presented:
    proven: list[str] = request.scope.get("state", {}).get("client_certificate", [])
    peer = "" if request.client is None else request.client.host
    return Presented(certificate=names_of(proven), peer=peer)


def _joined(request: Request) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers
