"""Whether a statement changes other tables than it writes to, asked of a server as it is now."""

from collections.abc import Sequence

from penstock.sources.mysql.connection import Connected, ask, defined_cascades, logs_cascades
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.statements import Name

_TABLES = frozenset({"BASE TABLE", "SYSTEM VERSIONED"})
_MAY_SEE = (
    "SELECT 1 FROM information_schema.USER_PRIVILEGES "
    "WHERE PRIVILEGE_TYPE = 'TRIGGER' AND GRANTEE = %s "
    "UNION SELECT 1 FROM information_schema.SCHEMA_PRIVILEGES "
    "WHERE PRIVILEGE_TYPE = 'TRIGGER' AND GRANTEE = %s AND %s LIKE TABLE_SCHEMA "
    "UNION SELECT 1 FROM information_schema.TABLE_PRIVILEGES "
    "WHERE PRIVILEGE_TYPE = 'TRIGGER' AND GRANTEE = %s "
    "AND TABLE_SCHEMA = %s AND TABLE_NAME = %s"
)


def changes_more(
    connection: Connected, scope: Scope, written: Sequence[Name], read: Sequence[Name]
) -> str | None:
    """Why a statement that writes to some tables and reads others may change more than those that
    it writes to; None: it does not."""
    for table in (*written, *read):
        rows = ask(
            connection,
            "SELECT TABLE_TYPE FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            *table,
        )
        kind = str(rows[0][0]) if rows else ""
        if kind not in _TABLES:
            what = kind.lower() or "not there, or may not be seen"
            return f"{'.'.join(table)} is {what}"
    for table in written:
        if not _may_see_triggers(connection, table):
            return (
                f"a trigger of {'.'.join(table)} may change captured tables, and whether there is "
                f"one we may not see: that needs the privilege TRIGGER on the table, granted to "
                f"the user itself and to no role"
            )
        triggers = ask(
            connection,
            "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS "
            "WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s",
            *table,
        )
        if triggers:
            return f"the trigger {triggers[0][0]} of {'.'.join(table)} may change captured tables"
    # Else what foreign keys do is not logged for statements of rows either (on_cascades).
    if written and logs_cascades(connection):
        cascades = defined_cascades(connection, scope)
        if cascades:
            return f"a foreign key may change rows of {', '.join(cascades[:10])} with it"
    return None


def _may_see_triggers(connection: Connected, table: Name) -> bool:
    """Whether we may see a table's triggers, which who may only SELECT does not.

    False of a privilege that comes by a role.
    """
    ((user,),) = ask(connection, "SELECT CURRENT_USER()")
    name, _, host = str(user).rpartition("@")
    we = f"'{name}'@'{host}'"
    return bool(ask(connection, _MAY_SEE, we, we, table[0], we, *table))
