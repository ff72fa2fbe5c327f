"""A capture server that is tested: the log that it serves, and what is heard of it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar

from penstock.log.lmdb import LmdbLog
from penstock.progress import Progress
from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.service import CaptureService
from penstock.subscribe.scope import EVERYTHING, Scope
from penstock.testing.contracts.capturing import (
    CaptureClient,
    CaptureEndpoint,
    Heard,
    StreamEndedError,
    changed,
    committed,
    opened_log,
    singles,
)

ALL: dict[str, Any] = {"id": "all", "since": "beginning", "criteria": [{"area": "data"}]}


def data(**site: Any) -> list[dict[str, Any]]:
    """Criteria: the changes of data at a site."""
    return [{"area": "data", "site": site}]


class Serving:
    """A log, its service, and a server of it."""

    def __init__(self, log: LmdbLog, service: CaptureService, endpoint: CaptureEndpoint) -> None:
        self.log = log
        self.service = service
        self.connect = endpoint.connect


async def captures(client: CaptureClient, count: int) -> list[Heard]:
    """What is heard up to so many captures; maintenance is left out."""
    found: list[Heard] = []
    while sum(one.kind == "capture" for one in found) < count:
        one = await client.next()
        if one.kind != "maintenance":
            found.append(one)
    return found


async def until(client: CaptureClient, kind: str, *, ids: tuple[str, ...] = ()) -> list[Heard]:
    """What is heard up to the first of a kind, about these requests if there are any."""
    found = [await client.next()]
    while found[-1].kind != kind or (ids and found[-1].ids != ids):
        found.append(await client.next())
    return found


async def safe_at(client: CaptureClient, sequence: int) -> list[Heard]:
    """What is heard until maintenance says that all up to `sequence` is safe: so all of it came."""
    found = [await client.next()]
    while found[-1].kind != "maintenance" or found[-1].sequence < sequence:
        found.append(await client.next())
    return found


def sequences(heard: Sequence[Heard]) -> list[int]:
    """Of the captures that are no edges of transactions."""
    return [one.sequence for one in of_kind(heard, "capture") if one.area != "infrastructure"]


def of_kind(heard: Sequence[Heard], kind: str) -> list[Heard]:
    return [one for one in heard if one.kind == kind]


async def append_large(log: LmdbLog, count: int, *, start: int = 0) -> None:
    """So many commits, each of one document of 32 KiB: more than sockets hold."""
    text = "x" * (32 << 10)
    for first in range(start + 1, start + count + 1, 100):
        await log.append(
            [
                committed(changed(at, document={"_id": at, "text": text}))
                for at in range(first, min(first + 100, start + count + 1))
            ]
        )


async def marker(served: Serving, sequence: int) -> str:
    check = await served.log.check_at(sequence)
    assert check is not None
    return str(Progress((await served.log.bounds()).log_id, sequence, check))


async def nothing_more(served: Serving, client: CaptureClient) -> None:
    """Nothing of a request comes, whatever happens."""
    await served.log.append(singles(100, 101))
    with contextlib.suppress(StreamEndedError, TimeoutError):
        async with asyncio.timeout(0.2):
            while True:
                assert (await client.next()).kind == "maintenance"


class CaptureServerBase:
    """Inherit, and give `serving`."""

    can_change: ClassVar[bool] = True
    """Requests come, change and go while the subscription runs."""
    has_credits: ClassVar[bool] = True
    has_many: ClassVar[bool] = True
    """A subscription can begin with several requests."""
    has_envelopes: ClassVar[bool] = True
    """Captures can be asked for in the envelopes of others."""
    scope: Scope = EVERYTHING
    """What whoever connects may see; `serving` holds every connection to it."""

    def serving(self, service: CaptureService) -> AbstractAsyncContextManager[CaptureEndpoint]:
        """Serve `service` inside the block; at its end the server stops."""
        raise NotImplementedError

    @asynccontextmanager
    async def served(self, **options: Any) -> AsyncGenerator[Serving]:
        """A log that is served, with options of CapturesConfig."""
        config = CapturesConfig.model_validate({"maintenance_interval": 0.05, **options})
        async with (
            opened_log() as log,
            CaptureService(log, lambda: config).running() as service,
            self.serving(service) as endpoint,
        ):
            yield Serving(log, service, endpoint)
