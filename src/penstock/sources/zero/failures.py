"""What is said of a server that is not reached."""

from penstock.causes import unreached
from penstock.errors import SourceUnavailableError
from penstock.sources.zero.config import ZeroSourceConfig


def unavailable(name: str, config: ZeroSourceConfig, error: Exception) -> SourceUnavailableError:
    """Of an error of the connection, whose own text may have the URL and is not repeated."""
    host, port = config.place
    found = unreached(host, port, error)
    why = found.what if found else f"{host}:{port} does not answer ({type(error).__name__})"
    remedy = found.remedy if found else "See that the server is well, and that url is its own."
    return SourceUnavailableError(
        f"{name}: {why}. Nothing was skipped; capture goes on from its durable position once it "
        f"can be reached. {remedy}"
    )
