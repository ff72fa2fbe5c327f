"""Rows of an archive -> blocks, as a log has them: entry by entry the same bytes."""

# The published types of pyarrow are partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock.archive.manifest import Range
from penstock.archive.reading import Archive
from penstock.errors import ArchiveError
from penstock.log.assemble import Packed, block_ends
from penstock.wire import (
    Block,
    build_block,
    encode,
    events_of_batch,
    places_of_batch,
    summaries_of_batch,
)


class Repacking:
    """Takes the rows of an archive in order, from `after` on."""

    def __init__(self, archive: Archive, after: int) -> None:
        self._archive = archive
        self.after = after
        """The last entry that was taken."""
        self._check = archive.check_at(after) or 0

    def add(self, one: Range, rows: pa.RecordBatch) -> list[Packed]:
        """Blocks of `rows` with all columns, which follow `after` and lie in the range `one`.

        Raises ArchiveDamagedError for an entry that is not what its check says, and at the end of
        a range whose entries do not come to the check of the place behind it.
        """
        try:
            packed = self._packed(one, rows)
        except ArchiveError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise self._archive.damaged(one, f"behind entry {self.after}: {error}") from error
        if packed is None:
            raise self._archive.damaged(
                one,
                f"an entry behind {self.after} is not the one that its check was taken over (or "
                f"another version of Penstock wrote it: restore with that one)",
            )
        self.after += rows.num_rows
        self._archive.came_to(self.after, self._check)
        if self.after == one.until and self._check != one.until_check:
            raise self._archive.damaged(one, "its entries are not those that its check says")
        return packed

    def _packed(self, one: Range, rows: pa.RecordBatch) -> list[Packed] | None:
        """Blocks of `rows`; None if an entry is not what its check says."""
        events = encode(events_of_batch(rows))
        if not np.array_equal(events.checks, rows.column("check").to_numpy()):
            return None
        places, summaries = places_of_batch(rows), summaries_of_batch(rows)
        first_commit = int(rows.column("commit")[0].as_py() or 0)
        taken = rows.column("ingested_at").to_numpy()
        chained_from = _chained_from(one, rows, self.after)
        packed: list[Packed] = []
        # A block has one time at which the log took it, and its markers are all of one kind.
        cuts = {0, *(np.flatnonzero(np.diff(taken)) + 1).tolist(), chained_from, rows.num_rows}
        for begin, end in pairwise(sorted(cuts)):
            stops = [begin + stop for stop in block_ends(events.cut(begin, end))]
            start = begin
            for stop in (*stops, end):
                if stop == start:
                    continue
                first, last = int(places["commit"][start]), int(places["commit"][stop - 1])
                data = build_block(
                    events.cut(start, stop),
                    places[start:stop],
                    summaries[first : last + 1],
                    first_commit=first_commit + first,
                    ingested_at=int(taken[start]),
                    before=self._check if begin >= chained_from else None,
                )
                block = Packed(self.after + stop, stop - start, data)
                packed.append(block)
                self._check = Block(data, log_id=0, first_sequence=0).history(block.rows - 1)
                start = stop
        return packed


def _chained_from(one: Range, rows: pa.RecordBatch, after: int) -> int:
    """The first of `rows`, behind `after`, whose marker proves what is before it too."""
    if one.chained_after is None:
        return rows.num_rows
    return min(max(0, one.chained_after - after), rows.num_rows)
