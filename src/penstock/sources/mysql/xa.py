"""XA transactions of MySQL: their rows wait for what becomes of them.

MySQL logs the rows of an XA transaction when it is prepared, as a transaction of its own, and
later, maybe by another session and after a restart, an XA COMMIT or XA ROLLBACK, as another one. So
rows are kept from the one to the other, and told in the commit's place. Until then the transaction
that prepared them is not told: a position lacks its GTID, and so the server sends it again to
whoever begins there, whatever else was told since.

What is kept beyond a few megabytes is in a temporary file, which has no name and goes with us.
Source: the MySQL source documentation, mysql::binlog::event::XA_prepare_event.
"""

import struct
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import Final

from penstock.errors import SourceError
from penstock.sources.mysql.binlog import Event, MalformedEventError, Query

MEMORY_BYTES_MAX: Final = 4 << 20
PREPARED_BYTES_MAX: Final = 4 << 30
"""Of one transaction. The server holds as much."""
_HEAD: Final = struct.Struct("<BII")
"""Type, timestamp, and how many bytes follow."""


class Branch:
    """The events of one XA transaction, in order."""

    def __init__(self, source: str, xid: str, gtid: str, start: Query) -> None:
        self.xid = xid
        self.gtid = gtid
        self.thread = start.thread
        """The session that wrote it, and"""
        self.collation = start.collation
        """of the character set that it writes in."""
        self._source = source
        self._bytes = 0
        self._file = SpooledTemporaryFile[bytes](max_size=MEMORY_BYTES_MAX)

    def keep(self, event: Event) -> None:
        """Keep an event. Raises SourceError where there is no room for it."""
        self._bytes += _HEAD.size + len(event.body)
        if self._bytes > PREPARED_BYTES_MAX:
            raise self._no_room(f"it has more than {PREPARED_BYTES_MAX} bytes")
        try:
            self._file.write(_HEAD.pack(event.type, event.timestamp, len(event.body)) + event.body)
        except OSError as error:
            raise self._no_room(error.strerror or "unknown") from error

    def events(self) -> Iterator[Event]:
        """What was kept."""
        self._file.seek(0)
        while head := self._file.read(_HEAD.size):
            kind, timestamp, size = _HEAD.unpack(head)
            yield Event(kind, timestamp, 0, 0, self._file.read(size))

    def close(self) -> None:
        """Keep nothing any more."""
        self._file.close()

    def _no_room(self, why: str) -> SourceError:
        return SourceError(
            f"{self._source}: the XA transaction {self.gtid} waits for its commit, and cannot be "
            f"kept in a temporary file ({why}). Capture has stopped and nothing was skipped. Have "
            f"it committed or rolled back, make room where temporary files are (TMPDIR), then "
            f"start the source again."
        )


class Branches:
    """The XA transactions of one stream: the one whose events come now, and those prepared."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._open: Branch | None = None
        self._prepared: dict[str, Branch] = {}

    def begin(self, xid: str, gtid: str, start: Query) -> None:
        """What follows is of a transaction that begins with this statement."""
        self.abandon()
        self._open = Branch(self._source, xid, gtid, start)

    def keeps(self, event: Event) -> bool:
        """Whether an event is of an XA transaction, and so is kept."""
        if self._open is not None:
            self._open.keep(event)
        return self._open is not None

    def end(self) -> Branch:
        """The transaction whose events have come. Raises MalformedEventError if none did."""
        branch, self._open = self._open, None
        if branch is None:
            raise MalformedEventError("an XA transaction that did not begin")
        return branch

    def wait(self, branch: Branch) -> None:
        """Keep one until it is decided. Raises MalformedEventError if another has its name."""
        if branch.xid in self._prepared:
            branch.close()
            raise MalformedEventError("an XA transaction whose name another one has")
        self._prepared[branch.xid] = branch

    def take(self, xid: str) -> Branch | None:
        """The prepared one of that name, which is now the caller's; None if it is not known."""
        return self._prepared.pop(xid, None)

    def abandon(self) -> None:
        """Drop the one whose events come now, if there is one."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def close(self) -> None:
        """Drop them all."""
        self.abandon()
        for branch in self._prepared.values():
            branch.close()
        self._prepared.clear()


def is_one_phase(body: bytes) -> bool:
    """Whether an XA_PREPARE event commits its transaction at once."""
    if len(body) < 13:
        raise MalformedEventError("an XA_PREPARE event that is too short")
    return bool(body[0])
