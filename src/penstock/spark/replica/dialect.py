"""What differs between the SQL databases that are replicated into."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from penstock.errors import DestinationError
from penstock.spark.table.arrow import Column, compute
from penstock.spark.table.kinds import Kind
from penstock.spark.table.plan import Naming
from penstock.spark.table.room import Room

JSON_COMMENT: Final = "Extended JSON"
"""Says of a column of text that it holds values of any kind, as JSON."""

TEXTS: Final = frozenset({Kind.STRING, Kind.OBJECT_ID, Kind.JSON})


class SqlColumn(Struct, frozen=True, kw_only=True):
    """A column, as the server describes it."""

    name: str
    kind: Kind | None
    """None for a type that has none of ours."""
    declared: str
    """Its type, as the server writes it."""
    required: bool = False
    """A row needs a value of it."""
    takes_null: bool = True
    limit: int | None = None
    """So many characters of text, or bytes, at most."""


class SqlTable(Struct, frozen=True, kw_only=True):
    """A table, as the server describes it."""

    columns: tuple[SqlColumn, ...]
    unique: tuple[frozenset[str], ...] = ()
    """The columns of each index that tells its rows apart."""
    problems: tuple[str, ...] = ()
    """Why it cannot be replicated into, beside its columns."""

    def has_key(self, names: Sequence[str]) -> bool:
        return frozenset(names) in self.unique

    def column(self, name: str) -> SqlColumn | None:
        return next((one for one in self.columns if one.name == name), None)


class Values(NamedTuple):
    """A column's values, to be written."""

    name: str
    kind: Kind
    column: Column


CORRECT_IT: Final = (
    "Correct what it names, the pipeline's uri, its files for TLS, or what its user may do: it "
    "creates and alters tables, and reads and writes them."
)


class Dialect(Protocol):
    """A database server's SQL. Cursors are DB-API's, with `%s` for a value.

    Names and statements that it gives are for `execute` with values, be there none: `()`.
    """

    @property
    def errors(self) -> type[Exception]: ...

    @property
    def naming(self) -> Naming: ...

    def room(self, key_limits: Sequence[int | None]) -> Room:
        """What a table holds whose key's columns have these limits, as `SqlColumn.limit`."""
        ...

    def connect(self) -> Any:
        """A connection without autocommit. Raises `errors`, ConfigError, DestinationError."""
        ...

    def passes(self, error: Exception) -> bool:
        """Whether an error goes away by itself."""
        ...

    def too_large(self, error: Exception) -> DestinationError | None:
        """What an error says for which a batch cannot be one transaction here; None for others,
        and for one that may pass. Asked about each error, in their order."""
        ...

    def committed(self) -> None:
        """A batch is committed: errors before say nothing of the next."""
        ...

    def is_too_wide(self, error: Exception) -> bool:
        """Whether a row says more than fits the server's pages."""
        ...

    def is_there(self, error: Exception) -> bool:
        """Whether a column cannot be added because there is one of its name."""
        ...

    def cause(self, error: Exception) -> tuple[str, str]:
        """What happened, with where, and the next step as a sentence; without the server's text,
        which may quote a value."""
        ...

    def own_tables(self) -> Iterable[str]:
        """Statements that make our own tables where they are not."""
        ...

    def renew_own_tables(self, cursor: Any) -> None:
        """Have those that an earlier Penstock has made be as this one makes them."""
        ...

    def table(self, name: str) -> str:
        """A table's name in a statement."""
        ...

    def quoted(self, name: str) -> str:
        """A column's name in a statement."""
        ...

    def describe(self, cursor: Any, table: str) -> SqlTable | None:
        """A table as it is; None if there is none."""
        ...

    def create(self, table: str, columns: Sequence[tuple[str, Kind]], key: Sequence[str]) -> str:
        """The statement that makes a table."""
        ...

    def add(self, table: str, name: str, kind: Kind) -> Sequence[str]:
        """The statements that add a column."""
        ...

    def widen(self, table: str, name: str, kind: Kind, *, key: bool) -> str:
        """The statement that makes a column wider."""
        ...

    def unfit(self, kind: Kind, column: Column) -> tuple[NDArray[np.bool_], str] | None:
        """Which values a column of this kind does not hold here, and why; None: it holds all."""
        ...

    def key_bytes_max(self) -> int:
        """So long all texts and bytes of a key may be."""
        ...

    def key_limit(self, keys: int) -> int | None:
        """So long each text of a key of so many columns may be in a table that we make."""
        ...

    def upsert(
        self, cursor: Any, table: str, columns: Sequence[Values], key: Sequence[str]
    ) -> None:
        """Write rows whole."""
        ...

    def delete(self, cursor: Any, table: str, key: Sequence[Values]) -> None:
        """Delete the rows with these keys."""
        ...

    def select(
        self, cursor: Any, table: str, columns: Sequence[SqlColumn], key: Sequence[Values]
    ) -> list[tuple[Any, ...]]:
        """The rows with these keys; JSON as its text."""
        ...

    def unhurried(self, connection: Any) -> AbstractContextManager[None]:
        """Within it, statements are answered however long they take; a server that is gone is
        found to be."""
        ...

    def begin_moment(self, connection: Any, tables: Sequence[str]) -> None:
        """Have all that a new connection reads be as of one moment, and these tables' columns
        stay what they are until it ends. It writes nothing."""
        ...

    def stream(
        self, connection: Any, table: str, columns: Sequence[SqlColumn]
    ) -> Generator[tuple[Any, ...]]:
        """All rows of a table, as `select` gives them, of which a few are held at a time."""
        ...

    def read(self, kind: Kind, values: Sequence[Any]) -> Column:
        """What `select` or `stream` gave of a column, as a column of its kind."""
        ...


def lengths(kind: Kind, column: Column) -> NDArray[np.int64]:
    """The bytes of each text or binary value; 0 for nulls."""
    found = compute.binary_length(column) if kind in TEXTS | {Kind.BINARY} else None
    if found is None:
        return np.zeros(len(column), np.int64)
    filled: NDArray[np.int64] = compute.fill_null(found, 0).to_numpy(zero_copy_only=False)
    return filled.astype(np.int64)


def characters(kind: Kind, column: Column) -> NDArray[np.int64]:
    """As `lengths`, in characters where it is text."""
    if kind not in TEXTS:
        return lengths(kind, column)
    filled: NDArray[np.int64] = compute.fill_null(compute.utf8_length(column), 0).to_numpy(
        zero_copy_only=False
    )
    return filled.astype(np.int64)
