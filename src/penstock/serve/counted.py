"""What the serve process counts, at 0 from its start: Prometheus sees no increase from nothing."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from penstock.errors import (
    AccessError,
    ArchiveError,
    LogError,
    PenstockError,
    ProgressError,
    RequestError,
    ServiceUnavailableError,
    ZeroError,
)
from penstock.errors.base import codes_of
from penstock.serve.captures.protocol import Close
from penstock.telemetry import (
    EVENTS_PUBLISHED,
    INSERTS_REPEATED,
    PUBLISH_ERRORS,
    PUBLISH_LATENCY_SECONDS,
)

_ERRORS: tuple[type[PenstockError], ...] = (
    *(AccessError, ArchiveError, LogError, ProgressError, RequestError, ServiceUnavailableError),
)
_CLOSES = frozenset(str(int(one)) for one in Close)
_CODES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "grpc": frozenset({"broken"}),
        "flight": frozenset({"broken"}),
        "http": frozenset({"broken", "busy", "handshake", "invalid", "late", "upgrade"}),
        "captures-grpc": frozenset({"broken"}),
        "rest": frozenset[str](),
        "sse": frozenset[str](),
        "websocket": _CLOSES,
        "graphql": _CLOSES | {"internal"},
        "zero": codes_of(ZeroError),
    }
)
"""By protocol: what it counts besides the errors that all can answer."""


def begin_counting(sources: Iterable[str]) -> None:
    """Have every counter at 0 for each of its labels."""
    for source in sources:
        INSERTS_REPEATED.labels(source)
    PUBLISH_LATENCY_SECONDS.labels("grpc")
    for protocol, codes in _CODES.items():
        EVENTS_PUBLISHED.labels(protocol)
        for code in codes | codes_of(*_ERRORS):
            PUBLISH_ERRORS.labels(protocol, code)
