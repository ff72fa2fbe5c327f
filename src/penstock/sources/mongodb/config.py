"""What a MongoDB source can be told."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.capture.tenant import TenantRule
from penstock.config import Config, Seconds, require_mongodb
from penstock.mongo_causes import Address
from penstock.sources.mongodb.namespaces import Namespaces
from penstock.sources.mongodb.positions import Scope


class MongoSourceConfig(Config):
    """Capture a MongoDB replica set, or one of its databases, through one change stream."""

    type: Literal["mongodb"] = "mongodb"
    uri: SecretStr = Field(
        description="Connection string of the replica set. Needs the `read` role on the database, "
        "or `readAnyDatabase` without one; `penstock doctor` prints the exact grant."
    )
    database: str | None = Field(
        None, description="The database to capture; without it, all but admin, config and local."
    )
    include: tuple[str, ...] = Field(
        (),
        description="Collections to capture: `orders`, `shop.orders`, with * and ? as wildcards. "
        "Empty: all. Filtered on the server. What is included is captured even if it is excluded.",
    )
    exclude: tuple[str, ...] = Field((), description="Collections to leave out; as `include`.")
    tenant: Annotated[str, Field(min_length=1)] | TenantRule | None = Field(
        None,
        description="Whose an event is: a constant, or `{field = ...}` of the document, "
        "`{id_prefix = ...}` or `{id_field = ...}` of its key. Default: the event's database.",
    )
    flatten: Literal["none", "dot"] = Field(
        "none",
        description="`dot`: documents and before images have one level of dotted keys; "
        "`penstock.client.unflatten` gives them back exactly.",
    )
    on_undecodable: Literal["halt", "dead_letter"] = Field(
        "halt",
        description="What to do with a change that has no exact form: stop before it, or keep its "
        "bytes in the collection `penstock_dead_letters`, record a gap, and go on.",
    )
    start: Literal["now", "snapshot", "beginning"] = Field(
        "now",
        description="Where to start without a position: at the next change, with a copy of what "
        "is there, or at the oldest change that the server still holds.",
    )
    on_position_lost: Literal["halt", "snapshot", "gap"] = Field(
        "halt",
        description="When the server no longer holds what follows our position: a gap is recorded, "
        "and capture stops, copies everything again, or goes on from now.",
    )
    full_document: Literal["updateLookup", "whenAvailable", "required", "default"] = Field(
        "updateLookup",
        description="The document of an update: looked up when it is read (it may be newer than "
        "the event), the stored post-image (when available or required), or none.",
    )
    full_document_before_change: Literal["off", "whenAvailable", "required"] = Field(
        "whenAvailable",
        description="The stored pre-image, for collections that have changeStreamPreAndPostImages.",
    )
    batch_events_max: int = Field(1000, gt=0, le=10_000, description="Events per reply.")
    heartbeat_seconds: Seconds = Field(
        5.0, gt=0, le=600, description="How long the server waits before it answers 'nothing new'."
    )
    heartbeat_deadline_seconds: Seconds | None = Field(
        None,
        gt=0,
        description="No answer for so long is a broken connection. Over `heartbeat_seconds`; "
        "default: two heartbeats.",
    )
    snapshot_chunk_documents: int = Field(
        2000, gt=0, le=100_000, description="Documents copied between two looks at the stream."
    )

    _uri = field_validator("uri")(require_mongodb)

    @field_validator("include", "exclude")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        if any(not pattern for pattern in patterns):
            raise ValueError("an empty pattern names no collection")
        return patterns

    @model_validator(mode="after")
    def _database(self) -> "MongoSourceConfig":
        if self.database in {"admin", "config", "local", ""}:
            raise ValueError(f"the database {self.database!r} has no change stream")
        return self

    @model_validator(mode="after")
    def _deadline(self) -> "MongoSourceConfig":
        """An idle server speaks once in a heartbeat: who waits less reconnects for ever (S15)."""
        if self.deadline_seconds <= self.heartbeat_seconds:
            raise ValueError(
                f"heartbeat_deadline_seconds ({self.deadline_seconds:g}) is not over "
                f"heartbeat_seconds ({self.heartbeat_seconds:g}), so the silence of an idle server "
                f"would be taken for a broken connection. Set it to two heartbeats or more, or "
                f"leave it out: that is two"
            )
        return self

    @model_validator(mode="after")
    def _documents(self) -> "MongoSourceConfig":
        """What needs a document must get one (P24, P32)."""
        if self.needs_before_images and self.full_document_before_change == "off":
            raise ValueError(
                "tenant.field needs the document before a delete: set full_document_before_change, "
                "or take the tenant from the key (id_prefix, id_field)"
            )
        without = self.full_document == "default"
        if without and (self.needs_before_images or self.flatten == "dot"):
            what = "flatten = 'dot'" if self.flatten == "dot" else "tenant.field"
            raise ValueError(f"{what} needs the document of an update: set full_document")
        return self

    @property
    def needs_before_images(self) -> bool:
        """Whether only the document before a delete tells whose it was."""
        return isinstance(self.tenant, TenantRule) and self.tenant.field is not None

    @property
    def lacks_after(self) -> bool:
        """Whether an update never has the document as of the event."""
        return self.full_document in {"updateLookup", "default"}

    @property
    def lacks_before(self) -> bool:
        """Whether no change ever has the document before it."""
        return self.full_document_before_change == "off"

    @property
    def address(self) -> Address:
        """Where the server is, and whom we are there."""
        return Address.of(self.uri.get_secret_value())

    @property
    def deadline_seconds(self) -> float:
        """How long to wait for any answer (S15)."""
        return self.heartbeat_deadline_seconds or 2 * self.heartbeat_seconds

    @property
    def scope(self) -> Scope:
        """Which collections are captured, as a position keeps it."""
        include, exclude = sorted(set(self.include)), sorted(set(self.exclude))
        return Scope(self.database, tuple(include), tuple(exclude))

    @property
    def namespaces(self) -> Namespaces:
        """Which collections are captured."""
        return self.scope.namespaces
