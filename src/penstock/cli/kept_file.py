"""A small file beside the log that helps after a restart, and that nothing waits for."""

from pathlib import Path

import structlog

from penstock.folders import keep_whole

logger = structlog.get_logger(__name__)


class KeptFile:
    """Written whole, when its content is another one. Belongs to one event loop."""

    def __init__(self, path: Path, *, unkept: str) -> None:
        """`unkept` is logged where the disk refuses it, once until it takes it again."""
        self.path = path
        self._unkept = unkept
        self._content = b""
        self._failed = False

    async def keep(self, content: bytes) -> bool:
        """Whether the content was written, or is there already. A disk that refuses it holds
        nothing up."""
        if content == self._content:
            return True
        try:
            await keep_whole(self.path, content)
        except OSError as error:
            if not self._failed:
                logger.warning(
                    self._unkept, path=str(self.path), why=error.strerror or type(error).__name__
                )
            self._failed = True
            return False
        self._failed, self._content = False, content
        return True
