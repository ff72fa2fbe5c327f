"""Initial sync of the endpoint for zero-cache, to a client that only drains its socket.

`python -m bench.zero.run [ROWS]`: rows/s, from the handshake to the commit's last byte. The
client is a process of its own that reads frames and looks at none, so what is measured is ours.
"""

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from penstock.event import Commit
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.serve.access.web import principal_of
from penstock.serve.config import ServeConfig
from penstock.serve.listen import StreamLimits, listen
from penstock.serve.zero.service import ZeroService
from penstock.serve.zero.web import zero_routes
from penstock.state.config import StateConfig
from penstock.state.keeper import StateKeeper
from tests.state.histories import change, copied_whole

TABLES: dict[str, Any] = {
    "item": {
        "source": "shop",
        "collection": "items",
        "columns": {
            "id": {"from": "_id", "type": "int"},
            **{f"text{n}": "text" for n in range(8)},
            **{f"number{n}": "int" for n in range(4)},
            "tags": "json",
        },
        "key": ["id"],
    }
}
_CHUNK = 2_000


def document(key: int) -> dict[str, Any]:
    """One of 14 fields, about 300 bytes."""
    return {
        "_id": key,
        **{f"text{n}": f"value {n} of {key}" for n in range(8)},
        **{f"number{n}": key * n for n in range(4)},
        "tags": ["a", "b"],
    }


async def measure(rows: int) -> None:
    """Fill a log, and time a sync."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        log = LmdbLog(LogConfig(path=path, free_bytes_min=0))
        await log.append(copied_whole("shop"))
        for first in range(0, rows, _CHUNK):
            events = tuple(
                change("shop", "items", key, document=document(key), position=first, ordinal=key)
                for key in range(first, min(rows, first + _CHUNK))
            )
            await log.append([Commit(source="shop", position=str(first), events=events)])
        keeper = StateKeeper(log, path, StateConfig(free_bytes_min=0, interval=0))
        while await asyncio.to_thread(keeper.step):
            pass
        zero = {"tables": TABLES}
        serve = ServeConfig.model_validate({"http": "127.0.0.1:0", "zero": zero})
        assert serve.zero is not None
        async with ZeroService.running(log, keeper, path, serve.zero) as service:
            limits = StreamLimits(
                message_bytes_max=serve.captures.message_bytes_max,
                liveness_seconds=serve.captures.liveness_timeout,
            )
            app = Starlette(routes=zero_routes(service, principal_of))
            async with await listen(
                app, serve.http, connections_max=64, advice="try again", streams=limits
            ) as server:
                for _ in range(3):
                    child = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", "bench.zero.run", "drain", server.address),
                        stdout=subprocess.PIPE,
                    )
                    out, _ = await child.communicate()
                    seconds, size = out.split()
                    print(
                        f"{rows / float(seconds):,.0f} rows/s, "
                        f"{int(size) / float(seconds) / 1e6:,.0f} MB/s"
                    )
        await asyncio.to_thread(keeper.close)
        await log.close()


def drain(address: str) -> None:
    """Read until the snapshot's commit."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        began = time.perf_counter()
        connection.sendall(
            b"GET /changes/v0/stream?appID=bench&shardNum=0 HTTP/1.1\r\nhost: localhost\r\n"
            b"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        size, tail = 0, b""
        while b'["commit",' not in tail:
            taken = connection.recv(1 << 20)
            assert taken
            size += len(taken)
            tail = tail[-32:] + taken
        print(time.perf_counter() - began, size)


if __name__ == "__main__":
    if sys.argv[1:2] == ["drain"]:
        drain(sys.argv[2])
    else:
        asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000))
