"""What the fluent calls of indexes gather, until `execute`; see `penstock.store.builders`."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from penstock.store.builders import QueryWith
from penstock.store.errors import RefusedError
from penstock.store.keys import KeyAttribute, KeyType
from penstock.store.queries import ItemPage

Done = TypeVar("Done")


class CreateIndexWith(Generic[Done]):
    """An index of a table that is to be made."""

    def __init__(self, make: Callable[[Any], Done], table: str, name: str) -> None:
        self._make = make
        self.table = table
        self.name = name
        self.partition: KeyAttribute | None = None
        self.sort: KeyAttribute | None = None
        self.only: str | None = None

    def partition_key(self, name: str, type_: KeyType) -> Self:
        """The attribute that items are found by; those without it are not in the index."""
        self.partition = KeyAttribute(name, type_)
        return self

    def sort_key(self, name: str, type_: KeyType) -> Self:
        """The attribute that they are sorted by; those without it are not in the index."""
        self.sort = KeyAttribute(name, type_)
        return self

    def scope(self, prefix: str) -> Self:
        """Only items whose partition key in the table has this text before its first "#"."""
        self.only = prefix
        return self

    def execute(self) -> Done:
        """Make it, of all items that are there, while others read and write.

        Raises IndexAlreadyExistsError, TableNotFoundError, RefusedError for one without a key or
        too many of a table, and IndexNotFoundError when it is dropped meanwhile. Whatever is
        raised, nothing is left of the index.
        """
        if not self.name or len(self.name.encode()) > 255:
            raise RefusedError("an index's name has between 1 and 255 bytes. Nothing was changed.")
        if self.partition is None:
            raise RefusedError(
                f"index {self.name!r} has no partition key; say partition_key(name, KeyType...). "
                f"Nothing was changed."
            )
        if not self.partition.name or (self.sort is not None and not self.sort.name):
            raise RefusedError(
                f"index {self.name!r}: a key is an attribute, which has a name. Nothing was "
                f"changed."
            )
        if self.sort is not None and self.sort.name == self.partition.name:
            raise RefusedError(
                f"index {self.name!r}: {self.sort.name!r} cannot be partition key and sort key. "
                f"Nothing was changed."
            )
        if self.only is not None and (not self.only or "#" in self.only):
            raise RefusedError(
                f"index {self.name!r}: a scope is the text before the first '#' of partition keys, "
                f"and has none itself. Nothing was changed."
            )
        return self._make(self)


class CreateIndex(CreateIndexWith[None]):
    """An index of a table that is to be made."""

    check: Callable[[], None] | None = None

    def between(self, check: Callable[[], None]) -> Self:
        """Call this before every step; if it raises, the index is not made."""
        self.check = check
        return self


class QueryIndexWith(QueryWith[Done]):
    """Items of one partition of an index that are to be read."""

    def __init__(self, run: Callable[[Any], Done], table: str, index: str) -> None:
        super().__init__(run, table)
        self.index = index


class QueryIndex(QueryIndexWith[ItemPage]):
    """Items of one partition of an index that are to be read.

    A page's items have their keys, those of the index too, whatever the projection; and so has its
    `last_key`.
    """
