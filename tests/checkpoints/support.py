"""A service of the simulated shop that publishes to a real store, in this process."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.capture.publish import Publisher
from penstock.checkpoints import open_store
from penstock.cli.capture_process import SystemClock, capture
from penstock.cli.config import Settings, load
from penstock.cli.publishing import opened_log
from penstock.log import LmdbLog
from penstock.ports import Checkpoint
from tests.waiting import patience, until
from tests_support.servers import EtcdServer

SHOP = """
[sources.shop]
type = "script"
transactions = {transactions}
events_per_second = 0
heartbeat_seconds = 0.1
"""


def etcd_section(server: EtcdServer, instance: str, **options: object) -> str:
    """The section [checkpoint] for a real etcd."""
    settings = {"store": "etcd", "instance": instance, "interval": "50ms", "timeout": "10s"}
    lines = [f'{name} = "{value}"' for name, value in {**settings, **options}.items()]
    return "\n".join(["[checkpoint]", f'endpoints = ["{server.endpoint}"]', *lines, ""])


def machine(
    folder: Path, checkpoint: str, sources: str = "", *, transactions: int = 20
) -> Settings:
    """The configuration of a machine whose disk is `folder`."""
    folder.mkdir(exist_ok=True)
    path = folder / "penstock.toml"
    sources = sources or SHOP.format(transactions=transactions)
    path.write_text(f'[log]\npath = "log"\nfree_bytes_min = 0\n{checkpoint}\n{sources}')
    return load(path, environment={})


class Running:
    """A service in this process: its log, its publisher, and the task that captures."""

    def __init__(
        self, settings: Settings, log: LmdbLog, publisher: Publisher | None, stop: asyncio.Event
    ) -> None:
        self.settings = settings
        self.log = log
        self.publisher = publisher
        self.stop = stop
        self.task = asyncio.ensure_future(capture(settings, log, stop=stop, publisher=publisher))

    async def until_position(self, source: str, position: str) -> None:
        """Wait until a source stands there."""

        async def stands() -> bool:
            return await self.log.position(source) == position

        await until(stands, f"{source} at {position}", task=self.task)

    async def until_published_once(self) -> Checkpoint:
        """Wait until anything is published of this log."""

        async def copy() -> Checkpoint | None:
            found = await published(self.settings)
            bounds = await self.log.bounds()
            return found if found is not None and found.log_id == bounds.log_id else None

        return await until(copy, task=self.task)

    async def until_published(self) -> Checkpoint:
        """Wait until the published copy says where the log stands."""

        async def copy() -> Checkpoint | None:
            found = await published(self.settings)
            bounds = await self.log.bounds()
            states = tuple(await self.log.sources())
            if (
                found is not None
                and (found.log_id, found.sequence) == (bounds.log_id, bounds.head)
                and [one.position for one in found.sources] == [one.position for one in states]
            ):
                return found
            return None

        return await until(copy, task=self.task)


@asynccontextmanager
async def service(settings: Settings) -> AsyncGenerator[Running]:
    """Capture with `settings` inside the block; asked to stop at its end, as by SIGTERM."""
    async with patience(), opened_log(settings, clock=SystemClock()) as (log, publisher):
        running = Running(settings, log, publisher, asyncio.Event())
        try:
            yield running
        finally:
            running.stop.set()
            results = await asyncio.gather(running.task, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


async def published(settings: Settings) -> Checkpoint | None:
    """What the store has of this machine's instance."""
    store = open_store(settings.checkpoint)
    assert store is not None
    try:
        kept = await store.read(str(settings.checkpoint.instance))
    finally:
        await store.close()
    return None if kept is None else kept.checkpoint


async def republish(settings: Settings, checkpoint: Checkpoint) -> None:
    """Have the store say something else."""
    store = open_store(settings.checkpoint)
    assert store is not None
    try:
        kept = await store.read(checkpoint.instance)
        await store.write(checkpoint, replacing=None if kept is None else kept.revision)
    finally:
        await store.close()


def facts(description: Any) -> dict[str, Any]:
    """What a gap says."""
    import json

    said: dict[str, Any] = json.loads(bytes(description))
    return said
