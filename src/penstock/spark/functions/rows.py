"""Of entries from the log's beginning: what destinations keep.

What all functions promise is in `penstock.spark.functions`.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark.changelog.entries import ENTRY_SCHEMA
from penstock.spark.functions.asking import OnGap, Start, asked, check_columns
from penstock.spark.functions.changes import CHANGELOG_SCHEMA, logged
from penstock.spark.functions.folding import CURRENT_SCHEMA, REJECTED_SCHEMA, current, rejected
from penstock.spark.functions.told import told_of
from penstock.spark.functions.typed import OnMisfit, typed
from penstock.spark.functions.versions import VERSION_SCHEMA, versions
from penstock.spark.history.apply import Tracking
from penstock.spark.table.plan import SEQUENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    known = asked(entries, "current_rows", collections, on_gap, start)
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
    known = asked(entries, "rejected_changes", collections, on_gap, start)
    told = told_of(entries, known, collections=collections, ended=True)
    return told.mapInArrow(rejected, from_arrow_schema(REJECTED_SCHEMA))


def row_versions(
    entries: "DataFrame",
    track_history_column_list: Sequence[str] | None = None,
    track_history_except_column_list: Sequence[str] | None = None,
    *,
    collections: Sequence[str] = (),
    start: Start = "beginning",
    on_gap: OnGap = "halt",
    schema: str | StructType | None = None,
    on_misfit: OnMisfit = "halt",
) -> "DataFrame":
    """Every version of every row, of entries from the log's beginning: what `to = "history"` keeps.

    Columns: `collection`, those of `penstock.spark.history.columns` (`_key`, `_source`,
    `_database`, `_operation`, `_valid_from`, `_valid_to`, `_from_sequence`, `_to_sequence`,
    `_current`, `_sequence`, `_as_of_event`, `_rejected_sequence`), and `document`; in no order.

    Only a change of the fields in `track_history_column_list` makes a version, or of any but those
    in `track_history_except_column_list`; one of other fields sets them in the open version. A
    value that is written otherwise is another one: 5 is not {"$numberLong":"5"}.

    Raises as `current_rows`, and ConfigError if both lists are given.
    """
    if track_history_column_list and track_history_except_column_list:
        raise ConfigError(
            "row_versions: set track_history_column_list or track_history_except_column_list, not "
            "both. Nothing was read."
        )
    tracking = Tracking(
        columns=frozenset(track_history_column_list or ()),
        except_columns=frozenset(track_history_except_column_list or ()),
    )
    known = asked(entries, "row_versions", collections, on_gap, start)
    told = told_of(entries, known, collections=collections, ended=True)
    work = partial(versions, lives=known.lives, tracking=tracking)
    made = told.mapInArrow(work, from_arrow_schema(VERSION_SCHEMA))
    return typed(made, schema, on_misfit, sequence=SEQUENCE)


def changelog(
    entries: "DataFrame", *, collections: Sequence[str] = (), on_gap: OnGap = "record"
) -> "DataFrame":
    """Every entry once, control events and gaps too: what `to = "changelog"` keeps.

    Columns: all of an entry (`docs/reference/fields.md`), unaltered, and those by which a changelog
    is partitioned: `date`, the day of the commit in UTC, and `collection_folder`, the collection's
    name as a folder can have it. Rows are in no order. A gap is a row, unless `on_gap = "halt"`
    makes it an error. With `collections`, entries of others stay, if there are some: it only says
    that not all are here.

    Raises as `penstock.spark.functions` says, but for events that are not known: they are rows.
    """
    check_columns(entries, "changelog", ENTRY_SCHEMA.names)
    known = asked(entries, "changelog", collections, on_gap, of_rows=False)
    once = entries.select(*ENTRY_SCHEMA.names).where(f"sequence <= {known.last}")
    once = once.dropDuplicates(["sequence"])
    return once.mapInArrow(logged, from_arrow_schema(CHANGELOG_SCHEMA))
