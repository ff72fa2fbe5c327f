"""Follow a Penstock service, or a log in this process, from Python.

    async with follow("127.0.0.1:50051", store=FileProgress("orders.progress")) as changes:
        async for change in changes:
            apply(change.operation, change.document)

Progress is saved for a change once the next one is asked for, or once its `done()` returned: never
for a change that was not processed. So after a crash a change may come again, and none is missed.
"""

from penstock.client.change import Change
from penstock.client.commits import WholeCommit, commits
from penstock.client.follow import Following, follow, follow_log
from penstock.client.retry import Retry
from penstock.client.store import FileProgress, MemoryProgress, ProgressStore
from penstock.client.sync import SyncFollowing, follow_sync

__all__ = [
    "Change",
    "FileProgress",
    "Following",
    "MemoryProgress",
    "ProgressStore",
    "Retry",
    "SyncFollowing",
    "WholeCommit",
    "commits",
    "follow",
    "follow_log",
    "follow_sync",
]
