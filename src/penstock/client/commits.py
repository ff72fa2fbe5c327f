"""Whole commits: the entries of a transaction together, proven complete."""

from collections.abc import AsyncIterator
from typing import Final

from penstock.client.follow import AsyncChange, Following
from penstock.errors import LogCorruptError, RequestError
from penstock.wire import content_check

_U64: Final = (1 << 64) - 1


class WholeCommit:
    """All entries of one commit, in their order."""

    def __init__(self, changes: list[AsyncChange]) -> None:
        self.changes = changes

    @property
    def commit(self) -> int:
        return self.changes[0].commit

    @property
    def progress(self) -> str:
        """The marker that resumes after this commit."""
        return self.changes[-1].progress

    async def done(self) -> None:
        """This commit and all before it are processed; saved when this returns."""
        await self.changes[-1].done()


async def commits(changes: Following, *, rows_max: int = 100_000) -> AsyncIterator[WholeCommit]:
    """The commits of an unfiltered stream, each whole, in order, and verified.

    Progress moves by whole commits: one is processed once the next is asked for, or once its
    `done()` returned. At most `rows_max` entries are held. A stream that starts inside a commit
    (its marker was of single changes) hands out nothing of that commit's rest: it raises.

    Raises RequestError if `changes` is filtered or lacks control events (a commit could not be
    told complete) or if a commit has more than `rows_max` entries, and LogCorruptError if rows or
    digest do not agree. Progress then stands before the commit.
    """
    if not changes.whole:
        raise RequestError(
            "commits are complete only with every entry in them. Follow without collections and "
            "with control_events = True."
        )
    changes.confirm_explicitly()
    held: list[AsyncChange] = []
    async for change in changes:
        _require_next(change, held, rows_max)
        held.append(change)
        if change.entry.ends_commit:
            _verify(held)
            whole, held = WholeCommit(held), []
            yield whole
            whole.changes[-1].processed()


def _require_next(change: AsyncChange, held: list[AsyncChange], rows_max: int) -> None:
    entry = change.entry
    if entry.commit_rows > rows_max:
        raise RequestError(
            f"commit {entry.commit} has {entry.commit_rows} entries, more than rows_max = "
            f"{rows_max}. None of it was handed out. Raise rows_max, or follow single changes."
        )
    if not held and entry.ordinal:
        raise RequestError(
            f"the stream starts inside commit {entry.commit}, at row {entry.ordinal}. Nothing was "
            f"handed out. Start from a marker that stands between commits."
        )
    if entry.ordinal != len(held) or (held and entry.commit != held[0].commit):
        raise LogCorruptError(
            f"entry {entry.sequence} is row {entry.ordinal} of commit {entry.commit}, where row "
            f"{len(held)} of commit {held[0].commit} was due. Nothing of it was handed out."
        )


def _verify(changes: list[AsyncChange]) -> None:
    """The completeness certificate that capture wrote: row count and digest."""
    entry = changes[-1].entry
    digest = sum(content_check(change.message) for change in changes) & _U64
    if len(changes) != entry.commit_rows or digest != entry.commit_digest:
        raise LogCorruptError(
            f"commit {entry.commit} came with {len(changes)} of {entry.commit_rows} entries or "
            f"with other contents than were captured. None of it was handed out, and the progress "
            f"stands before it. Run `penstock log check`."
        )
