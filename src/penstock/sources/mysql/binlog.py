"""The binlog's events, as a server sends them to a replica: header, checksum, and the small ones.

Pure. Rows and what describes them are in `tables` and `rows`. All integers are little-endian. What
an event says that is not understood raises MalformedEventError: nothing is guessed or left out.
Sources: the MariaDB documentation, "Replication Protocol" (an event's page by its name); the MySQL
source documentation, "Binlog Event" (mysql::binlog::event).
"""

import struct
import zlib
from enum import IntEnum
from struct import Struct as Layout
from typing import Final, NamedTuple
from zlib import crc32

from msgspec import Struct

HEADER: Final = Layout("<IBIIIH")
"""Timestamp, type, server id, size, end position, flags."""
HEADER_BYTES: Final = HEADER.size
CHECKSUM_BYTES: Final = 4
_FLAGS: Final = 17
IGNORABLE_FLAG: Final = 0x80
"""An event that whoever does not know it may leave out."""


class MalformedEventError(ValueError):
    """An event does not say what its type must."""


class EventType(IntEnum):
    """What an event is. Those that are not here are unknown, and stop capture."""

    STOP = 3
    QUERY = 2
    ROTATE = 4
    INTVAR = 5
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID_LOG = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED_LOG = 42
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168
    WRITE_ROWS_COMPRESSED = 169
    UPDATE_ROWS_COMPRESSED = 170
    DELETE_ROWS_COMPRESSED = 171


QUERIES: Final = frozenset({EventType.QUERY, EventType.QUERY_COMPRESSED})
"""Those of statements."""
HARMLESS: Final = frozenset(
    {
        EventType.STOP,
        EventType.INTVAR,
        EventType.RAND,
        EventType.USER_VAR,
        EventType.HEARTBEAT,
        EventType.IGNORABLE,
        EventType.BINLOG_CHECKPOINT,
        EventType.GTID_LIST,
        EventType.TRANSACTION_CONTEXT,
        EventType.VIEW_CHANGE,
        EventType.HEARTBEAT_V2,
    }
)
"""Those that hold no row and end nothing. Statements that need some of them are refused."""


class Event(Struct, frozen=True, gc=False):
    """One event: what its header says, and its body without header and checksum."""

    type: int
    timestamp: int
    """Unix seconds."""
    end: int
    """Where the next event begins in its file; 0 for what is in no file."""
    flags: int
    body: bytes
    begin: int = 0
    """Where in its file it begins; 0 where that is not said. From MariaDB 11.4 on, what was in a
    transaction's cache does not say it; nor what is compressed with its transaction."""


_ENDS_STATEMENT: Final = 0x01


def ends_statement(body: bytes) -> bool:
    """Whether the last of a statement's rows are in a ROWS event."""
    return bool(body[6] & _ENDS_STATEMENT) if len(body) > 6 else False


_OF_FILES: Final = frozenset({EventType.FORMAT_DESCRIPTION, EventType.ROTATE})
_header: Final = HEADER.unpack_from
_BODY: Final = slice(HEADER_BYTES, -CHECKSUM_BYTES)
_PROVEN: Final = 0x2144DF1C
"""The CRC-32 of whatever is followed by its own CRC-32: no copy without it is needed."""


class Checksums:
    """Takes events apart, and proves each by its checksum where the file has them.

    Whether it has says its FORMAT_DESCRIPTION, which comes before all that is in the file.
    """

    def __init__(self) -> None:
        self._checked = False

    def event(self, data: bytes) -> Event:
        """The event that `data` holds. Raises MalformedEventError for one that arrived damaged."""
        length = len(data)
        if length < HEADER_BYTES:
            raise MalformedEventError(f"an event of {length} bytes, less than its header")
        timestamp, kind, _, size, end, flags = _header(data)
        if size != length:
            raise MalformedEventError(f"an event that says {size} bytes and has {length}")
        begin = end - size if end > size else 0
        if self._checked and kind not in _OF_FILES:
            if crc32(data) != _PROVEN:
                raise MalformedEventError(f"an event of type {kind} whose checksum is wrong")
            return Event(kind, timestamp, end, flags, data[_BODY], begin)
        if kind == EventType.FORMAT_DESCRIPTION:
            self._checked = _format_has_checksums(data)
        if kind == EventType.ROTATE:
            # The first comes before any FORMAT_DESCRIPTION, and may have a checksum all the same.
            checked = _is_proven(data)
        else:
            checked = self._checked
            if checked and not _is_proven(data):
                raise MalformedEventError(f"an event of type {kind} whose checksum is wrong")
        stop = size - CHECKSUM_BYTES if checked else size
        return Event(kind, timestamp, end, flags, data[HEADER_BYTES:stop], begin)


_IN_USE: Final = 0x01


def _is_proven(data: bytes) -> bool:
    if data[_FLAGS] & _IN_USE:
        # Set in a file while it is written, and not counted.
        data = data[:_FLAGS] + bytes([data[_FLAGS] & ~_IN_USE]) + data[_FLAGS + 1 :]
    return crc32(data) == _PROVEN


_SERVER_VERSION = slice(HEADER_BYTES + 2, HEADER_BYTES + 52)
_NO_CHECKSUM, _CRC32 = 0, 1


def _format_has_checksums(data: bytes) -> bool:
    """Whether the events of a file have checksums. Its FORMAT_DESCRIPTION always has one.

    Its last five bytes are the algorithm and the checksum, with every server that is captured.
    """
    if len(data) < _SERVER_VERSION.stop + 5 + CHECKSUM_BYTES + 1:
        raise MalformedEventError("a FORMAT_DESCRIPTION that is too short")
    version = int.from_bytes(data[HEADER_BYTES : HEADER_BYTES + 2], "little")
    header = data[_SERVER_VERSION.stop + 4]
    algorithm = data[-CHECKSUM_BYTES - 1]
    if version != 4 or header != HEADER_BYTES or algorithm not in {_NO_CHECKSUM, _CRC32}:
        raise MalformedEventError(
            f"a file of binlog version {version}, with headers of {header} bytes and checksum "
            f"algorithm {algorithm}"
        )
    return algorithm == _CRC32


class Gtid(NamedTuple):
    """A MariaDB transaction's name."""

    domain: int
    server: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.domain}-{self.server}-{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> "Gtid":
        """Raises ValueError for what is none."""
        domain, server, sequence = text.strip().split("-")
        return cls(int(domain), int(server), int(sequence))


class Begun(Struct, frozen=True, gc=False):
    """What a GTID event says of the transaction that it begins."""

    sequence: int
    domain: int
    standalone: bool
    """Whether it has no end of its own: the next statement is all of it."""
    alters_nothing: bool
    """Whether its ALTER only begins (START ALTER), or did not come about (ROLLBACK ALTER).

    With binlog_alter_two_phase, an ALTER is logged as it begins, and again as it ends.
    """
    thread: int
    """The session that wrote it; 0 where it does not say."""
    xid: str = ""
    """The name of the XA transaction that it prepares, or says the end of."""
    xa_prepared: bool = False
    """Whether it prepares that one: its rows wait for an XA COMMIT."""


_GTID = Layout("<QIB")
_STANDALONE, _GROUP_COMMIT = 0x01, 0x02
"""With the second, the number of its group commit follows."""
_XA_PREPARED = 0x40
_XA = _XA_PREPARED | 0x80
_MORE_ENGINES, _ENDS_ALTER, _THREAD = 0x01, 0x04 | 0x08, 0x10
"""Of the flags that may follow: a byte, eight, and the four of the session follow them."""
_ALTERS_NOTHING = 0x02 | 0x08


def begun(body: bytes) -> Begun:
    """What a GTID event (162) says."""
    try:
        sequence, domain, flags = _GTID.unpack_from(body)
    except struct.error as error:
        raise MalformedEventError("a GTID event that is too short") from error
    at = _GTID.size + (8 if flags & _GROUP_COMMIT else 0)
    xid = ""
    if flags & _XA:
        xid, at = _xid(body, at)
    # What is short is filled up with zeros.
    more = 0 if at >= len(body) else body[at]
    thread = 0
    if more & _THREAD:
        at += 1 + bool(more & _MORE_ENGINES) + 8 * bool(more & _ENDS_ALTER)
        # A server that does not say it leaves it out, and zeros may fill its place.
        thread = int.from_bytes(body[at : at + 4], "little")
    return Begun(
        sequence,
        domain,
        flags & _STANDALONE > 0,
        more & _ALTERS_NOTHING > 0,
        thread,
        xid,
        flags & _XA_PREPARED > 0,
    )


_XID = Layout("<IBB")
"""Format, and the lengths of the name's two parts."""


def _xid(body: bytes, at: int) -> tuple[str, int]:
    """The name of an XA transaction, as the server writes it, and where it ends."""
    stop = at + _XID.size
    if stop > len(body):
        raise MalformedEventError("a GTID event that is too short")
    form, first, second = _XID.unpack_from(body, at)
    name = body[stop : stop + first + second]
    if len(name) < first + second:
        raise MalformedEventError("a GTID event that is too short")
    return xid_text(name, first, form), stop + len(name)


def xid_text(name: bytes, first: int, form: int) -> str:
    """The name of an XA transaction as the server writes it; its first part has so many bytes."""
    return f"X'{name[:first].hex()}',X'{name[first:].hex()}',{form}"


def ends_or_prepares_xa(body: bytes) -> bool:
    """Whether a GTID event of MariaDB is of an XA transaction's prepare, or its end."""
    return bool(body[_GTID.size - 1] & _XA)


def gtid_of(said: Begun, data: bytes) -> Gtid:
    """The GTID of what an event begins that came as `data`; its server is the header's."""
    (server,) = _server(data, 5)
    return Gtid(said.domain, server, said.sequence)


def gtid_text(said: Begun, data: bytes) -> str:
    """As `gtid_of`, as the server writes it."""
    (server,) = _server(data, 5)
    return f"{said.domain}-{server}-{said.sequence}"


_server = Layout("<I").unpack_from


class Query(NamedTuple):
    """A statement."""

    database: str
    """The session's own, for names without one."""
    text: str
    error: int
    thread: int
    collation: int
    """Of the character set in which its session wrote it; 0 where it does not say."""
    sql_mode: int = 0
    """Bits of its session's sql_mode."""
    changed: bool = False
    """Whether its server says that it has changed the dictionary of tables. MySQL 8.0 and MariaDB
    10.6 and newer say so of what their engines can undo; of others, nothing is said."""

    @property
    def modes(self) -> str:
        """Those of its session's modes without which its text may mean something else."""
        return ",".join(name for name, bit in _MODES.items() if self.sql_mode & bit)


_MODES: Final = {
    "REAL_AS_FLOAT": 1 << 0,
    "PIPES_AS_CONCAT": 1 << 1,
    "ANSI_QUOTES": 1 << 2,
    "ORACLE": 1 << 9,  # MariaDB's: a DATE is a DATETIME
    "MSSQL": 1 << 10,  # MariaDB's: a name may be in brackets
    "NO_BACKSLASH_ESCAPES": 1 << 20,
    "HIGH_NOT_PRECEDENCE": 1 << 29,
}
_QUERY = Layout("<IIBHH")


def query(body: bytes, *, compressed: bool = False) -> Query:
    """What a QUERY event says. Bytes of the text that are no UTF-8 are kept as surrogates."""
    try:
        thread, _, database_bytes, error, status_bytes = _QUERY.unpack_from(body)
    except struct.error as malformed:
        raise MalformedEventError("a QUERY event that is too short") from malformed
    start = _QUERY.size + status_bytes
    stop = start + database_bytes
    if stop + 1 > len(body):
        raise MalformedEventError("a QUERY event that is too short")
    text = body[stop + 1 :]
    if compressed:
        text = uncompressed(text)
    return Query(
        body[start:stop].decode(errors="surrogateescape"),
        text.decode(errors="surrogateescape"),
        error,
        thread,
        *_of_session(body[_QUERY.size : start]),
    )


_SQL_MODE, _CLIENT_CHARSET, _INVOKER, _DATABASES = 1, 4, 11, 12
_DDL_XIDS: Final = frozenset({17, 129})
"""The transaction in which the dictionary of tables was changed: MySQL's, and MariaDB's."""
_TEXTS: Final = {5: 1, 6: 1, _INVOKER: 2}
"""Of the session's variables that are texts, each with its length before it: how many they are."""
_VARIABLE_BYTES: Final = {
    number: size
    for size, numbers in {
        1: (16, 19, 20),
        2: (7, 8, 18),
        3: (13, 128),
        4: (0, 3, 10),
        6: (_CLIENT_CHARSET,),
        8: (_SQL_MODE, 9),
    }.items()
    for number in numbers
}
"""Of those that have one length: flags, SQL mode, auto increment, ..."""
_TOO_MANY: Final = 254
"""In the place of a count of databases: none is named."""


def _of_session(variables: bytes) -> tuple[int, int, bool]:
    """The collation of a statement's session, its sql_mode, and whether the dictionary of tables
    was changed; 0 and False for what is not said."""
    at = collation = mode = 0
    while at < len(variables):
        code, at = variables[at], at + 1
        if code in _DDL_XIDS:
            return collation, mode, True
        if code in _TEXTS:
            for _ in range(_TEXTS[code]):
                at += 1 + int.from_bytes(variables[at : at + 1], "little")
        elif code == _DATABASES:
            count, at = int.from_bytes(variables[at : at + 1], "little"), at + 1
            for _ in range(count if count != _TOO_MANY else 0):
                at = variables.find(b"\0", at) + 1 or len(variables)
        elif code in _VARIABLE_BYTES:
            size = _VARIABLE_BYTES[code]
            if code == _SQL_MODE:
                mode = int.from_bytes(variables[at : at + size], "little")
            elif code == _CLIENT_CHARSET:
                collation = int.from_bytes(variables[at : at + 2], "little")
            at += size
        else:
            break
    return collation, mode, False


class Rotation(NamedTuple):
    """Which file follows, and where in it."""

    file: str
    position: int


def rotation(body: bytes) -> Rotation:
    """What a ROTATE event says."""
    if len(body) < 9:
        raise MalformedEventError("a ROTATE event that is too short")
    return Rotation(body[8:].decode(errors="replace"), int.from_bytes(body[:8], "little"))


UNCOMPRESSED_BYTES_MAX: Final = 1 << 30
"""As much as a server puts into one event."""


def uncompressed(data: bytes) -> bytes:
    """What MariaDB's binlog compression (`log_bin_compress`) made `data` of.

    A byte of 0x80, the algorithm (bits 4 to 6, 0 is zlib) and how many bytes the length has (bits
    0 to 2); that length, big-endian; the compressed bytes.
    """
    head = data[0] if data else 0
    length_bytes, algorithm = head & 0x07, (head & 0x70) >> 4
    if not head & 0x80 or algorithm or not 1 <= length_bytes <= 4:
        raise MalformedEventError(f"a compressed event that begins with 0x{head:02x}")
    length = int.from_bytes(data[1 : 1 + length_bytes], "big")
    if length > UNCOMPRESSED_BYTES_MAX:
        raise MalformedEventError(f"a compressed event of {length} bytes")
    unpacker = zlib.decompressobj()
    try:
        whole = unpacker.decompress(data[1 + length_bytes :], length + 1)
    except zlib.error as error:
        raise MalformedEventError("a compressed event that zlib does not take") from error
    if len(whole) != length or not unpacker.eof:
        raise MalformedEventError("a compressed event of another length than it says")
    return whole


def lenenc(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer at `at`, and where it ends. Raises MalformedEventError."""
    if at >= len(data):
        raise MalformedEventError("an event that ends within a length")
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
    if size is None or at + 1 + size > len(data):
        raise MalformedEventError("an event that ends within a length")
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size
