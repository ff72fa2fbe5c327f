"""What was sent to a client and is not acknowledged yet, by the ends of commits."""

from collections import deque
from typing import Final, NamedTuple

from penstock.serve.zero.acks import Ack
from penstock.serve.zero.record import Mark

_KEPT_MAX: Final = 4_096


class Sent(NamedTuple):
    """A place that a client was told of."""

    mark: Mark
    changed: int
    """The last commit up to it that had a change for the client."""


class Marks:
    """The places of one connection, oldest first.

    Of very many that are not acknowledged every other one is forgotten: an acknowledgement then
    counts for the one before it, which holds more of the log than it must and never less.
    """

    def __init__(self, start: Mark, changed: int) -> None:
        """Everything up to `start` is durable at the client."""
        self._sent: deque[Sent] = deque()
        self._rows_to = start.commit
        """Transactions up to here are durable there."""
        self._newest = Sent(start, changed)

    @property
    def told(self) -> Mark:
        """The last place that was sent."""
        return self._newest.mark

    @property
    def changed(self) -> int:
        """The last commit that had a change for the client, as far as was sent."""
        return self._newest.changed

    def sent(self, mark: Mark, *, changes: bool) -> None:
        """A commit with changes, or a status, is about to be sent."""
        self._newest = Sent(mark, mark.commit if changes else self._newest.changed)
        self._sent.append(self._newest)
        if len(self._sent) > _KEPT_MAX:
            kept = list(self._sent)
            # The newest stays: it may be all that is ever acknowledged.
            self._sent = deque([*kept[:-1:2], kept[-1]])

    def acknowledged(self, ack: Ack) -> Sent | None:
        """Up to where the client has everything now, if that moved.

        Raises ValueError for a watermark beyond what was sent.
        """
        if ack.commit > self.told.commit:
            raise ValueError("it acknowledges what was not sent")
        if ack.of_rows:
            self._rows_to = max(self._rows_to, ack.commit)
        found: Sent | None = None
        while (
            self._sent
            and self._sent[0].mark.commit <= ack.commit
            and self._sent[0].changed <= self._rows_to
        ):
            found = self._sent.popleft()
        return found
