"""What begins a transaction, as MariaDB and as MySQL write it. Pure."""

from typing import Final

from msgspec import Struct

from penstock.sources.mysql.binlog import Event, EventType, MalformedEventError, begun, gtid_text
from penstock.sources.mysql.mysql_events import mysql_begun, tagged_begun

BEGINS: Final = frozenset(
    {EventType.GTID, EventType.GTID_LOG, EventType.GTID_TAGGED_LOG, EventType.ANONYMOUS_GTID}
)
BETWEEN: Final = BEGINS | {
    EventType.ROTATE,
    EventType.FORMAT_DESCRIPTION,
    EventType.PREVIOUS_GTIDS,
}
"""Those that are of no transaction, or begin one."""
ANONYMOUS: Final = "anonymous@"
"""What the names of transactions begin with that have none; then the microsecond of the commit."""


class Beginning(Struct, frozen=True, gc=False):
    """The beginning of a transaction."""

    gtid: str
    """Its name, as the server writes it; of one without, when it was committed."""
    millis: int
    """When it was committed, in milliseconds since the epoch; MariaDB tells seconds."""
    standalone: bool
    """Whether the next statement is all of it. MySQL says otherwise by a BEGIN."""
    alters_nothing: bool = False
    """Whether its ALTER only begins, or did not come about."""
    xid: str = ""
    """MariaDB: the XA transaction that it prepares, or says the end of. MySQL says it later."""
    prepares: bool = False
    """Whether it prepares that one: its rows wait."""
    thread: int = 0
    """The session that wrote it; 0 where it does not say. MySQL says it with its BEGIN."""


def beginning(event: Event, data: bytes) -> Beginning:
    """What an event of one of the types BEGINS says. Raises MalformedEventError."""
    if event.type == EventType.GTID:
        said = begun(event.body)
        return Beginning(
            gtid_text(said, data),
            event.timestamp * 1000,
            said.standalone,
            said.alters_nothing,
            said.xid,
            said.xa_prepared,
            said.thread,
        )
    read = tagged_begun if event.type == EventType.GTID_TAGGED_LOG else mysql_begun
    named = read(event.body)
    if event.type == EventType.ANONYMOUS_GTID:
        named = named._replace(gtid=f"{ANONYMOUS}{named.micros}")
    millis = named.micros // 1000 or event.timestamp * 1000
    if millis >= 1000 << 32:
        raise MalformedEventError("a moment of commit beyond the year 2106")
    return Beginning(named.gtid, millis, True)
