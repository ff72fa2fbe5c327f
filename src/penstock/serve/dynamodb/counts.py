"""Counts that take long: made in a thread of their own, kept for hours, and given as they are."""

import threading
import traceback
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

import structlog

from penstock.clocks import Clock
from penstock.errors import PenstockError

_log = structlog.get_logger()

_KEPT_SECONDS: Final = 6 * 3600
_COUNTS_MAX: Final = 10_000
_Value = TypeVar("_Value")


class _Counted(NamedTuple):
    value: object
    ended_seconds: float


class Counts:
    """The last counts of whatever is counted, by its own key: at most 10,000, the newest ones."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1, "dynamodb-counts")
        self._lock = threading.Lock()
        self._counted = dict[Hashable, _Counted]()
        self._counting = set[Hashable]()

    @property
    def stopping(self) -> bool:
        """Whether a count that is being made should end, with None."""
        return self._stopping.is_set()

    def last(self, key: Hashable, kind: type[_Value]) -> _Value | None:
        """The last count, however old; None where there is none yet."""
        with self._lock:
            counted = self._counted.get(key)
        return counted.value if counted is not None and isinstance(counted.value, kind) else None

    def renew(
        self,
        key: Hashable,
        count: Callable[[], object],
        *,
        table: str,
        at_once: bool = False,
    ) -> None:
        """Have it counted if the last count is six hours old, or there is none, or `at_once`.

        `count` returns None for what is not there any more. `table` is what the log calls it.
        """
        with self._lock:
            last = self._counted.get(key)
            now = self._clock.steady_seconds()
            old = last is None or now - last.ended_seconds > _KEPT_SECONDS
            if (old or at_once) and key not in self._counting and not self._stopping.is_set():
                self._counting.add(key)
                self._thread.submit(self._count, key, count, table)

    def close(self) -> None:
        """Stop after the step that is under way."""
        self._stopping.set()
        self._thread.shutdown(cancel_futures=True)

    def _count(self, key: Hashable, count: Callable[[], object], table: str) -> None:
        value = None
        try:
            value = count()
        except PenstockError as error:
            _log.warning("a DynamoDB table was not counted", table=table, error=str(error))
        except Exception as error:  # a defect here must not go unseen; its text may quote an item
            kind, where = type(error).__name__, traceback.format_tb(error.__traceback__)
            _log.error("a DynamoDB table was not counted", table=table, error=kind, where=where)
        finally:
            with self._lock:
                self._counting.discard(key)
                self._counted.pop(key, None)
                if value is not None:
                    self._counted[key] = _Counted(value, self._clock.steady_seconds())
                while len(self._counted) > _COUNTS_MAX:
                    del self._counted[next(iter(self._counted))]
