"""Log -> archive: look, decide, seal. Plain and synchronous: whoever runs it brings the thread.

A range is read, written to its file, and then shown by the next manifest; see `place.publish`. What
dies on the way leaves a file that nothing names, which the next writer removes.
"""

# The published types of pyarrow are partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow.parquet as pq
import structlog
from msgspec import Struct

from penstock.archive.begun import note_begun, require_new
from penstock.archive.config import ArchiveConfig
from penstock.archive.log import ArchivedLog
from penstock.archive.manifest import (
    Lost,
    Manifest,
    Range,
    Standing,
    require_same_log,
)
from penstock.archive.place import Place, Sink
from penstock.archive.planning import End, Waiting, cuts, due
from penstock.clocks import SystemClock
from penstock.errors import ArchiveForeignError, LogCorruptError, TrimmedError
from penstock.ports import Bounds, Hold
from penstock.wire import ARROW_SCHEMA, Block, to_arrow, verify_checks

SCHEMA_VERSION: Final = 1
"""Of the files: the columns of `wire.ARROW_SCHEMA`."""
_CLOCK: Final = SystemClock()
_GROUP_BYTES: Final = 8 << 20
"""Of blocks in a row group: what a reader holds at once."""
_RANGES_AT_ONCE: Final = 4
"""So many are counted before they are sealed; a log of many small commits has millions of ends."""
_ENDS_OF_A_RANGE: Final = 64
"""So exactly is known where one may end, at least."""

log = structlog.get_logger()


class Archived(Struct, frozen=True, kw_only=True):
    """How far the archive is."""

    begin: int
    until: int
    ranges: int
    bytes: int
    lost: int
    """Entries that retention removed before they were archived."""
    updated_at: int


class _Stopped(Exception):  # noqa: N818 - no error: it ends a range that is not needed
    """The archiver was told to stop."""


class Archiver:
    """Archives one log to one place. `step` belongs to one thread at a time; all else to any."""

    def __init__(
        self,
        log: ArchivedLog,
        config: ArchiveConfig,
        path: str,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        steady_seconds: Callable[[], float] = _CLOCK.steady_seconds,
    ) -> None:
        """`steady_seconds` is the time by which `hold` ends, whatever the clock is set to."""
        self._log = log
        self._steady_seconds = steady_seconds
        self.config = config
        """It may be replaced at any time, and holds from the next step on."""
        self._path = path
        self._now_ms = now_ms
        self._stop = threading.Event()
        self._place: Place | None = None
        self._number = 0
        self._manifest: Manifest | None = None
        self._ends: list[End] = []
        self._counted = -1
        self._size = self._since_ms = 0
        self._done_at = steady_seconds()
        """When all that was due was last archived."""

    def stop(self) -> None:
        """Have a step that is under way end soon, with nothing half done."""
        self._stop.set()

    @property
    def archived(self) -> Archived | None:
        """How far it is; None before the archive was opened."""
        manifest = self._manifest
        if manifest is None:
            return None
        return Archived(
            begin=manifest.begin,
            until=manifest.until,
            ranges=len(manifest.ranges),
            bytes=manifest.bytes,
            lost=sum(one.until - one.after for one in manifest.lost),
            updated_at=manifest.updated_at,
        )

    def hold(self, _trimmed: int = 0) -> Hold | None:
        """What retention must leave alone, as far as it has come: all that is not archived, for a
        while."""
        manifest = self._manifest
        left = self._done_at + self.config.range_age + self.config.hold - self._steady_seconds()
        if left <= 0:
            return None
        return Hold(
            sequence=0 if manifest is None else manifest.until,
            until_ms=self._now_ms() + round(1000 * left),
            bytes_max=self.config.hold_bytes,
        )

    def step(self) -> bool:
        """Look once, and archive what is due; whether something was. Raises ArchiveError, and
        what reading the log raises; the next step begins where this one did."""
        with self._log.snapshot() as moment:
            bounds, sources = moment.bounds(), tuple(moment.sources())
        try:
            place, manifest = self._opened(bounds)
            manifest = self._adopted(place, manifest, bounds)
            standing = Standing(sequence=bounds.head, sources=sources)
            begun = manifest.until
            while True:
                self._count(bounds.head, manifest.until)
                waiting = Waiting(self._ends, self._since_ms)
                if not due(waiting, self.config, now_ms=self._now_ms()):
                    self._keep_standing(place, manifest, standing)
                    break
                for until in cuts(self._ends, range_bytes=self.config.range_bytes):
                    manifest = self._seal(place, until, standing if until == bounds.head else None)
        except (TrimmedError, _Stopped):
            # Retention was quicker: the next step says what is lost.
            return False
        except ArchiveForeignError:
            # What another service has archived stays as it is: the next step looks anew.
            self._place = None
            raise
        return manifest.until > begun

    # --- opening --------------------------------------------------------------------------------

    def _opened(self, bounds: Bounds) -> tuple[Place, Manifest]:
        """The archive as this process knows it; made where there is none."""
        if self._place is not None and self._manifest is not None:
            return self._place, self._manifest
        place = Place(self._path)
        found = place.newest()
        if found is None:
            # As of a disk that is not mounted: another archive must not begin in its place.
            require_new(self._log.path, place.where)
        place.make()
        if found is None:
            manifest = Manifest(
                log_id=bounds.log_id,
                begin=bounds.trimmed,
                begin_check=bounds.trimmed_check,
                ancestors=bounds.ancestors,
                base=bounds.base,
            )
            self._publish(place, manifest)
        else:
            self._number, manifest = found
            require_same_log(manifest, bounds, place.where)
            self._require_same_entry(manifest, bounds, place.where)
        # Not before there is one: what fails on the way may be tried again.
        note_begun(self._log.path, place.where)
        left = place.left_behind(manifest)
        if left:
            # Another service that was about to name one of them comes second by this.
            manifest = self._publish(place, manifest)
            place.remove(left)
            log.info("archive: what was never finished is removed", files=len(left))
        self._place, self._manifest = place, manifest
        return place, manifest

    def _require_same_entry(self, manifest: Manifest, bounds: Bounds, where: str) -> None:
        """Raise ArchiveForeignError where the log has another entry at the archive's end: of one
        whose folder was put back from an older copy the id is the same, and so are numbers, once it
        has gone on."""
        until = manifest.until
        if until < bounds.trimmed or not until:
            return  # that entry is gone, and what follows it is lost to the archive
        found = bounds.trimmed_check
        if until > bounds.trimmed:
            (block,) = self._read(after=until - 1, until=until)
            found = block.history(block.stop - 1)
        if found != manifest.until_check:
            raise ArchiveForeignError(
                where,
                f"entry {until} is not the one that this log has there, as of a log that was put "
                f"back from an older copy",
            )

    def _adopted(self, place: Place, manifest: Manifest, bounds: Bounds) -> Manifest:
        """The manifest of this very log, with what retention took before it was archived."""
        changed = manifest
        if manifest.log_id != bounds.log_id:
            # It was restored, and shares all that is archived.
            changed = msgspec.structs.replace(
                changed, log_id=bounds.log_id, ancestors=bounds.ancestors, base=bounds.base
            )
        if bounds.trimmed > manifest.until:
            lost = Lost(
                after=manifest.until,
                until=bounds.trimmed,
                until_check=bounds.trimmed_check,
                found_at=self._now_ms(),
            )
            log.error(
                "archive: retention removed entries before they were archived",
                after=lost.after,
                until=lost.until,
            )
            changed = msgspec.structs.replace(changed, lost=(*changed.lost, lost))
        if changed is not manifest:
            self._publish(place, changed)
        return changed

    def _keep_standing(self, place: Place, manifest: Manifest, standing: Standing) -> None:
        """A quiet source's position moves though nothing happens, and must be kept now and then."""
        aged = self._now_ms() - manifest.updated_at >= self.config.range_age * 1000
        same = standing.sequence == manifest.until and standing != manifest.standing
        if same and aged:
            self._publish(place, msgspec.structs.replace(manifest, standing=standing))
        if standing.sequence == manifest.until:
            self._done_at = self._steady_seconds()

    def _publish(self, place: Place, manifest: Manifest) -> Manifest:
        manifest = msgspec.structs.replace(manifest, updated_at=self._now_ms())
        try:
            place.publish(manifest, self._number + 1)
        except BaseException:
            # Whether it is there is not known: the next step looks.
            self._place = None
            raise
        self._number += 1
        self._manifest = manifest
        self._done_at = self._steady_seconds()
        return manifest

    # --- sealing --------------------------------------------------------------------------------

    def _count(self, head: int, after: int) -> None:
        """Where commits end that wait behind `after`, of some ranges at most; what was counted is
        not read again."""
        if self._counted < after or (self._ends and self._ends[0].sequence <= after):
            self._ends, self._size, self._counted = [], 0, after
        most = _RANGES_AT_ONCE * self.config.range_bytes
        while self._counted < head and (not self._ends or self._ends[-1].bytes < most):
            for block in self._read(after=self._counted, until=head):
                if self._counted == after:
                    self._since_ms = block.ingested_at
                self._size += block.nbytes
                ends = np.flatnonzero(block.places["ends"][block.start : block.stop])
                if len(ends):
                    last = block.first_sequence + block.start + int(ends[-1])
                    self._add_end(End(last, self._size))
                self._counted = block.last_sequence

    def _add_end(self, end: End) -> None:
        """One more end; the one before it is forgotten where they are close to each other."""
        before = self._ends[-2].bytes if len(self._ends) > 1 else 0
        if self._ends and end.bytes - before < self.config.range_bytes // _ENDS_OF_A_RANGE:
            self._ends.pop()
        self._ends.append(end)

    def _read(self, *, after: int, until: int) -> list[Block]:
        if self._stop.is_set():
            raise _Stopped
        blocks = self._log.read_now(after=after, until=until, bytes_max=_GROUP_BYTES)
        if not blocks:
            raise LogCorruptError(f"the log lists the entry {after + 1} but does not hold it")
        return blocks

    def _seal(self, place: Place, until: int, standing: Standing | None) -> Manifest:
        """Archive what waits up to `until`; the manifest that says so."""
        assert self._manifest is not None
        manifest = self._manifest
        after = manifest.until
        made = _Made(after)
        name = f"data/{after + 1:020d}-{until:020d}.parquet"
        place.require_last(self._number)
        with place.writing(name) as sink:
            self._write(sink, made, until)
        sealed = Range(
            after=after,
            after_check=manifest.until_check,
            chained_after=made.chained_after,
            until=until,
            until_check=made.check,
            commits=made.commits,
            bytes=sink.size,
            digest=sink.digest,
            groups=tuple(made.groups),
            first_timestamp=made.first_timestamp,
            last_timestamp=made.last_timestamp,
            schema_version=SCHEMA_VERSION,
        )
        assert sealed.name == name
        return self._publish(
            place, manifest.with_range(sealed, standing=standing, head_commit=made.head_commit)
        )

    def _write(self, sink: Sink, made: "_Made", until: int) -> None:
        where: Any = sink  # the stubs know files only
        with pq.ParquetWriter(where, ARROW_SCHEMA, compression="zstd") as writer:
            while made.until < until:
                blocks = self._read(after=made.until, until=until)
                for block in blocks:
                    verify_checks(block)
                batch = to_arrow(blocks)
                writer.write_batch(batch, row_group_size=batch.num_rows)
                made.add(batch, blocks)


class _Made:
    """What was written of a range."""

    def __init__(self, after: int) -> None:
        self.until = after
        self.check = self.commits = self.head_commit = 0
        self.chained_after: int | None = None
        self.groups: list[int] = []
        self.first_timestamp = self.last_timestamp = 0

    def add(self, batch: Any, blocks: Sequence[Block]) -> None:
        """One row group, of these blocks."""
        last = blocks[-1]
        if self.chained_after is None:
            first = next((one for one in blocks if one.before is not None), None)
            if first is not None:
                self.chained_after = first.first_sequence + first.start - 1
        times = batch.column("timestamp").to_numpy()
        low, high = int(times.min()), int(times.max())
        self.first_timestamp = min(self.first_timestamp, low) if self.groups else low
        self.last_timestamp = max(self.last_timestamp, high) if self.groups else high
        self.until = last.last_sequence
        self.groups.append(self.until)
        self.check = last.history(last.stop - 1)
        self.head_commit = last.last_commit
        self.commits += int(batch.column("ends_commit").true_count)
