"""What of each commit is to come to a pipeline, as the log's own columns say: no document is read.

A second look at the same range, without the filter and past Spark: so that what a filter leaves out
is told from what was lost on its way. It costs the service and the driver some 2 µs an entry.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.audit.packing import Tally
from penstock.client.flight import LogClient, ReadRequest
from penstock.errors import TrimmedError
from penstock.event import Kind
from penstock.progress import Progress

_COLUMNS: Final = ("commit", "kind", "collection", "operation_type", "check")
_U64: Final = (1 << 64) - 1


def tallies_of(
    client: LogClient, *, after: Progress, until: Progress, source: str, names: Sequence[str]
) -> Iterator[Tally]:
    """Of each commit of (after, until] of which something is wanted, in order.

    `names` are the collections, as ReadRequest has them; none: all. What retention has removed is
    one tally that says so. Raises as `LogClient.read`.
    """
    first = after.sequence
    while True:
        request = ReadRequest(
            log_id=until.log_id,
            after=first,
            until=until.sequence,
            source=source,
            columns=_COLUMNS,
        )
        adding = _Adding(source, names, trimmed=first != after.sequence)
        try:
            for batch in client.read(request):
                yield from adding.add(batch)
            yield from adding.end()
        except TrimmedError:
            first = client.bounds().trimmed
            if first < until.sequence:
                continue
            yield Tally(_U64, None)
        return


class _Adding:
    """Adds up entries, in their order."""

    def __init__(self, source: str, names: Sequence[str], *, trimmed: bool) -> None:
        self._source = source
        self._names = frozenset(names)
        self._unknown: int | None = None if trimmed else 0
        """Commits up to this one may have lost entries; None: up to the first that there is."""
        self._held: Tally | None = None

    def add(self, batch: pa.RecordBatch) -> Iterator[Tally]:
        """The tallies of commits that have ended."""
        commits: NDArray[np.int64] = batch.column("commit").to_numpy()
        checks: NDArray[np.uint64] = batch.column("check").to_numpy()
        if self._unknown is None:
            self._unknown = int(commits[0])
            yield Tally(self._unknown, None)
        wanted = self._wanted(batch) & (commits > self._unknown)
        commits, checks = commits[wanted], checks[wanted]
        if not len(commits):
            return
        starts = np.concatenate(([0], np.flatnonzero(np.diff(commits)) + 1))
        rows = np.diff(np.concatenate((starts, [len(commits)])))
        digests = np.add.reduceat(checks, starts)  # of 64 bits, and so modulo 2**64
        for made in zip(commits[starts].tolist(), rows.tolist(), digests.tolist(), strict=True):
            yield from self._join(*made)

    def _join(self, commit: int, rows: int, digest: int) -> Iterator[Tally]:
        held = self._held
        if held is not None and held.commit == commit:
            assert held.rows is not None
            rows, digest = held.rows + rows, (held.digest + digest) & _U64
        elif held is not None:
            yield held
        self._held = Tally(commit, rows, digest)

    def end(self) -> Iterator[Tally]:
        """The last one; where entries were removed and none is left, that nothing is known."""
        if self._unknown is None:
            yield Tally(_U64, None)
        if self._held is not None:
            yield self._held

    def _wanted(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """As the filter of a read is told (ReadRequest), decided anew from what an entry says."""
        if not self._names:
            return np.ones(batch.num_rows, bool)
        said = batch.column("collection").to_pylist()
        wanted = [name in self._names or f"{self._source}/{name}" in self._names for name in said]
        kinds = batch.column("kind").to_numpy()
        for row in np.flatnonzero(kinds).tolist():
            # What names no collection is about the source; a rename may fill one that is wanted.
            operation = batch.column("operation_type")[row].as_py()
            renames = kinds[row] == Kind.SCHEMA and operation == "rename"
            wanted[row] = wanted[row] or not said[row] or renames
        return np.array(wanted, bool)
