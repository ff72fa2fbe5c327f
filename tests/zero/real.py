"""The real zero-cache in tests: started away from the loop, its replica and clients read."""

import asyncio
import json
import shutil
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests import waiting
from tests.children import Child, lines_of
from tests.waiting import patience
from tests_support.servers import ZERO, PostgresServer, ZeroCache

SCRIPTS = Path(__file__).parent / "node"


@asynccontextmanager
async def zero_cache(
    postgres: PostgresServer, upstream: str, *, waits: bool = True, **options: Any
) -> AsyncGenerator[ZeroCache]:
    """A zero-cache with a database of its own, started; up, if it `waits`."""
    database = await asyncio.to_thread(postgres.create, f"zero_{uuid4().hex[:12]}")
    cache = ZeroCache(upstream=upstream, database=database, **options)
    try:
        cache.waits = waits
        await asyncio.to_thread(cache.start)
        yield cache
    finally:
        await asyncio.to_thread(cache.stop)


@asynccontextmanager
async def scripts() -> AsyncGenerator[Path]:
    """The scripts beside the packages that they import."""
    with tempfile.TemporaryDirectory(prefix="penstock-zero-") as folder:
        for script in SCRIPTS.iterdir():
            shutil.copy(script, folder)
        (Path(folder) / "node_modules").symlink_to(ZERO.modules)
        yield Path(folder)


async def replica(cache: ZeroCache, *tables: str) -> dict[str, Any]:
    """The watermark of its replica, and the rows of its tables (none named: all) by name."""
    async with scripts() as folder:
        command = (ZERO.program(), "replica.mjs", cache.replica, *tables)
        found: dict[str, Any] = json.loads("\n".join(await lines_of(*command, cwd=folder)))
    return found


async def replicated(
    cache: ZeroCache, until: Callable[[dict[str, Any]], bool], *tables: str
) -> dict[str, Any]:
    """Its replica, once `until` holds of it."""
    found: dict[str, Any] = {}

    async def there() -> bool:
        nonlocal found
        found = await replica(cache, *tables)
        return until(found)

    await waiting.until(
        there, diagnose=lambda: f"the replica is at {found}\n{cache.process.log_tail()}"
    )
    return found


async def reached(cache: ZeroCache, watermark: str) -> dict[str, Any]:
    """The tables of its replica, once it has this watermark."""
    found = await replicated(cache, lambda found: bool(found["watermark"] >= watermark))
    assert found["watermark"] == watermark
    tables: dict[str, Any] = found["tables"]
    return tables


class RealClient:
    """A Zero client in Node, and what it has said."""

    def __init__(self, child: Child) -> None:
        self._child = child

    async def words(self) -> AsyncIterator[dict[str, Any]]:
        """What it says, as it says it."""
        while line := await asyncio.to_thread(self._child.line):
            yield json.loads(line)

    async def rows(
        self, table: str, until: Callable[[list[dict[str, Any]]], bool]
    ) -> list[dict[str, Any]]:
        """The rows of a table, once `until` holds of them."""
        async with patience():
            async for word in self.words():
                assert "error" not in word, word
                if word["table"] == table and until(word["rows"]):
                    found: list[dict[str, Any]] = word["rows"]
                    return found
        raise AssertionError(f"the client has ended\n{self._child.tail()}")


@asynccontextmanager
async def real_client(
    cache: ZeroCache, tables: dict[str, dict[str, Any]]
) -> AsyncGenerator[RealClient]:
    """A client that follows whole tables: `{"item": {"columns": {"id": "string"}, "key": ["id"]}}`.

    A column is a string, number, boolean or json.
    """
    async with scripts() as folder:
        command = (ZERO.program(), "client.mjs", cache.url, json.dumps(tables))
        with Child(*command, cwd=folder, stdin=PIPE) as child:
            yield RealClient(child)
            child.close_stdin()
            await asyncio.to_thread(child.wait)
