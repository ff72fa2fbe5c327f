"""Commits through delta-rs, and again behind upkeep: what joins files, or deletes old ones, changes
no row, and stops no pipeline."""

from collections.abc import Callable
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from penstock.errors import TableRefusedError
from penstock.spark.table.features import (
    constraints,
    is_append_only,
    refusal,
    refused_rows,
    unwritable,
)
from penstock.spark.table.lasting import keep_commits

TRIES: Final = 5
UPKEEP: Final = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES"})
"""Commits that change no row."""
OVERWRITE_RETRIES: Final = 0
"""How often delta-rs itself may commit an overwrite again. It does not see that a commit which has
joined files meanwhile is in the way of one: those files would stay beside the new rows."""

_INVALID: Final = "Generic DeltaTable error: External error: Invalid data found:"
"""How delta-rs begins what it says of rows that do not meet a constraint."""


def refuse_unwritable(delta: DeltaTable) -> None:
    """Raise TableRefusedError for a table with features with which it cannot be written."""
    found = unwritable(delta.protocol().writer_features or (), delta.metadata().configuration)
    if found:
        raise _refused(delta, refusal(found))


def _refused(delta: DeltaTable, why: str) -> TableRefusedError:
    return TableRefusedError(table=delta.table_uri.removeprefix("file://"), why=why)


def commit(delta: DeltaTable, act: Callable[[DeltaTable], object]) -> None:
    """Have `act` commit to the table; where UPKEEP was in its way, again, as the table is then.
    The disk holds it when this returns.

    Raises CommitFailedError where another commit was, or upkeep was each time; TableRefusedError
    where the table's owner has altered it so that it cannot be written, or not with these rows.
    """
    for left in reversed(range(TRIES)):
        before = delta.version()
        refuse_unwritable(delta)
        try:
            act(delta)
        except CommitFailedError as error:
            delta.update_incremental()
            refuse_unwritable(delta)
            came = delta.version() - before
            if not came and is_append_only(properties := delta.metadata().configuration):
                raise _refused(delta, refused_rows(properties, append_only=True)) from error
            since = delta.history(came) if came else []
            if not left or not since or any(one["operation"] not in UPKEEP for one in since):
                raise
        except DeltaError as error:
            properties = delta.metadata().configuration
            # Not with `from`: the text of delta-rs goes on with the rows.
            if constraints(properties) and str(error).startswith(_INVALID):
                raise _refused(delta, refused_rows(properties, append_only=False)) from None
            raise
        else:
            keep_commits(delta.table_uri, after=before, until=delta.version())
            return
