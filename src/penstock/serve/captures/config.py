"""The limits of capture subscriptions."""

import re

from pydantic import Field, field_validator

from penstock.config import Bytes, Config, Seconds

_SCALARS = "Int|Long|Float|Decimal|String|Boolean|DateTime|ObjectId|Base64|JSON"
_TYPE = re.compile(rf"(?:{_SCALARS})|\[(?:{_SCALARS})\]")


class GraphqlConfig(Config):
    """GraphQL at /graphql. The limits are of each operation."""

    enabled: bool = Field(default=True, description="Serve GraphQL. Holds from a restart.")
    infer_entries: int = Field(
        default=10_000,
        ge=0,
        le=1_000_000,
        description=(
            "Types of collections that [serve.captures.types] does not name are inferred from so "
            "many of the newest changes when /graphql is first asked for. 0 infers none: their "
            "changes are untyped."
        ),
    )
    types_max: int = Field(
        default=50,
        ge=0,
        le=1_000,
        description=(
            "Collections that have types of their own, the configured ones first; changes of "
            "others are untyped. Of a hundred, the schema takes seconds to make."
        ),
    )
    depth_max: int = Field(default=20, gt=0, le=100, description="Levels of a query.")
    tokens_max: int = Field(
        default=2_000, gt=0, le=100_000, description="Words and signs of a query."
    )
    aliases_max: int = Field(default=10, ge=0, le=10_000, description="Aliases in a query.")
    fields_max: int = Field(
        default=500,
        gt=0,
        le=100_000,
        description="Fields that a query selects, those of fragments each time.",
    )


class CapturesConfig(Config):
    """Capture subscriptions: who follows what it asks for, over any of five protocols."""

    enabled: bool = Field(default=True, description="Serve capture subscriptions.")
    subscriptions_max: int = Field(
        default=1_000,
        gt=0,
        le=100_000,
        description="Subscriptions at once, over all protocols; one more is refused.",
    )
    requests_max: int = Field(
        default=100,
        gt=0,
        le=10_000,
        description="Requests of one subscription; one more is refused.",
    )
    maintenance_interval: Seconds = Field(
        default=10.0,
        gt=0,
        le=3600,
        description=(
            "How often a subscription is told what is safe to save, whether or not anything "
            "happened that it wants."
        ),
    )
    init_timeout: Seconds = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="A WebSocket that has not sent connection_init for so long is closed (4408).",
    )
    liveness_timeout: Seconds = Field(
        default=60.0,
        gt=0,
        le=3600,
        description=(
            "A client over HTTP that takes nothing for so long, or a WebSocket that does not "
            "answer a ping, is disconnected; it goes on from what it saved. Holds from a restart."
        ),
    )
    message_bytes_max: Bytes = Field(
        default=1 << 20,
        ge=1 << 10,
        le=16 << 20,
        description="A larger message of a WebSocket closes it (1009). Holds from a restart.",
    )
    messages_per_second: int = Field(
        default=100,
        gt=0,
        le=1_000_000,
        description="Messages of one WebSocket, or commands of one gRPC call, that are read in a "
        "second; more of them wait.",
    )
    page_max: int = Field(
        default=1_000,
        gt=0,
        le=100_000,
        description=(
            "Changes after which a page of history ends, at most: with the transaction that it is "
            "in, which is never cut."
        ),
    )
    scan_bytes_max: Bytes = Field(
        default=256 << 20,
        ge=1 << 20,
        description=(
            "What is read of the log for one page, or for one document as it was. A page ends "
            "there and says where to go on; a document is refused. And what is looked through of "
            "an archive to find where either begins; beyond that they are refused."
        ),
    )
    graphql: GraphqlConfig = Field(
        default_factory=GraphqlConfig, description="GraphQL at `http`, below /graphql."
    )
    types: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        description=(
            "By collection, the fields of its documents with their types in GraphQL: Int, Long, "
            "Float, Decimal, String, Boolean, DateTime, ObjectId, Base64, JSON, or one of them in "
            "brackets for a list."
        ),
    )

    @field_validator("types")
    @classmethod
    def _known_types(cls, types: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        for collection, fields in types.items():
            for name, one in fields.items():
                if _TYPE.fullmatch(one) is None:
                    raise ValueError(
                        f"{collection}.{name} is {one!r}; there are {_SCALARS.replace('|', ', ')}, "
                        f"or one of them in brackets"
                    )
        return types
