"""Services with a door, and those who stand before it."""

import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import structs

from penstock.log.memory import MemoryLog
from penstock.serve.access import Access, AccessConfig
from penstock.serve.access.book import added, changing, revoked
from penstock.serve.access.grants import WrittenGrant
from penstock.serve.access.tokens import Record, new_token
from penstock.serve.captures.graphql.routes import GraphqlRoutes
from penstock.serve.captures.grpc import CaptureServicer
from penstock.serve.captures.service import CaptureService
from penstock.serve.config import ServeConfig
from penstock.serve.flight import FlightServer
from penstock.serve.grpc import serve_grpc
from penstock.serve.health import Facts, Health, health
from penstock.serve.http import Told, serve_http
from penstock.serve.listen import HttpServer
from penstock.state.config import StateConfig
from penstock.state.keeper import StateKeeper
from penstock.subscribe.scope import Verb
from tests.waiting import until

ALL = tuple(Verb)


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def issue(
    tokens: Path,
    name: str,
    *,
    expires_at: float | None = None,
    subject: str = "",
    **grant: Any,
) -> str:
    """Let somebody in, as `penstock access create` does; the token."""
    token, number, digest = new_token()
    record = Record(
        id=number,
        name=name,
        kind="certificate" if subject else "token",
        digest="" if subject else digest,
        subject=subject,
        grants=(WrittenGrant(**grant),),
        created_at=0.0,
        expires_at=expires_at,
    )
    with changing(tokens) as change:
        change(lambda kept: added(kept, record))
    return token


def revoke(tokens: Path, name: str) -> None:
    """As `penstock access revoke` does."""
    with changing(tokens) as change:
        change(lambda kept: revoked(kept, name, now=1.0))


class Service:
    """Everything that serves a log, with one door."""

    def __init__(self, log: MemoryLog, access: Access, keeper: StateKeeper) -> None:
        self.log = log
        self.access = access
        self.keeper = keeper
        self.grpc = self.http = self.flight = ""
        self.web: HttpServer | None = None
        self.captures: CaptureService
        self.graphql: GraphqlRoutes

    async def caught_up(self) -> None:
        """Wait until the current rows have the whole log."""
        head = (await self.log.bounds()).head
        await until(lambda: self.keeper.applied.sequence >= head)


@asynccontextmanager
async def service(
    folder: Path,
    *,
    serve: dict[str, Any] | None = None,
    log: MemoryLog | None = None,
    record: Path | None = None,
    flights: bool = True,
    wall: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
    **access: Any,
) -> AsyncGenerator[Service]:
    """gRPC, Flight and HTTP over a log, or an empty one, with captures, until the block
    ends. `record` is [access] log; `flights` says whether Flight is there, which is slow to end.
    """
    address = "127.0.0.1:0"
    config = ServeConfig.model_validate(
        {"grpc": address, "flight": address, "http": address, **(serve or {})}
    )
    access.setdefault("tokens", folder / "access.json")
    config_ = AccessConfig.model_validate({**access, "log": record})
    door = Access(config_, wall=wall, clock=clock)
    async with AsyncExitStack() as stack:
        stack.callback(door.close)
        if log is None:
            log = MemoryLog()
            stack.push_async_callback(log.close)
        state = StateConfig(free_bytes_min=0, interval=0)
        keeper = stack.enter_context(StateKeeper(log, folder, state))
        found = Service(log, door, keeper)
        captures = CaptureService(log, lambda: config.captures, rows=keeper)
        await stack.enter_async_context(captures.running())
        found.captures = captures
        beside = [CaptureServicer(captures)]
        grpc = await serve_grpc(log, config, current=keeper, access=door, beside=beside)
        await stack.enter_async_context(grpc)
        found.graphql = GraphqlRoutes(captures)
        telling = structs.replace(told(keeper, door, captures), graphql=found.graphql)
        http = await serve_http(config, telling)
        await stack.enter_async_context(http)
        found.web = http
        found.grpc, found.http = grpc.address, http.address
        if flights:
            flight = FlightServer(log, config.flight, current=keeper, access=door, tls=config.tls)
            flight.start()
            stack.callback(flight.stop)
            found.flight = flight.address
        yield found


def told(keeper: StateKeeper, access: Access, captures: CaptureService | None = None) -> Told:
    """What HTTP tells."""

    async def healthy() -> Health:
        facts = Facts(capture={}, sources=(), consumers=0, buffer_size=0)
        return health(facts, version="", started_at=0, now_ms=0, lag_seconds_max=0)

    async def ready() -> bool:
        return True

    async def metrics() -> bytes:
        return b"penstock_test 1\n"

    return Told(
        health=healthy,
        ready=ready,
        metrics=metrics,
        current=keeper,
        access=access,
        captures=captures,
    )


def bearer(token: str) -> list[tuple[str, str]]:
    """The metadata of a call."""
    return [("authorization", f"Bearer {token}")]


def names(events: Iterable[Any]) -> list[str]:
    """The collections of events, in their order."""
    return [event.collection for event in events]
