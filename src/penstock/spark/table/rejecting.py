"""Write rejects, each once: whoever rejects a change first says why."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Sequence

import pyarrow as pa

from penstock.spark.table.lake import KeptTable
from penstock.spark.table.rejects import Reject, between, known_rejects, rejects_table
from penstock.spark.table.stamp import Stamp


def write_rejects(
    table: KeptTable,
    rejects: Sequence[Reject],
    stamp: Stamp,
    *,
    entries_at: Callable[[Sequence[int]], pa.Table],
    captured: bool,
) -> int:
    """Append those that the table does not have; how many that were.

    `entries_at` gives entries (ENTRY_COLUMNS) by sequence, and `captured` says that they are as
    they were captured. Raises StreamChangedError for a table of another log.
    """
    if not rejects:
        return 0
    table.applied(stamp.pipeline, log_id=stamp.log_id)
    # Which changes are rejected depends on where batches end, and that may be another place when a
    # batch comes again: so each is looked for, and none is told by its sequence alone.
    sequences = [reject.sequence for reject in rejects]
    here = between(stamp.pipeline, min(sequences), max(sequences))
    known = known_rejects(table.scan(here), rejects)
    fresh = [reject for reject in rejects if reject.identity not in known]
    if fresh:
        entries = entries_at([reject.sequence for reject in fresh])
        table.append(rejects_table(stamp.pipeline, fresh, entries, captured=captured), stamp)
    return len(fresh)
