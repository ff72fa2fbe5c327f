"""What is known of captured collections as streams, and what each entry makes of it. No IO.

A stream is a stretch of the log in which nothing of its collection is missing, and in which every
change fits the stream's view and has the same attributes as a key. Whatever ends such a stretch (a
gap, a copy that begins anew, a drop, a rename, any other change of shape that we do not know to be
harmless, a change that does not fit) ends the stream in front of it: its last shard is closed, and
it is DISABLED. Where the collection lives on, the next stream begins right there, under a new
label. So a consumer that reads a stream to its end has seen every change of it, and one that finds
a new stream knows that it must look.

Shards are a chain: one is open, and is closed by age, by size, or with its stream, never within a
commit.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

import msgspec
from msgspec import Struct, structs

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.event import SchemaEvent, SystemEvent
from penstock.serve.dynamodb.captured.changes import KEYS_ONLY, best_of, views_of
from penstock.serve.dynamodb.captured.names import Name, table_name
from penstock.serve.dynamodb.captured.values import key_names
from penstock.serve.dynamodb.config import VIEWS, ViewType

_HARMLESS: Final = frozenset({"create", "createIndexes", "dropIndexes", "invalidate", "modify"})
"""Words of sources for what leaves the rows, and how they are read, as they are. No source says
`create` of what is there already without a drop or a gap before it."""


class Shard(Struct, frozen=True, array_like=True):
    """A part of a stream: what it has of the log in [first, last]."""

    number: int
    first: int
    begun_ms: int
    last: int | None = None
    """None while it is open. Below `first` where it never had an entry."""
    newest: int = 0
    """No record of the shard is behind this sequence; 0 as long as it has none."""
    bytes: int = 0
    newest_check: int | None = None
    """Of the place `newest`; None where that is of no record, or an older Penstock's."""
    check: int | None = None
    """The log's, of the place before `first`, for the shard's id to name the history behind which
    it begins. None for the first of a stream, and for what an older Penstock began."""


class Stream(Struct, frozen=True, kw_only=True):
    """A stretch of a collection's changes."""

    number: int
    name: Name
    label_ms: int
    view: ViewType
    asked: bool
    """Whether the configuration asked for the view."""
    keys: tuple[str, ...]
    """The attributes of its keys, in their order."""
    first: int
    shards: tuple[Shard, ...]
    last: int | None = None
    """None while it is open."""
    stalled: int | None = None
    """The sequence of a change that the view, which was asked for, cannot show: nothing from there
    on is told under it. Of a stream that ended it is the first, so that it has told nothing yet."""
    lacks: dict[ViewType, int] = {}
    """While it is stalled: of each view, the first change from there on that it cannot show."""

    @property
    def newest(self) -> int:
        """No record of the stream is behind this sequence; 0 as long as it has none."""
        return max(shard.newest for shard in self.shards)


class Limits(Struct, frozen=True):
    """When a shard is closed."""

    age_ms: float
    bytes_max: int


class Book:
    """Everything that is known, and what of it changed since `taken` was called."""

    def __init__(
        self,
        streams: Iterable[Stream],
        *,
        limits: Limits,
        wished: Callable[[Name], ViewType | None],
        lacking: Mapping[str, frozenset[ViewType]],
        next_number: int = 1,
        label_ms: int = 0,
        copies: Mapping[str, tuple[str, list[str]]] | None = None,
    ) -> None:
        """`wished` is the view that is asked for of a collection; `lacking` are the views that a
        source is known never to give."""
        self.streams = {stream.number: stream for stream in streams}
        self.open = {
            stream.name: stream.number for stream in self.streams.values() if stream.last is None
        }
        self.next_number = next_number
        self.label_ms = label_ms
        self.copies = dict(copies or {})
        """By source: the copy that was announced last, and the collections that it named."""
        self.changed: set[int] = set()
        self._new: set[int] = set()
        """The streams among them that nobody was told of yet."""
        self._limits = limits
        self._wished = wished
        self._lacking = lacking

    def taken(self) -> None:
        """What changed is written."""
        self.changed, self._new = set(), set()

    # --- data -----------------------------------------------------------------------------------

    def change(
        self,
        event: pb.Event,
        sequence: int,
        *,
        before: int,
        check: int,
        size: int,
        begins_commit: bool,
        now_ms: int,
    ) -> None:
        """Take a change of a row; `check` is that of its place, `before` that of the one before."""
        name = Name(event.source, event.database, event.collection)
        keys, fits = key_names(event.key), views_of(event)
        stream = self._of(name)
        if not keys:
            self._close(name, sequence)
            return
        if stream is None:
            stream = self._begin(name, keys, sequence, self._view(name, fits), now_ms)
        elif stream.keys != keys:
            stream = self._renew(stream, sequence, now_ms, keys=keys)
        if stream.stalled is not None:
            self._lack(stream, fits, sequence)
            return
        if stream.view not in fits:
            if stream.asked:
                self._lack(structs.replace(stream, stalled=sequence), fits, sequence)
                return
            stream = self._renew(stream, sequence, now_ms, view=_lesser(stream.view, fits))
        shard = stream.shards[-1]
        if begins_commit and self._is_due(shard, now_ms):
            stream = self._roll(stream, sequence, before, now_ms)
            shard = stream.shards[-1]
        shard = structs.replace(
            shard, newest=sequence, newest_check=check, bytes=shard.bytes + size
        )
        self._put(structs.replace(stream, shards=(*stream.shards[:-1], shard)))

    # --- what ends streams ----------------------------------------------------------------------

    def control(self, event: SchemaEvent | SystemEvent, sequence: int, *, now_ms: int) -> None:
        """Take a control event of any kind."""
        if isinstance(event, SchemaEvent):
            self._schema(event, sequence, now_ms)
        else:
            self._system(event, sequence, now_ms)

    def _schema(self, event: SchemaEvent, sequence: int, now_ms: int) -> None:
        name = Name(event.source, event.database, event.collection)
        match event.operation:
            case "drop":
                self._close(name, sequence)
            case "dropDatabase":
                for one in self._within(event.source, event.database):
                    self._close(one, sequence)
            case "rename":
                said: dict[str, Any] = msgspec.json.decode(event.description)
                self._close(name, sequence)
                to = said.get("to")
                if isinstance(to, dict):
                    target = cast("dict[str, str]", to)
                    self._close(Name(event.source, target["db"], target["coll"]), sequence)
            case word if word in _HARMLESS:
                pass
            case _:
                for one in self._within(event.source, event.database, event.collection):
                    self._again(one, sequence, now_ms)

    def _system(self, event: SystemEvent, sequence: int, now_ms: int) -> None:
        said: dict[str, Any] = msgspec.json.decode(event.description)
        match event.operation:
            case "gap" | "gap_ended":
                names = self._within(event.source, event.database, event.collection)
                for name in names:
                    if said.get("reason") == "scope":
                        self._close(name, sequence)
                    else:
                        self._again(name, sequence, now_ms)
            case "rewound":
                for name in self._within(event.source):
                    self._again(name, sequence, now_ms)
            case "scope_changed":
                for name in _names(event.source, said.get("removed", ())):
                    self._close(name, sequence)
                database = said.get("after", {}).get("database")
                if database is not None:
                    for name in self._within(event.source):
                        if name.database != database:
                            self._close(name, sequence)
            case "snapshot_started":
                self._copied(event.source, said, sequence, now_ms)
            case _:
                pass

    def _copied(self, source: str, said: dict[str, Any], sequence: int, now_ms: int) -> None:
        """A copy begins: rows that are there already come as inserts."""
        copy, names = str(said.get("snapshot")), [str(one) for one in said.get("collections", ())]
        before, known = self.copies.get(source, ("", []))
        known = known if before == copy else []
        self.copies[source] = (copy, sorted({*known, *names}))
        for name in _names(source, [one for one in names if one not in known]):
            self._again(name, sequence, now_ms)

    def interrupted(self, *, read: int, first: int, now_ms: int) -> None:
        """What is between `read` and `first` was trimmed before it was seen."""
        for number in list(self.open.values()):
            self._renew(self.streams[number], first, now_ms, last=read)

    def cleared(self) -> None:
        """Nothing of what is known is of the log any more. Labels go on, so none comes again."""
        self.changed |= set(self.streams)
        self.streams, self.open, self.copies = {}, {}, {}

    def configured(self, *, read: int, now_ms: int) -> None:
        """Give every open stream the view that is asked for now, from the next entry on, or from
        the change that the view before could not show; and one that ended and waits for a view, if
        that can show all of it."""
        for stream in list(self.streams.values()):
            wish = self._wished(stream.name)
            view = wish or KEYS_ONLY
            if stream.last is not None:
                if stream.stalled is not None and view not in stream.lacks:
                    self._put(structs.replace(stream, view=view, stalled=None, lacks={}))
            elif wish == stream.view or (wish is None and stream.stalled is None):
                if stream.asked != (wish is not None):
                    self._put(structs.replace(stream, asked=wish is not None))
            elif stream.stalled is None:
                self._renew(stream, read + 1, now_ms, view=view)
            else:
                self._shown_again(stream, stream.stalled, view, read, now_ms)

    def _shown_again(
        self, stream: Stream, stalled: int, view: ViewType, read: int, now_ms: int
    ) -> None:
        """Begin a stream with the change that `stream` could not show; it was read already."""
        made = self._renew(stream, stalled, now_ms, view=view)
        at = stream.lacks.get(view)
        # What a view lacks from `at` on is known only where it begins there: else it is taken to
        # begin at `at`. Keys are never lacking.
        lacks = {} if at is None else {one: max(at, first) for one, first in stream.lacks.items()}
        shard = structs.replace(made.shards[-1], newest=read, newest_check=None)
        self._put(structs.replace(made, shards=(shard,), stalled=at, lacks=lacks))

    # --- time, and what is trimmed --------------------------------------------------------------

    def roll(self, *, read: int, check: int, now_ms: int) -> None:
        """Close shards that are old, though nothing happens. Never within a commit. `check` is that
        of the place `read`."""
        for number in list(self.open.values()):
            stream = self.streams[number]
            if stream.stalled is None and self._is_due(stream.shards[-1], now_ms):
                self._roll(stream, read + 1, check, now_ms)

    def forget(self, *, trimmed: int, sources: frozenset[str]) -> None:
        """Forget what nobody can read any more: a stream that ended, once all of it is trimmed;
        the shards in front of the last that is; and what is empty of a source that is gone."""
        for stream in list(self.streams.values()):
            ended = stream.last is not None and stream.last <= trimmed
            gone = stream.name.source not in sources and stream.newest <= trimmed
            if ended or gone:
                del self.streams[stream.number]
                if self.open.get(stream.name) == stream.number:
                    del self.open[stream.name]
                self.changed.add(stream.number)
                continue
            emptied = sum(one.last is not None and one.last <= trimmed for one in stream.shards)
            if emptied > 1:
                self._put(structs.replace(stream, shards=stream.shards[emptied - 1 :]))

    # --- bookkeeping ----------------------------------------------------------------------------

    def _of(self, name: Name) -> Stream | None:
        number = self.open.get(name)
        return None if number is None else self.streams[number]

    def _within(self, source: str, database: str = "", collection: str = "") -> list[Name]:
        """The open streams of a collection, a database, or all of a source."""
        return [
            name
            for name in self.open
            if name.source == source
            and database in {"", name.database}
            and collection in {"", name.collection}
        ]

    def _view(self, name: Name, fits: frozenset[ViewType]) -> ViewType:
        lacking = self._lacking.get(name.source, frozenset())
        return self._wished(name) or best_of(fits - lacking)

    def _begin(
        self, name: Name, keys: tuple[str, ...], first: int, view: ViewType, now_ms: int
    ) -> Stream:
        number, self.next_number = self.next_number, self.next_number + 1
        self.label_ms = max(now_ms, self.label_ms + 1)
        stream = Stream(
            number=number,
            name=name,
            label_ms=self.label_ms,
            view=view,
            asked=self._wished(name) is not None,
            keys=keys,
            first=first,
            shards=(Shard(1, first, now_ms),),
        )
        self.open[name] = number
        self._new.add(number)
        self._put(stream)
        return stream

    def _renew(
        self,
        stream: Stream,
        first: int,
        now_ms: int,
        *,
        last: int | None = None,
        view: ViewType | None = None,
        keys: tuple[str, ...] | None = None,
    ) -> Stream:
        """End a stream, and begin the next at `first`."""
        self._end(stream, first - 1 if last is None else last)
        view = view or self._wished(stream.name) or stream.view
        return self._begin(stream.name, keys or stream.keys, first, view, now_ms)

    def _again(self, name: Name, sequence: int, now_ms: int) -> None:
        stream = self._of(name)
        if stream is not None:
            self._renew(stream, sequence, now_ms)

    def _close(self, name: Name, sequence: int) -> None:
        stream = self._of(name)
        if stream is not None:
            self._end(stream, sequence - 1)

    def _lack(self, stream: Stream, fits: frozenset[ViewType], sequence: int) -> None:
        """Note a change that waits for another view."""
        new = {view: sequence for view in VIEWS if view not in fits and view not in stream.lacks}
        if new:
            self._put(structs.replace(stream, lacks={**stream.lacks, **new}))

    def _end(self, stream: Stream, last: int) -> None:
        """End a stream. What its view cannot show is the next, which has ended too, and waits."""
        self.open.pop(stream.name, None)
        if stream.number in self._new and not stream.newest and stream.stalled is None:
            # Losses in a row, as of changes that cannot be decoded: nobody stands between them.
            del self.streams[stream.number]
            return
        at, shard = stream.stalled, stream.shards[-1]
        if at is not None and stream.first < at <= last:
            number, self.next_number = self.next_number, self.next_number + 1
            self.label_ms += 1
            waiting = structs.replace(
                stream,
                number=number,
                label_ms=self.label_ms,
                first=at,
                last=last,
                shards=(Shard(1, at, shard.begun_ms, last, last),),
            )
            self._put(waiting)
            last = at - 1
        if at is not None and at > last:
            stream = structs.replace(stream, stalled=None, lacks={})
        shard = structs.replace(shard, last=last)
        if stream.stalled:
            shard = structs.replace(shard, newest=last, newest_check=None)
        self._put(structs.replace(stream, last=last, shards=(*stream.shards[:-1], shard)))

    def _is_due(self, shard: Shard, now_ms: int) -> bool:
        limits = self._limits
        return shard.bytes >= limits.bytes_max or now_ms - shard.begun_ms >= limits.age_ms

    def _roll(self, stream: Stream, first: int, before: int, now_ms: int) -> Stream:
        """Close the open shard before `first`, and begin its child there, behind the check
        `before`."""
        shard = stream.shards[-1]
        if first <= shard.first:
            return stream  # it has no entry yet, so it can take what comes
        parent = structs.replace(shard, last=first - 1)
        child = Shard(shard.number + 1, first, now_ms, check=before)
        stream = structs.replace(stream, shards=(*stream.shards[:-1], parent, child))
        self._put(stream)
        return stream

    def _put(self, stream: Stream) -> None:
        self.streams[stream.number] = stream
        self.changed.add(stream.number)


def _lesser(view: ViewType, fits: frozenset[ViewType]) -> ViewType:
    """The best view that fits and is less than `view`, which does not."""
    without_old = fits - {"NEW_AND_OLD_IMAGES"}
    return best_of(without_old) if view == "NEW_AND_OLD_IMAGES" else KEYS_ONLY


def _names(source: str, said: Iterable[str]) -> list[Name]:
    """The collections that a system event lists, as `database.collection`."""
    return [Name(source, *one.split(".", 1)) for one in said]


def tail_of(stream: Stream) -> str:
    """What of a stream's ARN names it."""
    return _tail(stream.name, stream.label_ms)


@lru_cache(maxsize=1 << 16)
def _tail(name: Name, label_ms: int) -> str:
    # Whoever looks a stream up needs those of all of them, some times a second.
    return f"{table_name(name)}/stream/{_label(label_ms)}"


def label_of(stream: Stream) -> str:
    """A stream's label: when it began, by the clock of who says so. Never given twice."""
    return _label(stream.label_ms)


def _label(label_ms: int) -> str:
    seconds, milliseconds = divmod(label_ms, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}"
