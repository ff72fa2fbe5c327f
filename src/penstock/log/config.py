"""How the log is configured."""

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from penstock.config import Bytes, Config, Seconds
from penstock.kv import MAP_BYTES


class LogConfig(Config):
    """The durable log. Retention trims by age, bytes and count, whichever comes first.

    "none" turns a limit off: TOML has no other word for it.
    """

    path: Path = Field(
        default=Path("data/log"), description="Directory of the log, on a local disk."
    )
    retention: Seconds | None = Field(
        default=7 * 86400.0, gt=0, description="Keep entries this long after the log took them."
    )
    retention_bytes: Bytes | None = Field(
        default=10 << 30,
        gt=0,
        description="Keep at most this many bytes on disk, and never more than three quarters of "
        "what the disk has above free_bytes_min.",
    )
    retention_events: int | None = Field(
        default=None, gt=0, description="Keep at most this many entries."
    )
    map_bytes: Bytes = Field(
        default=MAP_BYTES,
        gt=0,
        description="Address space for the log; a limit, not a reservation.",
    )
    free_bytes_min: Bytes = Field(
        default=256 << 20,
        ge=0,
        description="Refuse appends while the disk has less free than this and trimming has left "
        "no room in the log's file.",
    )
    cache_bytes: Bytes = Field(
        default=32 << 20, ge=0, description="Decoded blocks that readers of a process share."
    )

    @field_validator("retention", "retention_bytes", "retention_events", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return None if value == "none" else value
