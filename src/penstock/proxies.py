"""Proxies that the environment names (http_proxy, https_proxy, ...): they are the way to addresses
that are elsewhere. What is on this machine is reached without one."""

import ipaddress
from urllib.parse import urlsplit


def is_here(host: str) -> bool:
    """Whether a host is this machine by a name or address of loopback."""
    name = host.strip("[]").lower()
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def shown(proxy: str) -> str:
    """A proxy's URL without the user and password that it may have."""
    parts = urlsplit(proxy)
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname or ''}{port}"
