"""Follow a Penstock service, or a log in this process, from Python.

    async with follow("127.0.0.1:50051", store=FileProgress("orders.progress")) as changes:
        async for change in changes:
            apply(change.operation, change.document)

Progress is saved for a change once the next one is asked for, or once its `done()` returned: never
for a change that was not processed. So after a crash a change may come again, and none is missed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.client.change import Change
    from penstock.client.credentials import Credentials
    from penstock.client.following import Following, follow, follow_log
    from penstock.client.handling import DeadLetter, DeadLetterFile, DeadLetters, handle_changes
    from penstock.client.retry import Retry
    from penstock.client.rows import Rows, SyncRows, snapshot, snapshot_sync
    from penstock.client.store import FileProgress, MemoryProgress, ProgressStore
    from penstock.client.sync import SyncFollowing, follow_sync
    from penstock.client.whole import WholeCommit, commits
    from penstock.flatten import unflatten
    from penstock.subscribe.shards import Shards

__all__ = [
    "Change",
    "Credentials",
    "DeadLetter",
    "DeadLetterFile",
    "DeadLetters",
    "FileProgress",
    "Following",
    "MemoryProgress",
    "ProgressStore",
    "Retry",
    "Rows",
    "Shards",
    "SyncFollowing",
    "SyncRows",
    "WholeCommit",
    "commits",
    "follow",
    "follow_log",
    "follow_sync",
    "handle_changes",
    "snapshot",
    "snapshot_sync",
    "unflatten",
]

# Loaded when first asked for: Spark's workers use `penstock.client.flight` alone, and each would
# pay for gRPC and the rest. No module here may have the name of an export: importing it would put
# the module in the export's place.
_HOMES: Final = {
    "Change": "change",
    "Credentials": "credentials",
    "DeadLetter": "handling",
    "DeadLetterFile": "handling",
    "DeadLetters": "handling",
    "FileProgress": "store",
    "Following": "following",
    "MemoryProgress": "store",
    "ProgressStore": "store",
    "Retry": "retry",
    "Shards": ".subscribe.shards",
    "Rows": "rows",
    "SyncFollowing": "sync",
    "SyncRows": "rows",
    "WholeCommit": "whole",
    "commits": "whole",
    "follow": "following",
    "follow_log": "following",
    "follow_sync": "sync",
    "handle_changes": "handling",
    "snapshot": "rows",
    "snapshot_sync": "rows",
    "unflatten": ".flatten",
}

if not TYPE_CHECKING:  # so that a checker still knows which names there are

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found: object = getattr(import_module(f".{home}", __name__), name)
        globals()[name] = found
        return found
