"""Which transactions a server has, and still has, in the words that a position is written in."""

from typing import NamedTuple

from penstock.sources.mysql.connection import (
    Connected,
    Facts,
    binlog_end,
    binlogs,
    gtids_before,
    oldest_binlog,
)
from penstock.sources.mysql.file_places import BEGINNING
from penstock.sources.mysql.positions import Flavour


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
    file, offset = binlog_end(connection)
    oldest = next(iter(binlogs(connection)), file)
    return Holdings(f"{file}:{offset}", f"{file}:{offset}", f"{oldest}:{BEGINNING}")
