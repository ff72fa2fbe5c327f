"""What is done about a statement that changes rows which do not come as rows. Pure.

A session whose binlog_format is not ROW has its statements in the binlog, and so have some of the
servers of clouds, whatever they are told (`mysql.rds_heartbeat2`). One that changes no captured
table is none of ours. But a trigger of its tables, a stored function that it calls, or a view may
change others than it names; where that cannot be excluded, capture stops, or has a gap.
"""

from collections.abc import Callable, Sequence
from typing import Final

from penstock.sources.mysql.binlog import MalformedEventError
from penstock.sources.mysql.patterns import matches
from penstock.sources.mysql.redaction import redacted
from penstock.sources.mysql.row_statements import Written
from penstock.sources.mysql.scope import SYSTEM_DATABASES, Scope
from penstock.sources.mysql.statement_texts import UNREADABLE
from penstock.sources.mysql.statements import Effect, Name, RowsChanged, Unclear

_HEAD_CHARACTERS: Final = 100
_ALL: Final = "*.*"
Obstacle = Callable[[Sequence[Name], Sequence[Name]], str | None]
"""Why a statement that writes to tables and reads others may change more than those it writes to,
as the server says it; None: it does not."""


class UnloggedRows:
    """Decides for one source."""

    def __init__(self, scope: Scope, passes: Sequence[str], obstacle: Obstacle) -> None:
        """`passes` are patterns of tables whose statements are gone past, with a gap; `*.*` is also
        of those whose tables cannot be told."""
        self._scope = scope
        self._passes = passes
        self._obstacle = obstacle

    def done(self, verb: str, written: Written, text: str) -> Sequence[Effect]:
        """What a statement did to captured tables. Raises MalformedEventError to stop before it."""
        captured = [one for one in written.tables if one in self._scope]
        why = self._why(written)
        if why is None and not captured:
            return ()
        names = [".".join(one) for one in written.tables]
        passes = all(matches(self._passes, name) for name in names)
        if passes if names else _ALL in self._passes:
            if why is not None:
                return (Unclear(),)
            return [RowsChanged(one, f"{verb} as a statement") for one in captured]
        head = redacted(text)[:_HEAD_CHARACTERS]
        remedy = "name the tables in" if names else f'put "{_ALL}", which is all tables, into'
        raise MalformedEventError(
            f"{verb} as a statement, of {', '.join(names) or 'tables that cannot be told'} "
            f"({head}): its session had another binlog_format than ROW, and "
            f"{why or 'it changes a captured table'}. To go on with a gap, {remedy} "
            f"pass_statements of this source"
        )

    def _why(self, written: Written) -> str | None:
        """Why it may change other tables than it names; None: it does not."""
        if not written.tables or UNREADABLE in repr(written.tables):
            return "the tables that it changes cannot be told"
        if written.calls:
            return "a stored function that it may call, maybe by a view, may change captured tables"
        # The server's own have no triggers.
        tables, read = (
            [one for one in some if one[0].lower() not in SYSTEM_DATABASES]
            for some in (written.tables, written.read)
        )
        return self._obstacle(tables, read) if tables or read else None


def unasked(written: Sequence[Name], read: Sequence[Name]) -> str | None:
    """An obstacle where there is no server to ask."""
    names = ", ".join(".".join(one) for one in (*written, *read))
    return f"no server was asked about {names}"
