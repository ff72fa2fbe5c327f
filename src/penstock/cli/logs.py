"""Log lines: to stderr, for people on a terminal and as JSON elsewhere."""

import logging
import sys
from typing import Any, Literal, TextIO, cast

import structlog
from pydantic import Field
from structlog.typing import EventDict

from penstock.config import Config
from penstock.harmless import harmless

Level = Literal["debug", "info", "warning", "error"]


class LoggingConfig(Config):
    """What the service writes to stderr about itself. Never a document, a key or an address."""

    level: Level = Field("info", description="The least important line that is written.")


def set_level(level: Level) -> None:
    """Write lines of this importance and above, from now on."""
    number = getattr(logging, level.upper())
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(number))


class _Stderr:
    """What stderr is when a line is written: while a bar is drawn, lines come above it."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _harmless(_: Any, __: str, facts: EventDict) -> EventDict:
    """Facts with what others chose in them, for a terminal."""
    return {name: harmless(one) if isinstance(one, str) else one for name, one in facts.items()}


def configure(*, as_json: bool, process: str, level: int = logging.INFO) -> None:
    """Set up structlog for this process; `process` is on every line."""
    pretty = sys.stderr.isatty() and not as_json
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(
                [_harmless, structlog.dev.ConsoleRenderer(colors=True)]
                if pretty
                else [structlog.processors.JSONRenderer()]
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # structlog takes what can be written to, whatever its type says.
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Stderr())),
    )
    structlog.contextvars.bind_contextvars(process=process)
