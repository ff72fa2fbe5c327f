"""Proxies that the environment names (http_proxy, https_proxy, ...): they are the way to addresses
that are elsewhere. What is on this machine is reached without one."""

import ipaddress
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

_OF_THE_WEB: Final = tuple(
    name for one in ("https_proxy", "http_proxy", "all_proxy") for name in (one, one.upper())
)
_OPTION: Final = re.compile(r"((aws|azure|azure_storage)_)?endpoint(_url)?(_s3)?", re.IGNORECASE)
"""What object_store, the library of delta-rs, calls a store's address among its options,"""
_VARIABLE: Final = re.compile(r"(AWS|AZURE|AZURE_STORAGE)_ENDPOINT(_URL)?(_S3)?")
"""and in the environment."""


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


def for_delta(options: Mapping[str, str]) -> dict[str, str]:
    """Storage options of delta-rs with which it asks no proxy of the environment for an object
    store on this machine. It has no word for none: one is named, and the store left out of it."""
    proxy = _first(*_OF_THE_WEB)
    own = {"proxy_url", "proxy_excludes"}.intersection(name.lower() for name in options)
    if not proxy or own:
        return dict(options)
    said = _hosts(options, _OPTION) or _hosts(os.environ, _VARIABLE)
    hosts = [host for host in said if is_here(host)]
    if not hosts:
        return dict(options)
    without = [*hosts, _first("no_proxy", "NO_PROXY")]
    return {**options, "proxy_url": proxy, "proxy_excludes": ",".join(filter(None, without))}


def _hosts(said: Mapping[str, str], names: re.Pattern[str]) -> list[str]:
    """The hosts of the addresses that are said under these names; what is none has none."""
    hosts: list[str] = []
    for name, address in said.items():
        with suppress(ValueError):
            if names.fullmatch(name) and (host := urlsplit(address).hostname):
                hosts.append(host)
    return hosts


def _first(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


def shown(proxy: str) -> str:
    """A proxy's URL without the user and password that it may have."""
    parts = urlsplit(proxy)
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname or ''}{port}"
