"""A lake that a pipeline with steps makes, for the tests of transforms."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable

from penstock.spark.table.chunk import INPUT_COLUMNS
from penstock.spark.table.plan import REJECTED
from penstock.spark.table.writing import BatchResult
from penstock.spark.tables import merge_into_delta, merge_staged
from penstock.spark.transform.replay import signed
from penstock.spark.transform.stage import Stage, Staged
from penstock.wire import to_arrow
from tests.flight.blocks import BlockLog
from tests.spark.tables import pipeline, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Lake:
    """A pipeline's tables, made from a log batch by batch."""

    def __init__(self, spark: "SparkSession", log: BlockLog, path: Path) -> None:
        self._spark = spark
        self._log = log
        self._after = 0
        self.path = path

    def apply(self, **settings: Any) -> tuple[BatchResult, Staged]:
        """Apply what there is, as one batch, as a running pipeline does."""
        config = pipeline(self.path, **settings)
        stage = Stage("p", config, INPUT_COLUMNS)
        stage.check(self._spark)
        whole = pa.Table.from_batches([to_arrow((block,)) for block in self._log.blocks])
        batch = self._spark.createDataFrame(signed(whole.slice(self._after)))
        with stage.staged(batch, 0, log_id=self._log.log_id) as staged:
            result = merge_staged(
                staged.frame, 0, pipeline="p", config=config, log_id=self._log.log_id
            )
        self._after = self._log.head
        return result, staged

    def merge(self, **settings: Any) -> BatchResult:
        """Apply what there is as a user does in foreachBatch."""
        whole = pa.Table.from_batches([to_arrow((block,)) for block in self._log.blocks])
        batch = self._spark.createDataFrame(signed(whole.slice(self._after)))
        config = pipeline(self.path, **settings)
        result = merge_into_delta(batch, 0, pipeline="p", config=config, log_id=self._log.log_id)
        self._after = self._log.head
        return result

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        return {key: row for (_, key), row in rows_of(self.path).items()}

    @property
    def stale(self) -> dict[str, int]:
        """By key: the change that its row does not have."""
        rows = DeltaTable(str(self.path)).to_pyarrow_table().to_pylist()
        return {row["_key"]: row[REJECTED] for row in rows if row[REJECTED] is not None}


def key(number: int) -> str:
    return f'{{"_id":{number}}}'
