"""Where a trail is, and how it is kept."""

import re
from collections.abc import Mapping
from typing import Any, Literal, cast
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.client.patience import PatienceConfig
from penstock.config import Bytes, Seconds, require_mongodb

DOCUMENT_BYTES_MAX = 16 << 20
"""As large as MongoDB lets a document be."""


class TrailConfig(PatienceConfig):
    """An audit trail in MongoDB."""

    uri: SecretStr = Field(
        description="Connection string of the MongoDB that keeps the trail; its user needs "
        "readWrite on the database."
    )
    database: str = Field(
        "audit",
        min_length=1,
        description="The trail's database; without it, the one that `uri` names, unless that is "
        "admin, where users are kept.",
    )
    records: str = Field(
        "row_changes",
        min_length=1,
        description="Collection of the records. Those of staged parts, batches, spilled values and "
        "the ids of what is retired have its name with `_staging`, `_batches`, `_spilled` and "
        "`_retired` at its end.",
    )
    offsets: str = Field(
        "binlog_offsets",
        min_length=1,
        description="Collection of the heads: one document for each trail, which says how far it "
        "has come.",
    )
    tz: str = Field(
        "Asia/Kolkata",
        description="Time zone of `ts_local` in a record, as `Europe/Berlin`. While it is "
        "Asia/Kolkata, records have `ts_ist` too.",
    )
    batch_events: int = Field(
        100, gt=0, le=10_000, description="Records that are written together, at most."
    )
    batch_bytes: Bytes = Field(
        8 << 20,
        ge=1 << 10,
        le=12 << 20,
        description="And their bytes. A record of more is a batch of its own, with its values "
        "spilled to documents beside it.",
    )
    transaction_events: int = Field(
        1000,
        gt=0,
        le=100_000,
        description="Records that become visible together, at most: several batches, in one "
        "transaction of no more than batch_bytes. A batch is never split, nor a commit.",
    )
    writers: int = Field(
        4,
        gt=0,
        le=64,
        description="Parts of what one transaction cannot hold that are written at the same time.",
    )
    staged_days: int = Field(
        7, gt=0, le=3650, description="Staged parts are kept so long once they are in the trail."
    )
    compression: Literal["off", "zstd", "zlib"] = Field(
        "off", description="Compress what is sent to MongoDB and what it answers."
    )
    answer_seconds: Seconds = Field(
        30.0, gt=0, le=3600, description="Wait so long for an answer of MongoDB."
    )
    seal_key: SecretStr | None = Field(
        None,
        description="A secret of 16 characters or more, under which the chain's hashes are made: "
        "whoever writes to the database and does not have it cannot forge a chain.",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_uri(cls, given: Any) -> Any:
        """With the database of `uri`, where none is given."""
        if not isinstance(given, Mapping) or "database" in given:
            return cast("object", given)
        settings = cast("Mapping[str, Any]", given)
        uri: Any = settings.get("uri", "")
        text = uri.get_secret_value() if isinstance(uri, SecretStr) else str(uri)
        database = unquote(text.partition("://")[2].partition("/")[2].partition("?")[0])
        return {**settings, "database": database} if database not in {"", "admin"} else settings

    _uri = field_validator("uri")(require_mongodb)

    @field_validator("records", "offsets", "database")
    @classmethod
    def _names(cls, name: str) -> str:
        if re.search(r"[$\0/\\. \"]", name) or name.startswith("system"):
            raise ValueError(f"{name!r} cannot be a name in MongoDB here")
        return name

    @field_validator("tz")
    @classmethod
    def _zone(cls, tz: str) -> str:
        try:
            ZoneInfo(tz)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"{tz!r} is no time zone of this machine; write one as Europe/Berlin, and see that "
                f"tzdata is installed"
            ) from None
        return tz

    @field_validator("seal_key")
    @classmethod
    def _long_enough(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and len(key.get_secret_value()) < 16:
            raise ValueError("it must have 16 characters or more")
        return key

    @model_validator(mode="after")
    def _apart(self) -> "TrailConfig":
        if self.offsets in {self.records, *(self.records + end for end in ENDINGS)}:
            raise ValueError("offsets must be another collection than the records")
        return self


ENDINGS = ("_staging", "_batches", "_spilled", "_retired")
