"""Invariant 1, where kill -9 cannot show it: what reaches the disk before `append` returns."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import kv
from penstock.event import Commit
from penstock.log import LmdbLog, LogConfig
from penstock.testing.contracts.entries import changes

_ROOT = Path(__file__).parents[2]

_APPENDS = """
import asyncio, os, sys
from pathlib import Path
from penstock.event import Commit
from penstock.log import LmdbLog, LogConfig
from penstock.testing.contracts.entries import changes

async def main() -> None:
    async with LmdbLog(LogConfig(path=Path(sys.argv[1]), free_bytes_min=0)) as log:
        os.write(1, b"opened")
        for number in range(1, 6):
            events = changes("a", str(number), 30, bytes_=5_000)
            await log.append([Commit(source="a", position=str(number), events=events)])
            os.write(1, b"acknowledged")

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("strace") is None and "PENSTOCK_SERVERS_REQUIRED" not in os.environ,
    reason="strace shows the order of system calls; `make servers` installs it",
)
def test_nothing_is_acknowledged_before_it_is_on_the_disk(tmp_path: Path) -> None:
    """P4: pages, fdatasync, the meta page through a descriptor that syncs, and then the answer."""
    trace = tmp_path / "trace"
    calls = "trace=openat,write,pwrite64,pwritev,writev,fdatasync,fsync"
    subprocess.run(
        [
            *("strace", "-f", "-y", "-o", str(trace), "-e", calls),
            *(sys.executable, "-c", _APPENDS, str(tmp_path / "log")),
        ],
        check=True,
        cwd=_ROOT,
        stdout=subprocess.DEVNULL,
    )
    lines = trace.read_text(errors="replace").splitlines()
    syncing = {
        found[1]
        for line in lines
        if "O_DSYNC" in line and (found := re.search(r"= (\d+)<[^>]*/data\.mdb>", line))
    }
    kinds = [kind for line in lines if (kind := _kind(line, syncing))]
    appends = "".join(kinds).partition("O")[2].split("A")
    assert len(appends) == 6
    for append in appends[:5]:
        assert re.fullmatch(r"w+sm", append), f"{append!r}: pages w, sync s, meta page m"


def _kind(line: str, syncing: set[str]) -> str:
    if '"opened"' in line:
        return "O"
    if '"acknowledged"' in line:
        return "A"
    found = re.search(r"(\w+)\((\d+)<[^>]*/data\.mdb>", line)
    if found is None:
        return ""
    call, descriptor = found.groups()
    if call in {"fdatasync", "fsync"}:
        return "s"
    return "m" if descriptor in syncing else "w"


async def test_the_environment_syncs_pages_and_meta_page(tmp_path: Path) -> None:
    async with LmdbLog(LogConfig(path=tmp_path)) as log:
        env = kv.open_env(log.path, create=False)
        assert env.synchronous
        env.close()


async def test_events_and_positions_are_in_one_transaction(tmp_path: Path) -> None:
    """Invariant 2: each append is one LMDB transaction, so that no crash can part the two."""
    async with LmdbLog(LogConfig(path=tmp_path, free_bytes_min=0)) as log:
        env = kv.open_env(log.path, create=False)
        for number in range(1, 6):
            with env.read() as txn:
                before = txn.id()
            await log.append([Commit(source="a", position="1", events=changes("a", "1", number))])
            with env.read() as txn:
                assert txn.id() == before + 1
        env.close()
