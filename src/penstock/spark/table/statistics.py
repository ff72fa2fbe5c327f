"""The columns of which a table's log says the least and greatest value of each file.

Readers pass over files by these, so they must be true for every reader. Of some kinds they cannot
be: they are JSON, in which delta-rs writes Infinity as null and a decimal as a double, and it
leaves NaN out; Spark says of a boolean only how often it is null. Readers take what is null or
missing, and what was rounded, for "no row of this file fits". The table's property STATISTICS names
the other columns, for whatever writes the table. The Parquet files keep their own statistics.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import date
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction

from penstock.spark.table.arrow import arrow
from penstock.spark.table.committing import commit

STATISTICS: Final = "delta.dataSkippingStatsColumns"
_COLUMNS_MAX: Final = 32
"""Of so many columns, the first ones, Delta has statistics where a table says nothing."""
_PLAIN_PATH: Final = re.compile(r"[\w./=-]+", re.ASCII)
"""A path that everybody writes the same way in a log."""


def statistics_of(schema: pa.Schema, partitions: Collection[str] = ()) -> str:
    """What STATISTICS says for a table with these columns. Pure."""
    return ",".join(f"`{name.replace('`', '``')}`" for name in _told(schema, partitions))


def _told(schema: pa.Schema, partitions: Collection[str]) -> list[str]:
    columns = [field for field in schema if field.name not in partitions]
    return [field.name for field in columns[:_COLUMNS_MAX] if _is_told(field.type)]


def _is_told(kind: pa.DataType) -> bool:
    types = arrow.types
    return (
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
    )


def _may_be_wrong(kind: pa.DataType) -> bool:
    """Whether what a log says of such a column may not be so for every reader."""
    types = arrow.types
    if types.is_struct(kind):
        return any(_may_be_wrong(inner.type) for inner in cast("pa.StructType", kind))
    return types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)


def state_statistics(delta: DeltaTable, schema: pa.Schema) -> None:
    """Have the table's property be right for `schema`, which it is to have with its next commit.

    A table that never said it may have files of which its log says what is not so: they are said
    anew, and not written. Raises CommitFailedError where another driver has committed meanwhile.
    """
    said = delta.metadata().configuration.get(STATISTICS)
    wanted = statistics_of(schema, delta.metadata().partition_columns)
    if said == wanted:
        return
    # Tried again behind another's commit, these would hide it from what is written next.
    once = CommitProperties(max_commit_retries=0)
    if said is None:
        commit(delta, lambda delta: _correct(delta, once))
    commit(
        delta,
        lambda delta: delta.alter.set_table_properties(
            {STATISTICS: wanted}, commit_properties=once
        ),
    )


def _correct(delta: DeltaTable, once: CommitProperties) -> None:
    """Say nothing any more of columns of which nothing can be said, where the log does."""
    partitions = delta.metadata().partition_columns
    schema = arrow.schema(delta.schema().to_arrow())
    told = _told(schema, partitions)
    wrong = [one for one in schema if one.name not in partitions and _may_be_wrong(one.type)]
    protocol = delta.protocol()
    if protocol.min_reader_version > 1 or protocol.min_writer_version > 6:
        return  # a log of Spark's may say more of a file than can be said anew here
    files = tuple(_said_anew(delta, told, wrong))
    if not files:
        return
    delta.create_write_transaction(
        list(files),
        mode="append",
        schema=delta.schema(),
        partition_by=partitions,
        commit_properties=once,
    )
    delta.update_incremental()


def _said_anew(
    delta: DeltaTable, told: list[str], wrong: list["pa.Field[Any]"]
) -> Iterator[AddAction]:
    for file in arrow.table(delta.get_add_actions()).to_pylist():
        sides = [file.get(name) or {} for name in ("min", "max", "null_count")]
        if not any(_is_wrong(one, *sides) for one in wrong):
            continue
        if not _PLAIN_PATH.fullmatch(file["path"]):
            continue
        least, greatest, nulls = (
            {name: side[name] for name in told if side.get(name) is not None} for side in sides
        )
        said = {
            "numRecords": file["num_records"],
            "minValues": least,
            "maxValues": greatest,
            "nullCount": nulls,
        }
        yield AddAction(
            path=file["path"],
            size=file["size_bytes"],
            partition_values=_as_texts(file.get("partition") or {}),
            modification_time=file["modification_time"],
            data_change=False,
            stats=msgspec.json.encode(said).decode(),
        )


def _is_wrong(
    column: "pa.Field[Any]",
    least: Mapping[str, Any],
    greatest: Mapping[str, Any],
    nulls: Mapping[str, Any],
) -> bool:
    if arrow.types.is_boolean(column.type):
        # delta-rs says both; Spark only how many are null.
        return nulls.get(column.name) is not None and least.get(column.name) is None
    return any(side.get(column.name) is not None for side in (least, greatest, nulls))


def _as_texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    """The values of partitions as a log has them."""
    return {name: None if value is None else _as_text(value) for name, value in values.items()}


def _as_text(value: bool | date | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
