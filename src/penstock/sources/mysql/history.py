"""How far back a server's binlogs reach, and how near a position is to being lost."""

import ssl

import pymysql

from penstock.sources.mysql.binlog import Checksums, EventType
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import (
    ask,
    connect,
    discard,
    facts,
    gtids_before,
    oldest_binlog,
    translated,
)
from penstock.sources.mysql.positions import MysqlPosition, parse_gtids, purged
from penstock.sources.mysql.stream import BinlogStream, drawn_server_id


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
        before = gtids_before(connection, oldest)
        if not before:
            return None
        if purged(parse_gtids(known.gtids), parse_gtids(before)) is not None:
            return 0.0
        until = known.at
        if parse_gtids(known.gtids) == parse_gtids(found.gtid_binlog_pos):
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
