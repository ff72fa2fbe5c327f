"""XA transactions: their rows wait for what becomes of them.

A server logs the rows of an XA transaction when it is prepared, as a transaction of its own, and
later, maybe by another session and after a restart, an XA COMMIT or XA ROLLBACK, as another one. So
rows are kept from the one to the other, and told in the commit's place. Until then the transaction
that prepared them is not told, and the server sends it again to whoever begins here, whatever else
was told since: a set of GTIDs lacks its own, and other positions reach back to it (`standing`).

What is kept beyond a few megabytes is in a temporary file, which has no name and goes with us.
Source: the MySQL source documentation, mysql::binlog::event::XA_prepare_event; of MariaDB,
"XA Transactions", and its own source, Gtid_log_event (FL_PREPARED_XA, FL_COMPLETED_XA).
"""

import struct
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import Final, NamedTuple

from penstock.errors import SourceError
from penstock.sources.mysql.beginnings import Beginning
from penstock.sources.mysql.binlog import Event, MalformedEventError
from penstock.sources.mysql.standing import NOTHING_PREPARED, Prepared

MEMORY_BYTES_MAX: Final = 4 << 20
PREPARED_BYTES_MAX: Final = 4 << 30
"""Of one transaction. The server holds as much."""
ENDS: Final = frozenset({"COMMIT", "ROLLBACK"})
"""What ends a transaction, as a statement, or of an XA transaction."""
_HEAD: Final = struct.Struct("<BIQI")
"""Type, timestamp, where it began, and how many bytes follow."""


class Written(NamedTuple):
    """Where the rows of an XA transaction are, and who wrote them: its prepare is often in another
    binlog than its commit, and of another session."""

    file: str
    offset: int
    """Of the transaction that prepared it."""
    thread: int
    collation: int
    """Of the character set that the session wrote in; 0 if it does not say."""


class Branch:
    """The events of one XA transaction, in order."""

    def __init__(
        self, source: str, xid: str, gtid: str, written: Written, prepared: Prepared
    ) -> None:
        self.xid = xid
        self.gtid = gtid
        self.written = written
        self.prepared = prepared
        self._source = source
        self._bytes = 0
        self._file = SpooledTemporaryFile[bytes](max_size=MEMORY_BYTES_MAX)

    def keep(self, event: Event) -> None:
        """Keep an event. Raises SourceError where there is no room for it."""
        self._bytes += _HEAD.size + len(event.body)
        if self._bytes > PREPARED_BYTES_MAX:
            raise self._no_room(f"it has more than {PREPARED_BYTES_MAX} bytes")
        head = _HEAD.pack(event.type, event.timestamp, event.begin, len(event.body))
        try:
            self._file.write(head + event.body)
        except OSError as error:
            raise self._no_room(error.strerror or "unknown") from error

    def events(self) -> Iterator[Event]:
        """What was kept."""
        self._file.seek(0)
        while head := self._file.read(_HEAD.size):
            kind, timestamp, begin, size = _HEAD.unpack(head)
            yield Event(kind, timestamp, 0, 0, self._file.read(size), begin)

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
    """The XA transactions of one stream."""

    def __init__(self) -> None:
        self.writing: Branch | None = None
        """The one whose rows come now."""
        self._prepared: dict[str, Branch] = {}
        """By name."""

    def begin(self, branch: Branch) -> None:
        """What follows is of this one."""
        if self.writing is not None:
            branch.close()
            raise MalformedEventError("an XA transaction that begins within another")
        self.writing = branch

    def ended(self, body: bytes) -> Branch | None:
        """An XA_PREPARE event: the transaction that it commits at once; None if it waits."""
        at_once = _is_one_phase(body)
        branch, self.writing = self.writing, None
        if branch is None:
            raise MalformedEventError("an XA transaction that did not begin")
        if at_once:
            return branch
        if branch.xid in self._prepared:
            branch.close()
            raise MalformedEventError("an XA transaction whose name another one has")
        self._prepared[branch.xid] = branch
        return None

    @property
    def oldest(self) -> Prepared:
        """Of the transactions that wait."""
        return next((one.prepared for one in self._prepared.values()), NOTHING_PREPARED)

    @property
    def names(self) -> list[str]:
        """Of the transactions that wait, their own names as a server's."""
        return [one.gtid for one in self._prepared.values()]

    def taken(self, xid: str) -> Branch | None:
        """The prepared one of this name, no longer kept here; None if we know of none."""
        return self._prepared.pop(xid, None)

    def drop(self, xid: str) -> None:
        """The one of this name, if we have it, is of no use any more."""
        branch = self.taken(xid)
        if branch is not None:
            branch.close()

    def abandon(self) -> None:
        """The one whose rows come now never was one."""
        branch, self.writing = self.writing, None
        if branch is not None:
            branch.close()

    def close(self) -> None:
        """Keep nothing any more."""
        self.abandon()
        for branch in self._prepared.values():
            branch.close()
        self._prepared.clear()


def xa_of(text: str, begun: Beginning) -> tuple[str, str]:
    """What a statement does to an XA transaction, and which one that is; empty if it is about none.

    MariaDB's are named as what begins it does, MySQL's as all of its statements do.
    """
    xa, _, rest = text.strip().partition(" ")
    if xa.upper() != "XA":
        return "", ""
    verb, _, xid = rest.partition(" ")
    return verb.upper(), begun.xid or xid


def _is_one_phase(body: bytes) -> bool:
    """Whether an XA_PREPARE event commits its transaction at once."""
    if len(body) < 13:
        raise MalformedEventError("an XA_PREPARE event that is too short")
    return bool(body[0])
