"""Entries of rows, on their way to be folded: each with its life, a row's together and in order."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec import Struct

from penstock.event import Kind
from penstock.spark.functions.lives import Life, Lives
from penstock.spark.functions.survey import Survey
from penstock.spark.table.arrow import arrow
from penstock.spark.table.patch import Change, decode_change
from penstock.spark.table.reduce import roles_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Entry = Mapping[str, Any]
"""The columns of an entry, by name, and its `role`."""

LIFE: Final = ("life_database", "life_collection", "life_end")
ROW: Final = ("source", *LIFE, "key")
"""What makes two entries changes of one row; `penstock.spark.functions.lives` says why."""

COLUMNS: Final = (
    "sequence",
    "kind",
    "operation_type",
    "source",
    "database",
    "collection",
    "key",
    "full_document",
    "update_description",
    "disambiguated_paths",
    "unchanged",
    "timestamp",
    "snapshot",
    "full_document_as_of_event",
)
_SLICE_ROWS: Final = 256
"""So many rows are Python's objects at a time."""
_OUT_BYTES: Final = 8 << 20
_OUT_ROWS: Final = 4096


class Told(Struct, frozen=True, kw_only=True):
    """All that is told of one row."""

    source: str
    life: Life
    key: str
    entries: Iterator[Entry]
    """In order of the log, each once; they can be read once."""


def told_of(
    entries: "DataFrame", survey: Survey, *, collections: Sequence[str], ended: bool
) -> "DataFrame":
    """COLUMNS and LIFE of the changes that were surveyed, a row's together, in log order.

    Without `ended`, those are left out whose row is gone with its collection.
    """
    own = ("`database` AS life_database", "`collection` AS life_collection", "0L AS life_end")
    changes = entries.where(_surveyed(survey))
    if collections:
        changes = changes.where(_named(changes, collections))
    living = changes.selectExpr(*(f"`{name}`" for name in COLUMNS), *own)
    lives = survey.lives
    if lives.turns:
        living = living.mapInArrow(partial(settle, lives=lives, ended=ended), living.schema)
    return living.repartition(*ROW).sortWithinPartitions(*ROW, "sequence")


def _surveyed(survey: Survey) -> str:
    """The condition of a change that was surveyed. A gap that was not is an error: with
    `failOnDataLoss = "false"` the source has one in place of what retention removed since."""
    known = [str(one.sequence) for one, _ in survey.events if one.kind is Kind.GAP]
    said = (
        "penstock.errors.PipelineError: entries that were there when this was asked for are gone: "
        "retention has removed them, and rows would be missing. Ask again; persist the entries "
        "before, to keep them."
    )
    # An entry that came after the survey may be behind an event that it did not see.
    return (
        f"CASE WHEN sequence > {survey.last} THEN false "
        f"WHEN kind = {int(Kind.GAP)} AND sequence NOT IN ({', '.join(known) or 0}) "
        f"THEN raise_error('{said}') ELSE kind = {int(Kind.DATA)} END"
    )


def _named(entries: "DataFrame", collections: Sequence[str]) -> "Column":
    # Without Spark's functions, which are not those of Spark Connect.
    named = entries["collection"].isin(list(collections))
    for source, slash, collection in (name.partition("/") for name in collections):
        if slash:
            named |= (entries["source"] == source) & (entries["collection"] == collection)
    return named


def settle(
    batches: Iterable[pa.RecordBatch], *, lives: Lives, ended: bool
) -> Iterator[pa.RecordBatch]:
    """The same entries with their lives, in any order."""
    for batch in batches:
        names = ("source", "database", "collection", "sequence")
        rows = zip(*(batch[name].to_pylist() for name in names), strict=True)
        found = [
            lives.life(source, (database, collection), since=sequence)
            for source, database, collection, sequence in rows
        ]
        for at, name in enumerate(LIFE):
            place = batch.schema.get_field_index(name)
            field = batch.schema.field(place)
            batch = batch.set_column(  # noqa: PLW2901 - a batch is never altered
                place, field, arrow.array([life[at] for life in found], field.type)
            )
        yield batch if ended else batch.filter(arrow.array([not life.end for life in found]))


def rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Told]:
    """The rows of a partition that `told_of` made. Each must be read before the next."""
    for (source, database, collection, end, key), entries in groupby(_entries(batches), _row_of):
        yield Told(
            source=source,
            life=Life(database, collection, end),
            key=key,
            entries=_each_once(entries),
        )


def _row_of(entry: Entry) -> tuple[Any, ...]:
    return tuple(entry[name] for name in ROW)


def _entries(batches: Iterable[pa.RecordBatch]) -> Iterator[Entry]:
    for batch in batches:
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            part = arrow.Table.from_batches([batch.slice(start, _SLICE_ROWS)])
            roles: list[int] = roles_of(part).tolist()
            for entry, role in zip(part.to_pylist(), roles, strict=True):
                entry["role"] = role
                yield entry


def _each_once(entries: Iterable[Entry]) -> Iterator[Entry]:
    before = 0
    for entry in entries:
        if entry["sequence"] != before:
            before = entry["sequence"]
            yield entry


def change_of(entry: Entry) -> Change:
    """What the entry tells, decoded."""
    return decode_change(
        sequence=entry["sequence"],
        operation=entry["operation_type"],
        document=None,
        full_document=entry["full_document"],
        update_description=entry["update_description"],
        unchanged=entry["unchanged"],
        disambiguated_paths=entry["disambiguated_paths"],
    )


def as_batches(
    rows: Iterable[dict[str, Any]], schema: pa.Schema, *, size: Callable[[dict[str, Any]], int]
) -> Iterator[pa.RecordBatch]:
    """The rows, some at a time; `size` is about how many bytes one has."""
    held: list[dict[str, Any]] = []
    held_bytes = 0
    for row in rows:
        held.append(row)
        held_bytes += size(row)
        if held_bytes >= _OUT_BYTES or len(held) >= _OUT_ROWS:
            yield arrow.RecordBatch.from_pylist(held, schema=schema)
            held, held_bytes = [], 0
    if held:
        yield arrow.RecordBatch.from_pylist(held, schema=schema)
