"""Telling what a copy proved to be gone, and closing the gap that made the copy necessary.

After a copy that met rows of before it (see `penstock.state.facts`), every row that is older than
the copy's beginning is gone at the source. Its delete goes into the log behind everything that the
source has said, and is right there: the row is looked up in the state, which knows the log up to
some entry, and in the log from that entry to its end. Neither knows it newer, so nothing told of it
since the copy began.

Everything that this needs to know is in the state, which is built from the log. So after a crash at
any point it goes on: what was told as deleted is not in the state any more, and the end is told
(`snapshot_reconciled`, then perhaps `gap_closed`) after a look through all rows found none. Bounded
by a batch of deletes in memory.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import structlog
from msgspec import Raw, Struct, json, structs

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.capture.deadletter import COLLECTION as DEAD_LETTERS
from penstock.errors import PenstockError
from penstock.event import (
    ChangeEvent,
    ClusterTime,
    Commit,
    Kind,
    Operation,
    SystemEvent,
    event_id,
)
from penstock.kv import Env
from penstock.ports import LogReader
from penstock.state.layout import (
    ROWS,
    CollectionFacts,
    Gap,
    Name,
    key_in,
    number_key,
    sequence_of,
    unpack_row,
)
from penstock.state.tables import (
    find_state,
    read_applied,
    read_collections,
    read_source,
    state_path,
)
from penstock.wire import Block

logger = structlog.get_logger(__name__)

_DELETES_MAX: Final = 500
"""In one commit."""
_SCAN_MAX: Final = 20_000
"""Rows looked at in one call."""
_TAIL_BYTES_MAX: Final = 4 << 20
"""A state that is further behind the log than this is waited for."""
_IDLE_SECONDS: Final = 1.0
_BEHIND_SECONDS: Final = 0.05


class _Due(Struct, frozen=True):
    """A copy whose deletes are to be told, or a gap that is to be closed."""

    snapshot: str
    collections: dict[Name, CollectionFacts]


class _Look(Struct):
    """How far a look through the rows of one copy is."""

    snapshot: str
    done: set[Name]
    name: Name | None = None
    after: bytes = b""
    found: bool = False
    """Something was told in this look, so there will be another one."""


class _Seen(Struct, frozen=True):
    """What one transaction saw."""

    log_id: int
    sequence: int
    due: _Due | None
    closable: tuple[Gap, ...]
    gone: list[ChangeEvent]
    """Rows that are older than their copy, as deletes; the log's end may know them newer."""
    looked_through: bool
    look: _Look | None
    """How far the look through the rows is once `gone` is dealt with; None: nothing is due."""


class Reconciler:
    """An `Injector` over the state of the log at `path`, which another process may be writing."""

    def __init__(
        self, log: LogReader, path: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._path = state_path(path)
        self._clock = clock
        self._lock = threading.Lock()
        """For `_env`, which threads use whose caller may be gone already."""
        self._env: Env | None = None
        self._looks: dict[str, _Look] = {}
        self._ask_at: dict[str, float] = {}
        self._is_due: dict[str, bool] = {}
        """Whether something may be due of a source whatever it says next."""

    async def close(self) -> None:
        """Let go of the state."""
        await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        with self._lock:
            env, self._env = self._env, None
            if env is not None:
                env.close()

    async def next(self, source: str, position: str) -> list[Commit] | None:
        """As `Injector.next`. A state that cannot be read only delays what is to be told."""
        self._is_due[source] = True
        if self._clock() < self._ask_at.get(source, 0.0):
            return None
        try:
            # A copy, which is kept only once it was used: what it passed is not looked at again.
            look = self._looks.get(source)
            mine = None if look is None else structs.replace(look, done=set(look.done))
            seen = await asyncio.to_thread(self._see, source, mine)
            wait_seconds, commits = await self._decide(source, position, seen)
        except PenstockError as error:
            logger.warning("deletes that a copy proved wait", source=source, code=error.code)
            wait_seconds, commits = _IDLE_SECONDS, None
            self._is_due[source] = False  # until the source says something
        if commits is None:
            self._ask_at[source] = self._clock() + wait_seconds
        return commits

    def asks_again(self, source: str) -> float | None:
        """As `Injector.asks_again`."""
        return _IDLE_SECONDS if self._is_due.get(source) else None

    async def _decide(
        self, source: str, position: str, seen: _Seen | None
    ) -> tuple[float, list[Commit] | None]:
        if seen is None or (seen.due is None and not seen.closable):
            self._looks.pop(source, None)
            # A state that has not taken all of the log may not know yet of what is due.
            self._is_due[source] = seen is None or not await self._is_at_end(seen)
            return _IDLE_SECONDS, None
        newer = await self._newer(source, seen)
        if newer is None:
            return _BEHIND_SECONDS, None
        if seen.due is None or seen.look is None:
            return 0.0, [_closed(source, position, seen)]
        gone = [event for event in seen.gone if (_name(event), bytes(event.key)) not in newer]
        look = self._looks[source] = seen.look
        if gone:
            look.found = True
            return 0.0, [Commit(source=source, position=position, events=tuple(gone))]
        if not seen.looked_through:
            return 0.0, []
        # What was told may not be in the log yet, so only a look that found nothing ends it.
        again, self._looks[source] = look.found, _Look(look.snapshot, set())
        return 0.0, [] if again else [_reconciled(source, position, seen.due)]

    async def _newer(self, source: str, seen: _Seen) -> set[tuple[Name, bytes]] | None:
        """The rows of the source that the log knows newer than the state does.

        None as long as the state is too far behind, or has not taken what was said of the source.
        """
        bounds = await self._log.bounds()
        if bounds.log_id != seen.log_id or seen.sequence < bounds.trimmed:
            return None
        blocks = await self._log.read(
            after=seen.sequence, until=bounds.head, bytes_max=_TAIL_BYTES_MAX
        )
        if (blocks[-1].last_sequence if blocks else seen.sequence) < bounds.head:
            return None
        return await asyncio.to_thread(_touched, source, blocks)

    async def _is_at_end(self, seen: _Seen) -> bool:
        bounds = await self._log.bounds()
        return bounds.log_id == seen.log_id and seen.sequence >= bounds.head

    def _see(self, source: str, look: _Look | None) -> _Seen | None:
        with self._lock:
            if self._env is not None and self._env.stale():
                self._env.close()
                self._env = None
            if self._env is None:
                self._env = find_state(self._path)
            return None if self._env is None else _seen(self._env, source, look)


def _seen(env: Env, source: str, look: _Look | None) -> _Seen | None:
    """What there is to tell of a source; `look`, which is changed, is how far the last one was."""
    with env.read() as txn:
        applied = read_applied(txn, env)
        if applied is None:
            return None
        facts = read_source(txn, env, source)
        collections = read_collections(txn, env, source)
        due = _due(collections)
        if due is None:
            whole = all(_made_good(gap, facts.whole_since, collections) for gap in facts.gaps)
            closable = facts.gaps if whole else ()
            return _Seen(applied.log_id, applied.sequence, None, closable, [], True, None)
        if look is None or look.snapshot != due.snapshot:
            look = _Look(due.snapshot, set())
        gone, through = _gone(txn, env, due, look)
    return _Seen(applied.log_id, applied.sequence, due, (), gone, through, look)


def _made_good(gap: Gap, whole_since: int, collections: dict[Name, CollectionFacts]) -> bool:
    """Whether a copy of everything, or of the one collection that it is of, came after the gap."""
    if gap.sequence < whole_since or not gap.collection:
        return gap.sequence < whole_since
    of = [one for name, one in collections.items() if _full_name(name) == gap.collection]
    return all(one.complete for one in of)  # what was dropped since has no row to miss


def _full_name(name: Name) -> str:
    return f"{name.database}.{name.collection}"


def _gone(txn: Any, env: Env, due: _Due, look: _Look) -> tuple[list[ChangeEvent], bool]:
    """The next rows that are older than their copy; True once all rows were looked at."""
    gone: list[ChangeEvent] = []
    looked = 0
    with txn.cursor(env[ROWS]) as cursor:
        for name in sorted(due.collections.keys() - look.done):
            known = due.collections[name]
            prefix = number_key(known.number)
            resumes = look.name == name and look.after.startswith(prefix)
            at = cursor.set_range(look.after + b"\0" if resumes else prefix)
            look.name = name
            while at and cursor.key().startswith(prefix):
                if looked >= _SCAN_MAX or len(gone) >= _DELETES_MAX:
                    return gone, False
                place, value = cursor.item()
                if sequence_of(value) < known.copied_since:
                    gone.append(_deleted(name, known, place, value))
                look.after = place
                looked += 1
                at = cursor.next()
            look.done.add(name)
    return gone, True


def _due(collections: dict[Name, CollectionFacts]) -> _Due | None:
    """The copy whose deletes are next, if there is one."""
    copied = {
        name: known
        for name, known in collections.items()
        if known.copied and name.collection != DEAD_LETTERS
    }
    if not copied:
        return None
    snapshot = min(known.snapshot or "" for known in copied.values())
    return _Due(snapshot, {n: known for n, known in copied.items() if known.snapshot == snapshot})


def _touched(source: str, blocks: Sequence[Block]) -> set[tuple[Name, bytes]] | None:
    """The rows that `blocks` say something of; None if they say something of the source itself."""
    found: set[tuple[Name, bytes]] = set()
    for block in blocks:
        of_source = {n for n, stream in enumerate(block.streams) if stream.source == source}
        if not of_source:
            continue
        numbers, kinds = block.stream_numbers().tolist(), block.kinds().tolist()
        for i in range(block.start, block.stop):
            if numbers[i] not in of_source:
                continue
            if kinds[i] != Kind.DATA:
                return None
            event = pb.Event.FromString(block.stored(i))
            found.add((Name(source, event.database, event.collection), event.key))
    return found


def _name(event: ChangeEvent) -> Name:
    return Name(event.source, event.database, event.collection)


def _deleted(name: Name, known: CollectionFacts, place: bytes, value: bytes) -> ChangeEvent:
    """The delete of a row that the copy did not find; the same however often it is told."""
    row = unpack_row(value)
    key = key_in(place, row)
    where = f"snapshot:{known.snapshot}:gone:{name.database}.{name.collection}:{key.decode()}"
    return ChangeEvent(
        event_id=event_id(name.source, where, 0),
        source=name.source,
        database=name.database,
        tenant=row.tenant,
        collection=name.collection,
        cluster_time=ClusterTime(known.copied_t, known.copied_i),
        timestamp=known.copied_timestamp,
        position=where,
        document_id=row.document_id,
        key=Raw(key),
        operation=Operation.DELETE,
        snapshot=True,
    )


def _reconciled(source: str, position: str, due: _Due) -> Commit:
    known = next(iter(due.collections.values()))
    return _said(
        source,
        position,
        "snapshot_reconciled",
        identity=due.snapshot,
        time=ClusterTime(known.copied_t, known.copied_i),
        timestamp=known.copied_timestamp,
        facts={
            "snapshot": due.snapshot,
            "collections": sorted(map(_full_name, due.collections)),
        },
    )


def _closed(source: str, position: str, seen: _Seen) -> Commit:
    gaps = [
        {"from": gap.from_, "to": gap.to, "reason": gap.reason}
        | ({"collection": gap.collection} if gap.collection else {})
        for gap in seen.closable
    ]
    last = seen.closable[-1]
    return _said(
        source,
        position,
        "gap_closed",
        identity=":".join(str(gap.sequence) for gap in seen.closable),
        time=ClusterTime(last.timestamp // 1000),
        timestamp=last.timestamp,
        facts={"gaps": gaps},
    )


def _said(
    source: str,
    position: str,
    operation: str,
    *,
    identity: str,
    time: ClusterTime,
    timestamp: int,
    facts: dict[str, object],
) -> Commit:
    event = SystemEvent(
        event_id=event_id(source, f"{operation}:{identity}", 0),
        source=source,
        database="",
        tenant=source,
        collection="",
        cluster_time=time,
        timestamp=timestamp,
        position=position,
        operation=operation,
        description=Raw(json.encode({"source": source, **facts})),
    )
    return Commit(source=source, position=position, events=(event,))
