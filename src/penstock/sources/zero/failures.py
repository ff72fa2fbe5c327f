"""What is said of a server that is not reached."""

from websockets.proxy import get_proxy
from websockets.uri import parse_uri

from penstock.causes import unreached
from penstock.errors import SourceUnavailableError
from penstock.proxies import is_here, shown
from penstock.sources.zero.config import ZeroSourceConfig


def unavailable(name: str, config: ZeroSourceConfig, error: Exception) -> SourceUnavailableError:
    """Of an error of the connection, whose own text may have the URL and is not repeated."""
    host, port = config.place
    proxy = (
        None if is_here(host) else get_proxy(parse_uri(config.address(watermark=None, replica="")))
    )
    found = None if proxy else unreached(host, port, error)
    why = found.what if found else f"{host}:{port} does not answer ({type(error).__name__})"
    remedy = found.remedy if found else "See that the server is well, and that url is its own."
    if proxy:
        why += f" through the proxy {shown(proxy)}, which the environment names"
        remedy = "See that the proxy is well, or have no_proxy name the host."
    return SourceUnavailableError(
        f"{name}: {why}. Nothing was skipped; capture goes on from its durable position once it "
        f"can be reached. {remedy}"
    )
