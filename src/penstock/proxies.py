"""Proxies that the environment names (http_proxy, https_proxy, ...): they are the way to addresses
that are elsewhere. What is on this machine is reached without one."""

import ipaddress
import os
from urllib.parse import urlsplit


def is_here(host: str) -> bool:
    """Whether a host is this machine by a name or address of loopback."""
    name = host.strip("[]").lower()
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def of_grpc(host: str) -> str | None:
    """The proxy through which gRPC reaches a host that is elsewhere, as it may be shown; None for
    none (doc/environment_variables.md of gRPC)."""
    found = _first("grpc_proxy", "https_proxy", "http_proxy")
    without = [one.strip() for one in _first("no_grpc_proxy", "no_proxy").split(",")]
    if not found or is_here(host) or host.endswith(tuple(filter(None, without))):
        return None
    return shown(found)


def _first(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


def shown(proxy: str) -> str:
    """A proxy's URL without the user and password that it may have."""
    parts = urlsplit(proxy)
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname or ''}{port}"
