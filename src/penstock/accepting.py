"""The end of accepting connections, for whoever closes a server of asyncio."""

import asyncio


async def stop_accepting(server: asyncio.Server) -> None:
    """Let nobody in any more, as `server.close()` does that follows.

    A connection that asyncio has accepted, and not begun to serve when its server is closed, is
    neither served nor closed: beginning fails (`Server._attach` in CPython 3.11's base_events.py),
    and its socket stays open until the collector comes. Once this returns, those that were
    accepted have begun.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    await asyncio.sleep(0)
