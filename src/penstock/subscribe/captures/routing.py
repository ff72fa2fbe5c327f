"""Which of many lanes an entry of the log may be for. Pure.

Each lane says once a stream what it wants of it, and all of them are entered in one index; an entry
is looked up in it by its stream and operation, its key, and the fields that it touches, so that
whoever cannot match costs nothing (E5). What is found may be more than what matches, never less:
the lane decides.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from penstock.subscribe.captures.matching import Plan, keys_of
from penstock.subscribe.captures.touched import touched
from penstock.wire import OPERATION_CODES, Block, Mask, Stream

_STREAMS_MAX: Final = 10_000
_CODES: Final = len(OPERATION_CODES)
_JOINS_MIN: Final = 64


class Wanting(Protocol):
    """Who wants something of the log. What it wants stays as it is while it is in the index."""

    def plan(self, stream: Stream) -> Plan:
        """What it wants of a stream."""
        ...

    def takes_all(self) -> bool:
        """Whether it must see every block, whatever streams it has."""
        ...

    def takes_edges(self) -> bool:
        """Whether it wants the beginning and end of transactions, which may lie in blocks that
        have nothing else for it."""
        ...


_Lane = TypeVar("_Lane", bound=Wanting)


class Routes(Generic[_Lane]):
    """The lanes that listen, by what they want."""

    def __init__(self) -> None:
        self._entered: dict[_Lane, set[Stream]] = {}
        """Who listens, and the streams in whose index it is."""
        self._joins: list[_Lane] = []
        """Who joined, oldest first; some may have left. Each stream looks at it from where it
        stopped, so that to join costs nothing for streams in which nothing happens."""
        self._streams: dict[Stream, _StreamRoutes[_Lane]] = {}
        self._all: dict[_Lane, None] = {}
        self._edges: dict[_Lane, None] = {}
        self._failed: list[tuple[_Lane, Exception]] = []

    def __iter__(self) -> Iterator[_Lane]:
        """Who listens now."""
        return iter(tuple(self._entered))

    def add(self, lane: _Lane) -> None:
        """Let a lane be found. Take it out before what it wants changes."""
        self._entered[lane] = set()
        self._joins.append(lane)
        if lane.takes_all():
            self._all[lane] = None
        if lane.takes_edges():
            self._edges[lane] = None
        if len(self._joins) > 2 * len(self._entered) + _JOINS_MIN:
            self._forget_streams()

    def remove(self, lane: _Lane) -> None:
        """Let it not be found any more; harmless for who is not there."""
        for stream in self._entered.pop(lane, ()):
            self._streams[stream].remove(lane)
        self._all.pop(lane, None)
        self._edges.pop(lane, None)

    def interested(self, block: Block) -> Mapping[_Lane, Sequence[int] | None]:
        """Whom `block` may be for, with the entries in view to look at, in order; None: all.

        A lane that cannot say what it wants costs the others nothing: it is taken out, and
        `take_failed` has it then; `block` was not looked up for it.
        """
        start, stop = block.start, block.stop
        if block.kinds()[start:stop].any():
            # Rare, and told to more than those of its stream: a gap of a source, a rename.
            return dict.fromkeys(self._entered)
        numbers: list[int] = block.stream_numbers()[start:stop].tolist()
        codes: list[int] = block.index["operation"][start:stop].tolist()
        here = {number: self._of(block.streams[number]) for number in set(numbers)}
        # Only now: whoever cannot say what it wants of these streams is not there any more.
        found: dict[_Lane, list[int] | None] = dict.fromkeys(self._all)
        for number, code in set(zip(numbers, codes, strict=True)):
            found.update(here[number].by_code[code])
        if self._edges:
            whole = not block.ordinal(start) and block.ends_commit(stop - 1)
            for edges in [one.edges for one in here.values()] if whole else [self._edges]:
                found.update(edges)
        if not any(one.looks for one in here.values()):
            return found
        for i, number, code in zip(range(start, stop), numbers, codes, strict=True):
            for lane in here[number].looked_up(block, i, code):
                entries = found.setdefault(lane, [])
                if entries is not None and entries[-1:] != [i]:
                    entries.append(i)
        return found

    def take_failed(self) -> list[tuple[_Lane, Exception]]:
        """The lanes that were taken out since the last call, each with what it raised."""
        failed, self._failed = self._failed, []
        return failed

    def _of(self, stream: Stream) -> "_StreamRoutes[_Lane]":
        found = self._streams.get(stream)
        if found is None:
            if len(self._streams) >= _STREAMS_MAX:
                self._forget_streams()
            found = self._streams[stream] = _StreamRoutes()
        for lane in self._joins[found.joins :]:
            if lane in self._entered and stream not in self._entered[lane]:
                try:
                    plan = lane.plan(stream)
                except Exception as error:  # whatever it is, it is of this lane alone
                    self.remove(lane)
                    self._failed.append((lane, error))
                    continue
                if not plan.is_empty:
                    found.add(lane, plan)
                    self._entered[lane].add(stream)
        found.joins = len(self._joins)
        return found

    def _forget_streams(self) -> None:
        self._streams.clear()
        self._joins = list(self._entered)
        for streams in self._entered.values():
            streams.clear()


class _StreamRoutes(Generic[_Lane]):
    """What is wanted of one stream. The number of a lane is a set of operations, a bit for each."""

    def __init__(self) -> None:
        self.joins = 0
        """How many of those who joined were asked."""
        self.by_code: list[dict[_Lane, None]] = [{} for _ in range(_CODES)]
        self.edges: dict[_Lane, None] = {}
        self._plans: dict[_Lane, Plan] = {}
        # Lanes that may not see the same see other keys.
        self._by_key: dict[Mask | None, dict[bytes, dict[_Lane, int]]] = {}
        self._by_field: dict[str, dict[_Lane, int]] = {}
        """By the first step of a path: whatever meets a path begins as it does."""
        self._any_field: dict[_Lane, int] = {}

    @property
    def looks(self) -> bool:
        """Whether an entry itself must be seen."""
        return bool(self._by_key or self._by_field or self._any_field)

    def add(self, lane: _Lane, plan: Plan) -> None:
        """Enter what `lane` wants."""
        self._plans[lane] = plan
        for code in range(_CODES):
            if plan.by_code[code]:
                self.by_code[code][lane] = None
        if plan.infrastructure:
            self.edges[lane] = None
        for key, conditions in plan.by_key.items():
            lanes = self._by_key.setdefault(plan.mask, {}).setdefault(key, {})
            for condition in conditions:
                lanes[lane] = lanes.get(lane, 0) | _bits(condition.codes)
        for condition in plan.conditional:
            for lanes in self._for_fields(condition.fields):
                lanes[lane] = lanes.get(lane, 0) | _bits(condition.codes)

    def remove(self, lane: _Lane) -> None:
        """Take out all that `add` entered."""
        plan = self._plans.pop(lane)
        for lanes in (*self.by_code, self.edges):
            lanes.pop(lane, None)
        self._any_field.pop(lane, None)
        keyed = self._by_key.get(plan.mask, {})
        for key in plan.by_key:
            _take_out(keyed, key, lane)
        if not keyed:
            self._by_key.pop(plan.mask, None)
        for root in {root for one in plan.conditional for root in _roots(one.fields)}:
            _take_out(self._by_field, root, lane)

    def looked_up(self, block: Block, i: int, code: int) -> Iterator[_Lane]:
        """Who may want entry `i`, by its key and what it touches; some more than once."""
        bit = 1 << code
        for mask, keyed in self._by_key.items():
            for key in keys_of(block, i, mask):
                for lane, codes in keyed[key].items() if key in keyed else ():
                    if codes & bit:
                        yield lane
        if not self._by_field and not self._any_field:
            return
        paths = touched(block, i)
        wanted = [self._by_field[root] for root in _roots(paths) if root in self._by_field]
        for lanes in [*wanted, self._any_field] if paths else ():
            for lane, codes in lanes.items():
                if codes & bit:
                    yield lane

    def _for_fields(self, fields: frozenset[str] | None) -> list[dict[_Lane, int]]:
        if not fields:
            return [self._any_field]
        return [self._by_field.setdefault(root, {}) for root in _roots(fields)]


def _bits(codes: frozenset[int]) -> int:
    return sum(1 << code for code in codes)


def _roots(paths: frozenset[str] | None) -> set[str]:
    return {path.partition(".")[0] for path in paths or ()}


_Key = TypeVar("_Key")


def _take_out(index: "dict[_Key, dict[_Lane, int]]", key: _Key, lane: _Lane) -> None:
    lanes = index.get(key)
    if lanes is not None:
        lanes.pop(lane, None)
        if not lanes:
            del index[key]
