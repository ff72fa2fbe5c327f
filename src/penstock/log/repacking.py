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
    build_block,
    encode,
    events_of_batch,
    places_of_batch,
    summaries_of_batch,
)


def repacked(archive: Archive, one: Range, rows: pa.RecordBatch, after: int) -> list[Packed]:
    """Blocks of `rows` with all columns, which follow `after` and lie in the range `one`.

    Raises ArchiveDamagedError for an entry that is not what its check says.
    """
    try:
        packed = _packed(rows, after)
    except ArchiveError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise archive.damaged(one, f"behind entry {after}: {error}") from error
    if packed is None:
        raise archive.damaged(
            one,
            f"an entry behind {after} is not the one that its check was taken over (or another "
            f"version of Penstock wrote it: restore with that one)",
        )
    return packed


def _packed(rows: pa.RecordBatch, after: int) -> list[Packed] | None:
    """Blocks of `rows`, which follow `after`; None if an entry is not what its check says."""
    events = encode(events_of_batch(rows))
    if not np.array_equal(events.checks, rows.column("check").to_numpy()):
        return None
    places, summaries = places_of_batch(rows), summaries_of_batch(rows)
    first_commit = int(rows.column("commit")[0].as_py() or 0)
    taken = rows.column("ingested_at").to_numpy()
    packed: list[Packed] = []
    runs = [0, *(np.flatnonzero(np.diff(taken)) + 1).tolist(), len(taken)]
    for begin, end in pairwise(runs):
        # A block has one time at which the log took it.
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
            )
            packed.append(Packed(after + stop, stop - start, data))
            start = stop
    return packed
