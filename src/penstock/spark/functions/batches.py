"""Of the entries of a batch: what they come to for rows that somebody keeps.

What all functions promise is in `penstock.spark.functions`.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.errors import PipelineError
from penstock.spark.functions.asking import OnGap, asked, check_columns
from penstock.spark.functions.folding import BASE, CHANGE_SCHEMA, UPDATE, built, latest
from penstock.spark.functions.survey import Survey
from penstock.spark.functions.told import told_of
from penstock.spark.functions.typed import OnMisfit, typed
from penstock.spark.table.reduce import IDENTITY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    update_description, disambiguated_paths, unchanged}, as in the entries and in their order.

    An event that drops or renames a whole collection is no row. At one that this raises
    PipelineError, unless `on_event = "apart"`: then do first what `collection_events` says, in its
    order, and then these changes. They have the name that their collection has behind all events,
    and there is none of a row that an event ended.

    Raises as `penstock.spark.functions` says.
    """
    known = asked(entries, "latest_changes", collections, on_gap)
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
    check_columns(changes, "build_on", CHANGE_SCHEMA.names)
    check_columns(rows, "build_on", (*IDENTITY, *BASE))
    base = (f"`{name}` AS base_{name}" for name in BASE)
    kept = rows.selectExpr(*(f"`{name}`" for name in IDENTITY), *base)
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
    known = asked(entries, "collection_events", collections, on_gap)
    rows = [tuple(event[name] for name in _EVENTS.names) for event in events_of(known)]
    return entries.sparkSession.createDataFrame(rows, _EVENTS)


def _refuse_events(known: Survey) -> None:
    for event in events_of(known):
        if event["operation"] != "gap":
            named = ".".join(filter(None, (event["database"], event["collection"])))
            raise PipelineError(
                f"at sequence {event['sequence']} there is a {event['operation']} of {named}, "
                f"which is no change of single rows. Nothing was made of the entries. Set on_event "
                f"= 'apart', and do what collection_events says before these changes; or have a "
                f"pipeline keep the tables, which does all of it."
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
