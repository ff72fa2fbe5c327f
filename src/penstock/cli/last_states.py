"""What was last known of each source, kept beside the log for a service that is down.

Capture alone writes it; `penstock status` reads it when nobody answers.
"""

from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec import Struct

from penstock.capture.status import SourceStatus
from penstock.folders import keep_whole

logger = structlog.get_logger(__name__)

NAME: Final = "sources.json"


class LastState(Struct, frozen=True, kw_only=True):
    """How a source was when it was last looked at."""

    source: str
    state: str
    since_ms: int
    code: str = ""
    message: str = ""
    """Why it was stopped, or tried again."""


class LastStates:
    """Keeps them; written when one of them changes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._content: bytes = b""
        self._failed = False

    def read(self) -> dict[str, LastState]:
        """By source; nothing where nothing was kept, or nothing can be read."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=list[LastState])
        except (OSError, ValueError):
            return {}
        return {one.source: one for one in found}

    async def keep(self, statuses: list[SourceStatus]) -> None:
        """Write them, if there is news. A disk that refuses it holds nothing up."""
        content = msgspec.json.encode(
            [
                LastState(
                    source=one.source,
                    state=one.state.value,
                    since_ms=one.since_ms,
                    code=one.code,
                    message=one.message,
                )
                for one in statuses
            ]
        )
        if content == self._content:
            return
        try:
            await keep_whole(self._path, content)
        except OSError as error:
            if not self._failed:
                logger.warning("states of sources are not kept", error=type(error).__name__)
            self._failed = True
            return
        self._failed, self._content = False, content
