"""What the store's fluent calls gather, until `execute`.

Each comes twice: with what `execute` returns left open, since an asynchronous client's is awaited,
and as the store's own.
"""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from penstock.store.conditions import Condition
from penstock.store.errors import RefusedError
from penstock.store.keys import KeyAttribute, KeyType
from penstock.store.paths import PathLike
from penstock.store.projections import Projection, projection
from penstock.store.queries import ItemPage, SortBound
from penstock.store.schema import Index, Retention, StreamViewType, Table
from penstock.store.streams import BYTES_MAX, RECORDS_MAX, Page
from penstock.store.updates import SetValue, Update, Updated
from penstock.store.values import Item, Scalar, Value

Done = TypeVar("Done")


class CreateTableWith(Generic[Done]):
    """A table that is to be made."""

    def __init__(self, make: Callable[[Any], Done], name: str) -> None:
        self._make = make
        self.name = name
        self.partition: KeyAttribute | None = None
        self.sort: KeyAttribute | None = None
        self.ttl_attribute: str | None = None
        self.view: StreamViewType | None = None
        self.unchanged = False
        self.stream_retention = Retention()

    def partition_key(self, name: str, type_: KeyType) -> Self:
        """The attribute that items are found by; every item has it."""
        self.partition = KeyAttribute(name, type_)
        return self

    def sort_key(self, name: str, type_: KeyType) -> Self:
        """The attribute that the items of one partition are told apart and sorted by."""
        self.sort = KeyAttribute(name, type_)
        return self

    def ttl(self, attribute: str) -> Self:
        """The attribute that says, in seconds since the epoch, when an item expires."""
        self.ttl_attribute = attribute
        return self

    def stream(self, view: StreamViewType, *, unchanged: bool = False) -> Self:
        """Record changes from the first on; with `unchanged`, writes that change nothing too."""
        self.view = view
        self.unchanged = unchanged
        return self

    def retention(self, retention: Retention) -> Self:
        """How much of the stream is kept: 7 days and a million records unless it is said."""
        self.stream_retention = retention
        return self

    def execute(self) -> Done:
        """Make it. Raises TableAlreadyExistsError, and RefusedError for one without a key."""
        if not self.name or len(self.name.encode()) > 255:
            raise RefusedError("a table's name has between 1 and 255 bytes. Nothing was changed.")
        if self.partition is None:
            raise RefusedError(
                f"table {self.name!r} has no partition key; say partition_key(name, KeyType...). "
                f"Nothing was changed."
            )
        if self.sort is not None and self.sort.name == self.partition.name:
            raise RefusedError(
                f"table {self.name!r}: {self.sort.name!r} cannot be partition key and sort key. "
                f"Nothing was changed."
            )
        return self._make(self)


class CreateTable(CreateTableWith[None]):
    """A table that is to be made."""

    kept: bytes | None = None
    indexes: tuple[Index, ...] = ()

    def beside(self, data: bytes) -> Self:
        """What a server keeps with the table until it is dropped (`Transaction.put_beside`)."""
        self.kept = data
        return self

    def indexed(self, *indexes: Index) -> Self:
        """Make these indexes in the transaction that makes the table. They are numbered then."""
        self.indexes = indexes
        return self


class UpdateItemWith(Generic[Done]):
    """Changes of one item that are to be made together."""

    def __init__(self, make: Callable[[Any], Done], table: str, key: Item) -> None:
        self._make = make
        self.table = table
        self.key = key
        self.update = Update()
        self.only_if: Condition | None = None
        self.version: int | None = None

    def set(self, path: PathLike, value: SetValue | Value) -> Self:
        """Set what stands at a path, to a value or to what is worked out from the item as it was:
        `plus(attr("n"), 1)`, `if_not_exists`, `list_append`."""
        self.update = self.update.set(path, value)
        return self

    def remove(self, *paths: PathLike) -> Self:
        """Remove what stands at these paths."""
        self.update = self.update.remove(*paths)
        return self

    def add(self, path: PathLike, value: Value) -> Self:
        """Add a number to a number, or elements to a set; what is not there begins empty."""
        self.update = self.update.add(path, value)
        return self

    def delete(self, path: PathLike, elements: Value) -> Self:
        """Remove elements from a set."""
        self.update = self.update.delete(path, elements)
        return self

    def condition(self, condition: Condition) -> Self:
        """Only if this holds for the item as it is."""
        self.only_if = condition
        return self

    def expected_version(self, version: int) -> Self:
        """Only if the item is of this version; 0: only if there is none."""
        self.version = version
        return self

    def execute(self) -> Done:
        """Make the changes; returns the item as it was and as it is."""
        return self._make(self)


class UpdateItem(UpdateItemWith[Updated]):
    """Changes of one item that are to be made together."""


class ScanWith(Generic[Done]):
    """A table that is to be read from end to end."""

    def __init__(self, run: Callable[[Any], Done], table: str) -> None:
        self._run = run
        self.table = table
        self.limit_: int | None = None
        self.start: Item | None = None
        self.condition: Condition | None = None
        self.projection: Projection | None = None

    def limit(self, items: int) -> Self:
        """Look at no more items than this, whether the filter takes them or not."""
        if items < 1:
            raise RefusedError(f"a limit is 1 or more, not {items}")
        self.limit_ = items
        return self

    def exclusive_start_key(self, key: Item | None) -> Self:
        """Go on after the key of this item: a page's `last_key`."""
        self.start = key
        return self

    def filter(self, condition: Condition) -> Self:
        """Only items for which this holds."""
        self.condition = condition
        return self

    def project(self, *paths: PathLike) -> Self:
        """Only these attributes of items, and their keys."""
        self.projection = projection(*paths)
        return self

    def execute(self) -> Done:
        """Read a page."""
        return self._run(self)


class Scan(ScanWith[ItemPage]):
    """A table that is to be read from end to end."""


class QueryWith(ScanWith[Done]):
    """Items of one partition that are to be read."""

    def __init__(self, run: Callable[[Any], Done], table: str) -> None:
        super().__init__(run, table)
        self.partition: Scalar | None = None
        self.bound: SortBound | None = None
        self.reversed = False

    def partition_key(self, value: Scalar) -> Self:
        """Which partition."""
        self.partition = value
        return self

    def key(self, table: Table) -> dict[str, Any]:
        """The partition key. Raises RefusedError when it was not said."""
        if self.partition is None:
            raise RefusedError("a query reads one partition; say partition_key(value)")
        return {table.partition_key.name: self.partition}

    def sort_key_eq(self, value: Scalar) -> Self:
        """The sort key is this."""
        return self._bound("eq", value)

    def sort_key_lt(self, value: Scalar) -> Self:
        """The sort key is less."""
        return self._bound("lt", value)

    def sort_key_le(self, value: Scalar) -> Self:
        """The sort key is this or less."""
        return self._bound("le", value)

    def sort_key_gt(self, value: Scalar) -> Self:
        """The sort key is more."""
        return self._bound("gt", value)

    def sort_key_ge(self, value: Scalar) -> Self:
        """The sort key is this or more."""
        return self._bound("ge", value)

    def sort_key_between(self, low: Scalar, high: Scalar) -> Self:
        """The sort key is one of these or between them."""
        return self._bound("between", low, high)

    def sort_key_begins_with(self, beginning: Scalar) -> Self:
        """The sort key, a string or bytes, begins with this."""
        return self._bound("begins_with", beginning)

    def _bound(self, op: str, *values: Scalar) -> Self:
        if self.bound is not None:
            raise RefusedError("a query bounds the sort key once; use between for a range")
        self.bound = SortBound(op, values)
        return self

    def scan_forward(self, forward: bool) -> Self:
        """Ascending by sort key, or descending."""
        self.reversed = not forward
        return self


class Query(QueryWith[ItemPage]):
    """Items of one partition that are to be read."""


class ReadRecordsWith(Generic[Done]):
    """A part of a table's stream that is to be read: from the oldest record unless it is said."""

    def __init__(self, run: Callable[[Any], Done], table: str) -> None:
        self._run = run
        self.table = table
        self.begin: str | int = "trim_horizon"
        """"trim_horizon", "latest", a sequence to go on after, or the text of a position."""
        self.inclusive = False
        self.limit_ = RECORDS_MAX
        self.bytes_max = BYTES_MAX
        self.wait_seconds = 0.0

    def trim_horizon(self) -> Self:
        """From the oldest record that is left."""
        return self._begin("trim_horizon")

    def latest(self) -> Self:
        """Only what is written from now on."""
        return self._begin("latest")

    def after(self, position: str) -> Self:
        """After a record's or page's `position`, which is checked against the stream (F10)."""
        return self._begin(position)

    def after_sequence(self, sequence: int) -> Self:
        """After a sequence. It does not say of which stream: `after` is safer."""
        return self._begin(sequence)

    def at_sequence(self, sequence: int) -> Self:
        """From a sequence on, with it."""
        return self._begin(sequence - 1)

    def _begin(self, begin: str | int) -> Self:
        self.begin = begin
        return self

    def limit(self, records: int) -> Self:
        """No more records than this, 1000 at the most."""
        if not 1 <= records <= RECORDS_MAX:
            raise RefusedError(f"a page has 1 to {RECORDS_MAX} records, not {records}")
        self.limit_ = records
        return self

    def max_bytes(self, size: int) -> Self:
        """No more than this of images and keys, but for the first record."""
        self.bytes_max = size
        return self

    def wait(self, seconds: float) -> Self:
        """If there is nothing, wait this long for the next record."""
        self.wait_seconds = seconds
        return self

    def execute(self) -> Done:
        """Read a page. Raises TrimmedDataError, StreamChangedError and AheadOfStreamError."""
        return self._run(self)


class ReadRecords(ReadRecordsWith[Page]):
    """A part of a table's stream that is to be read: from the oldest record unless it is said."""
