"""The functions themselves; what all of them promise is in `penstock.spark.functions`."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    LongType,
    StringType,
    StructField,
    StructType,
)

from penstock.errors import ConfigError, PipelineError
from penstock.spark.functions.folding import (
    BASE,
    CHANGE_SCHEMA,
    CURRENT_SCHEMA,
    REJECTED_SCHEMA,
    UPDATE,
    built,
    current,
    latest,
    rejected,
)
from penstock.spark.functions.survey import SURVEYED, Survey, survey
from penstock.spark.functions.told import COLUMNS, told_of
from penstock.spark.functions.typed import OnMisfit, typed
from penstock.spark.table.reduce import IDENTITY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OnGap = Literal["halt", "record"]
Start = Literal["beginning", "oldest"]

_EVENTS: Final = StructType(
    [
        StructField("sequence", LongType()),
        StructField("operation", StringType()),
        StructField("source", StringType()),
        StructField("database", StringType()),
        StructField("collection", StringType()),
        StructField("to_database", StringType()),
        StructField("to_collection", StringType()),
        StructField("description", StringType()),
    ]
)


def latest_changes(
    entries: "DataFrame",
    *,
    collections: Sequence[str] = (),
    on_event: Literal["halt", "apart"] = "halt",
    on_gap: OnGap = "halt",
    schema: str | StructType | None = None,
    on_misfit: OnMisfit = "halt",
) -> "DataFrame":
    """One row for each row that the entries change: what all its changes come to.

    Columns: `operation`, `source`, `database`, `collection`, `key`, `document`, `sequence` (of the
    row's last change), `rejected_sequence` (null, or a later change that could not be applied),
    `changes`. The first four behind `operation` are the row's identity; rows are in no order.

    | `operation` | means |
    |---|---|
    | `upsert` | the row is `document` |
    | `delete` | there is no such row |
    | `update` | the row follows from the one before these entries, by `changes`: `build_on` |

    `changes` is null, or for an `update` an array of {sequence, operation_type, full_document,
    update_description, unchanged}, as in the entries and in their order.

    An event that drops or renames a whole collection is no row. At one that this raises
    PipelineError, unless `on_event = "apart"`: then do first what `collection_events` says, in its
    order, and then these changes. They have the name that their collection has behind all events,
    and there is none of a row that an event ended.

    Raises as `penstock.spark.functions` says.
    """
    known = _survey(entries, "latest_changes", collections, on_gap)
    if on_event == "halt":
        _refuse_events(known)
    told = told_of(entries, known, collections=collections, ended=False)
    made = told.mapInArrow(latest, from_arrow_schema(CHANGE_SCHEMA))
    return typed(made, schema, on_misfit, sequence="sequence")


def build_on(
    changes: "DataFrame",
    rows: "DataFrame",
    *,
    schema: str | StructType | None = None,
    on_misfit: OnMisfit = "halt",
) -> "DataFrame":
    """`latest_changes` (without `schema`), of which those that are an `update` are applied to
    `rows`, which you keep.

    `rows` has at least `source`, `database`, `collection`, `key`, `document` (Extended JSON text),
    `sequence` and `rejected_sequence`, one row for each identity, as of before the changes but
    behind their `collection_events`. What it has already, by `sequence`, is not applied again.

    The columns are those of `latest_changes`. Instead of `update` there is `upsert`, or `stale`: a
    change cannot be applied exactly, so the row stays as it is, if there is one, and
    `rejected_sequence` says which change it does not have. Keep that with the row: what builds on
    it is not applied either, until a whole document comes.
    """
    from pyspark.sql.functions import col

    _check_columns(changes, "build_on", CHANGE_SCHEMA.names)
    _check_columns(rows, "build_on", (*IDENTITY, *BASE))
    kept = rows.select(*IDENTITY, *(col(name).alias(f"base_{name}") for name in BASE))
    builds = changes["operation"] == UPDATE
    same = [changes[name] == kept[name] for name in IDENTITY]
    condition = same[0] & same[1] & same[2] & same[3] & builds
    joined = changes.join(kept, condition, "left").select(
        *(changes[name] for name in CHANGE_SCHEMA.names),
        *(kept[f"base_{name}"] for name in BASE),
    )
    made = joined.mapInArrow(built, from_arrow_schema(CHANGE_SCHEMA))
    return typed(made, schema, on_misfit, sequence="sequence")


def collection_events(
    entries: "DataFrame", *, collections: Sequence[str] = (), on_gap: OnGap = "halt"
) -> "DataFrame":
    """One row for each event that ends or moves all rows of a collection; order them by `sequence`.

    Columns: `sequence`, `operation`, `source`, `database`, `collection`, `to_database`,
    `to_collection`, `description`.

    | `operation` | does |
    |---|---|
    | `drop` | takes away the rows of `collection`; of all of `database` where that is null |
    | `rename` | takes away the rows of (`to_database`, `to_collection`), and gives their name to those of (`database`, `collection`) |
    | `gap` | changes are missing, as `description` says; only with `on_gap = "record"` |

    A truncated table is dropped. A collection that is renamed to one which is not captured, or not
    in `collections`, is dropped. They concern rows whose `sequence` is less than theirs; a row that
    is renamed keeps its `sequence`. A rename cannot be done twice: do it in one transaction with
    the changes of its batch, or remember its batch.
    """  # noqa: E501 - a table
    known = _survey(entries, "collection_events", collections, on_gap)
    rows = [tuple(event[name] for name in _EVENTS.names) for event in events_of(known)]
    return entries.sparkSession.createDataFrame(rows, _EVENTS)


def current_rows(
    entries: "DataFrame",
    *,
    collections: Sequence[str] = (),
    start: Start = "beginning",
    on_gap: OnGap = "halt",
    schema: str | StructType | None = None,
    on_misfit: OnMisfit = "halt",
) -> "DataFrame":
    """The rows that there are behind entries from the log's beginning: what `to = "table"` keeps.

    Columns: `source`, `database`, `collection`, `key`, `document`, `sequence`, `rejected_sequence`.
    The first four are a row's identity; rows are in no order. `sequence` is that of the row's last
    change, or of the rename that brought it there. `rejected_sequence` is null for a row that is
    current: otherwise that later change could not be applied (`rejected_changes`), and the row is
    as it was at `sequence`.

    Drops and renames are done. A change that builds on a row which is not there makes none.

    Raises as `penstock.spark.functions` says, and PipelineError where the entries do not begin with
    the log's first one, unless `start = "oldest"`: rows that were told before are missing then.
    """
    known = _survey(entries, "current_rows", collections, on_gap, start)
    told = told_of(entries, known, collections=collections, ended=False)
    work = partial(current, lives=known.lives)
    made = told.mapInArrow(work, from_arrow_schema(CURRENT_SCHEMA))
    return typed(made, schema, on_misfit, sequence="sequence")


def rejected_changes(
    entries: "DataFrame",
    *,
    collections: Sequence[str] = (),
    start: Start = "beginning",
    on_gap: OnGap = "halt",
) -> "DataFrame":
    """The changes that `current_rows` and `row_versions` could not apply, and why.

    Columns: `sequence`, `source`, `database`, `collection`, `key`, as captured, and `reason`. Each
    builds on a row that the entries do not have, or not exactly, or on a change that is here too. A
    later whole document or delete may have mended its row. Raises as `current_rows`.
    """
    known = _survey(entries, "rejected_changes", collections, on_gap, start)
    told = told_of(entries, known, collections=collections, ended=True)
    return told.mapInArrow(rejected, from_arrow_schema(REJECTED_SCHEMA))


# --- what all of them ask -------------------------------------------------------------------------


def _survey(
    entries: "DataFrame",
    caller: str,
    collections: Sequence[str],
    on_gap: OnGap,
    start: Start = "oldest",
) -> Survey:
    check_entries(entries, caller, (*SURVEYED, *COLUMNS), collections)
    known = survey(entries, collections=collections, halts=on_gap == "halt")
    if start == "beginning" and known.first > 1:
        raise PipelineError(
            f"these entries begin at sequence {known.first}, and the log began before: rows that "
            f"were told there would be missing. Nothing was made of them. Read with "
            f"startingOffsets = 'earliest', from a log or its archive that has everything. Where "
            f"what came before is of other sources or collections, or is to be left out knowingly, "
            f"set start = 'oldest'."
        )
    return known


def check_entries(
    entries: "DataFrame", caller: str, names: Sequence[str], collections: Sequence[str]
) -> None:
    """Raises ConfigError for a stream, for a column that is missing or is no JSON text, and for one
    name in place of names."""
    if isinstance(collections, str):
        raise ConfigError(
            f"{caller}: collections is the text {collections!r}; it is a list of names, as "
            f"[{collections!r}]. Nothing was read."
        )
    if entries.isStreaming:
        raise ConfigError(
            f"{caller} is for a DataFrame that ends, and this one is a stream. Nothing was read. "
            f"Use it inside foreachBatch, where each batch has whole commits: "
            f"stream.writeStream.foreachBatch(lambda batch, number: "
            f"write(batch.transform({caller})))."
        )
    _check_columns(entries, caller, names)
    if "full_document" in names and entries.schema["full_document"].dataType != StringType():
        raise ConfigError(
            f"{caller} takes documents as JSON text. Nothing was read. Leave the option documents "
            f"out, and say `schema` here for columns with types."
        )


def _check_columns(frame: "DataFrame", caller: str, names: Sequence[str]) -> None:
    missing = [name for name in dict.fromkeys(names) if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"{caller} needs the columns {', '.join(missing)}, which this DataFrame has not. "
            f"Nothing was read. Give it entries as format('penstock') reads them, before you "
            f"select from them."
            if caller != "build_on"
            else f"build_on needs the columns {', '.join(missing)}, which one of its DataFrames "
            f"has not. Nothing was read. Give it latest_changes without schema, and rows that have "
            f"what current_rows gives."
        )


def _refuse_events(known: Survey) -> None:
    for event in events_of(known):
        if event["operation"] != "gap":
            named = ".".join(filter(None, (event["database"], event["collection"])))
            raise PipelineError(
                f"at sequence {event['sequence']} there is a {event['operation']} of {named}, "
                f"which is no change of single rows. Nothing was made of the entries. Set on_event "
                f"= 'apart', and do what collection_events says before these changes; or have a "
                f"pipeline, or DeltaTables, keep the tables, which do all of it."
            )


def events_of(known: Survey) -> list[dict[str, Any]]:
    """The rows of `collection_events`."""
    events: list[dict[str, Any]] = []
    nothing = dict.fromkeys(_EVENTS.names)
    for control, effect in known.events:
        said = {**nothing, "sequence": control.sequence, "source": control.source}
        own = {"database": control.database, "collection": control.collection}
        if effect.lost:
            description = json.dumps(control.description) if not effect.ends else effect.lost
            events.append({**said, **own, "operation": "gap", "description": description})
        for database, collection in effect.ends:
            ended = {"database": database, "collection": collection or None}
            events.append({**said, **ended, "operation": "drop"})
        if effect.moves is not None:
            to_database, to_collection = effect.moves[1]
            to = {"to_database": to_database, "to_collection": to_collection}
            events.append({**said, **own, **to, "operation": "rename"})
    return events
