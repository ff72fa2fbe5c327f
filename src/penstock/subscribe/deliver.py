"""What goes out to a reader, decided without sending it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import Struct

from penstock.errors import GapError, LogCorruptError, StreamChangedError
from penstock.event import SystemEvent
from penstock.progress import Progress
from penstock.subscribe.criteria import Criteria, select
from penstock.subscribe.scope import EVERYTHING, Scope
from penstock.wire import Block, as_delete, decode_message, plain_numbers, shown


class Subscription(Struct, frozen=True, kw_only=True):
    """A reader's wishes and its place: all entries up to `progress` were sent or filtered out."""

    criteria: Criteria
    progress: Progress


class Slice(NamedTuple):
    """Entries of one block that go out, as positions in it, ascending."""

    block: Block
    entries: Sequence[int]


class Merged(NamedTuple):
    """What an event of a window stands for."""

    changes: int
    stored: bytes | None
    """What it says; None: what the entry itself says."""


class Window(Struct, frozen=True, kw_only=True):
    """What makes the slices of a delivery a coalesced window: each event stands for changes.

    The marker of all but the last is that of the start: what they pass may be merged into a later
    one (P8).
    """

    start: Progress
    end: Progress
    last_sequence: int
    """Of the last event that is sent."""
    ends_commit: bool
    """The window is whole commits, and its last event says so."""
    merged: Mapping[int, Merged]
    """By sequence; who is not in it stands for itself."""
    changes_merged: int = 0
    """Changes that are not sent."""
    inserts_repeated: Mapping[str, int] = {}
    """By source: inserts of a document that was inserted and not deleted, which none should say."""

    def messages(self, block: Block, entries: Sequence[int]) -> Iterator[bytes]:
        """As `Block.messages`, in place of what each entry says alone."""
        count = len(entries)
        if count and block.first_sequence + entries[-1] == self.last_sequence:
            count -= 1
        yield from block.standing(entries[:count], self.merged, progress=str(self.start))
        yield from block.standing(
            entries[count:], self.merged, progress=str(self.end), ends_commit=self.ends_commit
        )

    def seed_messages(self, block: Block, entries: Sequence[int]) -> Iterator[bytes]:
        """As `Block.seed_messages`, in place of what each entry says alone."""
        return map(plain_numbers, self.messages(block, entries))


Make = Callable[[Block, Sequence[int]], Iterable[bytes]]
"""The messages of entries of a block."""
MakeMerged = Callable[[Window, Block, Sequence[int]], Iterable[bytes]]


def _with_deletes(
    make: Make, leaving: frozenset[int], block: Block, entries: Sequence[int]
) -> Iterator[bytes]:
    for i, message in zip(entries, make(block, entries), strict=True):
        yield as_delete(message) if block.first_sequence + i in leaving else message


def _as_shown(make: Make, scope: Scope, block: Block, entries: Sequence[int]) -> Iterator[bytes]:
    masks = [scope.mask(stream) for stream in block.streams]
    numbers: list[int] = block.stream_numbers().tolist()
    for i, message in zip(entries, make(block, entries), strict=True):
        mask = masks[numbers[i]]
        yield message if mask is None else shown(message, mask)


class Delivery(Struct, frozen=True, kw_only=True):
    """What to send next, in this order: the slices, then the progress, then the gap's error."""

    slices: tuple[Slice, ...] = ()
    progress: Progress
    """Covers the slices and what was filtered out around them; before the gap, if there is one."""
    gap: GapError | None = None
    """Changes were lost here, and this reader cannot go on in-band: its stream ends."""
    window: Window | None = None
    """What the slices stand for, where changes were merged."""
    leaving: frozenset[int] = frozenset()
    """Sequences of events that go out as deletes: their documents left the reader's shards."""
    scope: Scope = EVERYTHING
    """What the reader may see of the events."""

    def made(self, messages: Make, merged: MakeMerged) -> Make:
        """What makes this delivery's messages: `messages`, or `merged` where it is a window."""
        make = messages if self.window is None else partial(merged, self.window)
        if self.leaving:
            make = partial(_with_deletes, make, self.leaving)
        # Last, so that whatever made the message, this is what it passes.
        return make if self.scope.is_everything else partial(_as_shown, make, self.scope)


def deliver(subscription: Subscription, blocks: Sequence[Block]) -> Delivery:
    """Decide what of `blocks` goes out. They must continue where the subscription stands.

    Raises LogCorruptError if they leave a hole, StreamChangedError if they are of another log.
    """
    slices: list[Slice] = []
    leaving: set[int] = set()
    progress = subscription.progress
    for block in blocks:
        if block.log_id != progress.log_id:
            raise StreamChangedError("the log was replaced while it was being read")
        if block.first_sequence + block.start != progress.sequence + 1:
            raise LogCorruptError(
                f"entries {progress.sequence + 1} to {block.first_sequence + block.start - 1} are "
                f"missing from the log. Nothing after them was sent. Run `penstock log check`."
            )
        selection = select(subscription.criteria, block)
        if selection.entries:
            slices.append(Slice(block, selection.entries))
            leaving.update(block.first_sequence + i for i in selection.leaving)
        if selection.gap is not None:
            if selection.gap > block.start:
                progress = block.place(selection.gap - 1)
            gap = _gap_error(block, selection.gap)
            return Delivery(
                slices=tuple(slices),
                progress=progress,
                gap=gap,
                leaving=frozenset(leaving),
                scope=subscription.criteria.scope,
            )
        progress = block.place(block.stop - 1)
    return Delivery(
        slices=tuple(slices),
        progress=progress,
        leaving=frozenset(leaving),
        scope=subscription.criteria.scope,
    )


def _gap_error(block: Block, i: int) -> GapError:
    """The sentence of a gap: its source and its reason, both of which Penstock wrote."""
    event = decode_message(block.message(i)).event
    reason = "no reason was recorded"
    if isinstance(event, SystemEvent):
        reason = str(msgspec.json.decode(event.description).get("reason", reason))
    return GapError(after=block.progress(i), description=f"{event.source}: {reason}")


class Batch(NamedTuple):
    """Ready messages that travel together, and the marker after them."""

    messages: list[bytes]
    progress: str


def batches(
    delivery: Delivery,
    *,
    events_max: int,
    bytes_max: int,
    messages: Make = Block.messages,
) -> Iterator[Batch]:
    """The slices of `delivery` as batches within both limits, lazily; none if nothing goes out.

    A single larger event is a batch of its own. The last batch's marker is that of the delivery,
    so that whoever saves it also passes what was filtered out behind it. In a coalesced window
    the others have the marker of its start.
    """
    window = delivery.window
    make = delivery.made(messages, Window.messages)
    pending: list[bytes] = []
    pending_bytes = 0
    before: tuple[Block, int] | None = None
    for block, entries in delivery.slices:
        made = list(make(block, entries))
        made_bytes = sum(map(len, made))
        if len(pending) + len(made) <= events_max and pending_bytes + made_bytes <= bytes_max:
            # The whole slice fits: nothing to decide entry by entry.
            pending += made
            pending_bytes += made_bytes
            before = block, entries[-1]
            continue
        for i, message in zip(entries, made, strict=True):
            full = len(pending) >= events_max or pending_bytes + len(message) > bytes_max
            if before is not None and pending and full:
                marker = before[0].progress(before[1]) if window is None else str(window.start)
                yield Batch(pending, marker)
                pending, pending_bytes = [], 0
            pending.append(message)
            pending_bytes += len(message)
            before = block, i
    if pending:
        yield Batch(pending, str(delivery.progress))
