"""Waiting for a stream's next events, no longer than somebody else may wait meanwhile."""

import contextlib
import socket
import time

from penstock.errors import SourceSilentError
from penstock.sources.mysql.stream import BinlogStream


class Listener:
    """Hears one stream after the other. Blocks; one thread at a time, but for `ring`."""

    def __init__(self, source: str, *, silence_seconds_max: float) -> None:
        self._silence_seconds_max = silence_seconds_max
        self._silent = SourceSilentError(source=source, silence_seconds_max=silence_seconds_max)
        self._left: list[bytes] = []
        self._heard_at = 0.0
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)

    def begin(self, stream: BinlogStream) -> None:
        """From here on it must speak."""
        stream.deadline(self._silence_seconds_max)
        self._left = []
        self._heard_at = time.monotonic()

    def hear(self, stream: BinlogStream, *, seconds_max: float | None) -> list[bytes]:
        """The next events; none after `seconds_max`, or where the bell rang.

        Raises SourceSilentError where nothing was heard for too long (S15), and as `read`.
        """
        if self._left:
            events, self._left = self._left, []
            return events
        left = self._heard_at + self._silence_seconds_max - time.monotonic()
        seconds = left if seconds_max is None else min(left, seconds_max)
        if not stream.wait(seconds, self._bell):
            self._hear_bell()
            if time.monotonic() >= self._heard_at + self._silence_seconds_max:
                raise self._silent
            return []
        try:
            events = stream.read()
        except TimeoutError:
            raise self._silent from None
        self._heard_at = time.monotonic()
        return events

    def again(self, events: list[bytes]) -> None:
        """Have these come again first: something is to be said before them."""
        self._left = events

    def ring(self) -> None:
        """Have whoever hears return, now or when it next would wait; from any thread."""
        with contextlib.suppress(OSError):  # it is full of rings, or closed
            self._rope.send(b"\0")

    def _hear_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass

    def close(self) -> None:
        """Let go of the bell."""
        self._bell.close()
        self._rope.close()
