"""One subscription: its requests, and the single stream of what they get.

One task calls `next` again and again and sends what it returns; others may add, change and remove
requests and give credit meanwhile, all on one event loop. A slow sender asks later: the log waits
for it, nobody else does, and nothing is dropped.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, structs

from penstock.errors import PenstockError, RequestError, ServiceUnavailableError
from penstock.ports import LogReader
from penstock.progress import Progress
from penstock.subscribe.captures.hub import Hub
from penstock.subscribe.captures.lane import Lane, Ready
from penstock.subscribe.captures.matching import require_shown
from penstock.subscribe.captures.outputs import (
    Captured,
    Confirmed,
    Finished,
    Maintained,
    Output,
)
from penstock.subscribe.captures.requests import NOW, CaptureRequest
from penstock.subscribe.captures.since import Start, resolve
from penstock.subscribe.captures.survey import boundary_of
from penstock.subscribe.scope import EVERYTHING, Scope

UNLIMITED: Final = -1
_CREDITS_MAX: Final = 1 << 53
ANSWERS_MAX: Final = 64
"""Answers that wait for their sender, beyond which no more commands are taken."""
_LOOKS_MAX: Final = 16
"""Looks at the log before others get their turn."""


class Limits(Struct, frozen=True, kw_only=True):
    """What one subscription may have, and how it is told."""

    requests_max: int = 100
    maintenance_seconds: float = 10.0
    """Between two maintenance events."""


class Session:
    """The requests of one connection. Close it; whatever it had is dropped then."""

    def __init__(
        self,
        log: LogReader,
        hub: Hub,
        *,
        scope: Scope = EVERYTHING,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        credit: int = UNLIMITED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._hub = hub
        self._scope = scope
        self._limits = limits
        self._credits = credit
        self._clock = clock
        self._lanes: list[Lane] = []
        self._lane_of: dict[str, Lane] = {}
        self._counts: dict[str, int] = {}
        """Captures that requests which end by themselves have had."""
        self._said: list[Output] = []
        self._woken = asyncio.Event()
        self._taken_over = asyncio.Event()
        """What was said was taken by who sends it."""
        self._maintained_at = clock()
        self._owes_captures = False
        """Maintenance was the last thing: captures come first now, also where sending one thing
        takes longer than the time from one maintenance to the next."""
        self._alarm: asyncio.TimerHandle | None = None
        """Wakes who waits when maintenance is due, or it was quiet for long."""
        self._closed = False

    # --- what clients ask -----------------------------------------------------------------------

    @property
    def ids(self) -> tuple[str, ...]:
        """The requests there are, oldest first."""
        return tuple(self._lane_of)

    @property
    def is_over(self) -> bool:
        """Whether there is no request, and nothing to be said of any. A session that was closed is
        not over: what it had to say was dropped."""
        return not (self._closed or self._lane_of or self._said)

    async def add(self, request: CaptureRequest) -> None:
        """Begin a request; its confirmation comes before anything it gets.

        Raises RequestError for an id that is in use, or one request too many, and what `resolve`
        raises; then nothing has changed.
        """
        self._require_room(request.id)
        require_shown(request, self._scope)
        begins = await resolve(self._log, request.since, self._scope)
        await self._hub.ready()
        self._require_room(request.id)
        bounds = await self._log.bounds()
        self._require_room(request.id)
        self._begin(request, begins, version=bounds.head_commit)

    async def change(self, request: CaptureRequest) -> None:
        """Replace the request of that id. Without a start it goes on from where it is.

        Raises as `add`, and for an id that is not there; the old request goes on then.
        """
        if request.id not in self._lane_of:
            raise _unknown(request.id)
        require_shown(request, self._scope)
        begins = (
            None if request.since == NOW else await resolve(self._log, request.since, self._scope)
        )
        bounds = await self._log.bounds()
        lane = self._lane_of.get(request.id)
        if lane is None:
            raise _unknown(request.id)
        if begins is None:
            after = lane.safe if lane.ready else lane.place()
            begins = Start(after=after, gate=lane.gate(request.id))
        self._drop(request.id)
        self._begin(request, begins, version=bounds.head_commit)

    def remove(self, name: str) -> None:
        """End a request: nothing that it matches comes behind its end. Raises RequestError for an
        id that is not there."""
        if name not in self._lane_of:
            raise _unknown(name)
        self._drop(name)
        self._say(Finished(id=name))

    def remove_all(self) -> None:
        """End every request; the subscription stays."""
        for name in self.ids:
            self.remove(name)

    async def answered(self, *, waiting_max: int = ANSWERS_MAX) -> None:
        """Return once at most so many answers wait to be sent.

        Await it before each command, so that who sends commands and reads no answers waits, and
        nothing grows.
        """
        while len(self._said) > waiting_max and not self._closed:
            self._taken_over.clear()
            await self._taken_over.wait()

    def hold(self) -> None:
        """Send no capture but what `request` allows from now on."""
        self._credits = max(self._credits, 0)

    def request(self, count: int) -> None:
        """Allow `count` more captures. Raises RequestError for less than one.

        More than anybody can use is as much as can be said: it never wraps around."""
        if count < 1:
            raise RequestError("request(n) must be at least 1. Nothing was changed.")
        self.hold()
        self._credits = min(self._credits + count, _CREDITS_MAX)
        self._woken.set()

    def close(self) -> None:
        """Drop everything; `next` ends with ServiceUnavailableError."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for lane in self._lanes:
            lane.close()
        self._lanes.clear()
        self._lane_of.clear()
        self._said.clear()
        self._woken.set()
        self._taken_over.set()

    def _require_room(self, name: str) -> None:
        if self._closed:
            raise _ended()
        if name in self._lane_of:
            raise RequestError(
                f"the id {name} is in use on this subscription. Nothing was changed. Take another, "
                f"or change that request."
            )
        if len(self._lane_of) >= self._limits.requests_max:
            raise RequestError(
                f"a subscription has at most {self._limits.requests_max} requests. Nothing was "
                f"changed. Remove one, or open another connection."
            )

    def _begin(self, request: CaptureRequest, begins: Start, *, version: int) -> None:
        lane = Lane(
            {request.id: request}, begins, hub=self._hub, scope=self._scope, wake=self._woken.set
        )
        self._lanes.append(lane)
        self._lane_of[request.id] = lane
        if request.complete_after:
            self._counts[request.id] = request.complete_after
        self._say(
            Confirmed(id=request.id, after=begins.after, version=version, waiting=begins.waiting)
        )
        self._join(lane)

    def _drop(self, name: str) -> None:
        lane = self._lane_of.pop(name)
        self._counts.pop(name, None)
        lane.remove(name)
        if not lane.requests:
            lane.close()
            self._lanes.remove(lane)

    def _say(self, output: Output) -> None:
        self._said.append(output)
        self._woken.set()

    # --- what they get --------------------------------------------------------------------------

    async def next(
        self, *, count_max: int = 256, quiet_seconds: float | None = None
    ) -> list[Output]:
        """What comes next, in order: at least one thing, at most `count_max` captures; nothing only
        if nothing came for `quiet_seconds`.

        What was handed out counts as sent. Raises ServiceUnavailableError once the subscription is
        closed; what goes wrong with the log ends the requests that it concerns.
        """
        quiet_at = self._clock() + (quiet_seconds or 0)
        while True:
            if self._closed:
                raise _ended()
            self._woken.clear()
            if self._said:
                said, self._said = self._said, []
                self._taken_over.set()
                return said
            due = self._maintained_at + self._limits.maintenance_seconds - self._clock()
            if due <= 0 and not self._owes_captures:
                self._owes_captures = True
                return [self._maintained()]
            self._owes_captures = False
            if self._credits:
                found = await self._captures(count_max)
                if found:
                    return found
            if due <= 0:
                continue
            if self._woken.is_set():
                continue
            if quiet_seconds is not None:
                quiet = quiet_at - self._clock()
                if quiet <= 0:
                    return []
                due = min(due, quiet)
            self._set_alarm(due)
            await self._woken.wait()

    def _set_alarm(self, seconds: float) -> None:
        """Wake in so long, or before. One alarm is for all the times that are waited till then:
        most of them end much earlier."""
        loop = asyncio.get_running_loop()
        if self._alarm is not None:
            if self._alarm.when() <= loop.time() + seconds:
                return
            self._alarm.cancel()
        self._alarm = loop.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._woken.set()

    async def _captures(self, count_max: int) -> list[Output]:
        """Captures of one lane; none if there is nothing now. The lanes take turns."""
        if len(self._lanes) == 1 and self._lanes[0].rests:
            return []
        unfinished = False
        most = count_max if self._credits < 0 else min(count_max, self._credits)
        for lane in tuple(self._lanes):
            for _ in range(_LOOKS_MAX):
                # Who is late takes more at once, which costs it, and its sender, less for each.
                if lane.ready and (len(lane.ready) >= most or not lane.has_more_at_hand):
                    break
                if lane not in self._lanes or not await self._advanced(lane):
                    break
            else:
                unfinished = True
            if self._said:
                # It came while the log was read, and may confirm what this lane took over (E9).
                return []
            if lane.ready and lane in self._lanes:
                self._lanes.remove(lane)
                self._lanes.append(lane)
                return self._taken(lane, count_max)
        if unfinished:
            # History that nobody wants is passed by turns with everybody else (invariant 8).
            self._woken.set()
            await asyncio.sleep(0)
        return []

    async def _advanced(self, lane: Lane) -> bool:
        """Look at more for a lane; False if there is nothing more now, or it is over."""
        try:
            more = await lane.advance(self._log)
        except PenstockError as error:
            for name in tuple(lane.requests):
                self._drop(name)
                self._say(Finished(id=name, error=error))
            return False
        if lane not in self._lanes:
            return False
        if not lane.ready:
            lane.settle()
            self._join(lane)
        return more

    def _join(self, lane: Lane) -> None:
        """Let another lane that stands where this one does take over its requests."""
        for other in self._lanes:
            if other is not lane and other.absorb(lane):
                for name in lane.requests:
                    self._lane_of[name] = other
                self._lanes.remove(lane)
                return

    def _taken(self, lane: Lane, count_max: int) -> list[Output]:
        found: list[Output] = []
        while lane.ready and len(found) < count_max and self._credits and lane.requests:
            ready = lane.ready.popleft()
            if ready.survey is not None:
                self._edge(lane, ready, found)
            else:
                self._entry(lane, ready, found)
            if ready.before is not None:
                lane.safe = ready.before
            # The end of a transaction has the marker of its last entry: who saves it has both.
            elif not lane.ends_transaction(ready):
                lane.safe = ready.block.place(ready.i)
        if not lane.ready and lane in self._lanes:
            lane.settle()
        return found

    def _entry(self, lane: Lane, ready: Ready, found: list[Output]) -> None:
        names, body, before = lane.told(ready.requests)
        if names:
            block, i = ready.block, ready.i
            found.append(
                Captured(
                    ids=names,
                    block=block,
                    i=i,
                    body=body,
                    before=before,
                    mask=lane.mask(block.stream(i)),
                    ends=lane.ends_transaction(ready),
                )
            )
            self._spent(names, found)
        for name in lane.named(ready.ended) if ready.ended else ():
            error = lane.ending(ready, name)
            self._drop(name)
            found.append(Finished(id=name, error=error))

    def _edge(self, lane: Lane, ready: Ready, found: list[Output]) -> None:
        names = lane.named(ready.requests)
        survey = ready.survey
        assert survey is not None
        if not names:
            return
        edge = boundary_of(
            survey,
            ready.block,
            ready.i,
            names,
            lane.ids,
            before=ready.before,
        )
        found.append(edge)
        self._spent(names, found)

    def _spent(self, names: tuple[str, ...], found: list[Output]) -> None:
        """One capture was handed out for these requests."""
        if self._credits > 0:
            self._credits -= 1
        for name in names if self._counts else ():
            left = self._counts.get(name)
            if left is None:
                continue
            self._counts[name] = left - 1
            if left == 1:
                self._drop(name)
                found.append(Finished(id=name))

    # --- what is safe ---------------------------------------------------------------------------

    def _maintained(self) -> Maintained:
        self._maintained_at = self._clock()
        positions = self.positions()
        return Maintained(
            progress=min(positions.values(), key=lambda one: one.sequence, default=None),
            positions=positions,
            at=time.time_ns() // 1_000_000,
            interval_ms=int(self._limits.maintenance_seconds * 1000),
        )

    def positions(self) -> Mapping[str, Progress]:
        """Up to where each request has got everything; not of those that wait for their start."""
        found: dict[str, Progress] = {}
        for name, lane in self._lane_of.items():
            if not lane.waits(name):
                found[name] = (
                    lane.safe
                    if lane.ready
                    else max(lane.safe, lane.place(), key=lambda place: place.sequence)
                )
        return found


def with_place(request: CaptureRequest, after: Progress) -> CaptureRequest:
    """`request`, to go on behind `after`."""
    return structs.replace(request, since=structs.replace(NOW, progress=after))


def _unknown(name: str) -> RequestError:
    return RequestError(f"there is no request {name} on this subscription. Nothing was changed.")


def _ended() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "this subscription is closed. What you saved is safe: subscribe again with it."
    )
