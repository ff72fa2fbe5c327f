"""How far a first load has come: a small Delta table beside the row that says where a pipeline is.

It is written after the rows of a part, so that it is never ahead of the tables: a part that is read
once more is written once more, and ends the same.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from typing import Final

import pyarrow as pa
from msgspec import to_builtins

from penstock.errors import PipelineChangedError
from penstock.spark.config import TablePipelineConfig
from penstock.spark.loading.parts import Part, Plan
from penstock.spark.table.arrow import arrow
from penstock.spark.table.delta import Table, secrets
from penstock.spark.table.stamp import Stamp
from penstock.spark.table.upkeep import tidy_now_and_then

LOAD_SCHEMA: Final = arrow.schema(
    [
        arrow.field("database", pa.string(), nullable=False),
        arrow.field("collection", pa.string(), nullable=False),
        arrow.field("start", pa.binary()),
        arrow.field("stop", pa.binary()),
        arrow.field("state", pa.int32(), nullable=False),
        arrow.field("read_at", pa.string(), nullable=False),
        arrow.field("sequence", pa.int64(), nullable=False),
        arrow.field("version", pa.int64(), nullable=False),
    ]
)


def refuse_unfinished(pipeline: str, config: TablePipelineConfig) -> None:
    """Refuse to go on without a first load that has begun. Raises PipelineChangedError."""
    plan = StoredPlan(pipeline, config).read()
    if plan.parts and not plan.complete:
        raise PipelineChangedError(
            pipeline=pipeline,
            change="its first load is not complete, so rows are missing that the log does not tell",
            remedy="or set first_load = 'source' again",
        )


class StoredPlan:
    """The plan, as it is kept."""

    def __init__(self, pipeline: str, config: TablePipelineConfig) -> None:
        self._pipeline = pipeline
        self._config = config
        self._table = Table(
            config.load_path, pipeline=pipeline, storage_options=secrets(config.storage_options)
        )

    def read(self) -> Plan:
        """What is kept; a plan of nothing if there is none."""
        self._table.reload()
        rows = [row for batch in self._table.scan() for row in batch.to_pylist()]
        return Plan(parts=tuple(Part(**row) for row in rows))

    def write(self, plan: Plan, *, log_id: int, sequence: int) -> None:
        """Keep `plan`; it is kept when this returns."""
        rows = [to_builtins(part, builtin_types=(bytes,)) for part in plan.parts]
        stamp = Stamp(
            pipeline=self._pipeline, log_id=log_id, after=sequence, until=sequence, batch=0
        )
        self._table.replace(arrow.Table.from_pylist(rows, schema=LOAD_SCHEMA), stamp)
        tidy_now_and_then(self._pipeline, self._config, self._table)
