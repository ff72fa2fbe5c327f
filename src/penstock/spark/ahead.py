"""An iterator that runs in a thread of its own, a few steps ahead at most."""

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

_Item = TypeVar("_Item")

_STEPS_MAX: Final = 4
_LOOK_SECONDS: Final = 0.1


class Ahead(Generic[_Item]):
    """Yields what `items` yields, and raises what it raises. Leave it to stop the thread."""

    def __init__(self, items: Iterator[_Item]) -> None:
        self._items = items
        self._ready: queue.Queue[tuple[bool, _Item | BaseException | None]] = queue.Queue(
            _STEPS_MAX
        )
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._left.set()
        self._thread.join()

    def __iter__(self) -> Iterator[_Item]:
        while True:
            more, item = self._ready.get()
            if isinstance(item, BaseException):
                raise item
            if not more:
                return
            yield item  # type: ignore[misc]

    def _run(self) -> None:
        try:
            for item in self._items:
                if not self._put((True, item)):
                    return
        except BaseException as error:
            # Whoever iterates raises it, in their own thread.
            self._put((False, error))
        else:
            self._put((False, None))

    def _put(self, said: tuple[bool, _Item | BaseException | None]) -> bool:
        """Hand over; False once nobody wants it any more."""
        while not self._left.is_set():
            try:
                self._ready.put(said, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
            return True
        return False
