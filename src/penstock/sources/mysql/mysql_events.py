"""Events that MySQL alone writes: what begins a transaction. Pure.

Sources: the MySQL source documentation, mysql::binlog::event::Gtid_event, and "Serialization
library" for the form that tagged GTIDs come in.
"""

from typing import Final, NamedTuple
from uuid import UUID

from penstock.sources.mysql.binlog import MalformedEventError

_FLAG, _UUID, _NUMBER = 1, 16, 8
_LOGICAL_CLOCK: Final = 2
_MICROS: Final = (1 << 55) - 1
"""Of a commit's moment; the highest bit says that there is another, of where it began."""


class MysqlBegun(NamedTuple):
    """What a GTID event of MySQL says of the transaction that it begins."""

    gtid: str
    """`uuid:7` or `uuid:tag:7`."""
    micros: int
    """When this server committed it, in microseconds since the epoch; 0 where it does not say."""


def mysql_begun(body: bytes) -> MysqlBegun:
    """What a GTID_LOG event (33) says, or an ANONYMOUS_GTID (34), which has the number 0."""
    at = _FLAG + _UUID + _NUMBER
    if len(body) < at:
        raise MalformedEventError("a GTID event that is too short")
    uuid = str(UUID(bytes=body[_FLAG : _FLAG + _UUID]))
    number = int.from_bytes(body[_FLAG + _UUID : at], "little")
    micros = 0
    if at < len(body) and body[at] == _LOGICAL_CLOCK and len(body) >= at + 17 + 7:
        at += 17
        micros = int.from_bytes(body[at : at + 7], "little") & _MICROS
    return MysqlBegun(f"{uuid}:{number}", micros)


_TAGGED_VERSION: Final = 1
_FIELDS: Final = ("flags", "uuid", "number", "tag", "committed", "sequence", "micros")
"""In their order. What follows is not needed."""


def tagged_begun(body: bytes) -> MysqlBegun:
    """What a GTID_TAGGED_LOG event (42) says: fields that each begin with their number."""
    reader = _Fields(body)
    version, size, needed = reader.unsigned(), reader.unsigned(), reader.unsigned()
    if version != _TAGGED_VERSION or size != len(body) or needed > 11:
        raise MalformedEventError(
            f"a tagged GTID of version {version}, {size} bytes and {needed} fields"
        )
    uuid, number, tag, micros = b"", 0, "", 0
    for index, name in enumerate(_FIELDS):
        if reader.unsigned() != index:
            raise MalformedEventError(f"a tagged GTID without {name}")
        if name == "uuid":
            uuid = bytes(reader.unsigned() & 0xFF for _ in range(_UUID))
        elif name == "tag":
            tag = reader.text()
        elif name == "number":
            number = reader.signed()
        elif name in {"committed", "sequence"}:
            reader.signed()
        elif name == "micros":
            micros = reader.unsigned()
        else:
            reader.unsigned()
    if number <= 0:
        raise MalformedEventError("a tagged GTID without a number")
    who = f"{UUID(bytes=uuid)}:{tag}" if tag else str(UUID(bytes=uuid))
    return MysqlBegun(f"{who}:{number}", micros)


class _Fields:
    """Reads integers of which the first byte says, by its low bits that are one, how many more
    bytes they have."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def unsigned(self) -> int:
        if self.at >= len(self.data):
            raise MalformedEventError("a tagged GTID that is too short")
        first = self.data[self.at]
        more = (~first & (first + 1)).bit_length() - 1 if first != 0xFF else 8
        stop = self.at + 1 + more
        if stop > len(self.data):
            raise MalformedEventError("a tagged GTID that is too short")
        value = int.from_bytes(self.data[self.at : stop], "little")
        self.at = stop
        return value >> (more + 1 if more < 8 else 8)

    def signed(self) -> int:
        value = self.unsigned()
        return -(value >> 1) - 1 if value & 1 else value >> 1

    def text(self) -> str:
        size = self.unsigned()
        data = self.data[self.at : self.at + size]
        if len(data) != size or size > 32:
            raise MalformedEventError("a tagged GTID whose tag is broken")
        self.at += size
        return data.decode("ascii")
