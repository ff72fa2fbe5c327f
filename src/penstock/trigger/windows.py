"""Tumbling windows: what a function adds up over the records of one span of time after another.

The state that it answers with is kept with the place in the shard, in one write, so that after a
crash each record is in it once more or not at all, as the records are that come again. Pure.

Names and members are Lambda's:
https://docs.aws.amazon.com/lambda/latest/dg/services-ddb-windows.html
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec
from msgspec import Raw, Struct

from penstock.trigger.batches import InvalidAnswerError
from penstock.trigger.records import Record, event_of

STATE_BYTES_MAX: Final = 1 << 20
"""Of a state in JSON; a larger one ends its window early."""
_QUIET_SECONDS_MAX: Final = 120
_EMPTY: Final = Raw(b"{}")


class Window(Struct, frozen=True, omit_defaults=True):
    """One that is under way."""

    start: int
    """Unix seconds: a multiple of its length."""
    seconds: int
    state: Raw = _EMPTY

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.start + self.seconds


class _Answered(Struct, frozen=True):
    window: Window | None


class Windows:
    """The windows of one shard, one after the other."""

    def __init__(self, *, seconds: int, shard: str, stream: str, window: Window | None) -> None:
        """`window` is the one that was under way when the trigger stopped."""
        self._seconds, self._shard, self._stream = seconds, shard, stream
        self.open = window
        """The one that is under way, with the state of the records that are finished."""
        self._answered: _Answered | None = None

    @property
    def is_full(self) -> bool:
        """Whether the state of the open one has become too large to go on with."""
        return self.state_bytes > STATE_BYTES_MAX

    def has(self, record: Record) -> bool:
        """Whether a record is of the open window, or would open its own. One that is told late is
        of the window that is open by then."""
        return self.open is None or record.arrived_seconds < self.open.end

    @property
    def state_bytes(self) -> int:
        """Of the state that each event of the open one has."""
        return 0 if self.open is None else len(bytes(self.open.state))

    def leading(self, records: Sequence[Record]) -> int:
        """How many of them, from the first on, are of the open window, or of the first's own."""
        if not records:
            return 0
        end = (self.open or self._of(records[0])).end
        late = (place for place, one in enumerate(records) if one.arrived_seconds >= end)
        return next(late, len(records))

    def begin(self, record: Record) -> None:
        """Open the window of a record, unless one is open."""
        if self.open is None:
            self.open = self._of(record)

    def is_over(self, *, quiet_seconds: float, now_seconds: float) -> bool:
        """Whether no more records of it are to be expected at that Unix time, from a shard that has
        told none for so long. A service may be slow to show what came, and a page without records
        is no shard without: it is given as long as the window, and two minutes at most, which is
        how long Lambda waits."""
        if self.open is None or now_seconds < self.open.end:
            return False
        return quiet_seconds >= min(self.open.seconds, _QUIET_SECONDS_MAX)

    def event(self, records: Sequence[Record]) -> bytes:
        """The event of records of the open window, in JSON; without any, that of its end."""
        assert self.open is not None
        window = self.open
        facts = {
            "window": {"start": _instant(window.start), "end": _instant(window.end)},
            "state": window.state,
            "shardId": self._shard,
            "eventSourceARN": self._stream,
            "isFinalInvokeForWindow": not records,
            "isWindowTerminatedEarly": not records and self.is_full,
        }
        return event_of(records)[:-1] + b"," + msgspec.json.encode(facts)[1:]

    def answered(self, answer: Any, *, is_final: bool) -> None:
        """The function took its records; what it answered counts from `commit` on.

        Raises InvalidAnswerError for one that would lose what was added up before.
        """
        if is_final:
            self.close()
            return
        assert self.open is not None
        state = cast("dict[str, Any]", answer).get("state") if isinstance(answer, dict) else None
        if not isinstance(state, dict):
            raise InvalidAnswerError("it has no state, an object, as each answer in a window has")
        written = Raw(msgspec.json.encode(cast("dict[str, Any]", state)))
        self._answered = _Answered(msgspec.structs.replace(self.open, state=written))

    def close(self) -> None:
        """Its end was handled: from `commit` on none is open, or, behind an early end, it is with
        an empty state."""
        assert self.open is not None
        rest = Window(self.open.start, self.open.seconds) if self.is_full else None
        self._answered = _Answered(rest)

    def commit(self) -> None:
        """What was answered holds; at the moment in which its records are finished."""
        if self._answered is not None:
            self.open, self._answered = self._answered.window, None

    def _of(self, record: Record) -> Window:
        start = int(record.arrived_seconds // self._seconds) * self._seconds
        return Window(start, self._seconds)


def without_state(answer: Any) -> Any:
    """What an answer says beside the state."""
    if not isinstance(answer, dict):
        return answer
    said = cast("dict[str, Any]", answer)
    return {name: value for name, value in said.items() if name != "state"}


def _instant(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
