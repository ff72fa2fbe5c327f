"""Addresses to listen on, and who reaches them."""

from penstock.errors import ConfigError
from penstock.proxies import is_here


def is_loopback(address: str) -> bool:
    """Whether `host:port` is on the loopback interface. Raises ValueError for no address."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not an address; write host:port, as 127.0.0.1:50051")
    return is_here(host)


def refuse_open(setting: str, address: str, *, tls: bool, guarded: bool) -> None:
    """Raise ConfigError for an address that others reach without TLS, or without saying who they
    are."""
    if is_loopback(address) or (tls and guarded):
        return
    raise ConfigError(
        f"serve.{setting}: {address!r} is reachable from other machines, and that takes both TLS "
        f"([serve.tls]) and access tokens ([access], required). Nothing was started. Give both, or "
        f"bind to 127.0.0.1."
    )
