"""Whether a stream that is quiet is still of the history that its server writes. Pure.

A server that is reset while it sends goes on from the file that it had open, which nobody writes to
any more, and says with each heartbeat that it has nothing. So its own place is compared with ours.
"""

from penstock.sources.mysql.positions import Told


class Following:
    """What a stream's heartbeats have shown."""

    def __init__(self, *, patience_seconds: float) -> None:
        """With `patience_seconds` for what the server has, until it is here."""
        self._patience_seconds = patience_seconds
        self._end: str = ""
        """Where the server's binlogs ended at a heartbeat, which we have not reached; empty: none
        is known."""
        self._place: str = ""
        self._since: float = 0.0

    def is_overdue(self, ours: Told, *, end: str, place: str, now: float) -> bool:
        """At a heartbeat, in seconds of one clock: whether the server, whose binlogs end at `end`,
        has had more for longer than our patience, and stood still meanwhile.

        `place` is where it reads: it may skip for long what we have.
        """
        if not self._end or not ours.is_behind(self._end) or place != self._place:
            self._end, self._place, self._since = end, place, now
        return ours.is_behind(self._end) and now - self._since >= self._patience_seconds
