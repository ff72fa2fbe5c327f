"""Log lines: to stderr, for people on a terminal and as JSON elsewhere."""

import logging
import sys

import structlog


def configure(*, as_json: bool, process: str, level: int = logging.INFO) -> None:
    """Set up structlog for this process; `process` is on every line."""
    pretty = sys.stderr.isatty() and not as_json
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=True)
            if pretty
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    structlog.contextvars.bind_contextvars(process=process)
