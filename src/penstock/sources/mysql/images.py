"""Rows that lack columns, and whether what they lack is as it was. Pure.

Where a session's binlog_row_image is not FULL, a server logs of an UPDATE the columns that changed,
and leaves the others out: they are unchanged. So it logs a REPLACE too that finds a row in its
place; but that gives the columns which it does not name their defaults, and those are not logged
(seen of MariaDB 10.11, whose own replicas keep the old values; MySQL 9.7 logs all columns of a
REPLACE, and other versions of it were not tried). Nothing in the rows tells one from the other. The
statement does, where the server sends it: an UPDATE or INSERT that names the table is no REPLACE,
and no trigger or function may write to a table that its statement uses.
Source: the MariaDB documentation, "Annotate_rows_log_event".
"""

from collections.abc import Iterable

from penstock.sources.mysql import statements
from penstock.sources.mysql.row_readers import UnreadableTableError
from penstock.sources.mysql.rows import Changes
from penstock.sources.mysql.tables import Table, named

_TEXT_BYTES = 64 << 10
"""Of a statement: where its verb is, and the names of its tables."""


class Images:
    """Follows the rows of one stream, and refuses those that may not be what they seem."""

    def __init__(self, *, allowed: bool) -> None:
        """`allowed`: rows may lack columns at all."""
        self.allowed = allowed
        self._statement: str | None = None

    def stated(self, text: bytes) -> None:
        """The statement of the rows that follow, as the session wrote it."""
        if self.allowed:
            self._statement = text[:_TEXT_BYTES].decode(errors="surrogateescape")

    def ends(self) -> None:
        """The statement ended, or its transaction."""
        self._statement = None

    def check(self, found: Changes, table: Table, mapped: Iterable[bytes]) -> None:
        """Raise UnreadableTableError for rows of one event that lack columns, if that is not
        allowed or they may be of a REPLACE. `mapped` are the transaction's tables, by TABLE_MAP."""
        if not found.lack or not found.rows:
            return
        name = f"{table.database}.{table.name}"
        if not self.allowed:
            raise UnreadableTableError(
                f"rows of {name} that lack columns: binlog_row_image is not FULL (on_partial_rows "
                f"= 'decode' has them told without those)"
            )
        if found.rows[0][0] is None or found.sent is None:
            return
        names = {named(bytes(6) + body) for body in mapped}
        homonyms = [one for one in names if one[1] == table.name]
        exact = self._statement is not None and statements.writes_in_place(
            self._statement, (table.database, table.name)
        )
        if not exact or len(homonyms) > 1:
            raise UnreadableTableError(
                f"rows of {name} that lack columns, and may be of a REPLACE, which resets columns "
                f"and does not log that (or their statement is not in the binlog: "
                f"binlog_annotate_row_events, or binlog_rows_query_log_events of MySQL): set "
                f"binlog_row_image to FULL"
            )
