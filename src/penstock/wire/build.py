"""Encoded events -> block. Pure, and part of the hot path of capture."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.wire.encode import Encoded
from penstock.wire.layout import (
    BEFORE,
    COMMIT,
    HEADER,
    HEADER_CHECKED,
    LAYOUT_VERSION,
    PLACE,
    UNCHAINED,
    tables_check,
)


class CommitSummary(NamedTuple):
    """What proves a commit complete: how many entries it has, and the sum of their checks."""

    rows: int
    digest: int
    """Modulo 2**64."""


def summaries_of(events: Encoded, rows: Sequence[int]) -> NDArray[np.void]:
    """The summaries (COMMIT) of commits that `events` are, whole and in order.

    `rows` says how many events each has; at least one.
    """
    counts = np.array(rows, np.int64)
    summaries = np.empty(len(rows), COMMIT)
    summaries["rows"] = counts
    # The sum of unsigned numbers wraps, as a digest does.
    summaries["digest"] = np.add.reduceat(events.checks, np.cumsum(counts) - counts)
    return summaries


def places_of(rows: Sequence[int]) -> NDArray[np.void]:
    """The places (PLACE) of the entries of whole commits: `build_block` fills in the rest.

    Commits are counted from 0; `rows` says how many entries each has, at least one.
    """
    counts = np.array(rows)
    ends = np.cumsum(counts)
    places = np.zeros(int(ends[-1]), PLACE)
    places["commit"] = np.repeat(np.arange(len(counts)), counts)
    places["ordinal"] = np.arange(len(places)) - np.repeat(ends - counts, counts)
    places["ends"][ends - 1] = 1
    return places


def build_block(
    events: Encoded,
    places: NDArray[np.void],
    commits: NDArray[np.void],
    *,
    first_commit: int,
    ingested_at: int,
    before: int | None,
) -> bytes:
    """One block of consecutive entries, `places` (PLACE) saying where each stands in its commit.

    `commits` (COMMIT) are the summaries of the commits they belong to, in order. The number of the
    first is `first_commit`; those in `places` may be counted from any. `before` is the sum that
    stands in BEFORE; None: the markers of the entries prove nothing before them.
    """
    distinct = list(dict.fromkeys(events.streams))
    numbers = {stream: number for number, stream in enumerate(distinct)}
    table = np.empty(len(places), PLACE)
    table["start"][0] = 0
    table["start"][1:] = events.ends[:-1]
    table["commit"] = places["commit"] - places["commit"][0]
    table["ordinal"] = places["ordinal"]
    table["stream"] = [numbers[stream] for stream in events.streams] if len(distinct) > 1 else 0
    table["ends"] = places["ends"]
    stream_table = msgspec.json.encode(distinct)
    history = b"" if before is None else BEFORE.pack(before)
    tables = b"".join(
        (history, commits.tobytes(), table.tobytes(), events.index.tobytes(), stream_table)
    )
    head = HEADER.pack(
        UNCHAINED if before is None else LAYOUT_VERSION,
        len(places),
        len(commits),
        len(stream_table),
        len(events.payload),
        first_commit,
        ingested_at,
        0,
    )[:HEADER_CHECKED]
    check = tables_check(head, tables).to_bytes(8, "little")
    return b"".join((head, check, tables, events.payload))
