"""Archive -> Arrow batches: the entries of a range, in order, as the log had them.

A file is held against its digest before anything of it is believed, and then read by row group.
What is not as the manifest says is refused by name.
"""

# The published types of pyarrow are partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive.manifest import Manifest, Range
from penstock.archive.place import Place
from penstock.archive.selecting import NEEDED, choose, is_everything
from penstock.errors import (
    ArchiveDamagedError,
    ArchiveError,
    GapError,
)
from penstock.progress import Progress
from penstock.subscribe.criteria import Criteria
from penstock.wire import ARROW_SCHEMA, histories

_U32: Final = (1 << 32) - 1
_READ_BYTES: Final = 4 << 20
_MEMORY_BYTES_MAX: Final = 128 << 20
"""A file of at most so many bytes is read once, for its digest and its rows."""


class Archive:
    """One archive, as it was when it was opened. Belongs to one thread."""

    def __init__(self, place: Place, manifest: Manifest) -> None:
        self.place = place
        self.manifest = manifest.readable()
        """What follows the last loss."""
        self.hidden = len(manifest.ranges) - len(self.manifest.ranges)
        """How many files lie before it."""
        self._open: tuple[Range, Any] | None = None
        self._last: tuple[int, int] | None = None
        """The place that was read up to last, and its check: the next page begins there."""

    @classmethod
    def open(cls, path: str) -> "Archive":
        """The archive at `path`. Raises ArchiveError where there is none."""
        place = Place(path)
        found = place.newest()
        if found is None:
            raise ArchiveError(
                f"there is no archive at {place.where}. Nothing was read. Check the path; the "
                f"service makes the archive when it starts with [archive]."
            )
        return cls(place, found[1])

    def came_to(self, sequence: int, check: int) -> None:
        """What was read up to, and the 32-bit check of that place, so that `check_at` begins there
        and not at the range's beginning."""
        self._last = sequence, check

    def check_at(self, sequence: int) -> int | None:
        """The 32-bit check of the place; None for what is not in the archive."""
        known = self.manifest.check_after(sequence)
        if known is not None or not self.manifest.begin < sequence <= self.manifest.until:
            return known
        one = self.manifest.holding(sequence)
        if one.chained_after is None or sequence <= one.chained_after:
            (batch,) = self._rows(sequence - 1, sequence, ("check",))
            return int(batch.column("check")[0].as_py()) & _U32
        after = one.chained_after
        check = one.after_check if after == one.after else self.check_at(after)
        assert check is not None
        if self._last is not None and after <= self._last[0] <= sequence:
            after, check = self._last
        if after == sequence:
            return check
        for batch in self._rows(after, sequence, ("check", "commit")):
            checks, commits = (batch.column(name).to_numpy() for name in ("check", "commit"))
            check = int(histories(check, checks, commits)[-1])
        self.came_to(sequence, check)
        return check

    def commit_end(self, *, after: int, target: int) -> int:
        """The last commit end in (after, target], or that of the commit that `after` + 1 begins.

        `after` is the end of a commit in the archive, and `target` beyond it.
        """
        if target >= self.manifest.until:
            return self.manifest.until
        best = self._end_within(self.manifest.holding(target), after=after, target=target)
        if best is not None:
            return best
        # No commit ends there: it is all of one, which lies in one range.
        first = self.manifest.holding(after + 1)
        for batch in self._rows(after, first.until, ("sequence", "ends_commit")):
            ends = np.flatnonzero(batch.column("ends_commit").to_numpy(zero_copy_only=False))
            if len(ends):
                return int(batch.column("sequence")[int(ends[0])].as_py())
        raise self.damaged(first, "its last row does not end a commit")

    def _end_within(self, one: Range, *, after: int, target: int) -> int | None:
        """The last commit end in (after, target], of which `one` holds the end."""
        groups = [one.after, *one.groups]
        for low, high in zip(reversed(groups[:-1]), reversed(groups[1:]), strict=True):
            if low >= target:
                continue
            if high <= after:
                break
            start, stop = max(low, after), min(high, target)
            for batch in self._rows(start, stop, ("sequence", "ends_commit")):
                ends = np.flatnonzero(batch.column("ends_commit").to_numpy(zero_copy_only=False))
                if len(ends):
                    return int(batch.column("sequence")[int(ends[-1])].as_py())
        return one.after if one.after > after else None

    def splits(self, *, after: int, until: int, count: int) -> list[int]:
        """Where (after, until] may be cut into at most `count` parts: between files if these are
        enough, for each is read whole; else between row groups."""
        ranges = self.manifest.ranges
        ends = [one.until for one in ranges if after < one.until < until]
        if len(ends) < 2 * count:
            ends = [end for one in ranges for end in one.groups if after < end < until]
        found: list[int] = []
        for part in range(1, count):
            at = bisect_left(ends, after + (until - after) * part // count)
            if at < len(ends) and ends[at] not in found:
                found.append(ends[at])
        return found

    def join(self, sequence: int) -> int | None:
        """The first end of a range at or behind `sequence`; None where the archive ends before."""
        manifest = self.manifest
        if sequence <= manifest.begin:
            return manifest.begin
        at = bisect_left(manifest.ranges, sequence, key=lambda one: one.until)
        return manifest.ranges[at].until if at < len(manifest.ranges) else None

    def batches(
        self, *, after: int, until: int, columns: Sequence[str], criteria: Criteria
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The rows of (after, until] that `criteria` wants, each batch with the sequence up to
        which it covers. Raises GapError at a gap that the reader cannot go past."""
        names = tuple(columns)
        if is_everything(criteria):
            for batch in self._rows(after, until, names):
                after += batch.num_rows
                yield batch, after
            return
        needed = tuple(dict.fromkeys((*names, *NEEDED)))
        for batch in self._rows(after, until, needed):
            chosen = choose(criteria, batch)
            rows: Any = pa.array(chosen.rows, pa.int64())
            taken = batch.select(list(names)).take(rows)
            if chosen.gap is None:
                after += batch.num_rows
                yield taken, after
                continue
            sequence = after + chosen.gap + 1
            yield taken, sequence - 1
            check = self.check_at(sequence)
            assert check is not None
            source = batch.column("source")[chosen.gap].as_py()
            raise GapError(
                after=str(Progress(self.manifest.log_id, sequence, check)),
                description=f"source {source!r}, at sequence {sequence}",
            )

    def whole(self, one: Range) -> Iterator[pa.RecordBatch]:
        """All rows of a range, a batch per row group."""
        return self._range_rows(one, one.after, one.until, ARROW_SCHEMA.names)

    def _rows(self, after: int, until: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows of (after, until], a batch per row group."""
        manifest = self.manifest
        first = bisect_right(manifest.ranges, after, key=lambda one: one.until)
        for one in manifest.ranges[first:]:
            if one.after >= until:
                return
            for batch in self._range_rows(one, after, until, columns):
                yield batch
                after += batch.num_rows

    def _range_rows(
        self, one: Range, after: int, until: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys((*columns, "sequence")))
        low = one.after
        for number, high in enumerate(one.groups):
            if low < until and high > after:
                file = self._opened(one)
                with self._explained(one):
                    batch = _as_one(file.read_row_group(number, columns=names), names)
                sequences = batch.column("sequence").to_numpy()
                if not np.array_equal(sequences, np.arange(low + 1, high + 1)):
                    raise self.damaged(one, f"row group {number} holds other entries")
                start, stop = max(low, after) - low, min(high, until) - low
                yield batch.select(list(columns)).slice(start, stop - start)
            low = high

    def _opened(self, one: Range) -> Any:
        """The file, which has the very bytes that were written. The last one stays open: who plans
        or reads row group by row group asks for the same one again."""
        if self._open is not None and self._open[0] == one:
            return self._open[1]
        self.close()
        stream = self.place.open(one.name, size=one.bytes)
        with self._explained(one):
            source, digest = stream, hashlib.sha256()
            if one.bytes <= _MEMORY_BYTES_MAX:
                data = stream.read_buffer()
                digest.update(data)
                stream.close()
                source = pa.BufferReader(data)
            else:
                while data := stream.read(_READ_BYTES):
                    digest.update(data)
                stream.seek(0)
            if digest.hexdigest() != one.digest:
                raise self.damaged(one, "its SHA-256 is not that of the file that was written")
            file = pq.ParquetFile(source)
            if file.metadata.num_row_groups != len(one.groups):
                raise self.damaged(one, "it has other row groups than the manifest says")
        self._open = (one, file)
        return file

    def close(self) -> None:
        """Let go of the file that was read last. The archive may be used again."""
        if self._open is not None:
            self._open[1].close(force=True)
            self._open = None

    @contextmanager
    def _explained(self, one: Range) -> Generator[None]:
        """Tell a file that is not what was written from a place that does not answer."""
        with self.place.explained():
            try:
                yield
            except OSError:
                raise
            except (pa.ArrowException, KeyError) as error:
                raise self.damaged(one, str(error).splitlines()[0]) from error

    def damaged(self, one: Range, what: str) -> ArchiveDamagedError:
        """The error that says what is wrong with a file."""
        return ArchiveDamagedError(self.place.full(one.name), what)


def _as_one(table: Any, names: Sequence[str]) -> pa.RecordBatch:
    """A table of one row group as one batch, in the types of the log."""
    schema = pa.schema([ARROW_SCHEMA.field(name) for name in names])
    batches = table.select(list(names)).combine_chunks().cast(schema).to_batches()
    if len(batches) != 1:
        raise pa.ArrowInvalid(f"a row group of {len(batches)} parts")
    batch: pa.RecordBatch = batches[0]
    return batch
