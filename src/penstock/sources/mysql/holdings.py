"""Which transactions a server has, and still has, in the words that a position is written in."""

from typing import NamedTuple

from penstock.sources.mysql.connection import (
    Connected,
    Facts,
    binlog_end,
    gtids_before,
    oldest_binlog,
)
from penstock.sources.mysql.file_places import BEGINNING, FilePlace
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


def ends(connection: Connected, found: Facts, flavour: Flavour) -> tuple[str, str]:
    """`end` and `logged` of a server's holdings alone."""
    if flavour != "mysql_files":
        return found.gtid_end, found.gtid_logged
    file, offset = binlog_end(connection)
    return f"{file}:{offset}", f"{file}:{offset}"


def holdings(connection: Connected, found: Facts, flavour: Flavour) -> Holdings:
    """Ask a server of whose kind the flavour is."""
    end, logged = ends(connection, found, flavour)
    if flavour == "mysql":
        return Holdings(end, logged, found.gtid_purged)
    oldest = oldest_binlog(connection)
    if flavour == "mariadb":
        return Holdings(end, logged, "" if oldest is None else gtids_before(connection, oldest))
    return Holdings(end, logged, f"{oldest or FilePlace.parse(end).file}:{BEGINNING}")
