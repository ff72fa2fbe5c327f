"""What a semi-synchronous server is told: up to where the log holds everything. Pure.

Its commits wait, for as long as it is told to wait, until a replica says that it has them. We say
so of a place in its binlog once every change of a captured table before it is durable in the log
(invariant 1): so of what concerns no such table at once, and of an XA transaction that is only
prepared. Two bytes come before each event: 0xef, and whether a commit waits for its place.
Sources: the MySQL source documentation, "Semi-synchronous replication" (ReplSemiSyncBase); the
MariaDB documentation, "Semisynchronous Replication Plugin Protocol".
"""

from collections import deque
from typing import Final, NamedTuple

import pymysql

from penstock.event import Commit, Fragment
from penstock.sources.mysql.binlog import Event, EventType, rotation

MAGIC: Final = 0xEF
_HEAD_BYTES: Final = 2
_WAITS: Final = 0x01


class Reply(NamedTuple):
    """A place in the server's binlog."""

    file: str
    offset: int

    def packed(self) -> bytes:
        """As it is sent."""
        return bytes([MAGIC]) + self.offset.to_bytes(8, "little") + self.file.encode()


class Replies:
    """What is owed to the server of one stream. One thread at a time."""

    def __init__(self) -> None:
        self.said_count = 0
        """How many commits were said."""
        self.durable_count = 0
        """How many of them the log holds."""
        self._last = ""
        """The position that was said last."""
        self._said: deque[tuple[int, str]] = deque()
        """Those that it is not known to hold: their numbers and positions."""
        self._owed: deque[tuple[int, Reply]] = deque()
        """Places, and how many commits must be durable for each."""
        self._waits = False
        self._file = ""

    def opened(self, data: bytes) -> bytes:
        """An event without what comes before it."""
        if len(data) < _HEAD_BYTES or data[0] != MAGIC:
            raise pymysql.err.InternalError(2027, "an event that does not say whether it waits")
        self._waits = bool(data[1] & _WAITS)
        return data[_HEAD_BYTES:]

    def begins_at(self, place: Reply) -> None:
        """All that is before this place is before our position, which is said first of all."""
        self._owed.append((1, place))

    def said(self, item: Commit | Fragment) -> None:
        """This is handed out."""
        if isinstance(item, Commit):
            if not item.events and item.position == self._last:
                # Nothing more to hold: a heartbeat. The log may acknowledge both as one.
                return
            self._last = item.position
            self.said_count += 1
            self._said.append((self.said_count, item.position))

    def passed(self, event: Event) -> None:
        """All that the event comes to was handed out, which was opened last."""
        if event.type == EventType.ROTATE:
            self._file = rotation(event.body).file
        elif self._waits and event.end:
            self._owed.append((self.said_count, Reply(self._file, event.end)))

    def durable(self, position: str) -> None:
        """The log holds what was said up to this position."""
        for at, (number, said) in enumerate(self._said):
            if said == position:
                self.durable_count = number
                for _ in range(at + 1):
                    self._said.popleft()
                return

    def due(self) -> Reply | None:
        """The last place that may be told now, once; it stands for all before it."""
        found: Reply | None = None
        while self._owed and self._owed[0][0] <= self.durable_count:
            found = self._owed.popleft()[1]
        return found
