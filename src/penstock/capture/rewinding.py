"""Going back in a source, and what the log says of it.

A rename that comes again meets the rows of after it: whoever folds the log then moves these, too.
So a rewind says which renames lie behind it, to the operator at once and to readers in the log:
tables of those collections, old name and new, are wrong until they were copied again.
"""

from msgspec import Struct, json, structs

from penstock.capture.notices import notice_at
from penstock.errors import RequestError, TrimmedError
from penstock.event import Commit, Kind, SchemaEvent
from penstock.ports import ChangeSource, LogReader, Rewinds, SourceState
from penstock.wire import Block, decode_message

_WINDOW_ENTRIES = 20_000
_SEARCHED_BYTES_MAX = 1 << 30
"""More of the log is not searched: whoever asks is waiting, and is told."""
_READ_BYTES = 8 << 20
_CLOCKS_APART_MS_MAX = 3_600_000
"""By how much the source's clock may be ahead of ours."""


class Rename(Struct, frozen=True, rename={"before": "from", "after": "to"}):
    """A collection that got another name, as `database.collection`."""

    before: str
    after: str


class Rewound(Struct, frozen=True, kw_only=True):
    """Where a source stands now, and what comes again with care."""

    position: str
    renames: tuple[Rename, ...] | None
    """Those that the source tells again; None: more of the log would have to be searched."""


async def rewound(
    log: LogReader,
    source: ChangeSource,
    state: SourceState | None,
    *,
    name: str,
    to: str | None,
    by_seconds: float | None,
    at_ms: int,
) -> tuple[Commit, Rewound]:
    """What to append so that `source` goes back, entry and position in one; and what that means.

    Raises RequestError for a source that was never captured or cannot go back, and what
    `Rewinds.rewound` raises.
    """
    if state is None:
        raise RequestError(f"{name} was never captured, so there is nothing to rewind.")
    if not isinstance(source, Rewinds):
        raise RequestError(f"{name}: this kind of source cannot be rewound.")
    try:
        position = await source.rewound(state.position, to=to, by_seconds=by_seconds)
    finally:
        await source.close()
    renames = await renames_since(log, name, source.told_at(position))
    back = Rewound(position=position, renames=renames)
    said = notice_at(
        structs.replace(state, position=position),
        "rewound",
        at_ms=at_ms,
        facts={"from": state.position, "to": position, "renames": renames},
    )
    return said, back


async def renames_since(log: LogReader, source: str, since_ms: int) -> tuple[Rename, ...] | None:
    """The renames of `source` in the log since `since_ms` of its clock, each once, oldest first.

    None where the log does not reach back so far, or is too long to be searched.
    """
    bounds = await log.bounds()
    found: list[Rename] = []
    until, searched_bytes, reaches = bounds.head, 0, bounds.trimmed == 0
    while until > bounds.trimmed and searched_bytes < _SEARCHED_BYTES_MAX:
        after = max(bounds.trimmed, until - _WINDOW_ENTRIES)
        window: list[Rename] = []
        oldest_ms, at = None, after
        while at < until:
            if searched_bytes >= _SEARCHED_BYTES_MAX:
                return None
            try:
                # A few at a time: the entries of a window may be large ones.
                blocks = await log.read(after=at, until=until, bytes_max=_READ_BYTES)
            except TrimmedError:
                return None
            oldest_ms = blocks[0].ingested_at if oldest_ms is None else oldest_ms
            window += [one for block in blocks for one in _renames(block, source, since_ms)]
            searched_bytes += sum(block.nbytes for block in blocks)
            at = blocks[-1].last_sequence
        found[:0] = window
        until = after
        if oldest_ms is not None and oldest_ms < since_ms - _CLOCKS_APART_MS_MAX:
            reaches, until = True, bounds.trimmed
    return tuple(dict.fromkeys(found)) if reaches and until <= bounds.trimmed else None


def _renames(block: Block, source: str, since_ms: int) -> list[Rename]:
    kinds: list[int] = block.kinds().tolist()
    found: list[Rename] = []
    for i in range(block.start, block.stop):
        if kinds[i] != Kind.SCHEMA or block.stream(i).source != source:
            continue
        event = decode_message(block.message(i)).event
        assert isinstance(event, SchemaEvent)
        if event.operation == "rename" and event.cluster_time.t >= since_ms // 1000:
            to = json.decode(event.description).get("to", {})
            after = f"{to.get('db', '')}.{to.get('coll', '')}"
            found.append(Rename(f"{event.database}.{event.collection}", after))
    return found
