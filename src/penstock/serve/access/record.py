"""The record of who asked for what: never a token, a document, a key or a filter."""

import os
import threading
import time
from pathlib import Path
from typing import Final

import msgspec
import structlog

from penstock.errors import ConfigError
from penstock.serve.access.principals import Presented, Principal

log = structlog.get_logger("penstock.access")
_TEXT_MAX: Final = 200


class AccessLog:
    """A structlog event for each call, and a line in a file if there is one.

    A call is written before it is answered. Where the file cannot be written, the call is refused:
    nobody is let in unrecorded.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError if the file cannot be written."""
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
        if code:
            facts["code"] = code
        if self._file is None:
            log.info("access", **facts)
            return
        line = msgspec.json.encode({"at": round(time.time(), 3), **facts}) + b"\n"
        with self._lock:
            self._follow_rotation()
            if os.write(self._file, line) < len(line):
                raise OSError(f"{self._path} took only a part of a line: is its disk full?")
        if code:
            log.info("access", **facts)

    def close(self) -> None:
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
