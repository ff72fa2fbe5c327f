"""What a subscription says beside captures, as JSON: over WebSocket, SSE and REST alike. Pure."""

from typing import Any

import msgspec

from penstock.errors import (
    AheadError,
    ArchiveError,
    GapError,
    HistoryUnknownError,
    MalformedProgressError,
    PenstockError,
    RateLimitedError,
    RenamedError,
    RequestError,
    ServiceUnavailableError,
    StreamChangedError,
    TrimmedError,
    UnauthenticatedError,
)
from penstock.subscribe.captures import Confirmed, Finished, Maintained


def error_said(error: PenstockError) -> dict[str, Any]:
    """An error: its code and sentence; with TRIMMED the `oldest` marker, with GAP and RENAMED the
    one `after` it."""
    said: dict[str, Any] = {"code": error.code, "message": str(error)}
    if isinstance(error, TrimmedError):
        said["oldest"] = error.oldest
    if isinstance(error, GapError | RenamedError):
        said["after"] = error.after
    return said


def error_json(error: PenstockError) -> bytes:
    """`error_said`, encoded."""
    return msgspec.json.encode(error_said(error))


def confirmed_json(confirmed: Confirmed) -> bytes:
    """Which request was taken, and where it begins."""
    said: dict[str, Any] = {
        "id": confirmed.id,
        "progress": str(confirmed.after),
        "version": confirmed.version,
    }
    if confirmed.waiting:
        said["waiting"] = True
    return msgspec.json.encode(said)


def maintained_json(maintained: Maintained) -> bytes:
    """What is safe to save; without `progress` while no request stands anywhere."""
    said: dict[str, Any] = {
        "positions": {name: str(place) for name, place in maintained.positions.items()},
        "timestamp": maintained.at,
        "intervalMs": maintained.interval_ms,
    }
    if maintained.progress is not None:
        said["progress"] = str(maintained.progress)
    return msgspec.json.encode(said)


def finished_json(finished: Finished) -> bytes:
    """Which request is over."""
    return msgspec.json.encode({"id": finished.id})


def http_status(error: PenstockError) -> int:
    """The status of an HTTP answer that is this error."""
    if isinstance(error, TrimmedError | GapError | RenamedError | HistoryUnknownError):
        return 410
    if isinstance(error, AheadError | StreamChangedError):
        return 409
    if isinstance(error, RequestError | MalformedProgressError):
        return 400
    if isinstance(error, RateLimitedError):
        return 429
    if isinstance(error, ServiceUnavailableError | ArchiveError):
        # Whatever is wrong with the archive, the request is not.
        return 503
    if isinstance(error, UnauthenticatedError):
        return 401
    return 403 if error.code.startswith("access") else 500
