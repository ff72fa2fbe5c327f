"""Changes to commits: a transaction stays whole. Pure.

The events of a transaction share one cluster time, come one after the other, and may be spread
over several replies. Where a transaction ends is not said, so it is known only by what follows:

- an event of another cluster time;
- a reply whose postBatchResumeToken is past that time: the server has looked beyond it;
- an empty reply: a replica set's server reads a transaction's operations as one and gives them out
  without waiting, so when it has nothing to give, it has given them all. (Through mongos that is
  not so: a shard's share may still be under way. Sharded clusters are refused.)
"""

from collections.abc import Callable, Sequence

from penstock.event import AnyEvent, ClusterTime, Commit, Fragment
from penstock.sources.mongodb.normalise import Change
from penstock.sources.mongodb.positions import Token

FRAGMENT_BYTES = 8 << 20
"""A transaction that holds more is handed on in fragments."""


class Assembler:
    """Groups one stream's changes, in order, into commits."""

    def __init__(self, source: str, *, place: Callable[[Token], str]) -> None:
        self._source = source
        self._place = place
        self._held: list[AnyEvent] = []
        self._held_bytes = 0
        self._time: ClusterTime | None = None
        self._token: Token | None = None
        self.fragmented = False
        """Whether fragments of the open transaction were handed on."""

    @property
    def open(self) -> bool:
        """Whether a transaction is held whose end is not yet known."""
        return self._time is not None

    @property
    def held(self) -> int:
        """How many events of it are held."""
        return len(self._held)

    def add(self, change: Change) -> Sequence[Commit | Fragment]:
        """Take one change; returns what is complete, or too large to hold."""
        event = change.event
        if self._time is None and event.transaction is None:
            place = self._place(change.token)
            events = (event, *change.also) if change.also else (event,)
            return (Commit(source=self._source, position=place, events=events),)
        if self._time is not None and event.cluster_time != self._time:
            return [self._close(), *self.add(change)]
        done: list[Commit | Fragment] = []
        if self._held_bytes + change.bytes > FRAGMENT_BYTES and self._held:
            done.append(Fragment(source=self._source, events=tuple(self._held)))
            self._held, self._held_bytes, self.fragmented = [], 0, True
        self._time = event.cluster_time
        self._token = change.token
        self._held.append(event)
        self._held += change.also
        self._held_bytes += change.bytes
        return done

    def ended_before(self, change: Change) -> Commit | None:
        """The open transaction, if `change` is not of it: then it is complete."""
        other = self._time is not None and change.event.cluster_time != self._time
        return self._close() if other else None

    def reply_ended(self, *, token: Token, empty: bool) -> Commit | None:
        """Say that a reply ended at `token`. Returns the transaction if that was its end."""
        if self._time is None:
            return None
        if token.time > self._time or empty:
            return self._close()
        return None

    def _close(self) -> Commit:
        assert self._token is not None
        commit = Commit(
            source=self._source, position=self._place(self._token), events=tuple(self._held)
        )
        self._held, self._held_bytes, self.fragmented = [], 0, False
        self._time = self._token = None
        return commit
