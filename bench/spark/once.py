"""What exactly-once costs: the table pipeline as it is, beside the same one that proves nothing.

The other one takes the same changes, merges the same rows through the same code, and ends with the
same table, as long as nothing goes wrong. It is without all that is there only for when something
does: the columns by which a commit is known to be whole, the sums over them in the workers and the
driver, the look into the table for what it has already, the transactions and properties in Delta's
commits, and the row in which the pipeline keeps its place. The checkpoint is Spark's and is in
both; so are the files by which workers hand over, which spare copies and prove nothing.

Each is run in processes of its own, by turns.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
from deltalake import CommitProperties

from bench.spark import table
from bench.spark.stage import Figure, Given, piped
from penstock.spark import tables
from penstock.spark.table import chunk, collect
from penstock.spark.table.delta import Table
from penstock.spark.table.reduce import COMMIT_COLUMNS
from penstock.spark.table.stamp import Stamp
from penstock.spark.table.standing import StandingTable

COST: Final = "what exactly-once costs"

_WITH: Final = "once: with"
_WITHOUT: Final = "once: without"
_RUNS: Final = (_WITH, _WITHOUT)
_PROOF: Final = frozenset({"commit", "commit_rows", "commit_digest", "check"})
_COLUMNS: Final = tuple(name for name in chunk.INPUT_COLUMNS if name not in _PROOF)


def proved(given: Given) -> list[Figure]:
    return [_measured(given, _WITH)]


def unproved(given: Given) -> list[Figure]:
    with (
        patch.object(tables.TableTarget, "columns", _COLUMNS),
        patch.object(collect, "INPUT_COLUMNS", _COLUMNS),
        patch.object(collect, "to_chunks", chunks_unproved),
        patch.object(collect, "verify_commits", return_value=None),
        patch.object(Stamp, "properties", return_value=CommitProperties()),
        patch.object(Table, "applied", return_value=0),
        patch.object(StandingTable, "advance", return_value=None),
        patch.object(StandingTable, "save", return_value=None),
    ):
        return [_measured(given, _WITHOUT)]


def cost(figures: Sequence[Figure]) -> Figure | None:
    """How much longer the same changes take with it; None where it was not measured."""
    runs = [one for one in figures if one.what in _RUNS]
    if not runs:
        return None
    changes = min(one.changes for one in runs)
    took = {what: [one.seconds_at(changes) for one in runs if one.what == what] for what in _RUNS}
    more = sum(took[_WITH]) / sum(took[_WITHOUT]) - 1
    least = min(took[_WITH]) / min(took[_WITHOUT]) - 1
    return Figure(COST, said=f"{more:.1%} (of the better runs {least:.1%})")


def _measured(given: Given, what: str) -> Figure:
    path = given.folder / "orders"
    figure = piped(given, what, to="table", collections=("orders",), path=str(path))
    table.check(given, path, figure.changes)
    return figure


def chunks_unproved(batches: Iterable[pa.RecordBatch], **how: Any) -> Iterator[pa.RecordBatch]:
    """As `to_chunks`, in a worker, without a look at commits."""
    nothing = pa.table({name: pa.array([], pa.int64()) for name in COMMIT_COLUMNS})
    with patch.object(chunk, "sum_commits", return_value=nothing):
        yield from chunk.to_chunks(batches, **how)
