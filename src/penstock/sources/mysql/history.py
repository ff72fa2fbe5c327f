"""How far back a server's binlogs reach, and whether they are those that we read."""

import ssl

import pymysql

from penstock.sources.mysql.beginnings import ANONYMOUS, BEGINS, beginning
from penstock.sources.mysql.binlog import Checksums, EventType, MalformedEventError
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import (
    CANNOT_READ_BINLOG,
    Connected,
    Facts,
    ask,
    code_of,
    connect,
    discard,
    facts,
    oldest_binlog,
    translated,
)
from penstock.sources.mysql.holdings import holdings
from penstock.sources.mysql.positions import MysqlPosition, told
from penstock.sources.mysql.stream import BinlogStream, drawn_server_id

_NO_EVENT_THERE = 1220


def seconds_to_loss(source: str, config: MysqlSourceConfig, known: MysqlPosition) -> float | None:
    """As `Retains.seconds_to_loss`; blocks.

    From when the oldest binlog was begun to the last transaction before the position, or to now
    where the server has no newer one. None while no binlog was ever purged.
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
        if ours.purged(theirs.before) is not None:
            return 0.0
        until = known.at
        if ours.text() == told(known.flavour, theirs.end).text():
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
