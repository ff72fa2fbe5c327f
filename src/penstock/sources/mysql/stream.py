"""The events of a server's binlog, as it sends them to a replica.

We say which transactions we have, and the server sends all others, in the order of its binlog. It
speaks at least every heartbeat, so that silence is a broken connection (S15). Nothing is read ahead
of who asks: what we do not take stays with the server.
Sources: the MariaDB documentation, "Replication Protocol" (COM_REGISTER_SLAVE, COM_BINLOG_DUMP,
"Slave registration"), and "Global Transaction ID" for @slave_connect_state; the MySQL source
documentation, COM_BINLOG_DUMP_GTID.
"""

import secrets
import select
import socket
from struct import Struct as Layout
from typing import Final

import pymysql
from pymysql.err import raise_mysql_exception

from penstock.sources.mysql.connection import Connected, Facts, ask, socket_of
from penstock.sources.mysql.file_places import BEGINNING, FilePlace
from penstock.sources.mysql.frames import FramedSocket, is_pending
from penstock.sources.mysql.gtid_sets import GtidSet
from penstock.sources.mysql.positions import Told

_COM_BINLOG_DUMP: Final = 0x12
_COM_REGISTER_SLAVE: Final = 0x15
_COM_BINLOG_DUMP_GTID: Final = 0x1E
_PACKET_BYTES_MAX: Final = 0xFFFFFF
_EVENT_BYTES_MAX: Final = (1 << 30) + _PACKET_BYTES_MAX
"""As much as a server puts into one event, and a little more."""
_READ_BYTES: Final = 256 << 10
_KNOWS_GTIDS: Final = 4
"""What a replica says that knows all of MariaDB's events, GTIDs too."""
_NON_BLOCKING: Final = 0x01
"""The server ends the stream where its binlog ends."""
_WITH_STATEMENTS: Final = 0x02
"""MariaDB sends the statement before its rows, too: ANNOTATE_ROWS."""
_OK, _END, _ERROR = 0x00, 0xFE, 0xFF


class StreamEndedError(pymysql.err.OperationalError):
    """The server ended the stream."""


def drawn_server_id() -> int:
    """A number among the server's replicas that surely nobody else has, high above people's own."""
    return (1 << 31) + secrets.randbelow(1 << 31)


class BinlogStream:
    """One connection that the server sends its binlog to. Blocks; one thread at a time."""

    def __init__(self, connection: Connected) -> None:
        sock = socket_of(connection)
        if sock is None:
            raise pymysql.err.InterfaceError(0, "the connection is closed")
        self._connection = connection
        self._socket = sock
        self._buffer = bytearray()
        self._parts: list[bytes] = []

    def begin(
        self,
        facts: Facts,
        *,
        after: Told,
        server_id: int,
        heartbeat_seconds: float,
        statements: bool = False,
        replies: bool = False,
        once: bool = False,
    ) -> None:
        """Ask for all transactions but those of `after`, or for all behind it.

        With `statements`, each statement's text comes before its rows, if it is in the binlog:
        MariaDB leaves it out without, MySQL never does. With `replies`, we are a semi-synchronous
        replica of a server that knows such: events come as `Replies` opens them. `once`: the stream
        ends where the binlogs end now, and a domain of MariaDB's may begin within a hole of its.
        """
        connection = self._connection
        self._introduce(facts)
        ask(connection, f"SET @master_heartbeat_period = {round(heartbeat_seconds * 1e9)}")
        if replies:
            # MySQL knows the one name or the other, by its plugin.
            ask(connection, "SET @rpl_semi_sync_slave = 1")
            ask(connection, "SET @rpl_semi_sync_replica = 1")
            if isinstance(self._socket, FramedSocket):
                self._socket.counts_anew()
        ends = _NON_BLOCKING if once else 0
        if isinstance(after, GtidSet):
            self._register(server_id)
            self._dump_but(after, server_id, flags=ends)
            return
        if isinstance(after, FilePlace):
            self._register(server_id)
            self._dump(server_id, file=after.file, offset=after.offset, flags=ends)
            return
        ask(connection, "SET @slave_connect_state = %s", after.text())
        ask(connection, f"SET @slave_gtid_strict_mode = {int(not once)}")
        ask(connection, "SET @slave_gtid_ignore_duplicates = 0")
        self._register(server_id)
        self._dump(server_id, file="", flags=ends | (_WITH_STATEMENTS if statements else 0))

    def begin_at(self, facts: Facts, *, file: str, server_id: int, offset: int = BEGINNING) -> None:
        """Ask for what is in a binlog from an event on, up to where the binlogs end now."""
        self._introduce(facts)
        self._dump(server_id, file=file, offset=offset, flags=_NON_BLOCKING)

    def _introduce(self, facts: Facts) -> None:
        """Say what kind of replica we are: one that takes events as they are in the binlog."""
        if facts.is_mariadb:
            ask(self._connection, f"SET @mariadb_slave_capability = {_KNOWS_GTIDS}")
        # MySQL calls it `source` from 8.0.26 on, and still knows the older name.
        ask(self._connection, "SET @master_binlog_checksum = %s", facts.binlog_checksum)

    def deadline(self, seconds: float) -> None:
        """Raise TimeoutError where nothing is heard for so long."""
        self._socket.settimeout(seconds)

    def wait(self, seconds: float, bell: socket.socket) -> bool:
        """Whether there is something to read, or will be within `seconds`; no longer than until the
        bell can be read from."""
        if self._has_packet:
            return True
        if is_pending(self._socket):
            return True
        waiting = select.poll()
        ours = self._socket.fileno()
        waiting.register(ours, select.POLLIN)
        waiting.register(bell, select.POLLIN)
        return any(ready == ours for ready, _ in waiting.poll(max(seconds, 0) * 1000))

    def read(self) -> list[bytes]:
        """The next events, at least one; waits for it.

        Raises TimeoutError at the deadline, OSError or a MySQLError when the connection breaks, and
        StreamEndedError when the server ends it. What it refuses is the server's error.
        """
        while True:
            events = self._taken()
            if events:
                return events
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise StreamEndedError(2013, "the connection was closed")
            self._buffer += data

    def reply(self, packed: bytes) -> None:
        """Send a reply, which nothing answers."""
        packet = len(packed).to_bytes(3, "little") + bytes(1) + packed
        if isinstance(self._socket, FramedSocket):
            self._socket.send_aside(packet)
        else:
            self._socket.sendall(packet)

    def _taken(self) -> list[bytes]:
        """The events that are here whole. An event may come as several packets."""
        events = list[bytes]()
        if self._has_packet:
            # Only then: what comes in many pieces is not copied with each.
            at = self._take(bytes(self._buffer), events)
            del self._buffer[:at]
        return events

    @property
    def _has_packet(self) -> bool:
        return len(self._buffer) >= 4 + int.from_bytes(self._buffer[:3], "little")

    def _take(self, data: bytes, events: list[bytes]) -> int:
        """Add the events that begin `data`; up to where they were taken."""
        at, end = 0, len(data)
        while end - at >= 4:
            # Three bytes of length, and a number that nobody needs.
            size = _HEAD(data, at)[0] & _PACKET_BYTES_MAX
            stop = at + 4 + size
            if stop > end:
                break
            if 0 < size < _PACKET_BYTES_MAX and data[at + 4] == _OK and not self._parts:
                events.append(data[at + 5 : stop])
                at = stop
                continue
            self._parts.append(data[at + 4 : stop])
            at = stop
            if len(self._parts) * _PACKET_BYTES_MAX > _EVENT_BYTES_MAX:
                raise pymysql.err.InternalError(2020, "an event that is larger than any")
            if size == _PACKET_BYTES_MAX:
                continue
            packet = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            if not packet or packet[0] != _OK:
                if events:
                    # What came before it is told first: this one is looked at again.
                    at -= 4 + size
                    break
                raise _refusal(packet)
            events.append(packet[1:])
        return at

    def _register(self, server_id: int) -> None:
        name = b"penstock"
        self._send(
            _COM_REGISTER_SLAVE,
            _REGISTER.pack(server_id) + bytes([len(name)]) + name + bytes(2) + bytes(2 + 4 + 4),
        )
        # Its answer is one packet: OK or an error.
        while not (answer := self._answer()):
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise StreamEndedError(2013, "the connection was closed")
            self._buffer += data
        if answer[0] != _OK:
            raise _refusal(answer)

    def _answer(self) -> bytes:
        size = int.from_bytes(self._buffer[:3], "little")
        if len(self._buffer) < 4 + size or not size:
            return b""
        packet = bytes(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
        return packet

    def _dump(self, server_id: int, *, file: str, flags: int, offset: int = BEGINNING) -> None:
        self._send(_COM_BINLOG_DUMP, _DUMP.pack(offset, flags, server_id) + file.encode())

    def _dump_but(self, told: GtidSet, server_id: int, *, flags: int) -> None:
        data = told.encoded()
        head = _DUMP_GTID.pack(flags, server_id, 0, BEGINNING, len(data))
        self._send(_COM_BINLOG_DUMP_GTID, head + data)

    def _send(self, command: int, payload: bytes) -> None:
        self._socket.sendall(
            (len(payload) + 1).to_bytes(3, "little") + bytes([0, command]) + payload
        )


_HEAD: Final = Layout("<I").unpack_from
_REGISTER: Final = Layout("<I")
_DUMP: Final = Layout("<IHI")
_DUMP_GTID: Final = Layout("<HIIQI")
"""Flags, server id, the length of a file's name, where in it, the length of the set."""


def _refusal(packet: bytes) -> Exception:
    """The error that a packet is which is no event."""
    if packet[:1] == bytes([_ERROR]):
        try:
            raise_mysql_exception(packet)
        except pymysql.MySQLError as error:
            return error
    if packet[:1] == bytes([_END]):
        return StreamEndedError(2013, "the server ended the stream")
    return pymysql.err.InternalError(2027, "a packet that is neither event nor error")
