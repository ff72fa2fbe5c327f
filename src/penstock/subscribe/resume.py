"""Where a reader starts: a marker, held against what the log holds (P7, F10)."""

from penstock.errors import AheadError, GapError, StreamChangedError, TrimmedError
from penstock.ports import Ancestor, Bounds, LogReader
from penstock.progress import Progress, parse_progress


def resume(marker: Progress | None, *, bounds: Bounds, check: int | None) -> Progress:
    """The place to read after. `check` is that of the log's entry at the marker, None if unknown.

    No marker means the head: no history. A marker at the trim watermark still resumes, since all
    that follows it is here, and so does one of a log that this one goes on from, as far as the two
    agree. If that one is gone, a marker within what was published of it resumes at this log's base,
    before the gaps that say what is missing. Raises StreamChangedError (another log, or another
    history up to that place), GapError (beyond what was published of a log that is gone),
    AheadError (beyond the head) or TrimmedError (with the oldest marker that resumes).
    """
    if marker is None:
        return Progress(bounds.log_id, bounds.head, bounds.head_check)
    _require_same_stream(marker, bounds)
    if marker.log_id != bounds.log_id and marker.sequence < bounds.base == bounds.trimmed:
        return oldest(bounds)
    if marker.sequence > bounds.head:
        raise AheadError(sequence=marker.sequence, head=bounds.head)
    if check is None or marker.sequence < bounds.trimmed:
        raise TrimmedError(oldest=str(oldest(bounds)))
    if marker.check != check:
        raise StreamChangedError(
            f"what the log tells up to sequence {marker.sequence} is not what it was made for"
        )
    return Progress(bounds.log_id, marker.sequence, check)


def _require_same_stream(marker: Progress, bounds: Bounds) -> None:
    if marker.log_id == bounds.log_id:
        return
    for ancestor in bounds.ancestors:
        if marker.log_id == ancestor.log_id:
            if marker.sequence <= ancestor.head:
                return
            if ancestor.gone:
                raise _lost_log(marker, ancestor, bounds)
            raise StreamChangedError(
                f"this log was restored from a copy that ended at sequence {ancestor.head}, and "
                f"the marker stands at {marker.sequence}"
            )
    raise StreamChangedError("it was made by another log")


def _lost_log(marker: Progress, ancestor: Ancestor, bounds: Bounds) -> GapError:
    after = str(oldest(bounds))
    remedy = f"Rebuild from the source, then follow from the oldest marker: {after}"
    if ancestor.head == bounds.base == bounds.trimmed:
        remedy = (
            f"All that happened after the published copy was captured again: to get it, with "
            f"repeats, follow from the oldest marker; or rebuild from the source: {after}"
        )
    return GapError.saying(
        f"the log that this marker belongs to is gone with its disk. This one goes on "
        f"from its published copy at sequence {ancestor.head}, and the marker stands at "
        f"{marker.sequence}: what followed it there cannot be told from what is here. Nothing was "
        f"sent. {remedy}",
        after=after,
    )


def oldest(bounds: Bounds) -> Progress:
    """The oldest marker that resumes: everything the log still holds comes after it."""
    return Progress(bounds.log_id, bounds.trimmed, bounds.trimmed_check)


async def start(log: LogReader, marker: str) -> Progress:
    """The place after which a reader with this marker reads on; empty = the current head.

    Raises MalformedProgressError, and whatever `resume` raises.
    """
    wanted = parse_progress(marker) if marker else None
    check = await log.check_at(wanted.sequence) if wanted is not None else None
    bounds = await log.bounds()
    if wanted is not None and check is None and bounds.trimmed <= wanted.sequence <= bounds.head:
        # The log took it between the two questions.
        check = await log.check_at(wanted.sequence)
    return resume(wanted, bounds=bounds, check=check)
