"""What bounds a store's server."""

from pydantic import Field

from penstock.config import Config


class ServerConfig(Config):
    """Each limit has an outcome: a client that meets one is told which, and nobody else notices."""

    connections_max: int = Field(
        default=256,
        gt=0,
        le=10_000,
        description="Connections at once, of which a client has up to 60; one more is refused with "
        "ServerBusy.",
    )
    request_bytes_max: int = Field(
        default=16 << 20,
        ge=1 << 10,
        le=1 << 30,
        description="A request's line; a longer one is refused with RequestTooLarge. 25 items of "
        "the largest size fit into the default.",
    )
    outbox_bytes_max: int = Field(
        default=1 << 20,
        ge=1,
        le=1 << 30,
        description="What waits to be read by one client. Full: its subscription waits, and reads "
        "on from the store.",
    )
    transaction_seconds_max: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="How long a client may hold a transaction open; then it is undone. Other "
        "writers wait meanwhile.",
    )
    stop_seconds_max: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="How long a stop waits for answers under way and open transactions.",
    )
