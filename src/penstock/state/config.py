"""How the current state is configured."""

from pydantic import Field

from penstock.config import Bytes, Config, Seconds


class StateConfig(Config):
    """Keep the current rows of every captured collection beside the log.

    On by default: without it a copy that closes a gap cannot tell what was deleted meanwhile, and
    tables would keep such rows for ever, unseen. It costs about as much disk as the documents take,
    and never the log its room: it stops at a floor well above the log's own.
    """

    enabled: bool = Field(
        default=True,
        description="Keep current rows: for Snapshot, and for the deletes that a copy must tell.",
    )
    free_bytes_min: Bytes = Field(
        default=1 << 30,
        ge=0,
        description="Stop writing rows while the disk has less free than this; keep it above "
        "free_bytes_min of [log], so that capture goes on.",
    )
    interval: Seconds = Field(
        default=0.2,
        ge=0,
        le=60,
        description="Gather changes for so long before they are written together.",
    )
    hold: Seconds = Field(
        default=3600.0,
        ge=0,
        description="While a Snapshot is read, keep the changes that follow it for so long, "
        "whatever retention says; 0: not at all.",
    )
    hold_bytes: Bytes = Field(
        default=1 << 30,
        ge=0,
        description="But only while the log takes at most so much more than retention_bytes, and "
        "never more than a quarter of that.",
    )
