"""A trigger beside a served store, and what it called."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.trigger.config import TriggerConfig
from penstock.trigger.mapping import run_trigger
from tests.serve.dynamodb.support import Clients
from tests.trigger.functions import BAD, CALLS
from tests.waiting import until

FUNCTIONS = "tests.trigger.functions"


class Calls:
    """What functions wrote down."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.path = folder / "calls.jsonl"
        self.path.touch()
        self._bad = folder / "bad"
        patch.setenv(CALLS, str(self.path))
        patch.setenv(BAD, str(self._bad))
        # In the processes that run functions, too.
        patch.setenv("PYTHONWARNINGS", "error")
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    def all(self) -> list[Any]:
        # The last may be on its way.
        lines = self.path.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines]

    def batches(self) -> list[list[str]]:
        """The items of each call."""
        return [call["items"] for call in self.all() if "items" in call]

    def items(self) -> list[str]:
        """The items of all calls, one behind the other."""
        return [item for batch in self.batches() for item in batch]

    def spoil(self, *items: str) -> None:
        """From now on these fail; without any, none."""
        self._bad.with_suffix(".new").write_text(" ".join(items))
        self._bad.with_suffix(".new").replace(self._bad)


def configured(everything: Clients, folder: Path, **settings: Any) -> TriggerConfig:
    """A configuration with short pauses."""
    told: dict[str, Any] = {
        "function": f"{FUNCTIONS}:handle",
        "name": "t",
        "state": folder / "state",
        "endpoint": f"http://{everything.address}",
        "poll_interval": 0.01,
        "retry_delay": 0.01,
        "retry_delay_max": 0.02,
        **settings,
    }
    if function := told["function"]:
        told["function"] = function if ":" in function else f"{FUNCTIONS}:{function}"
    return TriggerConfig.model_validate(told)


class Running:
    """A trigger that runs."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()
        self.task: asyncio.Task[Counter[str]] | None = None

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until it is so; raises what the trigger raises meanwhile."""
        assert self.task is not None
        await until(condition, task=self.task)

    async def end(self) -> Counter[str]:
        """Stop it; what it counted."""
        assert self.task is not None
        self.stop.set()
        return await self.task


@asynccontextmanager
async def running(config: TriggerConfig) -> AsyncGenerator[Running]:
    """A trigger inside the block; it is ready, and stopped at the end."""
    one = Running()

    def tell(fact: dict[str, Any]) -> None:
        assert fact["event"] == "ready"
        one.ready.set()

    one.task = asyncio.create_task(run_trigger(config, stop=one.stop, tell=tell))
    try:
        await one.until(one.ready.is_set)
        yield one
    finally:
        one.stop.set()
        await asyncio.wait({one.task})
    one.task.result()


def put(table: Any, items: list[str]) -> None:
    """Write items, as k=3, one after the other."""
    for item in items:
        key, _, value = item.partition("=")
        table.put_item(Item={"id": key, "v": int(value)})
