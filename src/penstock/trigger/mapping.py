"""A trigger: the shards of a stream, those side by side that may be, until it is told to stop."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from penstock.clocks import SystemClock, Trust
from penstock.errors import (
    ConfigError,
    TriggerStreamChangedError,
    TriggerStreamEndedError,
    TriggerStreamGoneError,
    TriggerTrimmedError,
)
from penstock.trigger.arns import read_arn
from penstock.trigger.aws import BY_SERVICE
from penstock.trigger.checkpoints import Checkpoints, locked
from penstock.trigger.clients import connect
from penstock.trigger.config import DISCARD, TriggerConfig
from penstock.trigger.destinations import Deliver, to_command, to_file, to_function
from penstock.trigger.environments import Environments
from penstock.trigger.handling import Handler
from penstock.trigger.latest import newest_place
from penstock.trigger.lineage import Place, Plan, Shard, begin, from_horizon, go_on, has_ended
from penstock.trigger.patterns import parse_pattern
from penstock.trigger.shard import ShardReader
from penstock.trigger.streams import (
    Described,
    StoppedError,
    Streams,
    label_of,
    stopped_within,
    table_of,
)

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 30.0
"""How often the stream's shards are looked at while those that are known go on."""

Tell = Callable[[dict[str, Any]], None]


async def run_trigger(
    config: TriggerConfig, *, stop: asyncio.Event, tell: Tell | None = None
) -> Counter[str]:
    """Give a stream's records to the function in batches, until `stop` is set.

    A batch under way is finished first. Returns what was counted: `calls`, `failed_calls`, and
    records `handled`, `filtered`, `set_aside`, `discarded`; `trimmed` is how often retention was
    faster and it was configured to go on. `tell` hears `{"event": "ready", ...}` once the function
    is loaded and the place where it begins is durable.

    Every record is handled at least once, in order for each item, whenever the process dies. Raises
    TriggerError and ConfigError; the checkpoint then stands behind what was handled, and a trigger
    that is started again goes on there.
    """
    folder = config.state / config.name
    async with AsyncExitStack() as stack:
        lock = stack.enter_context(locked(folder, name=config.name))
        checkpoints = Checkpoints(folder)
        streams = await stack.enter_async_context(Streams(config, stop=stop))
        trigger = _Trigger(config, checkpoints, streams, stop, tell)
        heeding = asyncio.create_task(trigger.heed())
        try:
            stream = await trigger.find()
            await trigger.prepare(stack, stream, lock)
            await trigger.run(stream)
        except StoppedError:
            pass
        finally:
            heeding.cancel()
        log.info("the trigger has stopped", **trigger.counts)
        return trigger.counts


class _Trigger:
    """What runs one trigger, once it is locked."""

    def __init__(
        self,
        config: TriggerConfig,
        checkpoints: Checkpoints,
        streams: Streams,
        stop: asyncio.Event,
        tell: Tell | None,
    ) -> None:
        self._config, self._checkpoints, self._streams = config, checkpoints, streams
        self._stop, self._tell = stop, tell
        self._iterators = dict[str, str]()
        """Where shards begin that begin at LATEST."""
        self._abort = asyncio.Event()
        """Set with `stop`, and when a shard has failed: the others finish what is under way."""
        self._filters = [parse_pattern(text) for text in config.filters]
        self._environments: Environments | None = None
        self._deliver: Deliver | None = None
        self.counts: Counter[str] = Counter()
        self._trust = Trust(SystemClock())

    async def heed(self) -> None:
        """Pass on that the trigger is to stop."""
        await self._stop.wait()
        self._abort.set()

    async def find(self) -> str:
        """The stream to read: that of the checkpoint, else the one that is named.

        Raises TriggerStreamGoneError, and TriggerStreamChangedError for another than was named.
        """
        config, kept = self._config, self._checkpoints.stream
        if kept is None:
            if config.stream is not None:
                return config.stream
            found = await self._streams.of_table(config.table or "")
            if not found:
                raise TriggerStreamGoneError(what=f"a stream of the table {config.table}")
            return found[-1]
        named = table_of(config.stream or f":table/{config.table}")
        # One that follows has left the stream that it was started with, but not the table.
        is_same = config.on_stream_end == "follow" or config.stream in {None, kept}
        if table_of(kept) != named or not is_same:
            raise TriggerStreamChangedError(
                name=config.name, expected=kept, found=config.stream or str(config.table)
            )
        return kept

    async def prepare(self, stack: AsyncExitStack, stream: str, lock: int) -> None:
        """Open the destination, and load the function."""
        config = self._config
        processes = partial(
            Environments,
            name=config.name,
            arn=function_arn(stream, config.name),
            timeout_seconds=config.timeout,
            lock=lock,
            stop=self._abort,
        )
        kind, _, target = (config.on_failure or DISCARD).partition(":")
        match kind:
            case "file":
                self._deliver = to_file(Path(target))
            case "exec":
                self._deliver = to_command(target, timeout_seconds=config.timeout)
            case "call":
                keeper = await stack.enter_async_context(processes(target, count_max=1))
                self._deliver = to_function(keeper)
            case "arn":
                resource = read_arn(f"{kind}:{target}")
                client = connect(
                    resource.service,
                    region=resource.region or config.region,
                    endpoint=config.on_failure_endpoint,
                    option="--on-failure-endpoint",
                )
                stack.callback(client.close)
                self._deliver = BY_SERVICE[resource.service](client, resource)
            case _:
                self._deliver = None
        self._environments = await stack.enter_async_context(
            processes(config.function, count_max=config.environments_max)
        )

    async def run(self, stream: str) -> None:
        """Read the stream, and with on_stream_end = follow those of the table that come after."""
        while True:
            described = await self._read(stream)
            if described is None:
                return
            if self._config.on_stream_end == "halt":
                raise TriggerStreamEndedError(stream=stream)
            log.warning(
                "the stream has ended, and all of it was handled; waiting for another. What is "
                "changed without a stream is in none",
                stream=stream,
            )
            stream = await self._next(stream, described.table)
            await self._checkpoints.put_all(stream, {})
            log.warning("going on with the table's new stream, from its beginning", stream=stream)

    async def _next(self, ended: str, table: str) -> str:
        """The table's stream after the one that ended: the first, for it may have ended too, and
        what it holds is in no other. Raises StoppedError."""
        while True:
            for found in await self._streams.of_table(table or table_of(ended)):
                if label_of(found) > label_of(ended):
                    return found
            if await stopped_within(self._stop, self._config.retry_delay_max):
                raise StoppedError

    def _refuse_impossible(self, stream: str, view: str) -> None:
        """Raise ConfigError for a filter that no record of a stream of that view matches."""
        for text in self._config.filters:
            try:
                parse_pattern(text, view=view)
            except ValueError as error:
                raise ConfigError(
                    f"a filter matches no record of {stream}: {error}. Nothing was read from it."
                ) from None

    async def _read(self, stream: str) -> Described | None:
        """Read a stream to its end; None if stopped before. Raises what a shard's reader raises."""
        running = dict[str, asyncio.Task[None]]()
        stopping = asyncio.create_task(self._abort.wait())
        try:
            while not self._abort.is_set():
                # A shard's reader may end meanwhile, with children that a description from before
                # does not have: they would be taken for missing.
                places = dict(self._checkpoints.places)
                described = await self._streams.describe(stream)
                self._refuse_impossible(stream, described.view)
                await self._plan(stream, described, places, running)
                is_handled = has_ended(described.shards, self._checkpoints.places)
                if not running and not described.is_enabled and is_handled:
                    return described
                await self._wait(running, stopping)
        except StoppedError:
            pass
        finally:
            if running:
                self._abort.set()
            stopping.cancel()
            # Each finishes its batch; what one of them raises is raised here, too, if nothing was.
            ended = await asyncio.gather(*running.values(), return_exceptions=True)
        failures = [one for one in ended if isinstance(one, Exception)]
        if failures:
            raise failures[0]
        return None

    async def _plan(
        self,
        stream: str,
        described: Described,
        places: dict[str, Place],
        running: dict[str, asyncio.Task[None]],
    ) -> None:
        """Begin what may be begun, once that is durable; `places` are those before `described`."""
        checkpoints = self._checkpoints
        shards = described.shards
        if checkpoints.stream is None:
            plan = begin(shards, _start(self._config))
        else:
            # Without places it is a stream that follows another: all of it is to be handled.
            plan = go_on(shards, places, running=running)
        if plan.missing:
            plan = self._without_missing(described, plan)
        if not plan.places:
            return  # a stream that is being enabled has no shards yet
        by_id = {shard.id: shard for shard in shards}
        plan = await self._pinned(stream, plan, by_id)
        if checkpoints.stream != stream or plan.places != checkpoints.places:
            await checkpoints.put_all(stream, plan.places, moving=running)
        if self._tell is not None:
            self._tell({"event": "ready", "name": self._config.name, "stream": stream})
            self._tell = None
        for name in plan.ready():
            shard = by_id.get(name)
            if shard is None and plan.places[name].window is not None:
                shard = Shard(name, None, "", is_closed=True)  # gone, but for its window's end
            if name not in running and shard is not None:
                running[name] = asyncio.create_task(self._reader(stream, shard).run())

    async def _pinned(self, stream: str, plan: Plan, by_id: dict[str, Shard]) -> Plan:
        """LATEST is somewhere else after a crash, so what is kept is where it is now."""
        places = dict(plan.places)
        for shard, place in places.items():
            if place.kind == "LATEST" and not place.done:
                self._iterators[shard], _ = await self._streams.iterator(stream, shard, place)
                places[shard] = await newest_place(self._streams, stream, by_id[shard])
        return plan._replace(places=places)

    def _without_missing(self, described: Described, plan: Plan) -> Plan:
        if self._config.on_trimmed == "halt":
            raise TriggerTrimmedError(shard=plan.missing[0])
        self.counts["trimmed"] += len(plan.missing)
        log.error(
            "shards were removed before they were handled; going on with the oldest that is left",
            shards=list(plan.missing),
        )
        return from_horizon(described.shards, plan)

    async def _wait(
        self, running: dict[str, asyncio.Task[None]], stopping: "asyncio.Task[Any]"
    ) -> None:
        """Wait until a shard has ended, the trigger is to stop, or it is time to look again.

        Raises what a shard's reader raised.
        """
        seconds = LOOK_SECONDS if running else self._config.poll_interval
        await asyncio.wait(
            {stopping, *running.values()},
            timeout=seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        for shard, task in list(running.items()):
            if task.done():
                del running[shard]
                task.result()

    def _reader(self, stream: str, shard: Shard) -> ShardReader:
        assert self._environments is not None
        handler = Handler(
            self._config,
            self._environments,
            self._deliver,
            stream=stream,
            arn=function_arn(stream, self._config.name),
            stop=self._abort,
            counts=self.counts,
            trust=self._trust,
        )
        return ShardReader(
            shard,
            config=self._config,
            streams=self._streams,
            checkpoints=self._checkpoints,
            handle=partial(handler.handle, shard.id),
            filters=self._filters,
            stop=self._abort,
            counts=self.counts,
            iterator=self._iterators.pop(shard.id, None),
        )


def function_arn(stream: str, name: str) -> str:
    """What a function's ARN would be, in the region and the account of a stream."""
    parts = (*stream.split(":"), *[""] * 5)
    return f"arn:aws:lambda:{parts[3]}:{parts[4]}:function:{name}"


def _start(config: TriggerConfig) -> Place:
    at = config.starting_position_timestamp
    return Place(config.starting_position, _seconds(at) if at is not None else "")


def _seconds(at: datetime) -> str:
    return f"{at.timestamp():.3f}".rstrip("0").rstrip(".")
