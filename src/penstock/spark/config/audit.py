"""`to = "audit"`: a trail in MongoDB."""

from typing import Literal

from pydantic import Field

from penstock.audit.config import TrailConfig
from penstock.spark.config.reading import ReadingConfig


class AuditPipelineConfig(ReadingConfig, TrailConfig):
    """Keep an audit trail of a source in MongoDB, with Spark."""

    to: Literal["audit"] = Field(
        description="What is made of the changes: `audit` keeps every one of them, in order."
    )
    max_events_per_batch: int = Field(
        100_000, gt=0, description="Events per batch; a larger commit comes whole all the same."
    )
    on_gap: Literal["halt", "record"] = Field(
        "record",
        description="What to do where changes were lost, upstream or to the log's retention: write "
        "the gap to the trail, in its place, and go on; or stop before it.",
    )

    @property
    def outlives_retention(self) -> bool:
        """As `on_gap` says: a gap is a record like any other."""
        return self.on_gap == "record"
