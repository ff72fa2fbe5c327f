"""What the serve process listens on, and its limits."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from penstock.config import Bytes, Config, Seconds
from penstock.serve.access.config import TlsConfig
from penstock.serve.addresses import is_loopback
from penstock.serve.captures.config import CapturesConfig
from penstock.serve.dynamodb.config import CapturedConfig
from penstock.serve.zero.config import ZeroConfig


def _address(address: str) -> str:
    """`host:port`. Raises ValueError for anything else."""
    is_loopback(address)
    return address


Address = Annotated[str, AfterValidator(_address)]
"""`host:port`; port 0 takes a free one. One that others reach needs TLS and access tokens."""


def _path(path: str) -> str:
    """A path of a URL. Raises ValueError for anything else."""
    if re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path) is None:
        raise ValueError(f"{path!r} is not a path; write one as /health")
    return path


UrlPath = Annotated[str, AfterValidator(_path)]


class HoldingConfig(Config):
    """What the log keeps for pipelines, whatever retention says."""

    hold: Seconds = Field(
        default=7 * 86_400.0,
        ge=0,
        description="How long the log keeps what follows the place of a pipeline whose driver says "
        "nothing more; 0: not at all.",
    )
    hold_bytes: Bytes = Field(
        default=1 << 30,
        ge=0,
        description="But only while the log takes at most so much more than retention_bytes, and "
        "never more than a quarter of that.",
    )


class ConnectionsConfig(Config):
    """How many connections each port has. Hold from a restart."""

    in_all: int = Field(
        default=1024,
        gt=0,
        le=100_000,
        description="Connections of one port; one more is closed. gRPC and Flight take three open "
        "files for each, and fewer connections where this process may not open so many.",
    )
    of_one_address: int = Field(
        default=512,
        gt=0,
        le=100_000,
        description="Of one address, and over IPv6 of one network of 64 bits.",
    )
    waiting: int = Field(
        default=256,
        gt=0,
        le=100_000,
        description="Over gRPC and Flight, connections without a call that was let in; the oldest "
        "is closed for one more. Of one address a quarter; and each for `request_timeout`.",
    )
    first_bytes: Bytes = Field(
        default=64 << 10,
        ge=4 << 10,
        le=4 << 20,
        description="Over Flight, what a connection may send before a call of it is let in: "
        "compressed, it may be a thousand times as much. Over gRPC 1 MiB more.",
    )


class ServeConfig(Config):
    """Serve the log to readers. All limits hold for each reader, but `max_connections`."""

    grpc: Address = Field(default="127.0.0.1:50051", description="Address of the gRPC service.")
    flight: Address = Field(
        default="127.0.0.1:50052", description="Address of the Arrow Flight service."
    )
    http: Literal["off"] | Address = Field(
        default="127.0.0.1:8080",
        description="Address of health and metrics over HTTP; `off` serves none.",
    )
    dynamodb: CapturedConfig | None = Field(
        default=None,
        description=(
            "DynamoDB Streams of what is captured: an address, or a table of its own; without it, "
            "none."
        ),
    )
    captures: CapturesConfig = Field(
        default=CapturesConfig(),
        description="Capture subscriptions: WebSocket, SSE and REST are at `http`, below /rest.",
    )
    zero: ZeroConfig | None = Field(
        default=None,
        description="Tables for zero-cache, over WebSocket at `http`, below /changes; without it, "
        "none.",
    )
    tls: TlsConfig | None = Field(
        default=None,
        description="A certificate for every protocol; without it, none is encrypted, and all are "
        "on loopback.",
    )
    connections: ConnectionsConfig = Field(
        default_factory=ConnectionsConfig, description="How many connections each port has."
    )
    pipelines: HoldingConfig = Field(
        default_factory=HoldingConfig,
        description="What the log keeps for pipelines that are behind or away.",
    )
    health_path: UrlPath = Field(
        default="/health", description="200 while healthy or degraded, 503 when not; JSON."
    )
    ready_path: UrlPath = Field(
        default="/ready", description="200 once readers are served and capture answers, else 503."
    )
    metrics_path: UrlPath = Field(
        default="/metrics", description="Metrics of both processes, in the format of Prometheus."
    )
    health_lag_max: Seconds = Field(
        default=300.0,
        ge=0,
        description=(
            "A source whose position has not moved for so long is unhealthy; a quiet one moves it "
            "with each heartbeat. 0 sets no limit."
        ),
    )
    request_timeout: Seconds = Field(
        default=10.0,
        gt=0,
        le=3600,
        description=(
            "Over HTTP, a request that is not whole so long after it began, or did not begin, is "
            "answered with 408; over gRPC and Flight, a connection without a call is closed. Holds "
            "from a restart."
        ),
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
    catch_up_threshold: int = Field(
        default=100_000,
        gt=0,
        description=(
            "A gRPC reader that asks for coalescing gets the changes of a document merged while "
            "the log holds more entries than this after its place; at this many or fewer, every "
            "change."
        ),
    )
    coalesce_insert_delete: Literal["delete", "skip"] = Field(
        default="delete",
        description=(
            "What a document is sent as that was inserted and deleted in one window: `delete`, or "
            "nothing with `skip`. Unsafe: a reader that got the insert earlier and did not save "
            "its progress keeps the document for ever."
        ),
    )
    coalesce_window_events: int = Field(
        default=20_000,
        gt=0,
        le=1_000_000,
        description=(
            "Entries of the log in which changes are merged at once. A reader that crashes gets "
            "so many again."
        ),
    )
    coalesce_window_bytes: Bytes = Field(
        default=8 << 20,
        gt=0,
        le=1 << 30,
        description=(
            "Bytes of the log in which changes are merged at once. A slow reader that is so far "
            "behind holds up to twice this in memory."
        ),
    )

    @field_validator("dynamodb", mode="before")
    @classmethod
    def _address_alone(cls, given: Any) -> Any:
        if given == "off":
            return None
        return {"address": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _paths_differ(self) -> Self:
        paths = [self.health_path, self.ready_path, self.metrics_path]
        taken = {"snapshot", "ticket", "rest", "graphql"}
        if len({*paths}) < len(paths) or any(path.split("/")[1] in taken for path in paths):
            raise ValueError(
                "health_path, ready_path and metrics_path must differ, and lie neither at "
                "/snapshot and /ticket nor below /rest and /graphql"
            )
        return self

    def beside(self, folder: Path) -> "ServeConfig":
        """With relative paths of files made relative to `folder`."""
        tls = None if self.tls is None else self.tls.beside(folder)
        zero = None if self.zero is None else self.zero.beside(folder)
        return self.model_copy(update={"tls": tls, "zero": zero})

    @model_validator(mode="after")
    def _encrypted(self) -> Self:
        for address in (self.grpc, self.flight, self.http):
            if address != "off" and self.tls is None and not is_loopback(address):
                raise ValueError(
                    f"{address!r} is reachable from other machines, and that takes both TLS "
                    f"([serve.tls]) and access tokens ([access]). Give both, or bind to 127.0.0.1"
                )
        return self
