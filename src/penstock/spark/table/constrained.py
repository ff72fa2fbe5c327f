"""Rows that do not meet the CHECK constraints of the table that they are for.

A constraint is SQL, and delta-rs computes it when it commits: one row that does not meet it refuses
the whole commit, without its key. So the batch's rows are asked first, in a table of their own, and
those that do not meet it are rejected. Where that cannot be asked, as of a function that delta-rs
does not have, the commit says what it says.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportArgumentType=false

from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError
from numpy.typing import NDArray

from penstock.spark.table.arrow import arrow
from penstock.spark.table.plan import Misfit, Placement

NO_CONSTRAINTS: Final[Mapping[str, str]] = {}
_ROW: Final = "_penstock_row"


def unmet_by(
    conditions: Mapping[str, str], rows: NDArray[np.intp]
) -> Callable[[Placement], Mapping[int, Misfit]]:
    """What tells, of a placement, which of `rows` do not meet the constraints, each with its first.

    Null does not meet one, as Delta has it.
    """

    def unmet(placement: Placement) -> Mapping[int, Misfit]:
        asked = np.array([row for row in rows.tolist() if row not in placement.misfits], np.int64)
        if not conditions or not len(asked):
            return {}
        indices = arrow.array(asked)
        columns = [column.take(indices) for column in placement.columns]
        schema = arrow.schema([arrow.field(_ROW, pa.int64()), *placement.schema])
        found: dict[int, Misfit] = {}
        with TemporaryDirectory(prefix="penstock-constraints-") as folder:
            write_deltalake(folder, arrow.Table.from_arrays([indices, *columns], schema=schema))
            builder = QueryBuilder().register("rows", DeltaTable(folder))
            for name, condition in conditions.items():
                for row in _failing(builder, condition):
                    reason = f"the row does not meet the table's constraint {name} ({condition})"
                    found.setdefault(row, Misfit("", reason))
        return found

    return unmet


def _failing(builder: QueryBuilder, condition: str) -> list[int]:
    """The rows for which a condition is not true; none where that cannot be told."""
    asked = f"SELECT {_ROW} FROM rows WHERE NOT coalesce(({condition}), false)"  # noqa: S608
    try:
        answer: Any = arrow.table(builder.execute(asked))
    except DeltaError:
        return []
    failing: list[int] = answer[_ROW].to_pylist()
    return failing
