"""What a server replicates from others."""

from typing import Any, Final, cast

import pymysql
from msgspec import Struct
from pymysql.cursors import DictCursor

from penstock.mysql_causes import LACKS_GRANT, code_of
from penstock.sources.mysql.answers import any_bytes
from penstock.sources.mysql.connection import NO_SUCH_SYNTAX, Connected, ask
from penstock.sources.mysql.file_places import FilePlace
from penstock.sources.mysql.positions import MysqlPosition, Told, told

_STATUS: Final = ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
"""As MariaDB is asked, MySQL, and MySQL before 8.0.22. Each knows its own, or a part of it."""
_FETCHES: Final = frozenset({"Yes", "Connecting"})


class Channel(Struct, frozen=True):
    """What a server replicates from one other."""

    source: str
    """That one's server_uuid (MySQL), or its server_id."""
    fetches: bool
    """Whether it reads there, or tries to."""
    fetched: str
    """The transactions that it has from there, applied or not, as the server writes them."""


def channels(connection: Connected) -> list[Channel] | None:
    """All, at work or not; None where we may not look."""
    for question in _STATUS:
        try:
            # A replica's last error quotes a statement as it was written, in any character set.
            with any_bytes(connection), connection.cursor(DictCursor) as cursor:
                cursor.execute(question)
                return [_channel(row) for row in cast("list[dict[str, Any]]", cursor.fetchall())]
        except pymysql.MySQLError as error:
            if code_of(error) in LACKS_GRANT:
                break
            if code_of(error) != NO_SUCH_SYNTAX:
                raise
    return None


def _channel(row: dict[str, Any]) -> Channel:
    """Of a row of the server's; the names are its own, and older ones say master and slave."""

    def said(*names: str) -> str:
        return next((str(row[name] or "") for name in names if name in row), "")

    return Channel(
        source=said("Source_UUID", "Master_UUID", "Master_Server_Id"),
        fetches=said("Replica_IO_Running", "Slave_IO_Running") in _FETCHES,
        fetched=said("Retrieved_Gtid_Set", "Gtid_IO_Pos").replace("\n", ""),
    )


def replicates(connection: Connected) -> bool | None:
    """Whether a server is another one's replica, at work or not; None where it may be, at rest,
    and we may not look."""
    found = channels(connection)
    if found is not None:
        return bool(found)
    # MariaDB tells everybody.
    at_work = ask(connection, "SHOW GLOBAL STATUS LIKE 'Slaves_running'")
    return True if any(int(count) for _, count in at_work) else None


def will_have(connection: Connected, known: MysqlPosition, transaction: str) -> bool:
    """Whether a server that lacks a transaction of ours is a replica that is behind: it still reads
    from the server that had it, or has it to apply."""
    ours = {known.server.uid, str(known.server.id)}
    return any(
        (channel.fetches and channel.source in ours)
        or _has(told(known.flavour, channel.fetched), transaction)
        for channel in channels(connection) or ()
    )


def _has(fetched: Told, transaction: str) -> bool:
    return not isinstance(fetched, FilePlace) and fetched.has(transaction)
