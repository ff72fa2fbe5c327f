"""Addresses to listen on, and who reaches them."""

import ipaddress


def is_loopback(address: str) -> bool:
    """Whether `host:port` is on the loopback interface. Raises ValueError for no address."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not an address; write host:port, as 127.0.0.1:50051")
    name = host.strip("[]")
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
