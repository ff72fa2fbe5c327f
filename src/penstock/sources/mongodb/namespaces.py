"""Which collections a source captures: the same decision for the server's filter and for us."""

import re
from functools import cached_property
from typing import Any

SYSTEM_DATABASES = frozenset({"admin", "config", "local"})


class Namespaces:
    """Patterns of collections, of one database or of all.

    A pattern is `collection` or `database.collection`, with `*` and `?` as wildcards. With a
    `database`, only a prefix that is that database is read as one: a collection's own name may
    hold dots. Without one, everything before the first dot is the database. `include` wins over
    `exclude`. System collections are never captured.
    """

    def __init__(
        self, *, database: str | None, include: tuple[str, ...], exclude: tuple[str, ...]
    ) -> None:
        self.database = database
        self._include = tuple(self._split(pattern) for pattern in include)
        self._exclude = tuple(self._split(pattern) for pattern in exclude)

    def __contains__(self, namespace: tuple[str, str]) -> bool:
        """Whether (database, collection) is captured."""
        database, collection = namespace
        if collection.startswith("system.") or database in SYSTEM_DATABASES:
            return False
        if self.database is not None and database != self.database:
            return False
        included, excluded = self._compiled
        if included:
            return any(pattern.fullmatch(f"{database}.{collection}") for pattern in included)
        return not any(pattern.fullmatch(f"{database}.{collection}") for pattern in excluded)

    def reach(self, database: str) -> bool:
        """Whether a collection of this database may be captured, whatever its name."""
        if database in SYSTEM_DATABASES or self.database not in {None, database}:
            return False
        if self._include:
            return any(_is_of(one, database) for one, _ in self._include)
        return not any(_is_of(one, database) for one, name in self._exclude if name == "*")

    @property
    def named(self) -> frozenset[tuple[str, str]]:
        """The (database, collection)s that the patterns name one by one, without a wildcard."""
        patterns = (*self._include, *self._exclude)
        split = ((database or self.database, name) for database, name in patterns)
        return frozenset(
            (database, name)
            for database, name in split
            if database is not None and not {"*", "?"}.intersection(database + name)
        )

    def match(self) -> dict[str, Any] | None:
        """The `$match` that keeps the captured collections, and what is about no collection."""
        if self._include:
            wanted = [_condition("ns", *pattern) for pattern in self._include]
            # A rename into a captured collection brings documents that no insert announced.
            wanted += [_condition("to", *pattern) for pattern in self._include]
            return {"$or": [{"ns.coll": {"$exists": False}}, *wanted]}
        if self._exclude:
            renamed = [{"to.coll": {"$exists": True}}, *self._excluded("to")]
            return {"$or": [{"$and": self._excluded("ns")}, {"$and": renamed}]}
        return None

    def _excluded(self, field: str) -> list[dict[str, Any]]:
        """The conditions that keep `field` out of every excluded pattern."""
        # Not $nor: MongoDB 6.0 cannot optimise it over several regular expressions.
        return [_denied(field, *pattern) for pattern in self._exclude]

    def _split(self, pattern: str) -> tuple[str | None, str]:
        database, dot, collection = pattern.partition(".")
        if self.database is None:
            return (database, collection) if dot else (None, pattern)
        return (None, collection) if dot and database == self.database else (None, pattern)

    @cached_property
    def _compiled(self) -> tuple[list[re.Pattern[str]], list[re.Pattern[str]]]:
        return [_pattern(p) for p in self._include], [_pattern(p) for p in self._exclude]


def _is_of(glob: str | None, database: str) -> bool:
    return glob is None or re.fullmatch(_expression(glob), database, re.DOTALL) is not None


def _pattern(pattern: tuple[str | None, str]) -> re.Pattern[str]:
    database, collection = pattern
    head = r"[^.]*" if database is None else _expression(database)
    return re.compile(rf"{head}\.{_expression(collection)}", re.DOTALL)


def _expression(glob: str) -> str:
    return "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in glob)


def _condition(field: str, database: str | None, collection: str) -> dict[str, Any]:
    condition = {f"{field}.coll": _value(collection)}
    return condition if database is None else {f"{field}.db": _value(database)} | condition


def _denied(field: str, database: str | None, collection: str) -> dict[str, Any]:
    other = {f"{field}.coll": _not(collection)}
    return other if database is None else {"$or": [{f"{field}.db": _not(database)}, other]}


def _not(glob: str) -> dict[str, Any]:
    value = _value(glob)
    return {"$ne": value} if isinstance(value, str) else {"$not": value}


def _value(glob: str) -> str | dict[str, str]:
    """An exact name where it is one: the server pushes that down to the oplog."""
    if not {"*", "?"}.intersection(glob):
        return glob
    escaped = "".join({"*": ".*", "?": "."}.get(c, _escaped(c)) for c in glob)
    return {"$regex": f"^{escaped}$", "$options": "s"}


def _escaped(letter: str) -> str:
    return letter if letter.isalnum() or letter in "_-" or ord(letter) > 127 else f"\\{letter}"
