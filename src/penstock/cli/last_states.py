"""What was last known of each source, kept beside the log for a service that is down.

Capture alone writes it; `penstock status` reads it when nobody answers.
"""

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from penstock.capture.status import SourceStatus
from penstock.cli.kept_file import KeptFile

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
        self._file = KeptFile(folder / NAME, unkept="states of sources are not kept")

    def read(self) -> dict[str, LastState]:
        """By source; nothing where nothing was kept, or nothing can be read."""
        try:
            found = msgspec.json.decode(self._file.path.read_bytes(), type=list[LastState])
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
        await self._file.keep(content)
