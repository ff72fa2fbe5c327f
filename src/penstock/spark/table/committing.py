"""Commits through delta-rs, and again behind upkeep: what joins files, or deletes old ones, changes
no row, and stops no pipeline."""

from collections.abc import Callable
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from penstock.spark.table.lasting import keep_commits

TRIES: Final = 5
UPKEEP: Final = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES"})
"""Commits that change no row."""
OVERWRITE_RETRIES: Final = 0
"""How often delta-rs itself may commit an overwrite again. It does not see that a commit which has
joined files meanwhile is in the way of one: those files would stay beside the new rows."""


def commit(delta: DeltaTable, act: Callable[[DeltaTable], object]) -> None:
    """Have `act` commit to the table; where UPKEEP was in its way, again, as the table is then.
    The disk holds it when this returns.

    Raises CommitFailedError where another commit was, or upkeep was each time.
    """
    for left in reversed(range(TRIES)):
        before = delta.version()
        try:
            act(delta)
        except CommitFailedError:
            delta.update_incremental()
            came = delta.version() - before
            since = delta.history(came) if came else []
            if not left or not since or any(one["operation"] not in UPKEEP for one in since):
                raise
        else:
            keep_commits(delta.table_uri, after=before, until=delta.version())
            return
