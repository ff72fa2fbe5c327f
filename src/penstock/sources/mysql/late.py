"""Telling that a table is waited for, where nobody would see why a copy does not go on."""

from typing import Final

import structlog

logger = structlog.get_logger(__name__)

FIRST_SECONDS: Final = 30.0
"""What passes by itself has passed by then."""
NEXT_SECONDS: Final = 600.0


class Late:
    """How long one copy has tried to read what it can tell, and failed."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._since: float | None = None
        self._due = 0.0

    def said(self, table: str, why: str, now: float) -> None:
        """A table cannot be read `now`, a moment in seconds: a warning, where that has been so for
        long, and again where it goes on."""
        if self._since is None:
            self._since, self._due = now, now + FIRST_SECONDS
        elif now >= self._due:
            self._due = now + NEXT_SECONDS
            logger.warning(
                "a copy waits: a table cannot be read, and is tried again; the stream goes on",
                source=self._source,
                table=table,
                why=why,
                seconds=round(now - self._since),
            )

    def read(self) -> None:
        """It could be read, and is told."""
        self._since = None
