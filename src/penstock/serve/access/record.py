"""The record of who asked for what: never a token, a document, a key or a filter.

Refusals can be had by anybody, so not all are written: of each who is known, and of all others
together, so many a second. The rest is counted, and one line a minute says how many; so is what
could not be written, until it can be.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from penstock.errors import ConfigError
from penstock.serve.access.limits import Rates
from penstock.serve.access.principals import Presented, Principal
from penstock.telemetry import ACCESS_REFUSALS

log = structlog.get_logger("penstock.access")
_TEXT_MAX: Final = 200
COUNTED_SECONDS: Final = 60.0


class AccessLog:
    """A structlog event for each call, and a line in a file if there is one.

    A call is written before it is answered. Where the file cannot be written, the call is refused:
    nobody is let in unrecorded.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        refusals_per_second: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` only moves forward. Raises ConfigError if the file cannot be written."""
        self._clock = clock
        self._refusals = Rates(refusals_per_second, max(1, int(5 * refusals_per_second)), clock)
        self._counted = 0
        self._counted_at = clock()
        self._counting = threading.Lock()
        self._lock = threading.Lock()
        self._file: int | None = None
        self._path = path
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = _opened(path)
            except OSError as error:
                raise ConfigError(
                    f"access.log: {path} cannot be written: {error.strerror or error}. Nothing was "
                    f"started. Name a file that this user may write, or may make."
                ) from error

    def tell(
        self, principal: Principal | None, presented: Presented, endpoint: str, *, code: str = ""
    ) -> None:
        """`principal` (None: nobody known) asked for `endpoint`; `code` says why it was refused.

        Raises OSError if the file cannot be written.
        """
        facts = {
            "who": "" if principal is None else principal.who[:_TEXT_MAX],
            "credential": "" if principal is None else principal.id[:_TEXT_MAX],
            "endpoint": endpoint[:_TEXT_MAX],
            "peer": presented.peer[:_TEXT_MAX],
            "allowed": not code,
        }
        if not code:
            self._write_counted()
            self._write(facts)
            return
        ACCESS_REFUSALS.labels(code).inc()
        written = False
        try:
            self._write_counted()
            if not self._refusals.wait_seconds("" if principal is None else principal.who):
                self._write({**facts, "code": code})
                written = True
        finally:
            if not written:
                with self._counting:
                    self._counted += 1

    def _write_counted(self, seconds: float = COUNTED_SECONDS) -> None:
        """Say how many refusals were counted, if that was not said for so long."""
        with self._counting:
            now = self._clock()
            if not self._counted or now - self._counted_at < seconds:
                return
            counted, self._counted = self._counted, 0
            before, self._counted_at = self._counted_at, now
        nobody = {"who": "", "credential": "", "endpoint": "", "peer": "", "allowed": False}
        try:
            self._write({**nobody, "code": "access.counted", "refusals": counted})
        except OSError:
            with self._counting:
                self._counted += counted
                self._counted_at = before
            raise

    def _write(self, facts: dict[str, Any]) -> None:
        if self._file is None:
            log.info("access", **facts)
            return
        line = msgspec.json.encode({"at": round(time.time(), 3), **facts}) + b"\n"
        with self._lock:
            self._follow_rotation()
            if os.write(self._file, line) < len(line):
                raise OSError(f"{self._path} took only a part of a line: is its disk full?")
        if not facts["allowed"]:
            log.info("access", **facts)

    def close(self) -> None:
        """Say what was counted, and let go of the file."""
        try:
            self._write_counted(0.0)
        except OSError as error:
            log.warning("refusals not recorded", refusals=self._counted, error=str(error))
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _follow_rotation(self) -> None:
        """Write to the file of that name, also after somebody moved the old one away."""
        assert self._path is not None
        assert self._file is not None
        try:
            same = os.path.samestat(self._path.stat(), os.fstat(self._file))
        except FileNotFoundError:
            same = False
        if not same:
            new = _opened(self._path)
            os.close(self._file)
            self._file = new


def _opened(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    return os.open(path, flags, 0o600)
