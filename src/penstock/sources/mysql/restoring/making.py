"""Tables that are made for a restore, and gone again where it fails."""

from collections.abc import Iterable

from penstock.audit.fold import Name
from penstock.errors import AuditError
from penstock.sources.mysql.restoring.server import Server
from penstock.sources.mysql.restoring.sql import Statement


class Making:
    """What was made in a server that was not there."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.tables: list[Name] = []
        self._databases: list[str] = []

    def make(self, name: Name, statements: Iterable[Statement]) -> None:
        """Make a table that is not there, and its database. Raises AuditError."""
        if name[0] not in self._databases and not self._server.has_database(name[0]):
            self._databases.append(name[0])
        self._server.run(statements)
        self.tables.append(name)

    def unmake(self, error: BaseException) -> None:
        """Remove what was made, as long as nothing is in it: the rows for it were rolled back.

        Raises AuditError that says so behind `error`, if that is one; without it, where something
        is left.
        """
        made = [".".join(name) for name in self.tables]
        left = [".".join(name) for name in self.tables if not self._server.drop_empty(name)]
        left += [name for name in self._databases if not self._server.drop_empty_database(name)]
        if left:
            said = str(error).replace("Nothing was changed", "No row was changed")
            raise AuditError(
                f"{said or 'The restore was interrupted.'} What was made before that is still "
                f"there: {', '.join(left)}. Where it has rows, they are what was restored. Look at "
                f"it, and remove it if it is not wanted."
            ) from error
        if made and isinstance(error, AuditError):
            raise AuditError(f"{error} What was made for it is gone again: {', '.join(made)}.")
