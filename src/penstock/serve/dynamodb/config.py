"""What bounds the DynamoDB endpoint, and the names under which it tells of itself."""

from typing import Self

from pydantic import Field, SecretStr, model_validator

from penstock.config import Bytes, Config, Seconds
from penstock.serve.config import is_loopback
from penstock.store.schema import DAY_SECONDS


class DynamoConfig(Config):
    """Serve a store by DynamoDB's protocol."""

    address: str = Field(description="host:port to listen on; port 0 takes a free one.")
    keys: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Access key ids with their secret keys. Requests signed with none of them are "
        "refused. Without any, every request is served, and only on loopback.",
    )
    region: str = Field(
        default="us-east-1",
        pattern="[a-z]{2}(-[a-z]+)+-[0-9]",
        description="The region in ARNs and records. Another one makes other ARNs.",
    )
    account: str = Field(
        default="000000000000", pattern="[0-9]{12}", description="The account in ARNs."
    )
    stream_retention: Seconds = Field(
        default=DAY_SECONDS,
        gt=0,
        description="How long records are kept of streams enabled from here.",
    )
    iterator_seconds: Seconds = Field(
        default=900, gt=0, le=DAY_SECONDS, description="How long a shard iterator may be used."
    )
    connections_max: int = Field(
        default=256,
        gt=0,
        le=10_000,
        description="Connections at once; one more is answered with 503.",
    )
    request_bytes_max: Bytes = Field(
        default=16 << 20,
        ge=1 << 10,
        le=1 << 28,
        description="A request's body; a larger one is refused with 413.",
    )
    reader_threads: int = Field(default=4, gt=0, le=256, description="Threads that read the store.")

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if not self.keys and not is_loopback(self.address):
            raise ValueError(
                f"{self.address!r} is reachable from other machines, and no key says who may "
                f"connect. Give access keys, or bind to 127.0.0.1."
            )
        return self
