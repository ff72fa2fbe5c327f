"""What a write transaction is about to make true, and how items get into it.

A `Draft` starts as a copy of the truth; `Applied` is that draft inside its LMDB transaction. The
writer makes it the truth when the transaction is durable, and forgets it when it fails.
"""

from collections import deque
from collections.abc import Callable

from penstock.errors import LogCorruptError, LogFullError
from penstock.kv import Env, Transaction
from penstock.log.assemble import Head, Item, Staging, finish, moved, pack_commits, stage
from penstock.log.layout import (
    ENTRIES,
    EXTENTS,
    META,
    POSITIONS,
    STATE_KEY,
    Pointer,
    State,
    entry_key,
    pack_source,
    row_key,
    source_of,
    state_of,
)
from penstock.log.recovery import newest_entry_ms, unfinished_extents
from penstock.ports import SourceState
from penstock.wire import EncodedCommits


class Draft:
    """What a write transaction is about to make true."""

    def __init__(
        self,
        state: State,
        sources: dict[str, SourceState],
        stagings: dict[str, Staging],
        dropped: deque[int],
        next_extent: int,
        broken: frozenset[str] = frozenset(),
        newest_ms: int = 0,
    ) -> None:
        self.state = state
        self.sources = dict(sources)
        self.stagings = dict(stagings)
        self.dropped = deque(dropped)
        self.next_extent = next_extent
        self.broken = set(broken)
        """Sources and stagings that must start over: what their session goes by is not so."""
        self.moved: set[str] = set()
        self.inline: list[EncodedCommits] = []
        self.blocks = 0
        self.now = 0
        self.came_ms = 0
        """When what is written now came (`Trust.came_ms`)."""
        self.newest_ms = newest_ms
        """When the newest entry came: no entry has an earlier time than one before it."""

    def ingested_at(self) -> int:
        """The time of entries that are written now."""
        self.newest_ms = max(self.newest_ms, self.came_ms)
        return self.newest_ms

    def head(self) -> Head:
        return Head(self.state.head, self.state.head_commit, self.state.head_check)

    def set_head(self, head: Head) -> None:
        self.state = self.state._replace(
            head=head.sequence, head_commit=head.commit, head_check=head.check
        )

    def forget(self, key: str) -> None:
        """Drop the staging under `key`, if there is one; what comes next starts from nothing."""
        self.broken.discard(key)
        staging = self.stagings.pop(key, None)
        if staging is not None:
            self.dropped.append(staging.extent)


def load(txn: Transaction, env: Env) -> Draft:
    """What is durable; every extent that is not published is to be removed."""
    with txn.cursor(env[POSITIONS]) as cursor:
        found = [source_of(value) for value in cursor.iternext(keys=False, values=True)]
    unfinished, free = unfinished_extents(txn, env)
    state = state_of(txn.get(STATE_KEY, b"", db=env[META]))
    sources = {one.source: one for one in found}
    newest_ms = newest_entry_ms(txn, env) or 0
    return Draft(state, sources, {}, deque(unfinished), free, newest_ms=newest_ms)


Change = Callable[["Applied"], None]
"""A job: what it does inside the write transaction."""


class Applied:
    """A draft inside its write transaction."""

    def __init__(self, txn: Transaction, env: Env, draft: Draft) -> None:
        self.txn = txn
        self.env = env
        self.draft = draft

    def append(self, items: list[Item]) -> None:
        """Entries and positions of `items`, in order."""
        for item in items:
            part = item.part
            self._require_sound(item)
            staging = self.draft.stagings.get(item.staging)
            if part.position is None or staging is not None:
                staging = self._stage(item, staging)
                if part.position is not None:
                    self._publish(part, part.position, staging)
            else:
                self.draft.inline.append(part)
                self._move(part, part.position, len(part.rows), len(part.events))

    def _require_sound(self, item: Item) -> None:
        if not self.draft.broken.isdisjoint((item.staging, item.part.source)):
            raise LogFullError(
                f"{item.part.source}: the disk failed and the log was opened anew, so what the "
                f"source had sent of its commit is dropped. Nothing of this batch was kept and "
                f"everything acknowledged before is safe; the source goes on from its position, "
                f"and sends the commit from its start."
            )

    def _put_next(self, name: bytes, key: bytes, value: bytes) -> None:
        """Write a value at the end of its database: LMDB says False to a key that comes earlier."""
        if not self.txn.put(key, value, append=True, db=self.env[name]):
            raise LogCorruptError(
                f"{self.env.path} holds entries beyond its head, so the append was refused and "
                f"nothing of it was kept. Run `penstock log check`, then restore a backup."
            )

    def _stage(self, item: Item, staging: Staging | None) -> Staging:
        """Stage a part. If it ends its commit, the staging is the caller's to publish."""
        draft = self.draft
        if staging is None:
            staging = Staging(extent=draft.next_extent)
            draft.next_extent += 1
        blocks, staging = stage(staging, item.part)
        for block in blocks:
            key = row_key(staging.extent, block.last, block.rows)
            self.txn.put(key, block.data, db=self.env[EXTENTS])
        draft.blocks += len(blocks)
        if item.part.position is None:
            draft.stagings[item.staging] = staging
        else:
            draft.stagings.pop(item.staging, None)
        return staging

    def _publish(self, part: EncodedCommits, position: str, staging: Staging) -> None:
        """The last block, and the pointer that makes the whole commit visible at once."""
        commits = rows = 0
        if len(staging.held):
            self.flush()
            commits, rows = 1, self._point_at(staging)
        # Fragments without events were a heartbeat after all.
        ended = part._replace(last_timestamp=staging.last_timestamp)
        self._move(ended, position, commits, rows)

    def _point_at(self, staging: Staging) -> int:
        draft, done = self.draft, finish(staging)
        key = row_key(staging.extent, done.block.last, done.block.rows)
        self.txn.put(key, done.block.data, db=self.env[EXTENTS])
        self.txn.put(row_key(staging.extent, 0, 0), b"", db=self.env[EXTENTS])
        rows, before = done.summary.rows, draft.head()
        head = done.head(before)
        pointer = Pointer(
            before=before.check,
            extent=staging.extent,
            rows=rows,
            digest=done.summary.digest,
            commit=head.commit,
            ingested_at=draft.ingested_at(),
            stored_bytes=done.bytes,
        )
        self._put_next(ENTRIES, entry_key(head.sequence, rows), pointer.pack())
        draft.set_head(head)
        return rows

    def flush(self) -> None:
        """Write the inline commits gathered so far, sharing blocks."""
        draft = self.draft
        if not draft.inline:
            return
        came = draft.ingested_at()
        packed, head = pack_commits(draft.inline, after=draft.head(), ingested_at=came)
        for block in packed:
            self._put_next(ENTRIES, entry_key(block.last, block.rows), block.data)
        draft.blocks += len(packed)
        draft.inline.clear()
        draft.set_head(head)

    def _move(self, part: EncodedCommits, position: str, commits: int, events: int) -> None:
        draft, source = self.draft, part.source
        draft.moved.add(source)
        draft.sources[source] = moved(
            draft.sources.get(source),
            source,
            position=position,
            commits=commits,
            events=events,
            last_timestamp=part.last_timestamp,
            now=draft.now,
        )

    def set_position(self, source: str, position: str | None) -> None:
        """Move a source by hand; None forgets it."""
        draft = self.draft
        draft.moved.add(source)
        if position is None:
            draft.sources.pop(source, None)
            return
        draft.sources[source] = moved(
            draft.sources.get(source),
            source,
            position=position,
            now=draft.now,
        )

    def seal(self) -> None:
        """Write what belongs to the transaction as a whole."""
        self.flush()
        for source in self.draft.moved:
            state = self.draft.sources.get(source)
            if state is None:
                self.txn.delete(source.encode(), db=self.env[POSITIONS])
            else:
                self.txn.put(source.encode(), pack_source(state), db=self.env[POSITIONS])
        self.txn.put(STATE_KEY, self.draft.state.pack(), db=self.env[META])
