"""Connections to a store's server, and what is said when one breaks."""

import asyncio
import select
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from penstock.errors import PenstockError
from penstock.store.remote.calls import error_of
from penstock.store.remote.errors import OutcomeUnknownError, ServerUnavailableError

_LINE_BYTES_MAX: Final = 256 << 20
"""Beyond any answer: a page has 1 MiB of items, a batch 16 MiB, as DynamoDB counts them."""


class Lost(Exception):  # noqa: N818 - never leaves the clients
    """The connection broke."""

    def __init__(self, cause: str, *, sent: bool) -> None:
        super().__init__(cause)
        self.sent = sent
        """Whether the whole request had been handed over, so that it may have been done."""


def unavailable(address: Path, error: OSError) -> ServerUnavailableError:
    """Nobody answers there."""
    return ServerUnavailableError(
        f"no store's server answers at {address} ({error.strerror or error}). Nothing was done. "
        f"Is `penstock store serve` running?"
    )


def gone(address: Path, lost: Lost) -> ServerUnavailableError:
    """It broke off before anything was done."""
    return ServerUnavailableError(
        f"the store's server at {address} broke off ({lost}). Nothing was done. Try again."
    )


def unknown(address: Path, lost: Lost) -> OutcomeUnknownError:
    """A write was sent, and its answer is missing."""
    return OutcomeUnknownError(
        f"the store's server at {address} broke off before it answered a write ({lost}), which "
        f"may be kept or not. Read before writing again, or write with a condition or an expected "
        f"version."
    )


def undone(address: Path, lost: Lost) -> ServerUnavailableError:
    """A transaction that was not to be kept yet is lost."""
    return ServerUnavailableError(
        f"the store's server at {address} broke off inside a transaction ({lost}), which is "
        f"undone. Nothing was changed. Try again."
    )


_UNANSWERED: Final = "the answer to an earlier request was not waited for"


class Link:
    """One connection. One request at a time: whoever gives an answer up, gives the connection up.

    What came later would be taken for the answer to the next request, so there is no next one.
    """

    def __init__(self, address: Path, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._received = bytearray()
        self._unanswered = False
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.settimeout(timeout_seconds)
            self._socket.connect(str(address))
        except OSError as error:
            self._socket.close()
            raise unavailable(address, error) from error

    def close(self) -> None:
        """Let go of it."""
        self._socket.close()

    def hang_up(self) -> None:
        """End it under whoever waits on it in another thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def usable(self) -> bool:
        """Whether the server has neither hung up nor said anything unasked, nor has to."""
        if self._unanswered or self._received:
            return False
        # Not select(), which takes no descriptor from 1024 on.
        looked = select.poll()
        looked.register(self._socket, select.POLLIN)
        return not looked.poll(0)

    def send(self, line: bytes) -> None:
        """Hand a line over. Raises Lost; then the server has not got all of it."""
        if self._unanswered:
            raise Lost(_UNANSWERED, sent=False)
        self._unanswered = True
        try:
            self._socket.sendall(line)
        except OSError as error:
            said = self._last_words()
            if said is not None:
                raise said from error
            raise Lost(str(error), sent=False) from error

    def _last_words(self) -> PenstockError | None:
        """Why the server hung up, if it said so."""
        with suppress(Lost):
            return error_of(self.receive(1.0))
        return None

    def receive(self, seconds: float | None) -> bytes:
        """The next line. Raises Lost, also after so many seconds."""
        line = self.receive_within(seconds)
        if line is None:
            raise Lost("no answer came in time", sent=True)
        return line

    def receive_within(self, seconds: float | None) -> bytes | None:
        """The next line; None when none has come after so many seconds."""
        deadline = None if seconds is None else time.monotonic() + seconds
        looked = 0
        while (end := self._received.find(b"\n", looked)) < 0:
            looked = len(self._received)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self._socket.settimeout(None if left is None else max(left, 0.001))
                data = self._socket.recv(1 << 18)
            except TimeoutError:
                return None
            except OSError as error:
                raise Lost(str(error), sent=True) from error
            finally:
                with suppress(OSError):
                    self._socket.settimeout(self._timeout)
            if not data:
                raise Lost("the server hung up", sent=True)
            self._received += data
        line = bytes(self._received[: end + 1])
        del self._received[: end + 1]
        self._unanswered = False
        return line


class AsyncLink:
    """One connection; see `Link`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unanswered = False

    @classmethod
    async def open(cls, address: Path, timeout_seconds: float) -> Self:
        try:
            async with asyncio.timeout(timeout_seconds):
                opened = await asyncio.open_unix_connection(address, limit=_LINE_BYTES_MAX)
        except OSError as error:
            raise unavailable(address, error) from error
        return cls(*opened)

    def close(self) -> None:
        self._writer.transport.abort()

    def usable(self) -> bool:
        """Whether the server has not hung up, nor has to answer. What it said unasked is heard by
        the next call."""
        if self._unanswered:
            return False
        return not self._reader.at_eof() and not self._writer.is_closing()

    async def send(self, line: bytes) -> None:
        """Hand a line over. Raises Lost; then the server has not got all of it."""
        if self._unanswered:
            raise Lost(_UNANSWERED, sent=False)
        self._unanswered = True
        try:
            self._writer.write(line)
            await self._writer.drain()
        except OSError as error:
            said = await self._last_words()
            if said is not None:
                raise said from error
            raise Lost(str(error), sent=False) from error

    async def _last_words(self) -> PenstockError | None:
        with suppress(Lost):
            return error_of(await self.receive(1.0))
        return None

    async def receive(self, seconds: float | None) -> bytes:
        """The next line. Raises Lost, also after so many seconds."""
        line = await self.receive_within(seconds)
        if line is None:
            raise Lost("no answer came in time", sent=True)
        return line

    async def receive_within(self, seconds: float | None) -> bytes | None:
        """The next line; None when none has come after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                line = await self._reader.readuntil(b"\n")
        except TimeoutError:
            return None
        except asyncio.IncompleteReadError as error:
            raise Lost("the server hung up", sent=True) from error
        except OSError as error:
            raise Lost(str(error), sent=True) from error
        self._unanswered = False
        return line
