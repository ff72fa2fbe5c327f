"""What the serve process listens on, and its limits."""

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, Field

from penstock.config import Bytes, Config, Seconds


def _loopback(address: str) -> str:
    """`host:port` on the loopback interface. Raises ValueError for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not an address; write host:port, as 127.0.0.1:50051")
    name = host.strip("[]")
    try:
        loopback = name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            f"{address!r} is reachable from other machines, and this version has neither TLS nor "
            f"access tokens to guard it. Bind to 127.0.0.1 and put a TLS proxy or an SSH tunnel "
            f"that checks who connects in front of it."
        )
    return address


LoopbackAddress = Annotated[str, AfterValidator(_loopback)]
"""`host:port` on the loopback interface; port 0 takes a free one."""


class ServeConfig(Config):
    """Serve the log to readers. All limits hold for each reader, but `max_connections`."""

    grpc: LoopbackAddress = Field(
        default="127.0.0.1:50051", description="Address of the gRPC service."
    )
    flight: LoopbackAddress = Field(
        default="127.0.0.1:50052", description="Address of the Arrow Flight service."
    )
    max_connections: int = Field(
        default=100,
        gt=0,
        le=10_000,
        description="gRPC readers served at once; one more is refused.",
    )
    heartbeat_interval: Seconds = Field(
        default=30.0,
        ge=0,
        description=(
            "Send a reader its progress after this long without an event for it. 0 sends none: "
            "then a reader whose filter matches nothing keeps an old marker, which retention "
            "may overtake."
        ),
    )
    batch_events_max: int = Field(
        default=500, gt=0, le=10_000, description="Events in one message of SubscribeBatch."
    )
    batch_bytes_max: Bytes = Field(
        default=1 << 20,
        gt=0,
        le=3 << 20,
        description=(
            "Bytes in one message of SubscribeBatch; a larger event is a message of its own. "
            "gRPC clients refuse more than 4 MiB by default."
        ),
    )
    outbox_bytes_max: Bytes = Field(
        default=1 << 20,
        gt=0,
        le=1 << 30,
        description=(
            "What is read from the log at once for one reader. A slow reader holds this much "
            "memory, and at least one block of the log."
        ),
    )
