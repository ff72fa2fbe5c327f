"""Which entries of a batch still matter, and whether its commits came whole. Pure, by column."""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.errors import IncompleteCommitError
from penstock.event import Kind
from penstock.spark.table.arrow import arrow, compute

IDENTITY: Final = ("source", "database", "collection", "key")
"""What makes two entries changes of the same row. `key` is text with its types: 5 is not "5"."""

_CAPTURED: Final = ("commit", "commit_rows", "commit_digest")
_HERE: Final = ("rows", "digest", "first", "last")
COMMIT_COLUMNS: Final = (*_CAPTURED, *_HERE)
"""What a commit was captured with, and what of it is here, from its first to its last sequence."""

PUT: Final = 0
"""The whole row is known after this entry."""
DELETE: Final = 1
RELATIVE: Final = 2
"""The row after it follows from the row before: an update without a document, or with
`unchanged` fields."""
CONTROL: Final = 3
"""Not a change of a row: schema, gap and system events."""


def codes_of(entries: pa.Table) -> NDArray[np.int64]:
    """One number per row, equal exactly where the identities are equal."""
    codes = np.zeros(entries.num_rows, np.int64)
    for name in IDENTITY:
        column = compute.fill_null(entries[name].combine_chunks(), "")
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        encoded = column.dictionary_encode()
        if len(encoded.dictionary) == 1:
            continue
        values = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        codes = codes * max(1, len(encoded.dictionary)) + values
        # Keeps the product small: four columns of many values would overflow.
        codes = np.unique(codes, return_inverse=True)[1]
    return codes


def roles_of(entries: pa.Table) -> NDArray[np.int8]:
    """PUT, DELETE, RELATIVE or CONTROL for each entry."""
    data = _numpy(entries["kind"]) == Kind.DATA
    deletes = _numpy(compute.fill_null(compute.equal(entries["operation_type"], "delete"), False))
    documents = _numpy(compute.is_valid(entries["full_document"]))
    listed = compute.fill_null(compute.list_value_length(entries["unchanged"]), 0)
    whole = documents & (_numpy(listed) == 0)
    roles = np.full(entries.num_rows, RELATIVE, np.int8)
    roles[whole] = PUT
    roles[deletes] = DELETE
    roles[~data] = CONTROL
    return roles


def each_once(sequences: NDArray[np.int64]) -> NDArray[np.intp]:
    """All rows by ascending sequence, each entry once."""
    order = np.argsort(sequences, kind="stable")
    fresh = np.ones(len(order), bool)
    fresh[1:] = np.diff(sequences[order]) != 0
    return order[fresh]


def surviving(
    codes: NDArray[np.int64],
    sequences: NDArray[np.int64],
    roles: NDArray[np.int8],
    *,
    cuts: Sequence[int] = (),
) -> NDArray[np.intp]:
    """The rows that decide the outcome, by ascending sequence, each entry once.

    Of every key: the last PUT or DELETE and the RELATIVE entries after it. `cuts` are sequences of
    events that end a stretch (a rename): a key keeps what decides its row at the end of each.
    """
    order = each_once(sequences)
    if cuts:
        stretch = np.searchsorted(np.asarray(sorted(cuts), np.int64), sequences[order])
        codes = codes.copy()
        codes[order] = codes[order] * (len(cuts) + 1) + stretch
        codes = np.unique(codes, return_inverse=True)[1]
    ordered, roles = codes[order], roles[order]
    absolute = np.flatnonzero((roles == PUT) | (roles == DELETE))
    last = np.full(int(ordered.max(initial=-1)) + 1, -1, np.int64)
    last[ordered[absolute]] = absolute  # ascending: the last assignment stays
    places = np.arange(len(order))
    return order[(places >= last[ordered]) | (roles == CONTROL)]


# --- commits ------------------------------------------------------------------------------------


def sum_commits(entries: pa.Table) -> pa.Table:
    """Sum up the commits of `entries`, without those that are all here and right.

    COMMIT_COLUMNS; what remains is for `merge_commits`, which sees the other parts too.
    """
    entries = entries.filter(compute.is_valid(entries["commit"]))
    commits = _numpy(entries["commit"])
    order = np.argsort(commits, kind="stable")
    starts = np.flatnonzero(np.diff(commits[order], prepend=-1))
    checks = _unsigned(entries["check"])[order]
    rows = np.diff(np.append(starts, len(order)))
    digests = np.add.reduceat(checks, starts) if len(starts) else checks
    sequences = _numpy(entries["sequence"])[order]
    least = np.minimum.reduceat(sequences, starts) if len(starts) else sequences
    most = np.maximum.reduceat(sequences, starts) if len(starts) else sequences
    firsts = order[starts]
    expected = _numpy(entries["commit_rows"])[firsts]
    stated = _unsigned(entries["commit_digest"])[firsts]
    rest = (rows != expected) | (digests != stated)
    here = (rows.astype(np.int64), digests, least, most)
    columns = (commits[firsts], expected, stated, *here)
    return arrow.table(
        {name: column[rest] for name, column in zip(COMMIT_COLUMNS, columns, strict=True)}
    )


def verify_commits(partial: pa.Table, *, whole: bool, lost: Sequence[tuple[int, int]] = ()) -> None:
    """Check the commits of a batch, of which `partial` holds the sums that `sum_commits` left.

    A commit whose entries are all here must have its digest. With `whole` (no filter dropped
    entries) all must be here, but for what retention removed while they were read: `lost` are such
    ranges, each (after, until], for which there are gaps. Raises IncompleteCommitError.
    """
    grouped = partial.group_by("commit").aggregate(
        [
            *(("commit_rows", "max"), ("commit_digest", "max"), ("rows", "sum"), ("digest", "sum")),
            *(("first", "min"), ("last", "max")),
        ]
    )
    commits, expected, stated = (
        grouped["commit"],
        _numpy(grouped["commit_rows_max"]),
        _numpy(grouped["commit_digest_max"]),
    )
    rows, digests = _numpy(grouped["rows_sum"]), _numpy(grouped["digest_sum"])
    wrong = (rows > expected) | ((rows == expected) & (digests != stated))
    if whole:
        missing = rows < expected
        first, last = _numpy(grouped["first_min"]), _numpy(grouped["last_max"])
        for after, until in lost:
            # What follows the last that is here was lost, or what comes before the first.
            missing &= (after > last) | (until < first - 1)
        wrong |= missing
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        raise IncompleteCommitError(
            commit=int(_numpy(commits)[place]),
            rows=int(rows[place]),
            commit_rows=int(expected[place]),
            digest=int(digests[place]),
            commit_digest=int(stated[place]),
        )


def _numpy(column: Any) -> NDArray[Any]:
    values: NDArray[Any] = (
        column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()
    )
    return values


def _unsigned(column: Any) -> NDArray[np.uint64]:
    """64 bits as they are, whether the transport calls them signed or not."""
    return _numpy(column).view(np.uint64)
