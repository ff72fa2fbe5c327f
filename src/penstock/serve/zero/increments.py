"""Commits of the log as transactions of Zero, block by block.

A commit with changes for the shard becomes one begin…commit, however many blocks it takes and
however many of its entries matter (Z10); one without becomes nothing, and a status may tell of it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec import Raw

from penstock.errors import ConfigError, PenstockError, ZeroError
from penstock.event import Kind
from penstock.serve.frames import frames
from penstock.serve.zero.record import Mark
from penstock.serve.zero.watermarks import watermark_of
from penstock.subscribe.scope import Scope, Verb
from penstock.wire import Block, Mask, Stream
from penstock.wire.layout import FLAG_AS_OF_EVENT, FLAG_SNAPSHOT, OPERATIONS
from penstock.wire.messages import unchanged_of
from penstock.wire.shown import (
    description_shown,
    key_shown,
    names_shown,
    update_shown,
    without,
)
from penstock.zero.changes import Teller, Told
from penstock.zero.mapping import Mapping
from penstock.zero.messages import Begin, Committed, Rollback, downstream_text
from penstock.zero.tables import Table

ROLLBACK: Final = downstream_text(Rollback())
_DATA: Final = int(Kind.DATA)
_SCHEMA: Final = int(Kind.SCHEMA)
_ENDS: Final = frozenset({"drop", "dropDatabase", "rename"})


class Looks(Protocol):
    """Finds current documents."""

    def __call__(self, stream: Stream, key: bytes, *, to: int) -> bytes | None:
        """The document now of a key in what `stream` named at sequence `to`, whatever its name is
        by now, as its reader may see it: as of `to`, or later. None where there is none. Raises
        BehindError where that is not known yet, and ResetError where it never will be."""
        ...


class BehindError(Exception):
    """The current rows have not come to an entry that needs one of them."""


class Portion(NamedTuple):
    """What some blocks come to."""

    frames: bytes
    messages: int
    after: Mark
    """Where it ends; its commit is the last that ended."""
    commits: tuple[Mark, ...]
    """The transactions that it ends."""
    tables: tuple[tuple[int, Raw], ...]
    """Tables that it changes: to be kept before it is sent, by commit."""
    stopped: PenstockError | None
    """Why it ends early; nothing of that entry's transaction stays."""


def tables_json(tables: tuple[Table, ...]) -> Raw:
    """Tables as a record keeps them."""
    return Raw(msgspec.json.encode(tables))


class Increments:
    """Follows the log for one shard; between two calls it is where the last portion ended."""

    def __init__(
        self,
        teller: Teller,
        mapping: Mapping,
        *,
        sources: frozenset[str],
        scope: Scope,
        start: Mark,
        look_up: "Looks",
    ) -> None:
        """`sources` are those that tables are made of. Where `look_up` raises BehindError, a
        portion ends before that entry."""
        self._teller = teller
        self._mapping = mapping
        self._scope = scope
        self._look_up = look_up
        self._sources = sources
        self._kept = teller.tables
        self._wanted: dict[Stream, bool] = {}
        self._masks: dict[Stream, Mask | None] = {}
        self.after = start
        self.ended = start
        """The end of the last commit."""
        self.open: int | None = None
        """The transaction that the client is in the middle of."""

    def tell(self, blocks: Sequence[Block]) -> Portion:
        """The next portion: all of `blocks`, or up to an entry that does not fit, or has to wait.

        Raises BehindError where that is the first one.
        """
        making = _Making(self)
        stopped: PenstockError | None = None
        try:
            for block in blocks:
                self._block(block, making)
        except (ZeroError, ConfigError) as error:
            stopped = error
            making.give_up()
        except BehindError:
            if not making.moved:
                raise
        self.after, self.ended, self.open = making.after, making.ended, making.open
        return Portion(
            frames=frames(making.messages),
            messages=len(making.messages),
            after=making.after,
            commits=tuple(making.commits),
            tables=tuple(making.tables.items()),
            stopped=stopped,
        )

    def _block(self, block: Block, making: "_Making") -> None:
        part = slice(block.start, block.stop)
        data = np.array([self._wants(stream) for stream in block.streams], bool)
        shape = np.array([self._shapes(stream) for stream in block.streams], bool)
        kinds, numbers = block.kinds()[part], block.stream_numbers()[part]
        hits = (data[numbers] & (kinds == _DATA)) | (shape[numbers] & (kinds == _SCHEMA))
        chosen = (np.flatnonzero(hits) + block.start).tolist()
        ends: list[int] = (np.flatnonzero(block.places["ends"][part]) + block.start).tolist()
        at = 0
        for i in chosen:
            while at < len(ends) and ends[at] < i:
                making.end(block, ends[at])
                at += 1
            look_up = partial(self._look_up, to=block.first_sequence + i)
            told = self._told(block, i)
            if told is not None:
                making.add(block, i, self._teller.told(told, look_up))
            self._keep_tables(block.commit(i), making)
            making.passed(block, i)
        for end in ends[at:]:
            making.end(block, end)
        making.passed(block, block.stop - 1)

    def _keep_tables(self, commit: int, making: "_Making") -> None:
        tables = self._teller.tables
        if tables is not self._kept:
            self._kept = tables
            making.tables[commit] = tables_json(tables)

    def _wants(self, stream: Stream) -> bool:
        found = self._wanted.get(stream)
        if found is None:
            allowed = self._scope.allows(Verb.READ, stream)
            found = self._wanted[stream] = allowed and self._mapping.wants(stream)
        return found

    def _shapes(self, stream: Stream) -> bool:
        # A collection that is renamed may become one that is wanted.
        return stream.source in self._sources and (
            self._scope.shows(stream) or self._reads_of(stream)
        )

    def _reads_of(self, stream: Stream) -> bool:
        """Whether there may be rows of it for its reader, if of other tenants than its shape is."""
        if not stream.collection:
            return self._scope.allows_source(stream.source)
        return self._scope.allows_collection(stream.source, stream.collection)

    def _has_table_of(self, stream: Stream) -> bool:
        return any(
            (one.source, one.database) == (stream.source, stream.database)
            and stream.collection in {"", one.collection}
            for one in self._teller.tables
        )

    def _mask(self, stream: Stream) -> Mask | None:
        if stream not in self._masks:
            self._masks[stream] = self._scope.mask(stream)
        return self._masks[stream]

    def _told(self, block: Block, i: int) -> Told | None:
        """An entry as the shard may see it; None for one that it may not."""
        stream = block.stream(i)
        kind = block.kind(i)
        mask = self._mask(stream)
        index = block.index[i]
        if kind is not Kind.DATA:
            operation = _operation(block, i)
            # A table that ends must end for who may read it, whether or not they may read why.
            if not self._scope.shows(stream) and not (
                operation in _ENDS and self._has_table_of(stream)
            ):
                return None
            description = block.cell(i, "full_document")
            if mask is not None:
                description = description_shown(description, mask, of_shape=True)
            return Told(
                stream=stream,
                kind=kind,
                operation=operation,
                key=b"",
                document=description or None,
            )
        key = block.cell(i, "key")
        document = block.cell(i, "full_document")
        before = block.cell(i, "full_document_before_change")
        update = block.cell(i, "update_description")
        unchanged = tuple(unchanged_of(block.stored(i))) if index["unchanged"] else ()
        if mask is not None:
            before = without(before, mask.hidden_before) if mask.before_images else b""
            if mask.hidden:
                document = without(document, mask.hidden)
                update = update_shown(update, mask.hidden)
                unchanged = tuple(names_shown(unchanged, mask.hidden))
            if mask.hides_rows:
                key, _ = key_shown(key, mask, (stream.source, stream.database, stream.collection))
        return Told(
            stream=stream,
            kind=kind,
            operation=OPERATIONS[int(index["operation"])],
            key=key,
            document=document or None,
            before=before or None,
            update_description=update or None,
            unchanged=unchanged,
            as_of_event=bool(int(index["flags"]) & FLAG_AS_OF_EVENT),
            snapshot=bool(int(index["flags"]) & FLAG_SNAPSHOT),
        )


class _Making:
    """A portion that is being made."""

    def __init__(self, increments: Increments) -> None:
        self.messages: list[bytes] = []
        self.commits: list[Mark] = []
        self.tables: dict[int, Raw] = {}
        self.after = increments.after
        self.ended = increments.ended
        self.open = increments.open
        self.moved = False
        self._whole = 0
        """How many messages there were when the last transaction of this portion ended."""
        self._began_before = self.open is not None

    def add(self, block: Block, i: int, messages: list[bytes]) -> None:
        """Messages of entry `i`."""
        if not messages:
            return
        if self.open is None:
            self.open = commit = block.commit(i)
            self._began_before = False
            # The commit may end in a block that was not read yet; its summary is known.
            behind = block.behind_commit(i, self.ended.check)
            self.messages.append(downstream_text(Begin(watermark=watermark_of(commit, behind))))
        self.messages += messages

    def end(self, block: Block, i: int) -> None:
        """Entry `i` ends its commit."""
        commit = block.commit(i)
        mark = Mark(commit, block.first_sequence + i, block.history(i))
        if self.open == commit:
            self.messages.append(
                downstream_text(
                    Committed(
                        watermark=watermark_of(commit, block.behind_commit(i, self.ended.check)),
                        commit_time_ms=block.timestamp(i),
                    )
                )
            )
            self.commits.append(mark)
            self.open = None
            self._whole = len(self.messages)
        self.after = self.ended = mark
        self.moved = True

    def passed(self, block: Block, i: int) -> None:
        """Entry `i` is told, or tells nothing."""
        if not block.ends_commit(i):
            sequence = block.first_sequence + i
            self.after = Mark(self.after.commit, sequence, block.history(i))
            self.moved = True

    def give_up(self) -> None:
        """Take back what belongs to the transaction that is open."""
        begun = self._began_before and self.open is not None
        del self.messages[0 if begun else self._whole :]
        ended = self.ended.commit
        self.tables = {commit: one for commit, one in self.tables.items() if commit <= ended}
        if begun:
            self.messages.append(ROLLBACK)
        self.open = None


def _operation(block: Block, i: int) -> str:
    """The word of a control event."""
    sequence = block.first_sequence + i
    (entry,) = block.narrow(after=sequence - 1, until=sequence).entries()
    return str(entry.event.operation)
