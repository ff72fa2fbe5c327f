"""Which transactions a server has, and still has, in the words that a position is written in."""

from typing import NamedTuple

import pymysql

from penstock.sources.mysql.connection import (
    Connected,
    Facts,
    ask,
    binlogs,
    code_of,
    gtids_before,
    oldest_binlog,
)
from penstock.sources.mysql.file_places import BEGINNING
from penstock.sources.mysql.positions import Flavour

_NO_SUCH_SYNTAX = 1064


class Holdings(NamedTuple):
    """As `Told` takes them."""

    end: str
    """Where its binlogs end."""
    logged: str
    """All that it ever had, as far as it tells."""
    before: str
    """What its binlogs do not hold any more."""


def flavour_of(found: Facts) -> Flavour:
    """How a place in a server's binlogs is said: by GTIDs, where it has them."""
    if found.is_mariadb:
        return "mariadb"
    return "mysql" if found.gtid_mode == "ON" else "mysql_files"


def holdings(connection: Connected, found: Facts, flavour: Flavour) -> Holdings:
    """Ask a server of whose kind the flavour is."""
    if flavour == "mariadb":
        oldest = oldest_binlog(connection)
        before = "" if oldest is None else gtids_before(connection, oldest)
        return Holdings(found.gtid_end, found.gtid_logged, before)
    if flavour == "mysql":
        return Holdings(found.gtid_end, found.gtid_logged, found.gtid_purged)
    end = _end_of_files(connection)
    oldest = next(iter(binlogs(connection)), end.rpartition(":")[0])
    return Holdings(end, end, f"{oldest}:{BEGINNING}")


def _end_of_files(connection: Connected) -> str:
    """Where the binlogs end, which is always between two transactions."""
    try:
        rows = ask(connection, "SHOW BINARY LOG STATUS")
    except pymysql.MySQLError as error:
        if code_of(error) != _NO_SUCH_SYNTAX:
            raise
        rows = ask(connection, "SHOW MASTER STATUS")  # before 8.2
    file, offset, *_ = rows[0]
    return f"{file}:{offset}"
