"""`to = "changelog"`: every change."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from penstock.config import Seconds
from penstock.spark.config.lake import LakePipelineConfig


class ChangelogPipelineConfig(LakePipelineConfig):
    """Keep every change of a source, append-only, with Spark."""

    makes: ClassVar[str] = "changelog"

    to: Literal["changelog"] = Field(
        description="What is made of the changes: `changelog` keeps every one of them, unaltered."
    )
    path: str = Field(
        description="Where the changelog is, a folder or a URL: one Delta table, or one folder of "
        "Parquet files.",
        min_length=1,
    )
    format: Literal["delta", "parquet"] = Field(
        "delta",
        description="`delta`: a Delta table, compacted as it grows. `parquet`: plain files, for "
        "readers that know nothing of Delta; what they contain is in the Delta table at the path "
        "with `_manifest` at its end.",
    )
    partition_by: tuple[Literal["date", "collection"], ...] = Field(
        ("date", "collection"),
        description="The folders that the files lie in. `date` is the day of the commit in UTC; "
        "`collection` is the column `collection_folder`, its name as a folder's. It cannot be "
        "changed once there is a changelog.",
    )
    standing: str | None = Field(
        None,
        description="The Delta table of one row that says how far the pipeline has come. Default: "
        "`_penstock_standing` in the Delta table, which for `parquet` is the manifest.",
    )
    on_gap: Literal["halt", "record"] = Field(
        "record",
        description="What to do where changes were lost, upstream or to the log's retention: write "
        "the gap to the changelog, in its place, and go on; or stop before it.",
    )
    history: Seconds = Field(
        3600.0,
        gt=0,
        description="How long files that compaction has replaced are kept for readers. No change "
        "is ever deleted.",
    )

    @field_validator("partition_by")
    @classmethod
    def _names_are_different(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("a column is named twice")
        return names

    def _check_explode(self) -> None:
        self._check_last_explode()
        if self.explodes and self.format != "delta":
            raise ValueError("explode adds columns, which plain Parquet files have no table for")

    @property
    def outlives_retention(self) -> bool:
        """As `on_gap` says: a gap is a row like any other."""
        return self.on_gap == "record"

    @property
    def standing_path(self) -> str:
        """As of any pipeline, beside the one Delta table."""
        return self.standing or f"{self.table_path('')}/_penstock_standing"

    @property
    def in_one_table(self) -> bool:
        """All collections are."""
        return True

    def table_path(self, collection: str) -> str:  # noqa: ARG002 - all are in one
        """The Delta table: the changelog, or the manifest of its files."""
        return self.path.rstrip("/") if self.format == "delta" else self.manifest_path

    @property
    def manifest_path(self) -> str:
        """The Delta table that lists the files of `format = "parquet"`."""
        return f"{self.path.rstrip('/')}_manifest"
