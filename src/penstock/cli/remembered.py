"""What a restart of capture must know of alerts: a small file beside the log.

Which gaps are open, how far the log was read for them, and what somebody was told of. Written when
one of these changes, and now and then for how far it was read. Forgetting the file costs a repeat:
the log is read for gaps from its oldest entry on, and what is open is told again.
"""

from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec import Struct, field

from penstock.capture.alerts import Told
from penstock.capture.gaps import Scanned
from penstock.cli.kept_file import KeptFile

logger = structlog.get_logger(__name__)

NAME: Final = "alerts.json"
WRITE_SECONDS: Final = 60.0
"""How often at most it is written for nothing but how far the log was read."""


class Remembered(Struct, kw_only=True):
    """The file's content."""

    scanned: Scanned = field(default_factory=Scanned)
    told: list[Told] = field(default_factory=list[Told])


class AlertMemory:
    """Keeps it over restarts. Capture alone writes it: whoever holds the log's lock."""

    def __init__(self, folder: Path) -> None:
        self._file = KeptFile(folder / NAME, unkept="alerts are not kept over a restart")
        self._news = (b"", b"")
        self._written_at = 0.0

    def read(self) -> Remembered:
        """What was kept; nothing if there is no file, or none that can be read."""
        try:
            return msgspec.json.decode(self._file.path.read_bytes(), type=Remembered)
        except FileNotFoundError:
            return Remembered()
        except (OSError, ValueError) as error:
            # What only alerts need keeps nothing from being captured. ValueError: also of text
            # that is no UTF-8, which msgspec does not make its own.
            logger.warning(
                "alerts were forgotten; open gaps are told again", error=type(error).__name__
            )
            return Remembered()

    async def keep(self, remembered: Remembered, *, steady_seconds: float) -> None:
        """Write it, if there is news.

        A disk that refuses it holds nothing up: that is logged once, and costs a repeated alert
        if this process ends before it could be written.
        """
        news = (
            msgspec.json.encode(remembered.scanned.gaps),
            msgspec.json.encode(remembered.told),
        )
        if news == self._news and steady_seconds - self._written_at < WRITE_SECONDS:
            return
        if await self._file.keep(msgspec.json.encode(remembered)):
            self._news, self._written_at = news, steady_seconds
