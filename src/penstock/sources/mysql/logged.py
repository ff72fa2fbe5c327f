"""Whether a server writes every change of the captured tables to its binlog."""

from collections.abc import Collection
from typing import Final, Self

from msgspec import Struct

from penstock.sources.mysql.connection import (
    Connected,
    Facts,
    ask,
    binlog_filters,
)
from penstock.sources.mysql.patterns import matches, of_databases
from penstock.sources.mysql.replicating import replicates
from penstock.sources.mysql.scope import SYSTEM_DATABASES, Scope

_ANY_TABLE: Final = "penstock_any_table"
"""A table that is there as little as any other that will be made."""


class Filters(Struct, frozen=True):
    """Databases of whose tables a server logs changes alone, or does not."""

    do: tuple[str, ...] = ()
    """`binlog_do_db`. Where there are any, the others do not count."""
    ignore: tuple[str, ...] = ()
    """`binlog_ignore_db`."""

    @classmethod
    def of(cls, connection: Connected) -> Self:
        """Ask a server."""
        return cls(*(tuple(filter(None, one.split(","))) for one in binlog_filters(connection)))

    def text(self) -> str:
        """For people."""
        name = "binlog_do_db" if self.do else "binlog_ignore_db"
        return f"{name} is {', '.join(self.do or self.ignore)}"

    def left_out(self, scope: Scope, there: Collection[tuple[str, str]]) -> list[str]:
        """The captured databases whose changes are not logged, or patterns of such. Pure.

        `there` are all tables that are there. Of databases without any, an expression of `include`
        is tried with a table by a name that says nothing.
        """
        captured = {database for database, name in there if (database, name) in scope}
        patterns = [of_databases(pattern) for pattern in scope.include]
        named = {one for one in patterns if one is not None}
        if self.do:
            captured |= named if scope.include else {"*"}
            return sorted(captured - set(self.do) - SYSTEM_DATABASES)
        return [
            one
            for one in self.ignore
            if one.lower() not in SYSTEM_DATABASES
            and (one in captured or matches([*named], one) or (one, _ANY_TABLE) in scope)
        ]


def unlogged(connection: Connected, found: Facts, scope: Scope) -> list[tuple[str, str]]:
    """What keeps changes of captured tables from the binlog, each with what mends it.

    A replica that we may not see to be one counts while it replicates.
    """
    missing: list[tuple[str, str]] = []
    if misses_cluster(found):
        missing.append(_of_cluster())
    elif not found.logs_replicated and replicates(connection):
        missing.append(_of_replica(found))
    filters = Filters.of(connection)
    if not filters.do and not filters.ignore:
        return missing
    # Without their types, for which a server would open them and wait for whoever has them locked.
    rows = ask(connection, "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES")
    left_out = filters.left_out(scope, [(str(database), str(name)) for database, name in rows])
    if left_out:
        why = (
            f"{filters.text()}: changes of captured databases ({', '.join(left_out[:10])}) are not "
            f"in its binlog, and would be missed"
        )
        remedy = (
            "take the setting out of the server's file and restart the server, or have include and "
            "exclude name what it logs alone. If one of them was captured before, copy its tables "
            "again (penstock snapshot)"
        )
        missing.append((why, remedy))
    return missing


def misses_cluster(found: Facts) -> bool:
    """Whether what other nodes of a server's Galera cluster write is not in its binlog. Pure.

    A MariaDB logs what it applies of theirs whatever log_slave_updates is (MDEV-24327, in all
    versions from 10.6 on). One that is made of MySQL does as log_replica_updates says.
    """
    return found.in_cluster and not found.logs_replicated and not found.is_mariadb


def _of_cluster() -> tuple[str, str]:
    why = (
        "log_replica_updates is OFF and the server has a wsrep_provider: what is written at other "
        "nodes of its cluster is not in its binlog, and would be missed"
    )
    remedy = (
        "have log_replica_updates = ON in the server's file and restart the server. If it was "
        "captured before, copy the tables again (penstock snapshot)"
    )
    return why, remedy


def _of_replica(found: Facts) -> tuple[str, str]:
    name = "log_slave_updates" if found.is_mariadb else "log_replica_updates"
    why = (
        f"{name} is OFF and the server is a replica: the changes that it replicates are not in "
        f"its binlog, and would be missed"
    )
    remedy = (
        f"have {name} = ON in the server's file and restart the server, or capture the one "
        f"that it replicates; or RESET REPLICA ALL, where it is to be a replica no more. If it "
        f"was captured before, copy the tables again (penstock snapshot)"
    )
    return why, remedy
