"""Nobody who was accepted is forgotten as a server is closed."""

import asyncio
import gc
import socket
from typing import Any

import pytest

from penstock.accepting import stop_accepting


class _Greeting(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        transport.write(b"welcome")
        transport.close()


@pytest.mark.parametrize("rounds", range(6))
async def test_who_was_accepted_is_served_or_hung_up_on(rounds: int) -> None:
    """However far the loop is with it when the server is closed."""
    loop, failures = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, facts: failures.append(facts))
    server = await loop.create_server(_Greeting, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        client.settimeout(60)
        for _ in range(rounds):
            await asyncio.sleep(0)
        await stop_accepting(server)
        server.close()
        try:
            assert await asyncio.to_thread(client.recv, 100) in {b"welcome", b""}
        except ConnectionResetError:
            assert rounds < 3, "it was not accepted yet"
    gc.collect()
    await asyncio.sleep(0)
    assert failures == []
