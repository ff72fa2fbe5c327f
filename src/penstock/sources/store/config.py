"""What a store as a source can be told."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator

from penstock.capture.tenant import TenantRule
from penstock.config import Config, Seconds
from penstock.sources.store.positions import Scope


class StoreSourceConfig(Config):
    """Capture the tables of an embedded store (`penstock.store`) that have a change stream."""

    type: Literal["store"] = "store"
    path: Path = Field(
        description="The store's folder. It is read beside its writer, in whichever process; a "
        "relative path is relative to the file's folder."
    )
    database: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        pattern=r"^[^.]+$",
        description="What events call the database. Default: the folder's name, up to its first "
        "dot.",
    )
    include: tuple[str, ...] = Field(
        (),
        description="Tables to capture, with * and ? as wildcards. Empty: all that have a stream. "
        "What is included is captured even if it is excluded.",
    )
    exclude: tuple[str, ...] = Field((), description="Tables to leave out; as `include`.")
    tenant: Annotated[str, Field(min_length=1)] | TenantRule | None = Field(
        None,
        description="Whose an event is: a constant, or `{field = ...}` of the item, "
        "`{id_prefix = ...}` or `{id_field = ...}` of its key. Default: the event's database.",
    )
    flatten: Literal["none", "dot"] = Field(
        "none",
        description="`dot`: documents and before images have one level of dotted keys; "
        "`penstock.client.unflatten` gives them back exactly.",
    )
    start: Literal["now", "snapshot", "beginning"] = Field(
        "now",
        description="Where to start without a position: at the next change, with a copy of what "
        "is there, or at the oldest change that each stream still holds.",
    )
    on_position_lost: Literal["halt", "snapshot", "gap"] = Field(
        "halt",
        description="When a stream no longer holds what follows our position: a gap is recorded "
        "for its table, and capture stops, copies that table again, or goes on with what is left.",
    )
    batch_events_max: int = Field(1000, gt=0, le=10_000, description="Changes read at once.")
    heartbeat_seconds: Seconds = Field(
        5.0, gt=0, le=600, description="Say that the store is quiet at least so often."
    )
    snapshot_chunk_documents: int = Field(
        2000, gt=0, le=100_000, description="Items copied between two looks at the streams."
    )

    @field_validator("include", "exclude")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        if any(not pattern for pattern in patterns):
            raise ValueError("an empty pattern names no table")
        return patterns

    @property
    def database_name(self) -> str:
        """What events call the database."""
        return self.database or self.path.resolve().name.strip(".").partition(".")[0] or "store"

    @property
    def scope(self) -> Scope:
        """Which tables are captured, and what their database is called, as a position keeps it."""
        include, exclude = sorted(set(self.include)), sorted(set(self.exclude))
        return Scope(self.database_name, tuple(include), tuple(exclude))

    def beside(self, folder: Path) -> Self:
        """With its path made relative to `folder`, unless it is absolute."""
        return self.model_copy(update={"path": folder / self.path})
