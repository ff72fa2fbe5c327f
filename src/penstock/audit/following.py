"""Follow a trail: what there is, then what comes, without a hole and without a repetition (A23).

There is no hand-over to get wrong: what is old and what is new are read alike, by place, up to the
head, and the place that was looked at last is where the next reading begins. A change stream on
the head, where the server has them, only rings: it says when to look, never what. Where it has
none, the head is looked at now and then. So rows of one second are never lost, and neither is
anything that was written while MongoDB was away.
"""

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

from bson.raw_bson import RawBSONDocument
from pymongo.change_stream import ChangeStream
from pymongo.errors import PyMongoError

from penstock.audit.filters import Filters
from penstock.audit.outages import passes
from penstock.audit.querying import PAGE, Querier
from penstock.audit.trail import Document, Head, Trail
from penstock.errors import AuditError, TrailMissingError, TrailUnavailableError

POLL_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 5.0
"""Whoever watches is told of an outage after so long."""


class Bell:
    """Rings when the head may have moved."""

    def __init__(self, trail: Trail, *, stopping: threading.Event, seconds: float) -> None:
        """`seconds`: it rings at least so often, whatever happens."""
        self._trail = trail
        self._stopping = stopping
        self._seconds = seconds
        self._stream: ChangeStream[Document] | None = None
        self._streams = True
        """Whether this server has change streams, and shows us this one."""

    @property
    def streams(self) -> bool:
        return self._streams

    def wait(self) -> None:
        """Returns when the head may have moved, or after a while; soon, once we are to stop."""
        try:
            if self._streams and self._stream is None:
                self._stream = self._open()
                return  # what moved before it was open, it does not say
            if self._stream is not None:
                if not self._stopping.is_set():
                    self._stream.try_next()
                return
        except PyMongoError as error:
            self.close()
            if not passes(error):
                self._streams = False  # a standalone server, or we may not watch: look instead
        self._stopping.wait(self._seconds)

    def _open(self) -> ChangeStream[Document]:
        return self._trail.heads.watch(
            [{"$match": {"documentKey._id": self._trail.source}}, {"$project": {"_id": 1}}],
            max_await_time_ms=int(self._seconds * 1000),
        )

    def close(self) -> None:
        """It may be used again."""
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.close()
            except PyMongoError:
                return  # the server is away, and its cursor with it


class Follower:
    """Reads a trail to its head, and then on for ever. Blocks; one thread."""

    def __init__(
        self,
        trail: Trail,
        filters: Filters,
        *,
        stopping: threading.Event,
        on_outage: Callable[[bool], None] | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """`on_outage` is told True when MongoDB does not answer, and False when it does again."""
        self._querier = Querier(trail)
        self._filters = filters
        self._stopping = stopping
        self._on_outage = on_outage
        self._bell = Bell(trail, stopping=stopping, seconds=poll_seconds)
        self._away = False
        self.last = 0
        """Everything up to this place was looked at."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bell.close()

    @property
    def streams(self) -> bool:
        """Whether a change stream tells when to look."""
        return self._bell.streams

    def history(self, count: int) -> list[RawBSONDocument]:
        """The last `count` records that there are, the oldest first; what follows comes next.

        A trail that was not begun yet has none. Raises AuditError.
        """
        try:
            head = self._querier.head()
        except TrailMissingError:
            return []
        found = list(
            self._querier.records(
                self._filters, order="desc", until=head.at, limit=count, page=min(count, PAGE) or 1
            )
        )
        self.last = head.at
        return found[::-1]

    def records(self) -> Iterator[RawBSONDocument | None]:
        """What follows the place `last`, for ever, or until we are to stop.

        None says that this was all for now. Outages are waited for. Raises AuditError for what does
        not pass by itself.
        """
        while not self._stopping.is_set():
            try:
                self._querier.require_answer(ANSWER_SECONDS)
                yield from self._new()
            except TrailUnavailableError:
                self._tell(away=True)
                self._bell.close()
                self._stopping.wait(RETRY_SECONDS)
                continue
            except TrailMissingError:
                self._require_one()
            self._tell(away=False)
            yield None
            self._bell.wait()

    def _new(self) -> Iterator[RawBSONDocument]:
        done = False
        while not done and not self._stopping.is_set():
            page = self._querier.page(self._filters, order="asc", limit=PAGE, after=self.last)
            self._require_grown(page.head)
            for record in page.records:
                # Before it is handed out: should the reading of the next one fail, this one was.
                self.last = int(record["at"])
                yield record
            self.last, done = page.after, page.done

    def _require_grown(self, head: Head) -> None:
        if head.at < self.last:
            raise AuditError(
                f"trail of {self._querier.source}: it ends at {head.at}, and was at {self.last} "
                f"before: it was begun anew, or restored from an older backup. What was shown is "
                f"as it was. Begin again to see what is there now."
            )

    def _require_one(self) -> None:
        if self.last:
            raise AuditError(
                f"trail of {self._querier.source}: its head is gone, and it was at {self.last}. "
                f"Somebody removed it. What was shown is as it was."
            )

    def _tell(self, *, away: bool) -> None:
        if away is not self._away:
            self._away = away
            if self._on_outage is not None:
                self._on_outage(away)
