"""Requests that stand at one place of the log, and what they get next.

A lane reads the log by itself while it is behind, a piece at a time, and is fed by the hub at the
head. What it was offered and has not taken is references to blocks, within a bound: beyond it, the
lane goes back to reading by itself, so nothing is dropped and nothing grows (E13).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.errors import GapError, PenstockError, RenamedError
from penstock.event import Kind
from penstock.ports import LogReader
from penstock.progress import Progress
from penstock.subscribe.captures.hub import Hub
from penstock.subscribe.captures.matching import Match, Matcher, Plan
from penstock.subscribe.captures.requests import CaptureRequest, Content
from penstock.subscribe.captures.since import Gate, Start
from penstock.subscribe.captures.survey import Survey, Surveyor, stretches
from penstock.subscribe.scope import Scope
from penstock.wire import Block, Mask, Stream

PENDING_BYTES_MAX: Final = 4 << 20
"""Of blocks that a lane was offered and has not taken."""
_TOLD_MAX: Final = 1_024
READ_BYTES: Final = 256 << 10
"""What a lane that is behind reads at once."""


class Ready(NamedTuple):
    """What a lane has for its requests next: an entry, or an edge of its transaction."""

    block: Block
    i: int
    requests: int
    ended: int = 0
    survey: Survey | None = None
    before: Progress | None = None
    """Of the beginning of a transaction: the place before its first entry."""

    @property
    def begins(self) -> bool:
        return self.before is not None


class _Offer(NamedTuple):
    """A block that a lane has not looked at yet."""

    block: Block
    entries: Sequence[int] | None = None
    """Those to look at; None: all in view."""
    before: Progress | None = None
    """All up to here is for nobody, where the hub says so."""


class Lane:
    """The requests, by their bit in its matcher. One task takes from it; the hub offers."""

    def __init__(
        self,
        requests: Mapping[str, CaptureRequest],
        start: Start,
        *,
        hub: Hub,
        scope: Scope,
        wake: Callable[[], None],
    ) -> None:
        self.requests = dict(requests)
        self.ready: deque[Ready] = deque()
        self.safe = start.after
        """All up to here was handed on, or is for nobody."""
        self.error: PenstockError | None = None
        self._hub = hub
        self._scope = scope
        self._wake = wake
        self._place = start.after
        self._gates: dict[str, Gate] = dict.fromkeys(requests, start.gate) if start.gate else {}
        self._openings: dict[str, int | None] = {}
        """Where the gates open in the block that is looked at."""
        self._opened: dict[str, tuple[Gate, int]] = {}
        """The gates that opened, and at which sequence: what is ready may begin before it."""
        self._pending: deque[_Offer] = deque()
        self._pending_bytes = 0
        self._taking = False
        """A block is looked at, with the requests that were there when it was begun."""
        self._listening = False
        self._over = False
        self._takes_all = False
        """As the hub was told."""
        self._told: dict[int, tuple[tuple[str, ...], bool, bool]] = {}
        self._survey: Survey | None = None
        """Of the transaction that goes on behind what was looked at."""
        self._compile()

    # --- who is in it ---------------------------------------------------------------------------

    @property
    def ids(self) -> tuple[str, ...]:
        return self._ids

    def waits(self, name: str) -> bool:
        """Whether a request waits for what it begins with: all up to `safe` lies before that."""
        return self.gate(name) is not None

    def gate(self, name: str) -> Gate | None:
        """What a request that goes on behind `safe` does not want yet."""
        gate, opening = self._opened.get(name, (None, 0))
        return gate if self.safe.sequence < opening else self._gates.get(name)

    def place(self) -> Progress:
        """All up to here was looked at, or is for nobody: it moves on though nothing is done."""
        if not self._listening:
            return self._place
        there = self._pending[0].before if self._pending else self._hub.place
        if there is None or there.sequence <= self._place.sequence:
            return self._place
        return there

    @property
    def rests(self) -> bool:
        """Whether there is nothing to do for it until it is offered something."""
        return (
            self._listening and not (self._pending or self.ready or self.error) and self._is_settled
        )

    @property
    def has_more_at_hand(self) -> bool:
        """Whether more can be looked at without reading: nothing can go wrong with that."""
        return bool(self._pending) and self.error is None and not self._matcher.infrastructure

    @property
    def _is_settled(self) -> bool:
        return len(self.requests) == len(self._ids) and self._takes_all == self.takes_all()

    def settle(self) -> None:
        """Nothing is ready: what was looked at was handed on, and who was removed is forgotten."""
        self._place = self.safe = self.place()
        if len(self.requests) != len(self._ids):
            self._compile()
        elif self._listening and self._takes_all != self.takes_all():
            self._hub.leave(self)
            self._listen()

    def remove(self, name: str) -> None:
        """Nothing more for this request."""
        del self.requests[name]
        self._gates.pop(name, None)
        self._opened.pop(name, None)
        self._told.clear()

    def absorb(self, other: "Lane") -> bool:
        """Take over the requests of a lane that stands at the same place, if both have nothing
        ready there."""
        if self.ready or other.ready or self._pending or other.pending or self._taking:
            return False
        if self.place().sequence != other.place().sequence:
            return False
        other.close()
        # What either had up to here is behind both: nothing of it may come again.
        self._place = self.safe = self.place()
        self.requests |= other.requests
        self._gates |= other.gates
        self._compile()
        return True

    @property
    def pending(self) -> bool:
        return bool(self._pending)

    @property
    def gates(self) -> Mapping[str, Gate]:
        return self._gates

    def close(self) -> None:
        """It is over: it listens no more, also if it is just reading on."""
        self._over = True
        self._leave()

    def _leave(self) -> None:
        self._hub.leave(self)
        self._listening = False

    def _compile(self) -> None:
        self._ids = tuple(self.requests)
        self._told.clear()
        self._survey = None
        self._matcher = Matcher(tuple(self.requests.values()), self._scope)
        if self._listening:
            self._place = self.place()
            self._hub.leave(self)
            self._listen()

    def _listen(self) -> None:
        self._takes_all = self.takes_all()
        self._listening = self._hub.join(self, self._place)

    # --- the hub --------------------------------------------------------------------------------

    def plan(self, stream: Stream) -> Plan:
        """As `Wanting.plan`."""
        return self._matcher.plan(stream)

    def takes_all(self) -> bool:
        """As `Wanting.takes_all`: what a request waits for may come without a match."""
        return bool(self._gates)

    def takes_edges(self) -> bool:
        """As `Wanting.takes_edges`."""
        return bool(self._matcher.infrastructure)

    def offer(self, block: Block, entries: Sequence[int] | None, *, before: Progress) -> None:
        """As `Listener.offer`."""
        place = self._place.sequence
        if place >= block.first_sequence + block.start:
            block = block.narrow(after=place)
            if not len(block):
                return
            entries = None if entries is None else [i for i in entries if i >= block.start]
        self._pending.append(_Offer(block, entries, before))
        self._pending_bytes += block.nbytes
        if self._pending_bytes > PENDING_BYTES_MAX:
            self.detach()
        self._wake()

    def detach(self) -> None:
        """As `Listener.detach`."""
        self._place = self.place()
        self._leave()
        self._pending.clear()
        self._pending_bytes = 0
        self._wake()

    def fail(self, error: PenstockError) -> None:
        """As `Listener.fail`."""
        self.error = error
        # Where the hub stands later says nothing of what this lane was offered.
        self._place = self.place()
        self._listening = False
        self._wake()

    # --- reading --------------------------------------------------------------------------------

    async def advance(self, log: LogReader) -> bool:
        """Look at more of the log; False if there is nothing more now. Raises what `read` does."""
        if self.error is not None:
            raise self.error
        if self._pending:
            if not self.ready:
                self._place = self.safe = self.place()
            offer = self._pending[0]
            self._taking = True  # also while the hub takes back what it offered
            try:
                await self._take(log, offer)
            finally:
                self._taking = False
            # Unless the hub offered too much meanwhile, and all of it is read again.
            if self._pending and self._pending[0] is offer:
                self._pending.popleft()
                self._pending_bytes -= offer.block.nbytes
            return True
        if self._listening:
            self._settle_if_idle()
            return False
        blocks = await log.read(after=self._place.sequence, bytes_max=READ_BYTES)
        if self._over:
            return False
        self._pending.extend(map(_Offer, blocks))
        self._pending_bytes += sum(block.nbytes for block in blocks)
        if blocks:
            return True
        self._listen()
        if self.error is not None:
            raise self.error
        return not self._listening

    def _settle_if_idle(self) -> None:
        if not self.ready:
            self.settle()

    async def _take(self, log: LogReader, offer: _Offer) -> None:
        """Make ready what of a block is for somebody."""
        block = offer.block
        matches = self._matcher.select(block, offer.entries)
        if self._matcher.infrastructure:
            await self._take_with_edges(log, block, matches)
        else:
            self._look_for_openings(block)
            for match in matches:
                self._put(block, match)
        self._place = _behind(block)
        # Also for who matches nothing: what it began with has passed, and what is safe moves (E5).
        for name, opening in self._openings.items():
            if opening is not None:
                self._opened[name] = (self._gates.pop(name), block.first_sequence + opening)
        self._openings = {}

    def _look_for_openings(self, block: Block) -> None:
        """Of all of `block`, also of what nobody matches: so it does not matter where it is cut."""
        self._openings = {name: gate.opening(block) for name, gate in self._gates.items()}

    async def _take_with_edges(self, log: LogReader, block: Block, matches: list[Match]) -> None:
        surveyor = Surveyor(log, self._matcher, block, matches, known=self._survey)
        # Whoever stops waiting here must find the lane as it was.
        surveyed = [
            (first, last, await surveyor.survey(first, last)) for first, last in stretches(block)
        ]
        self._survey = surveyed[-1][2] or self._survey
        self._look_for_openings(block)
        at = 0
        for first, last, survey in surveyed:
            if survey is not None and block.ordinal(first) == 0:
                headed = self._headed(survey, block, first)
                if headed:
                    before = self._before(block, first)
                    self.ready.append(Ready(block, first, headed, survey=survey, before=before))
            while at < len(matches) and matches[at].i <= last:
                self._put(block, matches[at])
                at += 1
            if survey is not None and block.ends_commit(last):
                opened = survey.requests & ~self._closed(block, last, is_edge=True)
                if opened:
                    self.ready.append(Ready(block, last, opened, survey=survey))

    def _before(self, block: Block, i: int) -> Progress:
        """The place before entry `i` of the block that is looked at."""
        # What the hub did not offer is for nobody, so `_place` is where this block begins.
        return block.place(i - 1) if i else self._place

    def _put(self, block: Block, match: Match) -> None:
        closed = self._closed(block, match.i)
        requests, ended = match.requests & ~closed, match.ended & ~closed
        if requests or ended:
            self.ready.append(Ready(block, match.i, requests, ended))

    # --- gates ----------------------------------------------------------------------------------

    def _closed(self, block: Block, i: int, *, is_edge: bool = False) -> int:
        """The requests that do not want entry `i` yet, whatever it is, or the end behind it."""
        is_gap = bool(self._gates) and not is_edge and block.kind(i) is Kind.GAP
        closed = 0
        for bit, name in enumerate(self._ids if self._gates else ()):
            gate, opening = self._gates.get(name), self._openings.get(name)
            if gate is None or (opening is not None and opening <= i):
                continue
            if not is_gap or gate.hides_gap(block):
                closed |= 1 << bit
        return closed

    def _headed(self, survey: Survey, block: Block, first: int) -> int:
        """The requests that get the header of the commit that begins with entry `first`."""
        requests = survey.requests
        for bit, name in enumerate(self._ids if self._gates else ()):
            gate = self._gates.get(name)
            if gate is not None and not gate.shows_header(block, first, self._openings.get(name)):
                requests &= ~(1 << bit)
        return requests

    # --- what a request is told -----------------------------------------------------------------

    def named(self, requests: int) -> tuple[str, ...]:
        """The ids of `requests` that are still there, in the order in which they were asked."""
        return tuple(
            name
            for bit, name in enumerate(self._ids)
            if requests >> bit & 1 and name in self.requests
        )

    def mask(self, stream: Stream) -> Mask | None:
        """As `Matcher.mask`."""
        return self._matcher.mask(stream)

    def told(self, requests: int) -> tuple[tuple[str, ...], bool, bool]:
        """`named`, and whether one of them wants a body, and the image before."""
        found = self._told.get(requests)
        if found is None:
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            names = self.named(requests)
            asked = [self.requests[name] for name in names]
            body = any(one.content is Content.BODY for one in asked)
            found = self._told[requests] = (names, body, any(one.before for one in asked))
        return found

    def ends_transaction(self, ready: Ready) -> bool:
        """Whether the end of the transaction that ends with this entry is told next."""
        if ready.survey is not None or not self.ready:
            return False
        following = self.ready[0]
        same = following.block is ready.block and following.i == ready.i
        return same and following.survey is not None

    def ending(self, ready: Ready, name: str) -> GapError | RenamedError:
        """As `Matcher.ending`, of a request that cannot go past what is ready."""
        return self._matcher.ending(ready.block, ready.i, self._ids.index(name))


def _behind(block: Block) -> Progress:
    return block.place(block.stop - 1)
