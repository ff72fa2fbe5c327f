"""What one document was at a place of the log. Pure but for the log, and for who keeps its rows.

It is what its last change up to there made it: told by that change, or built from an earlier one
and the updates that follow. What lies before the log's beginning is known from the row that the
current state has, if nothing changed it since, or from the image before the change that comes next.
Otherwise it is not known, and that is said: a guess would look like an answer.

It is built of what its reader may see: without hidden fields, and from images before only with the
verb. A key with a hidden field finds nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec
from msgspec import Struct, structs

from penstock.errors import GapError, HistoryUnknownError
from penstock.event import ChangeEvent, Kind, Operation, SchemaEvent
from penstock.ports import LogReader
from penstock.progress import Progress
from penstock.subscribe.captures.keys import spellings_of
from penstock.subscribe.captures.matching import Match, Matcher
from penstock.subscribe.captures.requests import Area, CaptureRequest, Criterion, Site
from penstock.subscribe.current import CurrentRow
from penstock.subscribe.scope import EVERYTHING, Scope, Verb
from penstock.updates import InexactError, apply_update
from penstock.wire import Block, Stream, decode_message, key_shown, shown, without

_WINDOW_ENTRIES: Final = 10_000
_READ_BYTES: Final = 1 << 20
_NEVER: Final = "its last change before was not kept, or never captured"
_EMPTYING: Final = frozenset({"create", "drop", "dropDatabase", "truncate"})


class Address(NamedTuple):
    """Which document."""

    source: str
    database: str
    collection: str
    key: Any
    """A value for a key of one field, an object for the key as it is."""


class Known(Struct, frozen=True, kw_only=True):
    """What the current rows have of a key, where they have every row of its collection."""

    row: CurrentRow | None
    sequence: int
    """How much of the log they have."""


class CurrentRows(Protocol):
    """Whoever keeps current rows, asked for one. From any thread."""

    def look(
        self, name: tuple[str, str, str], spellings: Sequence[bytes], *, at: int | None = None
    ) -> Known | None:
        """The row of a collection whose key, or its only value, is written in one of these ways.
        With `at`, of the collection that had this name at that sequence, whatever it has now: no
        row where a rename has ended it since.

        None where rows of the collection may be missing. Raises HistoryUnknownError where it is
        not known which one had the name.
        """
        ...


class Past(Struct, frozen=True, kw_only=True):
    """What a document was."""

    document: bytes | None
    """None: it was not there."""
    key: bytes | None
    """As it is stored; None if nobody knows of it."""
    changed: int
    """The sequence of its last change; 0 if that is not known."""


class _Change(NamedTuple):
    """Something of the log that matters here."""

    sequence: int
    event: ChangeEvent | SchemaEvent | GapError


class PastOf:
    """What one document was, at any place."""

    def __init__(
        self,
        log: LogReader,
        address: Address,
        *,
        rows: CurrentRows | None,
        bytes_max: int,
        scope: Scope = EVERYTHING,
    ) -> None:
        """At most `bytes_max` of the log are read for one answer, and a little more."""
        self._log = log
        self._address = address
        self._rows = rows
        self._scope = scope
        self._bytes_max = bytes_max
        self._read = 0
        site = Site(
            catalogs=frozenset({f"{address.source}.{address.database}"}),
            entity_types=frozenset({address.collection}),
        )
        exact = Site(catalogs=site.catalogs, entity_types=site.entity_types, keys=(address.key,))
        requests = (
            CaptureRequest(id="data", criteria=(Criterion(area=Area.DATA, site=exact),)),
            CaptureRequest(id="shape", criteria=(Criterion(area=Area.SCHEMA, site=site),)),
        )
        # Not held against the scope here: who may see no changes of shape has them hidden, and a
        # document that was dropped is gone for them too.
        self._matcher = Matcher(requests)

    async def at(self, place: Progress) -> Past:
        """What it was when all up to `place` was committed.

        Raises HistoryUnknownError where that cannot be told, GapError where changes that matter
        were lost, TrimmedError if retention overtakes the answer.
        """
        known = await self._known()
        row = None if known is None else known.row
        to = 0 if known is None else known.sequence
        if (
            row is not None
            and row.sequence <= place.sequence <= to
            and row.full_document is not None
            and row.full_document_as_of_event
        ):
            return self._of_row(row)
        pending: list[ChangeEvent] = []
        last = 0
        async with aclosing(self._back(place)) as changes:
            async for change in changes:
                event = change.event
                if isinstance(event, GapError):
                    raise event
                if isinstance(event, SchemaEvent):
                    if self._empties(event):
                        return _built(None, pending, last)
                    continue
                last = last or change.sequence
                if _tells_all(event):
                    document = event.full_document
                    base = None if document is None else bytes(document)
                    return _built(base, pending, last, of=event)
                pending.append(event)
                if event.full_document_before_change is not None:
                    return _built(bytes(event.full_document_before_change), pending, last)
        if pending:
            raise HistoryUnknownError(why="its changes that are kept say only what they changed")
        return await self._before_the_log(place, known)

    # --- what was before the log ----------------------------------------------------------------

    async def _before_the_log(self, place: Progress, known: Known | None) -> Past:
        """No change of it up to `place` is kept."""
        bounds = await self._log.bounds()
        row = None if known is None else known.row
        to = 0 if known is None else known.sequence
        if (
            row is not None
            # Retention may have gone beyond the place meanwhile, and so may the row.
            and row.sequence <= min(bounds.trimmed, place.sequence)
            # One that was looked up may be what a later change made it: none that is known of.
            and (row.full_document_as_of_event or to >= bounds.head)
        ):
            return self._of_row(row)
        following = await self._next(place)
        if following is not None:
            key = bytes(following.key)
            if following.full_document_before_change is not None:
                image = bytes(following.full_document_before_change)
                return Past(document=image, key=key, changed=0)
            if following.operation is Operation.INSERT and not following.snapshot:
                return Past(document=None, key=key, changed=0)
        elif (
            known is not None
            and row is None
            and to >= place.sequence
            # Of a row that is not there, nobody knows whose tenant's it was.
            and self._scope.is_everything
        ):
            return Past(document=None, key=None, changed=0)
        raise HistoryUnknownError(why=_NEVER)

    async def _next(self, place: Progress) -> ChangeEvent | None:
        """The first change of it behind `place`; None if there is none."""
        after, head = place.sequence, (await self._log.bounds()).head
        while after < head:
            async for change in self._between(after, min(after + _WINDOW_ENTRIES, head)):
                if isinstance(change.event, GapError):
                    raise change.event
                if isinstance(change.event, ChangeEvent):
                    return change.event
                if self._empties(change.event):
                    raise HistoryUnknownError(why="its collection was removed with it later")
            after += _WINDOW_ENTRIES
        return None

    async def _known(self) -> Known | None:
        if self._rows is None:
            return None
        a = self._address
        name = (a.source, a.database, a.collection)
        spellings = spellings_of(a.key)
        known = await asyncio.to_thread(self._rows.look, name, spellings.texts)
        if known is not None and known.row is None and not spellings.complete:
            return None  # it may be there, and written otherwise
        if known is not None and known.row is not None and not self._sees(known.row):
            return structs.replace(known, row=None)
        return known

    # --- the log --------------------------------------------------------------------------------

    async def _back(self, place: Progress) -> AsyncGenerator[_Change]:
        """What matters up to `place`, newest first."""
        until, trimmed = place.sequence, (await self._log.bounds()).trimmed
        while until > trimmed:
            after = max(trimmed, until - _WINDOW_ENTRIES)
            found = [change async for change in self._between(after, until)]
            for change in reversed(found):
                yield change
            until = after

    async def _between(self, after: int, until: int) -> AsyncGenerator[_Change]:
        while after < until:
            if self._read > self._bytes_max:
                raise HistoryUnknownError(
                    why=f"it is not among the {self._bytes_max} bytes of the log that are read "
                    f"for one answer (scan_bytes_max under [serve.captures])"
                )
            blocks = await self._log.read(after=after, until=until, bytes_max=_READ_BYTES)
            for block in blocks:
                self._read += block.nbytes
                for match in self._matcher.select(block):
                    stream = block.stream(match.i)
                    # What may not be seen is as if it were not there.
                    if self._scope.allows(Verb.READ, stream) and self._names(block, match):
                        yield self._change(block, match)
                after = block.last_sequence
            if not blocks:
                return

    # --- what it comes to -----------------------------------------------------------------------

    def _empties(self, event: SchemaEvent) -> bool:
        """Whether nothing of the collection is there behind a change of shape."""
        if event.operation == "rename":
            if event.collection != self._address.collection:
                raise HistoryUnknownError(why="its collection had another name before")
            return True
        return event.operation in _EMPTYING

    def _of_row(self, row: CurrentRow) -> Past:
        if row.full_document is None:
            raise HistoryUnknownError(why=_NEVER)
        hidden = self._scope.hidden(_stream_of(row))
        document = without(bytes(row.full_document), hidden)
        return Past(document=document, key=bytes(row.key), changed=row.sequence)

    # --- what its reader may see ----------------------------------------------------------------

    def _sees(self, row: CurrentRow) -> bool:
        """Whether a row may be told; else it is as if it were not there."""
        stream = _stream_of(row)
        if not self._scope.allows(Verb.READ, stream):
            return False
        return self._shows(bytes(row.key), stream)

    def _names(self, block: Block, match: Match) -> bool:
        """Whether an entry is of the key that was asked for, as far as its reader sees keys."""
        stream = block.stream(match.i)
        if block.kind(match.i) is not Kind.DATA:
            return True
        return self._shows(block.cell(match.i, "key"), stream)

    def _shows(self, key: bytes, stream: Stream) -> bool:
        """Whether a key is shown as it is: else a guess at it, if it is answered, is a test."""
        mask = self._scope.mask(stream)
        names = (stream.source, stream.database, stream.collection)
        return mask is None or key_shown(key, mask, names)[1] is None

    def _change(self, block: Block, match: Match) -> _Change:
        i = match.i
        sequence = block.first_sequence + i
        if match.ended:
            error = GapError(
                after=block.progress(i),
                description=f"{block.stream(i).source}: what the document was there is not known",
            )
            return _Change(sequence, error)
        message, mask = block.message(i), self._scope.mask(block.stream(i))
        if mask is not None and block.kind(i) is Kind.DATA:
            message = shown(message, mask)
        event: Any = decode_message(message).event
        return _Change(sequence, event)


def _built(
    base: bytes | None,
    pending: Sequence[ChangeEvent],
    last: int,
    *,
    of: ChangeEvent | None = None,
) -> Past:
    """`base` after the `pending` updates, newest first."""
    event = pending[-1] if pending else of
    document = base
    for update in reversed(pending):
        document = _after(document, update)
    key = None if event is None else bytes(event.key)
    return Past(document=document, key=key, changed=last)


def _stream_of(row: CurrentRow) -> Stream:
    return Stream(row.source, row.database, row.tenant, row.collection)


def _tells_all(event: ChangeEvent) -> bool:
    """Whether a change tells by itself what the document is behind it."""
    if event.operation is Operation.DELETE:
        return True
    if event.full_document is None or event.unchanged:
        return False
    # A document that was looked up later may be what a later change made it.
    return event.operation is not Operation.UPDATE or event.full_document_as_of_event


def _after(document: bytes | None, event: ChangeEvent) -> bytes:
    """A document after an update that does not say the whole of it."""
    if document is None:
        raise HistoryUnknownError(why="an update is of a document that was not there")
    known: dict[str, Any] = msgspec.json.decode(document)
    if event.full_document is not None and event.unchanged:
        said = cast("dict[str, Any]", msgspec.json.decode(event.full_document))
        kept = {name: known[name] for name in event.unchanged if name in known}
        return msgspec.json.encode({**said, **kept})
    if event.update_description is None:
        raise HistoryUnknownError(why="an update does not say what it changed")
    try:
        update = msgspec.json.decode(event.update_description)
        told = event.disambiguated_paths
        paths = None if told is None else msgspec.json.decode(told)
        return msgspec.json.encode(apply_update(known, update, paths))
    except InexactError:
        raise HistoryUnknownError(why="an update can mean more than one thing") from None
