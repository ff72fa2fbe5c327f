"""The examples of docs/how-to/captures.md do what the page says."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.progress import parse_progress
from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.service import CaptureService
from penstock.testing.contracts.capturing import changed, committed, opened_log, singles
from tests.captures.grpc_client import served
from tests.waiting import until

PAGE = Path(__file__).parents[2] / "docs/how-to/captures.md"


def page() -> dict[str, Any]:
    """What the examples define."""
    found: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(example, found)
    return found


async def run(task: "asyncio.Task[None]", done: Callable[[], bool]) -> None:
    """Let an example run until it has done what it should."""
    await until(lambda: done() or task.done())
    if task.done():
        task.result()
    task.cancel()
    await asyncio.wait({task})


async def test_the_python_on_the_page_does_what_the_page_says() -> None:
    examples = page()
    async with (
        opened_log() as log,
        CaptureService(log, CapturesConfig).running() as service,
        served(service) as server,
    ):
        await log.append([committed(changed(1, key=5)), committed(changed(2, key=7))])
        await log.append([committed(changed(3, key=6))])
        seen: list[Any] = []

        def apply(*said: Any) -> None:
            seen.append(said)

        example = asyncio.create_task(examples["follow"](server.address, apply))
        await run(example, lambda: len(seen) == 2)
        assert [(word, key) for word, key, _ in seen] == [
            ("insert", {"_id": 5}),
            ("insert", {"_id": 6}),
        ]

        saved: dict[str, str] = {}
        seen.clear()
        example = asyncio.create_task(examples["follow_on"](server.address, saved, apply))
        await until(lambda: bool(saved) or example.done())
        await log.append(singles(4, 5))
        await run(example, lambda: len(seen) == 2)
        assert parse_progress(saved["orders"]).sequence == 4
        seen.clear()
        example = asyncio.create_task(examples["follow_on"](server.address, saved, apply))
        await run(example, lambda: len(seen) == 1)
        assert seen[0][0].version == 5

        seen.clear()
        running = examples["follow_one_after_the_other"](server.address, apply)
        example = asyncio.create_task(running)
        await until(lambda: service.subscriptions == 1 or example.done())
        await log.append(singles(6, 6))
        while not example.done():
            await log.append(singles(7, 7))
            await asyncio.sleep(0.01)
        example.result()
        assert [ids for ids, _ in seen] == [("live",), ("past",), ("past",)]
        assert [version for _, version in seen[1:]] == [1, 2]
