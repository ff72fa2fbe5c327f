"""One event for many changes of a document, for a reader that is far behind. Pure.

A window of the log is read at once, and each document's changes in it become one event, which
stands where the last of them stood. Nothing merges across a control event, whoever gets it: what
was said before and after a rename or a snapshot's start is not the same document's history.

Every event of a window but the last carries the marker of the window's start, because it may come
before changes that are merged into a later one; a reader that crashed gets the whole window again
(P8). So no window spans a schema event: a rename that came again, onto rows that followed it, would
take those along. What merges with what, and what comes of it, is a table in
docs/reference/coalescing.md.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from penstock.event import Kind, Operation
from penstock.progress import Progress
from penstock.subscribe.compose import Composition, InexactError, completed
from penstock.subscribe.deliver import Delivery, Merged, Slice, Window
from penstock.wire import OPERATION_CODES, Block, Outline, Stream, merged, unchanged_of

INSERT: Final = OPERATION_CODES[Operation.INSERT]
UPDATE: Final = OPERATION_CODES[Operation.UPDATE]
DELETE: Final = OPERATION_CODES[Operation.DELETE]

_STEP_EVENTS: Final = 256
"""Changes merged before others get their turn: about a millisecond."""

InsertDelete = Literal["delete", "skip"]
Steps = Generator[None, None, Delivery]


class Coalescing(Struct, frozen=True, kw_only=True):
    """When and how a reader's changes are merged."""

    threshold: int = 100_000
    """A reader that is behind by more entries than this gets windows; at it, what was captured."""
    window_events: int = 20_000
    """Entries in a window. All come again after a crash in it."""
    window_bytes: int = 8 << 20
    """Bytes of the log in a window: about what the reader holds in memory, up to twice that."""
    insert_delete: InsertDelete = "delete"
    """What a document is that was inserted and deleted in one window: one delete, or nothing.
    Nothing leaves a ghost with a reader that had the insert and did not save that it had (P9)."""


def window_of(blocks: Sequence[Block], *, events_max: int) -> list[Block]:
    """The first of `blocks` within `events_max`, ending with a whole commit if one ends there.

    Schema events have windows of their own. A commit is cut only if it has more entries than a
    window, or more bytes, or both schema events and others.
    """
    found: list[Block] = []
    left = events_max
    for block in blocks:
        if left <= 0:
            break
        found.append(block if len(block) <= left else _first(block, left))
        left -= len(block)
    found = _within_schema(found)
    for number in range(len(found) - 1, -1, -1):
        block = found[number]
        ends = np.flatnonzero(block.places["ends"][block.start : block.stop])
        if len(ends):
            return [*found[:number], _first(block, int(ends[-1]) + 1)]
    return found


def _within_schema(blocks: Sequence[Block]) -> list[Block]:
    """Up to the first schema event; or, where `blocks` begin with some, those alone."""
    found: list[Block] = []
    leads: bool | None = None
    for block in blocks:
        schema = block.kinds()[block.start : block.stop] == Kind.SCHEMA
        leads = bool(schema[0]) if leads is None else leads
        other = np.flatnonzero(schema != leads)
        if len(other):
            return [*found, _first(block, int(other[0]))] if other[0] else found
        found.append(block)
    return found


def _first(block: Block, count: int) -> Block:
    after = block.first_sequence + block.start - 1
    return block.narrow(after=after, until=after + count)


def coalesce(
    blocks: Sequence[Block],
    delivery: Delivery,
    *,
    start: Progress,
    insert_delete: InsertDelete = "delete",
) -> Steps:
    """Merge what `delivery` sends of the window `blocks`, in steps; the result is the delivery.

    `start` is the place before the window. A window in which nothing merges stays as it is: there
    every event's own marker is right. Otherwise the slices have only the events that are sent,
    in log order, and `Delivery.window` says what each stands for.
    """
    if not delivery.slices:
        return delivery
    entries = _Entries(delivery.slices, _barriers(blocks), delivery.leaving)
    outcome = _Outcome()
    since = 0
    for group in entries.groups():
        for run in entries.same(group):
            since += yield from _merge(entries, run, outcome, insert_delete)
            if since >= _STEP_EVENTS:
                since = 0
                yield
    if not outcome.gone:
        return delivery
    slices = entries.without(outcome.gone)
    window = Window(
        start=start,
        end=delivery.progress,
        last_sequence=_last_sequence(slices),
        ends_commit=_ends_commit(blocks, delivery.progress),
        merged=outcome.merged,
        changes_merged=len(outcome.gone),
        inserts_repeated=outcome.inserts_repeated,
    )
    return structs.replace(delivery, slices=slices, window=window)


def _barriers(blocks: Sequence[Block]) -> NDArray[np.int64]:
    """The sequences of the control events, sent or not."""
    return np.concatenate(
        [
            np.flatnonzero(block.kinds()[block.start : block.stop])
            + (block.first_sequence + block.start)
            for block in blocks
        ]
    )


def _last_sequence(slices: Sequence[Slice]) -> int:
    return slices[-1].block.first_sequence + slices[-1].entries[-1] if slices else 0


def _ends_commit(blocks: Sequence[Block], end: Progress) -> bool:
    for block in blocks:
        if block.first_sequence + block.start <= end.sequence <= block.last_sequence:
            return block.ends_commit(end.sequence - block.first_sequence)
    return False


class _Outcome:
    """What merging came to, by place."""

    def __init__(self) -> None:
        self.merged: dict[int, Merged] = {}
        self.gone: list[int] = []
        """Places of entries that are not sent."""
        self.inserts_repeated: dict[str, int] = {}


class _Entries:
    """The entries that go out, by their place in the window, and what the index says of them."""

    def __init__(
        self, slices: Sequence[Slice], barriers: NDArray[np.int64], leaving: frozenset[int]
    ) -> None:
        self._slices = slices
        outlines = [block.outline(entries) for block, entries in slices]
        joined = Outline(*(np.concatenate(column) for column in zip(*outlines, strict=True)))
        self._streams: list[Stream] = []
        self._stream: list[int] = self._numbered(slices, outlines)
        self._keys: list[list[int]] = joined.key.tolist()
        self._updates: list[list[int]] = joined.update.tolist()
        self._blocks = [block for block, entries in slices for _ in entries]
        self._entries = [i for _, entries in slices for i in entries]
        sequences = np.concatenate(
            [np.asarray(entries, np.int64) + block.first_sequence for block, entries in slices]
        )
        self.sequence: list[int] = sequences.tolist()
        self.operation: list[int] = joined.operation.tolist()
        for place, sequence in enumerate(self.sequence if leaving else ()):
            if sequence in leaving:  # it goes out as a delete
                self.operation[place] = DELETE
        self.copied: list[bool] = joined.copied.tolist()
        self.document: list[bool] = joined.document.tolist()
        self.partial: list[bool] = joined.partial.tolist()
        self.before: list[bool] = joined.before.tolist()
        self._hashes = joined.key_hash
        self._data = np.flatnonzero(~joined.control)
        self._stretch = np.searchsorted(barriers, sequences)

    def groups(self) -> Iterator[list[int]]:
        """The places of each set of two or more that may be changes of one document."""
        hashes, stretch = self._hashes[self._data], self._stretch[self._data]
        order = np.lexsort((stretch, hashes))  # stable: within a group the log's order stays
        hashes, stretch = hashes[order], stretch[order]
        starts = np.flatnonzero((np.diff(hashes) != 0) | (np.diff(stretch) != 0)) + 1
        bounds = [0, *starts.tolist(), len(order)]
        places: list[int] = self._data[order].tolist()
        for first, end in pairwise(bounds):
            if end - first > 1:
                yield places[first:end]

    def same(self, group: Sequence[int]) -> list[list[int]]:
        """`group`, whose members share a hash, by stream and typed key. One row without a key is
        not another's."""
        found: dict[tuple[int, bytes], list[int]] = {}
        for place in group:
            start, end = self._keys[place]
            key = self._blocks[place].data[start:end]
            if key not in (b"", b"{}"):
                found.setdefault((self._stream[place], key), []).append(place)
        return [places for places in found.values() if len(places) > 1]

    def _numbered(self, slices: Sequence[Slice], outlines: Sequence[Outline]) -> list[int]:
        """The number in `_streams` of each entry's stream: the same in all blocks."""
        numbers: dict[Stream, int] = {}
        found: list[int] = []
        for (block, _), outline in zip(slices, outlines, strict=True):
            of_block = [numbers.setdefault(stream, len(numbers)) for stream in block.streams]
            found += np.array(of_block)[outline.stream].tolist()
        self._streams += numbers
        return found

    def stream(self, place: int) -> Stream:
        return self._streams[self._stream[place]]

    def update(self, place: int) -> bytes:
        start, end = self._updates[place]
        return self._blocks[place].data[start:end]

    def cell(self, place: int, name: str) -> bytes:
        return self._blocks[place].cell(self._entries[place], name)

    def stored(self, place: int) -> bytes:
        return self._blocks[place].stored(self._entries[place])

    def unchanged(self, place: int) -> list[str]:
        return unchanged_of(self.stored(place)) if self.partial[place] else []

    def whole(self, place: int) -> bool:
        """The entry alone says what the document is, or that there is none."""
        return self.operation[place] == DELETE or (self.document[place] and not self.partial[place])

    def without(self, gone: Sequence[int]) -> tuple[Slice, ...]:
        """The slices, without the entries at these places."""
        kept = np.ones(len(self._entries), np.bool_)
        kept[gone] = False
        slices: list[Slice] = []
        at = 0
        for block, entries in self._slices:
            mask = kept[at : at + len(entries)]
            at += len(entries)
            left: list[int] = np.asarray(entries)[mask].tolist()
            if left:
                slices.append(Slice(block, left))
        return tuple(slices)


class _Run(NamedTuple):
    """Changes of one document, in order, that become one event."""

    places: list[int]
    composition: Composition | None = None
    """Of updates that all lack the document: then it is all there is."""
    document: tuple[bytes, tuple[str, ...]] | None = None
    """The document and its unchanged fields, where they are not the last entry's own."""


def _merge(
    entries: _Entries, places: list[int], outcome: _Outcome, insert_delete: InsertDelete
) -> Generator[None, None, int]:
    """Merge the changes of one document; returns how many there were."""
    _count_repeated(entries, places, outcome)
    last_whole = next((n for n in range(len(places), 0, -1) if entries.whole(places[n - 1])), 0)
    run = _Run(places[:last_whole])
    for number, place in enumerate(places[last_whole:], start=1):
        longer = _joined(entries, run, place) if run.places else _begun(entries, place)
        if longer is None:
            yield from _finish(entries, run, outcome, insert_delete)
            longer = _begun(entries, place)
        run = longer
        if number % _STEP_EVENTS == 0:
            yield
    yield from _finish(entries, run, outcome, insert_delete)
    return len(places)


def _count_repeated(entries: _Entries, places: Sequence[int], outcome: _Outcome) -> None:
    """An insert of what was inserted: no source says that, but where a snapshot copies it too, or
    where a document that became another tenant's was looked up when a later change was there."""
    repeated = sum(
        entries.operation[one] == entries.operation[two] == INSERT
        and not (entries.copied[one] or entries.copied[two])
        for one, two in pairwise(places)
    )
    if repeated:
        source = entries.stream(places[0]).source
        outcome.inserts_repeated[source] = outcome.inserts_repeated.get(source, 0) + repeated


def _begun(entries: _Entries, place: int) -> _Run:
    """The run of a change that builds on the one before."""
    composition = Composition()
    composes = _bare(entries, place) and _compose(entries, place, composition)
    return _Run([place], composition if composes else None)


def _bare(entries: _Entries, place: int) -> bool:
    """An update that says only what changed."""
    return (
        entries.operation[place] == UPDATE
        and not entries.document[place]
        and not entries.partial[place]
    )


def _joined(entries: _Entries, run: _Run, place: int) -> _Run | None:
    """`run` with a change that builds on it; None if only both together say what happened."""
    last = run.places[-1]
    if entries.operation[place] != UPDATE or entries.operation[last] == DELETE:
        return None
    if _bare(entries, place):
        # A document from before this change is not the latest, and must not look so.
        if run.composition is None or not _compose(entries, place, run.composition):
            return None
        run.places.append(place)
        return run
    if not (entries.document[place] and entries.document[last]):
        return None
    document, unchanged = run.document or (
        entries.cell(last, "full_document"),
        tuple(entries.unchanged(last)),
    )
    filled = completed(
        entries.cell(place, "full_document"),
        entries.unchanged(place),
        earlier=document,
        earlier_unchanged=unchanged,
    )
    run.places.append(place)
    return _Run(run.places, None, filled)


def _compose(entries: _Entries, place: int, composition: Composition) -> bool:
    description = entries.update(place)
    if not description:
        return False
    try:
        composition.add(description, paths=entries.cell(place, "disambiguated_paths"))
    except InexactError:
        return False
    return True


def _finish(
    entries: _Entries, run: _Run, outcome: _Outcome, insert_delete: InsertDelete
) -> Generator[None, None, None]:
    """Decide what goes out for `run`."""
    places = run.places
    if len(places) < 2:
        return
    first, last = places[0], places[-1]
    operations = [entries.operation[place] for place in places]
    operation = _operation(operations)
    came_and_went = operation == DELETE and operations[0] == INSERT and not entries.copied[first]
    if came_and_went and insert_delete == "skip":
        outcome.gone += places
        return
    composed = b""
    if operation == UPDATE and DELETE not in operations:
        composed = yield from _composed(entries, places)
    stored: bytes | None = None
    altered = operation != operations[-1] or operation == UPDATE
    if altered or run.document or entries.before[first] or entries.before[last]:
        document, unchanged = run.document or (None, ())
        stored = merged(
            entries.stored(last),
            operation=_WORDS[operation],
            full_document=document,
            unchanged=unchanged,
            full_document_before_change=entries.cell(first, "full_document_before_change"),
            update_description=composed,
        )
    outcome.gone += places[:-1]
    outcome.merged[entries.sequence[last]] = Merged(len(places), stored)


_WORDS: Final[Mapping[int, Operation]] = {
    code: Operation(word) for word, code in OPERATION_CODES.items() if word
}


def _operation(operations: Sequence[int]) -> int:
    """What changes with these operations come to, for a document that is as before the first.

    What began with an insert was not there. What was replaced, or deleted and made again, says a
    whole document that overwrites whatever the reader has.
    """
    if operations[-1] == DELETE:
        return DELETE
    if operations[0] == INSERT:
        return INSERT
    since = len(operations)
    while since and operations[since - 1] != DELETE:
        since -= 1
    if all(operation == UPDATE for operation in operations[since:]):
        return UPDATE
    return OPERATION_CODES[Operation.REPLACE]


def _composed(entries: _Entries, places: Sequence[int]) -> Generator[None, None, bytes]:
    """The composition of these updates; empty if there is none."""
    composition = Composition()
    for number, place in enumerate(places, start=1):
        if not _compose(entries, place, composition):
            return b""
        if number % _STEP_EVENTS == 0:
            yield
    return composition.encoded()
