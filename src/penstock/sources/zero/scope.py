"""Which tables are captured."""

import re
from collections.abc import Collection
from functools import cached_property

from msgspec import Struct

from penstock import checks


class Scope(Struct, frozen=True, omit_defaults=True, dict=True):
    """What is captured: as the configuration said it, so that a change is noticed.

    `own` are Zero's tables of this shard, captured only where they are included.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def __contains__(self, table: str) -> bool:
        """Whether `schema.table` is captured."""
        included, left_out = self._compiled
        if included is not None:
            return included.fullmatch(table) is not None
        return left_out.fullmatch(table) is None

    def unmatched(self, there: Collection[str]) -> list[str]:
        """A sentence for each pattern that matches none of the tables that are there."""
        settings = [("include", one) for one in self.include]
        settings += [("exclude", one) for one in self.exclude]
        return checks.unmatched(
            settings, there, lambda one: any(map(_pattern((one,)).fullmatch, there))
        )

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str] | None, re.Pattern[str]]:
        included = _pattern(self.include) if self.include else None
        return included, _pattern((*self.exclude, *self.own))


def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    one_of = ("".join(wild.get(sign, re.escape(sign)) for sign in glob) for glob in globs)
    return re.compile("|".join(f"(?:{one})" for one in one_of) or "(?!)", re.DOTALL)
