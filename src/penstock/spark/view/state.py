"""The current rows that a view is made of: tables as `to = "table"` keeps them, at their versions.

A version of a Delta table is the list of its files, and files never change. What differs between
two versions is therefore in the files that only one of them has.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import xxhash
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError, TableNotFoundError
from msgspec import Struct

from penstock.spark.storage import means_no_table, stored_at
from penstock.spark.table.arrow import arrow
from penstock.spark.table.delta import create_table
from penstock.spark.table.kinds import Kind, column_field, kind_of_column, wider
from penstock.spark.table.plan import OWN_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUMBER_BITS: Final = 0x7FFF_FFFF_FFFF_FFFF
_GLOB: Final = re.compile(r"([\\\[\]{}*?])")


class Mark(Struct, frozen=True, kw_only=True):
    """A version of a table, which is that and no other one's."""

    table: int
    """Which table, as of that version: another one in its place has another number."""
    version: int


NO_TABLE: Final = Mark(table=0, version=-1)


class StateTable:
    """One table of current rows, as it is now; maybe not there yet. Not shared between threads."""

    def __init__(self, path: str, *, storage_options: Mapping[str, str]) -> None:
        self._path = path
        self._storage = dict(storage_options) or None
        self._delta: DeltaTable | None = None
        self.reload()

    def reload(self) -> None:
        """See what was committed since."""
        self._delta = _open(self._path, self._storage)

    @property
    def mark(self) -> Mark:
        return NO_TABLE if self._delta is None else _mark_of(self._delta)

    @property
    def schema(self) -> pa.Schema:
        """All its columns."""
        if self._delta is None:
            return OWN_COLUMNS
        return arrow.schema(self._delta.schema().to_arrow())

    @property
    def files(self) -> list[str]:
        return [] if self._delta is None else self._delta.file_uris()

    def files_at(self, mark: Mark) -> list[str] | None:
        """The files of an earlier version; None if the table does not know that any more."""
        if mark.version < 0:
            return []
        if mark.version > self.mark.version:
            return None
        try:
            then = _opened(self._path, self._storage, version=mark.version)
        except DeltaError:
            return None
        return then.file_uris() if _mark_of(then) == mark else None

    def create(self, columns: Mapping[str, Kind]) -> None:
        """Have the table, with these columns at least; those that are there stay as they are."""
        fields = [column_field(name, kind, field=name) for name, kind in columns.items()]
        if self._delta is None:
            schema = arrow.schema([*OWN_COLUMNS, *fields])
            create_table(self._path, schema, storage=self._storage or {})
        else:
            there = self._fields()
            new = [Field.from_arrow(one) for one in fields if one.name.lower() not in there]
            if new:
                self._delta.alter.add_columns(new)
        self.reload()

    def others(self, columns: Mapping[str, Kind]) -> dict[str, Kind | None]:
        """Those of these columns that the table has of another kind, and that kind; None for one
        that Penstock does not write. A column that has widened is no other."""
        there = self._fields()
        found: dict[str, Kind | None] = {}
        for name, kind in columns.items():
            field = there.get(name.lower())
            if field is not None and not _may_be(kind, now := kind_of_column(field)):
                found[name] = now
        return found

    def _fields(self) -> dict[str, "pa.Field[Any]"]:
        """Its columns, by name in lower case."""
        return {field.name.lower(): field for field in self.schema}


def _may_be(declared: Kind, now: Kind | None) -> bool:
    """Whether a column may be of a kind that was declared as another one."""
    if now is None:
        return False
    return wider(declared, now) is now or {declared, now} == {Kind.STRING, Kind.OBJECT_ID}


def _mark_of(delta: DeltaTable) -> Mark:
    # delta-rs gives a table a new id where a merge adds columns, so it belongs to the version.
    number = xxhash.xxh3_64_intdigest(str(delta.metadata().id).encode()) & NUMBER_BITS
    return Mark(table=number, version=delta.version())


def _opened(path: str, storage: dict[str, str] | None, *, version: int | None = None) -> DeltaTable:
    return DeltaTable(path, version=version, storage_options=storage)


def _open(path: str, storage: dict[str, str] | None) -> DeltaTable | None:
    with stored_at(path):
        try:
            return _opened(path, storage)
        except TableNotFoundError as error:
            if not means_no_table(error):
                raise
            return None


def read_files(spark: "SparkSession", files: list[str], schema: pa.Schema) -> "DataFrame":
    """The rows of some files with these columns; those that a file has not are null."""
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = from_arrow_schema(schema)
    if not files:
        return spark.createDataFrame([], columns)
    return spark.read.schema(columns).parquet(*map(_address, files))


def _address(file: str) -> str:
    """A file as Hadoop takes it: no pattern, and S3 by its own name for it."""
    if file.startswith("s3://"):
        file = f"s3a://{file.removeprefix('s3://')}"
    return _GLOB.sub(r"\\\1", file)
