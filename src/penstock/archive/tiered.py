"""Archive and live log behind one client: one ordered source, with the same markers.

The log is asked first. Where it says TRIMMED, the archive answers, up to the end of a range at or
behind the log's own beginning; there the archive's check must be the log's. So it does not matter
when retention moves on: whoever is overtaken goes on from the archive.
"""

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from penstock.archive.joining import Joining, joined_bounds
from penstock.archive.reading import Archive
from penstock.client.credentials import NOBODY, Credentials
from penstock.client.flight import LogClient, Plan, ReadRequest
from penstock.errors import (
    RequestError,
    StreamChangedError,
    TrimmedError,
)
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.subscribe.criteria import Criteria
from penstock.wire import ARROW_SCHEMA


class TieredClient(LogClient):
    """As LogClient, of all that the log and its archive hold.

    What both lack, because the archive lost it, is TRIMMED, as is what came before. Beside what
    LogClient raises: ArchiveError for an archive that cannot be read, is of another log, or ends
    before the log begins; RequestError for a token that does not show everything, since an
    archive does.
    """

    def __init__(
        self,
        endpoint: str,
        archive: str,
        *,
        patience_seconds: float = 30.0,
        credentials: Credentials = NOBODY,
    ) -> None:
        super().__init__(endpoint, patience_seconds=patience_seconds, credentials=credentials)
        self._shown = credentials.are_shown
        self._joining = Joining(archive, before_opening=self._require_shown)

    def close(self) -> None:
        """As `LogClient.close`."""
        super().close()
        self._joining.close()

    def bounds(self) -> Bounds:
        """What log and archive hold together."""
        bounds = super().bounds()
        if bounds.trimmed == 0:
            return bounds
        return joined_bounds(bounds, self._joined(bounds)[0])

    def plan(
        self,
        *,
        after: Progress,
        events_max: int | None = None,
        until: Progress | None = None,
        partitions_max: int = 1,
        partition_events_min: int = 1,
    ) -> Plan:
        """As `LogClient.plan`; what `events_max` cuts ends where both meet, at the latest."""
        while True:
            try:
                return super().plan(
                    after=after,
                    events_max=events_max,
                    until=until,
                    partitions_max=partitions_max,
                    partition_events_min=partition_events_min,
                )
            except TrimmedError:
                live = super().bounds()
            if until is not None and until.sequence >= live.trimmed:
                try:
                    # As this log names it, which may know it from the log that it was made of.
                    until = super().plan(after=until, until=until).after
                except TrimmedError:
                    continue
            archive, joint = self._joined(live)
            place = self._verified(archive, live, after)
            to = self._end(archive, live, joint, place, events_max, until)
            if to.sequence <= place.sequence:
                return Plan(after=place, to=place, splits=[], head=live.head)
            rows = to.sequence - place.sequence
            count = max(1, min(partitions_max, rows // max(1, partition_events_min)))
            old = min(joint.sequence, to.sequence)
            parts = max(1, count * (old - place.sequence) // rows)
            splits = archive.splits(after=place.sequence, until=old, count=parts)
            if to.sequence > joint.sequence and count > 1:
                try:
                    rest = super().plan(
                        after=joint,
                        until=to,
                        partitions_max=max(1, count - parts),
                        partition_events_min=partition_events_min,
                    )
                except TrimmedError:
                    continue  # retention has passed where they met; they meet further on
                splits = [*splits, joint.sequence, *rest.splits]
            return Plan(after=place, to=to, splits=splits, head=live.head)

    def _end(
        self,
        archive: Archive,
        live: Bounds,
        joint: Progress,
        after: Progress,
        events_max: int | None,
        until: Progress | None,
    ) -> Progress:
        head = Progress(live.log_id, live.head, live.head_check)
        last = head if until is None else until
        if last.sequence < live.trimmed:
            last = self._verified(archive, live, last)
        if events_max is None or last.sequence - after.sequence <= events_max:
            return last
        end = archive.commit_end(after=after.sequence, target=after.sequence + max(1, events_max))
        if end >= joint.sequence:
            return min(joint, last, key=lambda one: one.sequence)
        return min(self._at(archive, live, end), last, key=lambda one: one.sequence)

    def marker(self, *, log_id: int, sequence: int) -> Progress:
        """As `LogClient.marker`."""
        try:
            return super().marker(log_id=log_id, sequence=sequence)
        except TrimmedError:
            live = super().bounds()
        archive, _ = self._joined(live)
        _require_same_stream(Progress(log_id, sequence, 0), live)
        return self._at(archive, live, sequence)

    def read_covered(self, request: ReadRequest) -> Iterator[tuple[pa.RecordBatch, int]]:
        """As `LogClient.read_covered`; goes on from the archive wherever retention is quicker."""
        covered = request.after
        while covered < request.until:
            rest = msgspec.structs.replace(request, after=covered)
            try:
                for batch, at in super().read_covered(rest):
                    covered = at
                    yield batch, at
            except TrimmedError:
                rest = msgspec.structs.replace(request, after=covered)
                for batch, at in self._archived(rest):
                    covered = at
                    yield batch, at

    def _archived(self, request: ReadRequest) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The part of the range that is in the archive alone, and a little more."""
        live = super().bounds()
        if live.log_id != request.log_id:
            raise StreamChangedError("it was made by another log, or before this one was restored")
        archive, joint = self._joined(live)
        if request.after < archive.manifest.begin:
            raise _trimmed(archive, live)
        yield from archive.batches(
            after=request.after,
            until=min(request.until, joint.sequence),
            columns=request.columns or ARROW_SCHEMA.names,
            criteria=_criteria_of(request),
        )

    # --- where they meet ------------------------------------------------------------------------

    def _joined(self, live: Bounds) -> tuple[Archive, Progress]:
        """The archive, and where reading passes from it to the log: the same entry in both."""
        archive, joint = self._joining.at(live, super().bounds)
        if not self._joining.has_met(joint):
            self._joining.meet(joint, self._live_check(live, joint.sequence))
        return archive, joint

    def _live_check(self, live: Bounds, sequence: int) -> int | None:
        """The log's check of the entry; None if retention has passed it by now."""
        if sequence == live.trimmed:
            return live.trimmed_check
        try:
            return super().marker(log_id=live.log_id, sequence=sequence).check
        except TrimmedError:
            return None

    def _require_shown(self) -> None:
        if self._shown and self.seen().partial:
            raise RequestError(
                "the archive shows everything, and this token only a part. Nothing was read. Take "
                "a token that shows everything, or read without the archive."
            )

    def _verified(self, archive: Archive, live: Bounds, place: Progress) -> Progress:
        """`place` as the log names it; its check must be the archive's."""
        _require_same_stream(place, live)
        found = self._at(archive, live, place.sequence)
        if found.check != place.check:
            raise StreamChangedError(
                f"what the log tells up to sequence {place.sequence} is not what it was made for"
            )
        return found

    def _at(self, archive: Archive, live: Bounds, sequence: int) -> Progress:
        check = archive.check_at(sequence)
        if check is None:
            raise _trimmed(archive, live)
        return Progress(live.log_id, sequence, check)


def _require_same_stream(place: Progress, live: Bounds) -> None:
    shared = {one.log_id: one.head for one in live.ancestors} | {live.log_id: live.head}
    if place.sequence > shared.get(place.log_id, -1):
        raise StreamChangedError("it was made by another log")


def _trimmed(archive: Archive, live: Bounds) -> TrimmedError:
    begin = archive.manifest
    return TrimmedError(oldest=str(Progress(live.log_id, begin.begin, begin.begin_check)))


def _criteria_of(request: ReadRequest) -> Criteria:
    return Criteria(
        collections=frozenset(request.collections),
        sources=frozenset([request.source] if request.source else []),
        control_events=request.control_events,
    )
