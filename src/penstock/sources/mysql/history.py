"""How far back a server's binlogs reach, and whether they are those that we read."""

import ssl

import pymysql
import structlog

from penstock.errors import SourceChangedError
from penstock.mysql_causes import code_of
from penstock.sources.mysql.beginnings import ANONYMOUS, BEGINS, beginning
from penstock.sources.mysql.binlog import Checksums, EventType, MalformedEventError
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import (
    CANNOT_READ_BINLOG,
    Connected,
    Facts,
    ask,
    binlogs,
    connect,
    discard,
    facts,
    oldest_binlog,
    translated,
    unmatched,
)
from penstock.sources.mysql.holdings import flavour_of, holdings
from penstock.sources.mysql.positions import MysqlPosition, Server, told
from penstock.sources.mysql.stream import BinlogStream, drawn_server_id

logger = structlog.get_logger(__name__)

_NO_EVENT_THERE = 1220


def seconds_to_loss(source: str, config: MysqlSourceConfig, known: MysqlPosition) -> float | None:
    """As `Retains.seconds_to_loss`; blocks.

    From when the oldest binlog was begun to the last transaction before the position, or to now
    where the server has no newer one; or to the oldest XA transaction that is still prepared. None
    while no binlog was ever purged.
    """
    connection = connect(source, config, read_seconds=config.connect_timeout)
    try:
        found = facts(connection)
        oldest = oldest_binlog(connection)
        if oldest is None:
            return None
        ours, theirs = known.told(), holdings(connection, found, known.flavour)
        if not theirs.before:
            return None
        if known.needed().purged(theirs.before) is not None:
            return 0.0
        until = known.since_at or known.at
        if not known.since_at and ours.text() == told(known.flavour, theirs.end).text():
            ((now,),) = ask(connection, "SELECT UNIX_TIMESTAMP()")
            until = int(now)
        elif not until:
            return None
        stream = BinlogStream(connection)
        stream.deadline(config.connect_timeout)
        stream.begin_at(found, file=oldest, server_id=drawn_server_id())
        return max(0.0, float(until - _begun_at(stream)))
    except (pymysql.MySQLError, OSError, ssl.SSLError) as error:
        raise translated(source, config, error) from None
    finally:
        discard(connection)


def _begun_at(stream: BinlogStream) -> int:
    """When a binlog was begun, in Unix seconds: its first event says."""
    checksums = Checksums()
    while True:
        for data in stream.read():
            event = checksums.event(data)
            if event.type == EventType.FORMAT_DESCRIPTION and event.timestamp:
                return event.timestamp


def is_ours(source: str, config: MysqlSourceConfig, found: Facts, known: MysqlPosition) -> bool:
    """Whether the server's binlog still has our last transaction where we read it; blocks.

    A server that was set up anew counts from one again, and its numbers pass ours. Its files do
    not hold the same transaction of the same second at the same place.
    """
    connection = connect(source, config, read_seconds=config.connect_timeout)
    try:
        if _is_kept_back(found, known):
            return _is_listed(connection, known)
        stream = BinlogStream(connection)
        stream.deadline(config.connect_timeout)
        stream.begin_at(found, file=known.file, offset=known.offset, server_id=drawn_server_id())
        return _first_transaction(stream) == (known.last, known.at)
    except MalformedEventError:
        return False  # another event begins elsewhere
    except pymysql.MySQLError as error:
        if code_of(error) == CANNOT_READ_BINLOG:
            return False
        raise
    finally:
        discard(connection)


def _is_kept_back(found: Facts, known: MysqlPosition) -> bool:
    """Whether a MySQL sends nobody a transaction like our last, for its gtid_mode was switched."""
    if known.flavour != "mysql_files" or not known.last:
        return False
    return found.gtid_mode == ("ON" if known.last.startswith(ANONYMOUS) else "OFF")


def _is_listed(connection: Connected, known: MysqlPosition) -> bool:
    """Whether a transaction like our last begins where ours did. Its moment is not listed."""
    try:
        rows = ask(connection, "SHOW BINLOG EVENTS IN %s FROM %s LIMIT 1", known.file, known.offset)
    except pymysql.MySQLError as error:
        if code_of(error) == _NO_EVENT_THERE:
            return False
        raise
    name = "ANONYMOUS" if known.last.startswith(ANONYMOUS) else known.last
    return any(name in str(row[5]) for row in rows)


def _first_transaction(stream: BinlogStream) -> tuple[str, int] | None:
    """The name of the transaction with which a stream begins, and its second."""
    checksums = Checksums()
    while True:
        for data in stream.read():
            event = checksums.event(data)
            if event.type in BEGINS:
                return beginning(event, data).gtid, event.timestamp
            if event.type not in {EventType.ROTATE, EventType.FORMAT_DESCRIPTION}:
                return None


def _and_prepared(known: MysqlPosition, before: str) -> str:
    if known.told().purged(before) is not None:
        return ""
    return ", and with them the rows of an XA transaction that was prepared there"


def lost(
    source: str,
    config: MysqlSourceConfig,
    found: Facts,
    asking: Connected,
    *,
    known: MysqlPosition,
    server: Server,
) -> str | None:
    """Why the server cannot go on from `known`, in words; None if it can (S7).

    Raises SourceChangedError where another server answers that has another history (S6). A
    replica that takes the server's place has ours, and is gone on from.
    """
    # Who stands in a file goes on in files: but on no other server.
    in_files = known.flavour == "mysql_files"
    now = flavour_of(found)
    same_kind = not found.is_mariadb if in_files else known.flavour == now
    if not same_kind or (in_files and server != known.server):
        raise SourceChangedError(
            source=source,
            expected=f"{known.server}, and positions of the kind {known.flavour}",
            found=f"{server}, and {now}",
        )
    ours, theirs = known.told(), holdings(asking, found, known.flavour)
    strange = ours.unknown(theirs.logged)
    if strange is not None:
        if server != known.server:
            raise SourceChangedError(
                source=source,
                expected=f"{known.server}, which had the transaction {strange}",
                found=f"{server}, which never had it",
            )
        return f"the server was reset: it has no transaction {strange}"
    gone = known.needed().purged(theirs.before)
    if gone is not None:
        and_rows = _and_prepared(known, theirs.before)
        return f"the server has purged its binlogs up to {gone}{and_rows}"
    if server != known.server:
        logger.warning(
            "another server has our transactions, and is gone on from",
            source=source,
            before=str(known.server),
            after=str(server),
        )
        return None
    if known.file in binlogs(asking) and not is_ours(source, config, found, known):
        return f"the server was set up anew: its transaction {known.last} is another"
    return None


def names_nothing(source: str, config: MysqlSourceConfig) -> list[str]:
    """As `NamesThings.unmatched`; blocks."""
    if not (config.include or config.exclude):
        return []
    connection = connect(source, config, read_seconds=config.connect_timeout)
    try:
        return unmatched(connection, config.scope)
    except (pymysql.MySQLError, OSError) as error:
        raise translated(source, config, error) from None
    finally:
        discard(connection)
