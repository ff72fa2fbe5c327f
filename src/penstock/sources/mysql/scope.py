"""Which tables a source captures."""

import re
from functools import cached_property
from typing import Final

from msgspec import Struct

SYSTEM_DATABASES: Final = frozenset({"mysql", "information_schema", "performance_schema", "sys"})


class Scope(Struct, frozen=True, omit_defaults=True, dict=True):
    """Patterns of tables: what the configuration said, so that a change is noticed.

    A pattern is `database.table` with `*` and `?` as wildcards. `include` wins over `exclude`. The
    server's own databases are never captured.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __contains__(self, table: tuple[str, str]) -> bool:
        """Whether (database, table) is captured."""
        database, name = table
        if database.lower() in SYSTEM_DATABASES:
            return False
        included, excluded = self._compiled
        text = f"{database}.{name}"
        if included:
            return any(pattern.fullmatch(text) for pattern in included)
        return not any(pattern.fullmatch(text) for pattern in excluded)

    @cached_property
    def _compiled(self) -> tuple[list[re.Pattern[str]], list[re.Pattern[str]]]:
        return [_pattern(one) for one in self.include], [_pattern(one) for one in self.exclude]


def _pattern(glob: str) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(one, re.escape(one)) for one in glob), re.DOTALL)
