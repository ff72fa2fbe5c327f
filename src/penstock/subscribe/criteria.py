"""What a reader asked for, and which entries of a block that is."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from penstock.errors import RequestError
from penstock.event import Kind, SchemaEvent
from penstock.subscribe.scope import EVERYTHING, Scope, Verb
from penstock.subscribe.shards import Claim, Shards
from penstock.wire import Block, Stream, decode_message
from penstock.wire.shown import key_shown


class Criteria(Struct, frozen=True, kw_only=True):
    """Which entries a reader wants. Empty sets mean all.

    Control events (schema, gap, system) come only to who asks for them, and only those that
    concern what the reader follows.
    """

    collections: frozenset[str] = frozenset()
    """Names as "collection" or "source/collection"; one that can be read both ways means both."""
    sources: frozenset[str] = frozenset()
    control_events: bool = False
    shards: Shards | None = None
    """Of what is left, only the documents of these shards. Control events are of every shard."""
    scope: Scope = EVERYTHING
    """What the reader may see; nothing else is wanted, whatever was asked for."""

    def __post_init__(self) -> None:
        for name in self.shards.fields if self.shards is not None else ():
            if self.scope.may_hide(name):
                # Which shard a document is in would tell what the field holds.
                raise RequestError(
                    "shard_by names a field that is not there for every document that you may "
                    "read. Nothing was sent. Take another one, as documentId."
                )

    def goes_past(self, stream: Stream) -> bool:
        """Whether a gap of `stream` is an event like any other to the reader; else it ends the
        stream of events.

        A reader of shards by a field needs more than to be told. Which shard a document leaves is
        known by what it was before, and behind a gap that need not be what this reader has: a
        delete, or an insert in the place of what was deleted unseen, may go to other shards only,
        and no copy tells of it afterwards. So it rebuilds, control events or not.
        """
        return self.tells(stream) and (self.shards is None or not self.shards.by_field)

    def tells(self, stream: Stream) -> bool:
        """Whether control events of `stream` go out, where they concern the reader."""
        return self.control_events and self.scope.allows(Verb.SCHEMA, stream)

    def wants(self, stream: Stream) -> bool:
        """Whether the data of `stream` goes out."""
        return self.names(stream) and self.scope.allows(Verb.READ, stream)

    def names(self, stream: Stream) -> bool:
        """Whether the data of `stream` is asked for, whoever asks."""
        if self.sources and stream.source not in self.sources:
            return False
        return (
            not self.collections
            or stream.collection in self.collections
            or f"{stream.source}/{stream.collection}" in self.collections
        )

    def concerns(self, stream: Stream) -> bool:
        """Whether a control event of `stream` says something about what the reader follows.

        An event that names no collection is about the whole source, so it concerns everyone who
        may follow something of that source. A bare name may belong to any source.
        """
        if stream.collection:
            return self.names(stream) and self._may_see(stream)
        if not self._may_see(stream):
            return False
        if self.sources and stream.source not in self.sources:
            return False
        return not self.collections or any(
            "/" not in name or name.startswith(f"{stream.source}/") for name in self.collections
        )

    def _may_see(self, stream: Stream) -> bool:
        """Whether anything of `stream` is shown: to who reads it, losses in it matter too."""
        scope = self.scope
        return scope.allows(Verb.READ, stream) or scope.allows(Verb.SCHEMA, stream)


class Selection(NamedTuple):
    """The entries of a block that go out, as positions in it, ascending."""

    entries: Sequence[int]
    gap: int | None
    """The entry that ends the stream: a gap, for a reader who cannot go past it."""
    leaving: frozenset[int] = frozenset()
    """Of `entries`, those whose document has left the reader's shards."""


def select(criteria: Criteria, block: Block) -> Selection:
    """Which entries of `block` go out, before the gap that ends the stream, if there is one."""
    selection = _select(criteria, block)
    if criteria.shards is None:
        return selection
    return _of_shards(criteria.shards, criteria.scope, block, selection)


def _of_shards(shards: Shards, scope: Scope, block: Block, selection: Selection) -> Selection:
    kinds: list[int] = block.kinds().tolist()
    kept: list[int] = []
    leaving: list[int] = []
    for i in selection.entries:
        if not scope.is_everything and kinds[i] == Kind.DATA:
            _require_key_shown(scope, block, i)
        claim = Claim.HELD if kinds[i] != Kind.DATA else shards.claim(block, i)
        if claim is not Claim.NONE:
            kept.append(i)
        if claim is Claim.LEAVING:
            leaving.append(i)
    return Selection(kept, selection.gap, frozenset(leaving))


def _require_key_shown(scope: Scope, block: Block, i: int) -> None:
    """Raise RequestError for a key that is replaced: its shard would tell of what is hidden."""
    stream = block.stream(i)
    mask = scope.mask(stream)
    if mask is not None and key_shown(block.cell(i, "key"), mask, stream)[1] is not None:
        raise RequestError(
            f"the keys of {stream.source}/{stream.collection} have a field that you may not see, "
            f"so its documents cannot be had by shards. What you processed is safe. Follow without "
            f"shards, or without that collection."
        )


def _select(criteria: Criteria, block: Block) -> Selection:
    """Decide once a stream where the block holds only data, else entry by entry."""
    start, stop = block.start, block.stop
    wanted = [criteria.wants(stream) for stream in block.streams]
    if block.kinds()[start:stop].any():
        return _select_among_control_events(criteria, block, wanted)
    if all(wanted):
        return Selection(range(start, stop), None)
    if not any(wanted):
        return Selection((), None)
    mask = np.array(wanted)[block.stream_numbers()[start:stop]]
    return Selection((np.flatnonzero(mask) + start).tolist(), None)


def _select_among_control_events(
    criteria: Criteria, block: Block, wanted: Sequence[bool]
) -> Selection:
    entries: list[int] = []
    numbers: list[int] = block.stream_numbers().tolist()
    kinds: list[int] = block.kinds().tolist()
    for i in range(block.start, block.stop):
        stream = block.streams[numbers[i]]
        if kinds[i] == Kind.DATA:
            if wanted[numbers[i]]:
                entries.append(i)
        elif criteria.concerns(stream):
            if kinds[i] == Kind.GAP and not criteria.goes_past(stream):
                return Selection(entries, i)
            if criteria.tells(stream) or _tells_rename_into(criteria, block, i):
                entries.append(i)
        elif _tells_rename_into(criteria, block, i):
            entries.append(i)
    return Selection(entries, None)


def _tells_rename_into(criteria: Criteria, block: Block, i: int) -> bool:
    """A rename is filed under the old name, but it fills the new one without a single insert. So
    whoever may know of the new one is told, and of the old one learns no more than its name."""
    if block.kind(i) is not Kind.SCHEMA or not criteria.control_events:
        return False
    stream = block.stream(i)
    whole_source = stream._replace(collection="")
    if not criteria.concerns(whole_source):
        return False
    event = decode_message(block.message(i)).event
    if not isinstance(event, SchemaEvent) or event.operation != "rename":
        return False
    if criteria.scope.is_everything:
        return True
    said: dict[str, Any] = msgspec.json.decode(event.description)
    to: dict[str, Any] = said.get("to") or {}
    new = stream._replace(database=str(to.get("db", "")), collection=str(to.get("coll", "")))
    return bool(new.collection) and criteria.scope.allows(Verb.SCHEMA, new)
