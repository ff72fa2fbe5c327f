"""Whole commits: the entries of a transaction together, proven complete."""

from typing import Final, Self

from penstock.client.following import AsyncChange, Following
from penstock.errors import LogCorruptError, PenstockError, RequestError
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


class Commits:
    """An endless async iterator of whole commits; see `commits`."""

    def __init__(self, changes: Following, rows_max: int) -> None:
        self._changes = changes
        self._rows_max = rows_max
        self._held: list[AsyncChange] = []
        """The commit that is coming, so far."""
        self._given: WholeCommit | None = None
        self._refused: PenstockError | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WholeCommit:
        """The next commit; waits for it. May be cancelled and asked again, as that of `changes`."""
        if self._refused is not None:
            # To go on behind a commit that was refused would lose it.
            raise self._refused
        if self._given is not None:
            self._given.changes[-1].processed()
            self._given = None
        while True:
            change = await anext(self._changes)
            try:
                whole = self._add(change)
            except PenstockError as error:
                self._refused = error
                raise
            if whole is not None:
                self._given = whole
                return whole

    def _add(self, change: AsyncChange) -> WholeCommit | None:
        """The commit that `change` ends."""
        _require_next(change, self._held, self._rows_max)
        self._held.append(change)
        if not change.entry.ends_commit:
            return None
        _verify(self._held)
        held, self._held = self._held, []
        return WholeCommit(held)


def commits(changes: Following, *, rows_max: int = 100_000) -> Commits:
    """The commits of an unfiltered stream, each whole, in order, and verified.

    Every change is asked for, however far behind: of merged ones no commit could be proven.

    Progress moves by whole commits: one is processed once the next is asked for, or once its
    `done()` returned. At most `rows_max` entries are held. A stream that starts inside a commit
    (its marker was of single changes) hands out nothing of that commit's rest: it raises.

    Raises RequestError if `changes` is filtered or lacks control events (a commit could not be
    told complete). Asking for a commit raises RequestError if it has more than `rows_max` entries,
    and LogCorruptError if rows or digest do not agree. Progress then stands before the commit, and
    asking again raises the same: follow anew to go on.
    """
    if not changes.whole:
        raise RequestError(
            "commits are complete only with every entry in them. Follow without collections and "
            "with control_events = True."
        )
    changes.confirm_explicitly()
    changes.ask_for_every_change()
    return Commits(changes, rows_max)


def _require_next(change: AsyncChange, held: list[AsyncChange], rows_max: int) -> None:
    entry = change.entry
    if entry.coalesced:
        raise RequestError(
            f"the stream at entry {entry.sequence} is coalesced: changes of its commit may stand "
            f"in later ones, so it cannot be told complete. Nothing of it was handed out. Call "
            f"commits() before the first change is asked for, or follow with "
            f"coalesce_on_catch_up = False."
        )
    if not entry.commit_rows:
        raise RequestError(
            f"the token of this reader does not show all of commit {entry.commit}, so it cannot be "
            f"told complete. Nothing of it was handed out. Follow single changes, or take a token "
            f"that shows everything."
        )
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
