"""What becomes of a batch: how it is cut, what its answer says, and what is tried again. Pure."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from penstock.trigger.records import EVENT_OVERHEAD_BYTES, Record

EVENT_BYTES_MAX: Final = 6 << 20
"""Of an event in JSON, but for a single record that is larger: Lambda's limit of a request."""


class InvalidAnswerError(ValueError):
    """The function's answer does not say which items failed; the whole batch counts as failed."""


class Piece(NamedTuple):
    """Records that are handled by one call."""

    records: tuple[Record, ...]
    failures: int = 0
    """Calls for exactly these records that failed: what counts against the retries."""
    calls: int = 0
    """Calls for them and for the batches that they were cut from."""


class Next(NamedTuple):
    """What follows a call that failed."""

    pieces: tuple[Piece, ...]
    """To be tried, in this order."""
    discarded: Piece | None = None
    """What has used up its retries, and comes before `pieces`."""


def take_batch(waiting: "deque[Record]", *, count_max: int) -> tuple[Record, ...]:
    """Take the oldest records: at most `count_max`, and an event of at most 6 MiB or one record."""
    count = fitting(waiting, count_max=count_max)
    return tuple(waiting.popleft() for _ in range(count))


def fitting(
    waiting: "Sequence[Record] | deque[Record]", *, count_max: int, beside_bytes: int = 0
) -> int:
    """How many of the oldest records one event may hold, beside so much else; at least 1 if there
    is any."""
    size, count = EVENT_OVERHEAD_BYTES + beside_bytes, 0
    for record in waiting:
        size += len(record.data) + 1
        if count == count_max or (count and size > EVENT_BYTES_MAX):
            break
        count += 1
    return count


def first_failed(answer: Any, numbers: Sequence[str], *, is_reporting: bool) -> int | None:
    """The place of the first record that the function says it did not handle; None: it did all.

    https://docs.aws.amazon.com/lambda/latest/dg/services-ddb-batchfailurereporting.html: of several
    the one with the lowest sequence number counts. None, an empty object or text, and a list that
    is empty or null mean that all is well.

    Raises InvalidAnswerError for an identifier that is empty or not of this batch, for any other
    answer, and for failures that are reported while `is_reporting` is off: Lambda would pass the
    records in the last two cases, and nobody would hear of it.
    """
    said = cast("dict[str, Any]", answer) if isinstance(answer, dict) else None
    failures: Any = None if said is None else said.get("batchItemFailures")
    if not is_reporting:
        if failures:
            raise InvalidAnswerError(
                "it reports failures, and report_batch_item_failures is not set"
            )
        return None
    if answer is None or answer == "" or said == {}:
        return None
    if said is None or "batchItemFailures" not in said:
        raise InvalidAnswerError("it has no batchItemFailures")
    if failures is None:
        return None
    if not isinstance(failures, list):
        raise InvalidAnswerError("batchItemFailures is not a list")
    places = {number: place for place, number in enumerate(numbers)}
    found = list[int]()
    for failure in _list(failures):
        item = cast("dict[str, Any]", failure) if isinstance(failure, dict) else {}
        said_number = item.get("itemIdentifier")
        place = places.get(said_number) if isinstance(said_number, str) else None
        if place is None:
            raise InvalidAnswerError("an itemIdentifier is not a sequence number of the batch")
        found.append(place)
    return min(found, default=None)


def _list(value: Any) -> list[Any]:
    listed: list[Any] = value
    return listed


def after_failure(piece: Piece, failed: int, *, bisect: bool, retries_max: int) -> Next:
    """What follows when `piece.records[failed]` is the first that was not handled.

    Those before it are done. With `bisect`, what made no progress is cut in two, which uses up no
    retry, as Lambda does it. `retries_max`: -1 = for ever.
    """
    rest = piece.records[failed:]
    # The first of the rest has failed once, whether or not the ones before it had failed too.
    failures = 1 if failed else piece.failures + 1
    is_exhausted = 0 <= retries_max < failures
    if bisect and len(rest) > 1 and (is_exhausted or not failed):
        half = len(rest) // 2
        return Next((Piece(rest[:half], 0, piece.calls), Piece(rest[half:], 0, piece.calls)))
    again = Piece(rest, failures, piece.calls)
    return Next((), again) if is_exhausted else Next((again,))


def too_old(records: Sequence[Record], *, now_seconds: float, age_seconds_max: float | None) -> int:
    """How many records, from the first on, are older than that."""
    if age_seconds_max is None:
        return 0
    oldest = now_seconds - age_seconds_max
    for place, record in enumerate(records):
        if record.arrived_seconds >= oldest:
            return place
    return len(records)


class Tracker:
    """Which records of a shard are unfinished, so that a checkpoint stays behind the lowest."""

    def __init__(self) -> None:
        self._numbers = deque[str]()
        self._finished = set[str]()

    def __len__(self) -> int:
        """How many there are from the lowest unfinished one on."""
        return len(self._numbers)

    def add(self, number: str) -> None:
        """A record was read; in the shard's order."""
        self._numbers.append(number)

    def finish(self, numbers: Sequence[str]) -> str | None:
        """These are done. The number that everything up to is done, if that has moved."""
        self._finished.update(numbers)
        reached = None
        while self._numbers and self._numbers[0] in self._finished:
            reached = self._numbers.popleft()
            self._finished.discard(reached)
        return reached
