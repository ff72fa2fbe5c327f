"""Opening the log beside its published copy, and what a running service is asked about it.

The log on this disk is the truth. Its published copy decides only what the disk cannot: where a new
log begins when there is none, and whether another machine has taken this one's place.
"""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple

import structlog
from msgspec import structs, to_builtins

from penstock.capture import Supervisor
from penstock.capture.breaker import Breaker
from penstock.capture.lineage import Standing, above, standing
from penstock.capture.moving import in_another_log, move
from penstock.capture.publish import Publisher, PublishLimits, require_place
from penstock.capture.supervise import Clock
from penstock.checkpoints import CheckpointConfig, open_store
from penstock.cli.config import Settings, missing_extra
from penstock.cli.control import Control
from penstock.errors import (
    CheckpointConflictError,
    CheckpointStoreError,
    CheckpointUnavailableError,
    LogError,
    OutdatedFormatError,
    RequestError,
)
from penstock.folders import make_folder
from penstock.log import LmdbLog, LmdbLogReader
from penstock.log.lmdb import lock_log
from penstock.ports import Above, Bounds, ChangeLog, Checkpoint, CheckpointStore
from penstock.telemetry import GAPS_DETECTED

logger = structlog.get_logger(__name__)

PATIENCE_SECONDS: Final = 20.0
"""How long a machine without a log waits for the store: it must not begin at the wrong place."""
_RETRY_SECONDS: Final = 0.5


class Opened(NamedTuple):
    """The log, open for writing, and who publishes it; None without a store."""

    log: LmdbLog
    publisher: Publisher | None


@asynccontextmanager
async def opened_log(settings: Settings, *, clock: Clock) -> AsyncGenerator[Opened]:
    """The log of `settings`, and its publisher, which has not claimed the instance yet.

    Without a log on this disk, but with a published copy of one, a new log begins above it. Then a
    store that does not answer is an error, for the log would begin in the wrong place. With a log,
    it is none. Raises SupersededError or ForeignCheckpointError when this log must not go on as
    this instance.
    """
    async with AsyncExitStack() as stack:
        store = store_of(settings)
        if store is None:
            yield Opened(await stack.enter_async_context(LmdbLog(settings.log, trims=False)), None)
            return
        stack.push_async_callback(store.close)
        writer = secrets.token_hex(8)
        known = await _bounds(settings)
        if known is None:
            base = await _claimed(settings, store, writer)
            log = LmdbLog(settings.log, above=base, trims=False)
            _tell(base)
        else:
            older = await _outdated(settings, store, known)
            log = LmdbLog(settings.log, restored=older, trims=False)
        await stack.enter_async_context(log)
        yield Opened(log, _publisher(settings, log, store, writer=writer, clock=clock))


def store_of(settings: Settings) -> CheckpointStore | None:
    """The configured store. Raises ConfigError when its package is not installed."""
    config = settings.checkpoint
    try:
        return open_store(config)
    except ImportError as error:
        what = f"{settings.path}: checkpoint.store = {config.store!r}"
        raise missing_extra(what, config.store, error) from error


def instance_of(settings: Settings) -> str:
    """The name of this service in the store."""
    assert settings.checkpoint.instance is not None, "the configuration asks for it"
    return settings.checkpoint.instance


def _publisher(
    settings: Settings, log: LmdbLog, store: CheckpointStore, *, writer: str, clock: Clock
) -> Publisher:
    return Publisher(
        log,
        store,
        instance=instance_of(settings),
        writer=writer,
        clock=clock,
        breaker=Breaker(steady_seconds=clock.steady_seconds),
        limits=limits_of(settings.checkpoint),
    )


def limits_of(config: CheckpointConfig) -> PublishLimits:
    """How often the configuration says to publish."""
    return PublishLimits(interval_seconds=config.interval, event_count=config.event_count)


async def _bounds(settings: Settings) -> Bounds | None:
    """What the log on this disk holds, in this Penstock's format; None if there is none."""
    try:
        reader = LmdbLogReader(settings.log.path)
    except OutdatedFormatError:
        # It is upgraded by being opened for writing, and can be read only then.
        async with LmdbLog(settings.log, trims=False):
            reader = LmdbLogReader(settings.log.path)
    except LogError as error:
        # Others say that there is one, but that it cannot be read.
        if type(error) is not LogError:
            raise
        return None
    async with reader:
        return await reader.bounds()


async def _outdated(settings: Settings, store: CheckpointStore, bounds: Bounds) -> bool:
    """Whether the log on this disk is an older copy of the one that was published.

    Raises when it must not go on as this instance. A store that does not answer, or refuses us, is
    asked again by the publisher, and until then capture goes on.
    """
    instance = instance_of(settings)
    try:
        kept = await store.read(instance)
    except (CheckpointUnavailableError, CheckpointStoreError) as error:
        logger.warning("the published copy was not looked at; capture goes on", code=error.code)
        return False
    published = None if kept is None else kept.checkpoint
    check = None
    if published is not None:
        async with LmdbLogReader(settings.log.path) as reader:
            check = await reader.check_at(published.sequence)
    if standing(published, bounds, check=check) is Standing.BEHIND:
        logger.warning(
            "the log is an older copy of the published one; it goes on under a new id",
            head=bounds.head,
            published=published.sequence if published is not None else 0,
        )
        return True
    require_place(published, bounds, check=check, instance=instance)
    return False


async def _claimed(settings: Settings, store: CheckpointStore, writer: str) -> Above | None:
    """Where the new log begins, once nobody else can publish as this instance any more.

    Claimed first: the machine before, if it is still there, can then move the copy no further, and
    is told at its next try.
    """
    instance = instance_of(settings)
    # Claimed only by the process that will write here; the log's own lock is taken on opening it.
    make_folder(settings.log.path, mode=0o700)
    os.close(lock_log(settings.log.path))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            kept = await store.read(instance)
            if kept is None:
                return None
            claimed = structs.replace(kept.checkpoint, writer=writer)
            await store.write(claimed, replacing=kept.revision)
            adapters = [source.open() for source in settings.sources.values()]
            base = structs.replace(claimed, sources=in_another_log(claimed.sources, adapters))
            return above(base, configured=settings.sources)
        except CheckpointConflictError:
            continue  # it was published meanwhile: look again
        except CheckpointUnavailableError as error:
            if time.monotonic() > deadline:
                raise CheckpointUnavailableError(
                    f"there is no log at {settings.log.path}, and the store of published copies "
                    f"did not answer for {PATIENCE_SECONDS:g} s ({error.why}): a log that began "
                    f"without it could begin in the wrong place. Nothing was started. "
                    f"{error.remedy} Start again once it answers, or set [checkpoint] store = "
                    f"'none' to begin without a past."
                ) from error
            await asyncio.sleep(_RETRY_SECONDS)


def _tell(base: Above | None) -> None:
    if base is None:
        return
    logger.warning(
        "there was no log on this disk; a new one begins above the published copy",
        sequence=base.head,
        sources=[state.source for state in base.sources],
    )
    for gap in base.gaps:
        GAPS_DETECTED.labels(gap.source).inc()


# --- what is asked while capture runs -----------------------------------------------------------


def register(
    control: Control, log: ChangeLog, supervisor: Supervisor, publisher: Publisher | None
) -> None:
    """Answer `checkpoint` (how publishing is) and `checkpoint_move` {source, position or null}."""

    async def status(_: dict[str, Any]) -> dict[str, Any]:
        return publishing(publisher)

    async def moved(request: dict[str, Any]) -> dict[str, Any]:
        source, position = request.get("source"), request.get("position")
        if not isinstance(source, str) or not isinstance(position, str | None):
            raise RequestError("checkpoint_move needs a source and a position, both text.")
        async with supervisor.at_rest(source):
            adapter = next((one for one in supervisor.sources() if one.name == source), None)
            now_ms = time.time_ns() // 1_000_000
            done = await move(log, source, position, now_ms=now_ms, adapter=adapter)
        logger.warning("a position was moved by hand", source=source, cleared=position is None)
        return {"move": to_builtins(done)}

    control.register("checkpoint", status)
    control.register("checkpoint_move", moved)


def publishing(publisher: Publisher | None) -> dict[str, Any]:
    """How publishing is, for `status`; an empty object without a store."""
    if publisher is None:
        return {}
    status = publisher.status()
    return {
        "instance": status.instance,
        "circuit": status.circuit.value,
        "failures": status.failures,
        "code": status.code,
        "message": status.message,
        "sequence": status.sequence,
        "publishedAt": status.published_at,
    }


async def published_now(settings: Settings, store: CheckpointStore) -> Checkpoint | None:
    """The published copy of this service, as the store has it."""
    kept = await store.read(instance_of(settings))
    return None if kept is None else kept.checkpoint
