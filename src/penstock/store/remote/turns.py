"""So many at once, and the others in the order in which they came: for threads.

Those of the standard library are not fair: a thread that gives its place back and asks again at
once gets it before the one that waited.
"""

import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

from penstock.store.remote.errors import ServerBusyError


def busy(places: int, seconds: float) -> ServerBusyError:
    """The error where a client's places were all in use for so many seconds."""
    return ServerBusyError(
        f"this client's {places} connections for such calls were all in use for {seconds:g} s. "
        f"Nothing was done. Ask for less at once, or use another client."
    )


class Turns:
    """Places that threads take by turns."""

    def __init__(self, places: int) -> None:
        self._lock = threading.Lock()
        self._places = places
        self._free = places
        self._waiting = deque[threading.Event]()

    @contextmanager
    def one(self, seconds: float) -> Generator[None]:
        """A place, inside. Raises ServerBusyError where there was none for so many seconds."""
        if not self._taken(seconds):
            raise busy(self._places, seconds)
        try:
            yield
        finally:
            self._give_back()

    def _taken(self, seconds: float) -> bool:
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            mine = threading.Event()
            self._waiting.append(mine)
        try:
            mine.wait(seconds)
        except BaseException:  # as KeyboardInterrupt
            if not self._left(mine):
                self._give_back()
            raise
        return not self._left(mine)

    def _left(self, mine: threading.Event) -> bool:
        """Whether it has no place, and waits for none any more."""
        with self._lock:
            if mine.is_set():
                return False
            self._waiting.remove(mine)
            return True

    def _give_back(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1
