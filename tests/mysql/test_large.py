"""A transaction of any size is captured in bounded memory."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mysql.support import run
from tests_support.servers import MariaDbServer

Start = Callable[..., MariaDbServer]
_ROOT = Path(__file__).parent.parent.parent
_CAPTURE = """
import asyncio
import json
import sys
from pathlib import Path

from penstock.capture.pump import pump
from penstock.log import LmdbLog
from penstock.log.config import LogConfig
from penstock.sources.mysql import MysqlSource, MysqlSourceConfig

def anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError

async def main(port: int, path: str, rows: int) -> None:
    options = {"user": "root", "start": "beginning", "include": ["d.*"]}
    config = MysqlSourceConfig.model_validate({"port": port, **options})
    peak, heads = 0, set()
    settings = LogConfig(path=Path(path), free_bytes_min=0, retention_bytes=None)
    async with LmdbLog(settings) as log:
        pumping = asyncio.ensure_future(pump(MysqlSource("db", config), log))
        head = 0
        while head < rows:
            await asyncio.wait({pumping}, timeout=0.02)
            if pumping.done():
                pumping.result()
            peak = max(peak, anonymous())
            head = (await log.bounds()).head
            heads.add(head)
        pumping.cancel()
        await asyncio.gather(pumping, return_exceptions=True)
        after = told = 0
        while blocks := await log.read(after=after):
            after = blocks[-1].last_sequence
            told += sum(block.stop - block.start for block in blocks)
            peak = max(peak, anonymous())
    print(json.dumps({"peak": peak, "heads": sorted(heads), "told": told}))

asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
"""


async def captured(server: MariaDbServer, path: Path, rows: int) -> dict[str, Any]:
    """How one transaction of so many rows came into a log: the most anonymous memory that it took,
    the ends of the log that were seen meanwhile, and how many entries it has."""
    with server.connect() as db:
        run(
            db,
            "DROP DATABASE IF EXISTS d",
            "RESET MASTER",
            "CREATE DATABASE d",
            "CREATE TABLE d.a (id INT PRIMARY KEY, n BIGINT, t VARCHAR(200)) ENGINE = MyISAM",
            # One transaction in the binlog, and no undo to wait for.
            f"INSERT INTO d.a SELECT seq, seq * 7, REPEAT('x', 100) FROM d.seq_1_to_{rows}",
        )
    said = await asyncio.to_thread(
        subprocess.check_output,
        [sys.executable, "-c", _CAPTURE, str(server.port), str(path), str(rows)],
        cwd=_ROOT,
        text=True,
    )
    outcome: dict[str, Any] = json.loads(said)
    # The table and its columns are told with it or before it.
    assert outcome["told"] == rows + 2
    assert set(outcome["heads"]) <= {0, 1, rows + 2}, "visible whole, or not at all"
    return outcome


@pytest.mark.slow
async def test_a_large_transaction_takes_no_more_memory_than_a_small_one(
    start_mariadb: Start, tmp_path: Path
) -> None:
    """S14, invariant 3."""
    server = start_mariadb()
    small = await captured(server, tmp_path / "small", 100_000)
    large = await captured(server, tmp_path / "large", 300_000)
    print(f"{small['peak'] >> 20} MB, {large['peak'] >> 20} MB")
    assert large["peak"] < 256 << 20
    assert large["peak"] - small["peak"] < 64 << 20


@pytest.mark.soak
async def test_five_million_rows_in_one_transaction_stay_under_512_mb(
    start_mariadb: Start, tmp_path: Path
) -> None:
    """S14."""
    outcome = await captured(start_mariadb(), tmp_path / "log", 5_000_000)
    assert outcome["peak"] < 512_000_000, f"{outcome['peak'] >> 20} MiB"
