"""`to = "history"`: every version of every row."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from penstock.config import Bytes
from penstock.spark.config.lake import DeltaPipelineConfig


class HistoryPipelineConfig(DeltaPipelineConfig):
    """Keep every version of every row in tables, with Spark."""

    makes: ClassVar[str] = "history"

    to: Literal["history"] = Field(
        description="What is made of the changes: `history` keeps all versions of rows in Delta."
    )
    max_bytes_per_batch: Bytes = Field(
        2 << 30,
        gt=0,
        description="The driver holds a batch's changes and the open versions of their rows. More "
        "bytes than this stop the pipeline, by name, instead of exhausting memory.",
    )
    nested: Literal["json"] = Field(
        "json", description="How objects and arrays are kept: as Extended JSON text."
    )
    track_history_column_list: tuple[str, ...] = Field(
        (),
        description="Only a change of these fields makes a new version; one of others sets them in "
        "the open version. Empty for all fields.",
    )
    track_history_except_column_list: tuple[str, ...] = Field(
        (), description="A change of these fields alone makes no new version."
    )

    @model_validator(mode="after")
    def _one_list(self) -> Self:
        if self.track_history_column_list and self.track_history_except_column_list:
            raise ValueError(
                "set track_history_column_list or track_history_except_column_list, not both"
            )
        return self
