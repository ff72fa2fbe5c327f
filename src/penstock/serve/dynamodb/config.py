"""What bounds the DynamoDB endpoints, and the names under which they tell of themselves."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, SecretStr, model_validator

from penstock.config import Bytes, Config, Seconds
from penstock.serve.addresses import is_loopback

DAY_SECONDS: Final = 86_400
ViewType = Literal["KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES"]
Origin = Annotated[str, Field(pattern=r"^https?://[^/*\s]+$")]
VIEWS: Final[tuple[ViewType, ...]] = ("KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")


class EndpointConfig(Config):
    """What holds for both endpoints."""

    address: str = Field(description="host:port to listen on; port 0 takes a free one.")
    region: str = Field(
        default="us-east-1",
        pattern="[a-z]{2}(-[a-z]+)+-[0-9]",
        description="The region in ARNs and records. Another one makes other ARNs.",
    )
    account: str = Field(
        default="000000000000", pattern="[0-9]{12}", description="The account in ARNs."
    )
    iterator_seconds: Seconds = Field(
        default=900, gt=0, le=DAY_SECONDS, description="How long a shard iterator may be used."
    )
    connections_max: int = Field(
        default=256,
        gt=0,
        le=10_000,
        description="Connections that are answered at once; one more is told 503.",
    )
    request_bytes_max: Bytes = Field(
        default=16 << 20,
        ge=1 << 10,
        le=1 << 28,
        description="A request's body; a larger one is refused with 413.",
    )
    reader_threads: int = Field(
        default=4, gt=0, le=256, description="Threads that answer what only reads."
    )
    shard_age: Seconds = Field(
        default=4 * 3600, gt=0, description="A shard that is so old is closed, and has a child."
    )
    shard_bytes: Bytes = Field(
        default=128 << 20, ge=1 << 10, description="A shard that holds so much is closed."
    )
    origins: tuple[Origin, ...] = Field(
        default=(),
        description="Origins whose pages a browser lets ask, as https://app.example.com (CORS). "
        "Where no key is asked for, they may do everything.",
    )


class DynamoConfig(EndpointConfig):
    """Serve a store by DynamoDB's protocol."""

    keys: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Access key ids with their secret keys. Requests signed with none of them are "
        "refused. Without any, every request is served, and only on loopback.",
    )
    stream_retention: Seconds = Field(
        default=DAY_SECONDS,
        gt=0,
        description="How long records are kept of streams enabled from here.",
    )

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        refuse_unguarded(self.address, guarded=bool(self.keys))
        return self


class CapturedConfig(EndpointConfig):
    """Serve what is captured as DynamoDB Streams."""

    credentials: Path | None = Field(
        default=None,
        description="An AWS credentials file: requests signed with none of its keys are refused. "
        "Without it every request is served, and only on loopback.",
    )
    view: Literal["best"] | ViewType = Field(
        default="best",
        description="What records hold beside the keys. `best`: both images where every change has "
        "them, else the new one, else none. What a change cannot give is refused, never made up.",
    )
    views: dict[str, Literal["best"] | ViewType] = Field(
        default_factory=dict,
        description="The view of single tables, by their names (`SOURCE.DATABASE.COLLECTION`).",
    )
    request_bytes_max: Bytes = Field(
        # It is read before it is known who sent it, and none of these operations needs more.
        default=64 << 10,
        ge=1 << 10,
        le=1 << 28,
        description="A request's body; a larger one is refused with 413.",
    )
    scan_bytes: Bytes = Field(
        default=16 << 20,
        ge=1 << 20,
        description="How much of the log one GetRecords looks through.",
    )

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        refuse_unguarded(self.address, guarded=self.credentials is not None)
        return self


def refuse_unguarded(address: str, *, guarded: bool) -> None:
    """Raise ValueError for an address that others reach while nobody says who they are."""
    if not is_loopback(address) and not guarded:
        raise ValueError(
            f"{address!r} is reachable from other machines, and no key says who may "
            f"connect. Give access keys, or bind to 127.0.0.1."
        )
