"""Where one request stands, from what was handed out of it. Pure.

From this a client comes back after its connection was lost: without a hole, since everything
behind the place comes, and without a repeat, since what was handed out is known by version and
index. A transaction's end has the marker of its last entry, so where ends are asked for, the place
stays one entry behind until the end is there.
"""

from collections import deque
from typing import Final, NamedTuple

from penstock._generated.penstock.v1 import captures_pb2 as pb
from penstock.client.captures.events import Confirmed
from penstock.errors import CapturesIncompleteError, PenstockError
from penstock.progress import parse_progress

_AGAIN_MAX: Final = 2
"""A transaction's beginning and its only entry: more never comes again."""


class _Given(NamedTuple):
    """A capture that was handed out."""

    progress: str
    begins: bool
    """It is the beginning of a transaction, and has the place before its first entry."""

    def comes_again(self, place: int) -> bool:
        """Whether it lies behind a place, by sequence."""
        own = _sequence(self.progress)
        return own > place or (self.begins and own == place)


class Request:
    """One request of a subscription."""

    def __init__(self, asked: pb.CaptureRequest) -> None:
        self.id = asked.id
        self.confirmed: Confirmed | None = None
        """How the service took it, once the subscription was read so far."""
        self.error: PenstockError | None = None
        """Why it ended, if that was not asked for."""
        self.ended = False
        self.position = ""
        """The marker behind which it has handed out nothing, or what is handed out again; empty
        while it waits for what it begins with."""
        self.removed = False
        """It was limited, and its end was not read yet."""
        self._unanswered: dict[str, pb.CaptureRequest | None] = {}
        """What it was asked for on this connection and nothing has answered yet, oldest first:
        changes by their references, and None for the request itself. What is refused is told
        before whatever was asked later is confirmed, but may overtake confirmations."""
        self._begin(asked)

    def _begin(self, asked: pb.CaptureRequest) -> None:
        self._asked = asked
        self._tells_edges = not asked.criteria or any(
            one.area in {pb.AREA_ANY, pb.AREA_INFRASTRUCTURE} for one in asked.criteria
        )
        self._waits = asked.since.WhichOneof("since") in {"version", "commit", "timestamp"}
        """A marker does not say yet what it begins with."""
        self._newest = self.position
        self._last = (0, 0)
        self._ended_version = 0
        self._counts(None)
        self._left = asked.complete_after
        self._given: deque[_Given] = deque(maxlen=_AGAIN_MAX)
        """What was handed out last."""

    def _counts(self, version: int | None, matched: int = 0) -> None:
        self._open = version
        self._matched = matched
        self._counted = 0

    # --- what is asked --------------------------------------------------------------------------

    def change(self, asked: pb.CaptureRequest, reference: str) -> None:
        """It is to be replaced, once that is confirmed."""
        self._unanswered[reference] = asked

    def keep(self, reference: str) -> None:
        """The change of this reference was refused."""
        self._unanswered.pop(reference, None)

    def again(self) -> pb.CaptureRequest:
        """What asks a new connection for the rest of it, as it was changed last."""
        for change in self._unanswered.values():
            self._renew(change)
        self._unanswered = {"": None}
        asked = pb.CaptureRequest()
        asked.CopyFrom(self._asked)
        if self.position and not self._waits:
            asked.since.Clear()
            asked.since.progress = self.position
        if self._left:
            asked.complete_after = self._left + self._repeats()
        return asked

    def _repeats(self) -> int:
        """How much of what was handed out comes again behind `position`, and is known."""
        if not self._given or not self.position:
            return 0
        place = _sequence(self.position)
        return sum(one.comes_again(place) for one in self._given)

    def _renew(self, asked: pb.CaptureRequest | None) -> None:
        if asked is None:
            return
        last = self._last, self._ended_version
        if asked.since.WhichOneof("since") is not None:
            self.position = ""
            self._begin(asked)
            return
        waits, since, newest = self._waits, self._asked.since, self._newest
        self._begin(asked)
        # It goes on from where it is.
        self._last, self._ended_version = last
        self._newest, self._waits = newest, waits
        if waits or not self.position:
            self._asked = pb.CaptureRequest()
            self._asked.CopyFrom(asked)
            self._asked.since.CopyFrom(since)

    # --- what came ------------------------------------------------------------------------------

    def confirm(self, said: Confirmed) -> None:
        """It was taken, for the first time or again, or the oldest change of it was."""
        if self._unanswered:
            self._renew(self._unanswered.pop(next(iter(self._unanswered))))
        self.confirmed = self.confirmed or said
        if not self.position and not self._waits:
            self.position = self._newest = said.progress

    def take(self, version: int, index: int, progress: str) -> bool:
        """Whether a capture is new to it."""
        if (version, index) <= self._last or version <= self._ended_version:
            return False
        self._last = (version, index)
        self._counted += 1
        self._spend(progress)
        if self._tells_edges and (self._newest or self.position):
            self.position, self._newest = self._newest or self.position, progress
        else:
            self.position = self._newest = progress
        self._waits = False
        return True

    def take_begin(self, version: int, matched: int, progress: str) -> bool:
        """Whether the beginning of a transaction is new to it."""
        if (version, 0) <= self._last or version <= self._ended_version:
            return False
        self._last = (version, 0)
        self._counts(version, matched)
        self._spend(progress, begins=True)
        if self._waits or not self.position:
            self.position = self._newest = progress
        self._waits = False
        return True

    def take_end(self, version: int, progress: str) -> bool:
        """Whether the end of a transaction is new to it.

        Raises CapturesIncompleteError if it did not get as much as the beginning said.
        """
        if version <= self._ended_version:
            return False
        if self._open == version and self._counted != self._matched:
            raise CapturesIncompleteError(
                request=self.id, version=version, matched=self._matched, got=self._counted
            )
        self._ended_version = version
        self._counts(None)
        self._spend(progress)
        self.position = self._newest = progress
        self._waits = False
        return True

    def maintain(self, place: str) -> None:
        """The service says that all up to here was sent, or is not for it."""
        self._waits = False
        if not self._newest or _sequence(place) >= _sequence(self._newest):
            self.position = self._newest = place
        elif not self.position or _sequence(place) > _sequence(self.position):
            self.position = place

    def end(self, error: PenstockError | None = None) -> None:
        """Nothing comes for it any more."""
        self.ended = True
        self.error = error

    def _spend(self, progress: str, *, begins: bool = False) -> None:
        self._given.append(_Given(progress, begins))
        if self._left > 1:
            self._left -= 1

    def __repr__(self) -> str:
        return f"<Request {self.id!r}{' ended' if self.ended else ''}>"


def _sequence(marker: str) -> int:
    return parse_progress(marker).sequence
