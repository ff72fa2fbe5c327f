"""Places within a batch: where a target stands that has written a part of one.

A batch's rows have no markers, so the log is asked while the batch is written. By then it may be
another one, put back from a copy, whose marker at that sequence would hide what differs before it:
so it must know the place up to which the batch was read, too.
"""

from collections.abc import Iterable, Iterator

from penstock.audit.packing import Ended, Step, Whole
from penstock.client.flight import LogClient
from penstock.errors import PenstockError, TrimmedError
from penstock.progress import Progress


def place_within(log: LogClient, sequence: int, *, until: Progress) -> Progress:
    """The place behind an entry of a batch that was read up to `until`.

    Raises TrimmedError once retention has passed the entry or `until`, StreamChangedError and
    AheadError where the log is no longer the one that was read, and as `LogClient` does.
    """
    if sequence == until.sequence:
        return until
    place = log.marker(log_id=until.log_id, sequence=sequence)
    log.plan(after=until, until=until)
    return place


class Places:
    """How far a batch is written, while it is.

    Where the log cannot say it, because retention has passed the entry or the service does not
    answer, what was known before is said: who goes on from there reads again what it has.
    """

    def __init__(self, log: LogClient, *, after: Progress, until: Progress) -> None:
        """The batch is of (after, until]."""
        self._log = log
        self._known = after
        self._until = until
        self._asks = True

    def at(self, sequence: int) -> Progress:
        """The place of an entry, or one before. Ascending. Raises as `place_within` does of a log
        that is another one."""
        if self._asks or sequence == self._until.sequence:
            try:
                self._known = place_within(self._log, sequence, until=self._until)
            except TrimmedError:
                pass
            except PenstockError as error:
                if not error.transient:
                    raise
                # It was waited for once. The next batch waits for it again.
                self._asks = False
        return self._known


def ending_at(steps: Iterable[Step], until: int) -> Iterator[Step]:
    """The steps of a whole batch; the last one has everything up to `until`, where the batch ends.

    Before an error of `steps` is raised, what came before it is yielded as it is.
    """
    held: Step | None = None
    try:
        for step in steps:
            if held is not None:
                yield held
            held = step
    except PenstockError:
        if held is not None:
            yield held
        raise
    if isinstance(held, Whole | Ended):
        yield held._replace(until=until)
