"""Delta tables that a query of your own keeps: what `foreachBatch` is given."""

from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import ValidationError

from penstock.errors import ConfigError
from penstock.spark.config import HistoryPipelineConfig, TablePipelineConfig
from penstock.spark.functions.asking import check_entries
from penstock.spark.table.chunk import INPUT_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.table.writing import BatchResult

_OF_A_RUN: Final = (
    "trigger",
    "max_events_per_batch",
    "start",
    "metrics",
    "standing",
    "first_load",
    "first_load_rows",
    "verify_every",
    "verify_against",
)


class DeltaTables:
    """The tables of `to = "table"` or `"history"`, kept by a query of yours.

        tables = DeltaTables("shop", source="shop", collections=["orders"], path="lake/orders")
        query = stream.writeStream.foreachBatch(tables).option("checkpointLocation", ...).start()

    `stream` is `format("penstock")` from `startingOffsets = "earliest"`, with documents as JSON
    text. Each batch is applied exactly once: the tables say how far they are, and ignore what they
    have, whatever comes of the checkpoint. Drops, renames, rejects and steps are as in a pipeline.
    Entries of other sources and collections are passed over.

    `pipeline` is the name under which the tables keep their place: go on with the same name.
    `settings` are those of `[pipelines.NAME]` without those of its run; `collections` must be said.
    Only one query may keep a table. The driver holds a batch's last
    changes, as a pipeline's does, so limit batches by `maxOffsetsPerTrigger`. It needs the driver,
    so it is not for Spark Connect.
    """

    def __init__(
        self, pipeline: str, *, to: Literal["table", "history"] = "table", **settings: Any
    ) -> None:
        """Raises ConfigError for settings that are none, or make no sense."""
        ours = [name for name in _OF_A_RUN if name in settings]
        if ours:
            raise ConfigError(
                f"DeltaTables: {', '.join(ours)} is a setting of `penstock pipeline run`, and here "
                f"your query decides that. Nothing was written. Leave it out, or run a pipeline."
            )
        if not settings.get("collections"):
            raise ConfigError(
                "DeltaTables: collections is missing. Nothing was written. Say which collections "
                "there are tables of: a database that is dropped concerns all of them."
            )
        kind = HistoryPipelineConfig if to == "history" else TablePipelineConfig
        try:
            self.config = kind.model_validate({**settings, "to": to})
        except ValidationError as error:
            said = "; ".join(
                f"{'.'.join(map(str, one['loc']))} {one['msg']}" for one in error.errors()
            )
            raise ConfigError(f"DeltaTables: {said}. Nothing was written.") from None
        self.pipeline = pipeline
        self.tables: dict[str, int] = {}
        """By collection: the sequence that its table has, of those that were written."""
        self.result: BatchResult | None = None
        """What the last batch came to."""

    def __call__(self, batch: "DataFrame", batch_id: int) -> None:
        """Apply a batch. Raises as `penstock.spark.tables.merge_into_delta`; then nothing of what
        follows the place named is written, and the query may start again."""
        from penstock.spark.tables import merge_into_delta

        check_entries(batch, "DeltaTables", INPUT_COLUMNS, self.config.collections)
        self.result = merge_into_delta(
            self._own(batch),
            batch_id,
            pipeline=self.pipeline,
            config=self.config,
            tables=self.tables,
        )
        self.tables |= self.result.tables

    def _own(self, batch: "DataFrame") -> "DataFrame":
        # A gap that retention left belongs to no source.
        source, names = batch["source"], list(self.config.collections)
        of_source = source.isNull() | (source == self.config.source)
        of_collections = (batch["kind"] != 0) | batch["collection"].isin(names)
        return batch.where(of_source & of_collections)
