"""What the serve process listens on, and its limits."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from penstock.config import Bytes, Config, Seconds
from penstock.serve.addresses import is_loopback
from penstock.serve.dynamodb.config import CapturedConfig


def _loopback(address: str) -> str:
    """`host:port` on the loopback interface. Raises ValueError for anything else."""
    if not is_loopback(address):
        raise ValueError(
            f"{address!r} is reachable from other machines, and this version has neither TLS nor "
            f"access tokens to guard it. Bind to 127.0.0.1 and put a TLS proxy or an SSH tunnel "
            f"that checks who connects in front of it."
        )
    return address


LoopbackAddress = Annotated[str, AfterValidator(_loopback)]
"""`host:port` on the loopback interface; port 0 takes a free one."""


def _path(path: str) -> str:
    """A path of a URL. Raises ValueError for anything else."""
    if re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path) is None:
        raise ValueError(f"{path!r} is not a path; write one as /health")
    return path


UrlPath = Annotated[str, AfterValidator(_path)]


class ServeConfig(Config):
    """Serve the log to readers. All limits hold for each reader, but `max_connections`."""

    grpc: LoopbackAddress = Field(
        default="127.0.0.1:50051", description="Address of the gRPC service."
    )
    flight: LoopbackAddress = Field(
        default="127.0.0.1:50052", description="Address of the Arrow Flight service."
    )
    http: Literal["off"] | LoopbackAddress = Field(
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
        if len(set(paths)) < len(paths):
            raise ValueError("health_path, ready_path and metrics_path must differ")
        return self
