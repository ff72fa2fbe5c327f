"""Which tables a source captures."""

from functools import cached_property
from typing import Final

from msgspec import Struct

from penstock.sources.mysql.columns import ColumnScope
from penstock.sources.mysql.patterns import matches, of_databases

SYSTEM_DATABASES: Final = frozenset({"mysql", "information_schema", "performance_schema", "sys"})
_TABLES_MAX: Final = 10_000
"""Answers that are kept."""


class Scope(Struct, frozen=True, omit_defaults=True, dict=True):
    """What is captured: as the configuration said it, so that a change is noticed.

    Patterns of tables are those of `penstock.sources.mysql.patterns`. `include` wins over
    `exclude`. The server's own databases are never captured.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    columns: ColumnScope = ColumnScope()

    def __contains__(self, table: tuple[str, str]) -> bool:
        """Whether (database, table) is captured."""
        known = self._known.get(table)
        if known is None:
            if len(self._known) >= _TABLES_MAX:
                self._known.clear()
            known = self._known[table] = self._captures(table)
        return known

    def _captures(self, table: tuple[str, str]) -> bool:
        database, name = table
        if database.lower() in SYSTEM_DATABASES:
            return False
        text = f"{database}.{name}"
        if self.include:
            return matches(self.include, text)
        return not matches(self.exclude, text)

    def reaches(self, database: str) -> bool:
        """Whether a table of this database may be captured, whatever its name."""
        if database.lower() in SYSTEM_DATABASES:
            return False
        if "." in database:
            return True  # a pattern does not say which of its dots is the one behind the database
        if self.include:
            return any(
                named is None or matches([named], database)
                for named in map(of_databases, self.include)
            )
        whole = [one for one in self.exclude if one.endswith(".*") and one.count(".") == 1]
        return not matches([str(of_databases(one)) for one in whole], database)

    @cached_property
    def _known(self) -> dict[tuple[str, str], bool]:
        return {}
