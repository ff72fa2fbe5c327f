"""Whether a Zero custom backend can be captured, and what to do where it cannot."""

import asyncio

from penstock.checks import Check, Level
from penstock.sources.zero.config import ZeroSourceConfig
from penstock.sources.zero.failures import unavailable


async def doctor(
    name: str,
    config: ZeroSourceConfig,
    *,
    position: str | None = None,  # noqa: ARG001 - only a stream tells whether it is still held
) -> list[Check]:
    """Whether the server takes connections, with TLS where the URL says so.

    No stream is asked for: the server would end the one of the capture that runs. Raises nothing
    for a server that is away: that is a check that is not ok.
    """
    host, port = config.place
    try:
        async with asyncio.timeout(config.connect_timeout):
            _, writer = await asyncio.open_connection(host, port, ssl=config.has_tls or None)
    except OSError as error:
        return [Check.failed("connection", unavailable(name, config, error))]
    writer.close()
    detail = f"{host}:{port} takes connections; capture sees whether it is a custom backend"
    return [Check(name="connection", level=Level.OK, detail=detail)]
