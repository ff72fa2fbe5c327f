"""A request that is written as the query of a URL. Pure.

Either `request`, once or more, each a request as an object of JSON; or one request by its fields,
of which those of a site may be repeated, and are a choice then.
"""

from collections.abc import Collection
from typing import Any, Final

import msgspec
from starlette.datastructures import QueryParams

from penstock.errors import RequestError

_SITE: Final = ("catalog", "entityType", "operation", "containerType", "fields")
_NUMBERS: Final = ("sinceVersion", "sinceIndex", "sinceTimestamp", "completeAfter")
NAMES: Final = frozenset(
    {*_SITE, *_NUMBERS, "id", "area", "entityPrimaryKey", "content", "beforeImages", "since"}
    | {"sinceTransaction", "request"}
)
"""Of a request; an endpoint may have more."""
OPEN: Final = frozenset({"ticket"})
"""Names that are somebody else's."""


def asked_by(query: QueryParams, *, beside: Collection[str] = ()) -> list[dict[str, Any]]:
    """The requests that a query writes, at least one; names in `beside` are left alone.

    Raises RequestError for a name that nobody knows, one that says two things, and what is no JSON:
    who got everything for a slip would not notice.
    """
    names = {name for name in query if name not in OPEN and name not in beside}
    unknown = sorted(names - NAMES)
    if unknown:
        raise RequestError(
            f"{unknown[0][:64]} is no parameter of this endpoint. Nothing was sent. The parameters "
            f"are in /rest/openapi.json."
        )
    if "request" in names:
        if len(names) > 1:
            raise RequestError(
                "request is a whole request, and other parameters beside it say another. Nothing "
                "was sent. Give one or the other."
            )
        return [_object(text) for text in query.getlist("request")]
    return [_by_fields(query)]


def _object(text: str) -> dict[str, Any]:
    try:
        given: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise RequestError("request must be an object of JSON. Nothing was sent.")
    return given  # pyright: ignore[reportUnknownVariableType]


def _by_fields(query: QueryParams) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    for name in ("id", "content"):
        if (text := one_of(query, name)) is not None:
            asked[name] = text
    if (before := one_of(query, "beforeImages")) is not None:
        if before not in {"true", "false"}:
            raise RequestError("beforeImages must be true or false. Nothing was sent.")
        asked["beforeImages"] = before == "true"
    if (count := number_of(query, "completeAfter")) is not None:
        asked["completeAfter"] = count
    since = _since(query)
    if since is not None:
        asked["since"] = since
    criteria = _criteria(query)
    if criteria:
        asked["criteria"] = criteria
    return asked


def _since(query: QueryParams) -> Any:
    found: dict[str, Any] = {}
    for name, field in (
        ("sinceVersion", "version"),
        ("sinceIndex", "index"),
        ("sinceTimestamp", "timestamp"),
    ):
        text = one_of(query, name)
        if text is not None:
            is_time = field == "timestamp" and not text.isdecimal()
            found[field] = text if is_time else number_of(query, name)
    transaction = one_of(query, "sinceTransaction")
    if transaction is not None:
        is_commit = _is_number(transaction)
        found["transactionId"] = int(transaction) if is_commit else transaction
    since = one_of(query, "since")
    if since is not None and found:
        raise RequestError(
            f"since and since{next(iter(found)).title()} both say where to begin. Nothing was "
            f"sent. Give one of them."
        )
    return since if since is not None else found or None


def _criteria(query: QueryParams) -> list[dict[str, Any]]:
    site: dict[str, Any] = {name: query.getlist(name) for name in _SITE if name in query}
    if "entityPrimaryKey" in query:
        site["entityPrimaryKey"] = [key_of(text) for text in query.getlist("entityPrimaryKey")]
    areas: list[str | None] = [*query.getlist("area")]
    if not areas and site:
        areas = [None]
    return [
        {"area": area, **({"site": site} if site and area != "infrastructure" else {})}
        for area in areas
    ]


def key_of(text: str) -> Any:
    """A key as a URL writes it: JSON if it is JSON, else the text itself. The text 5 is `"5"`."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def one_of(query: QueryParams, name: str) -> str | None:
    """The value of a name that is there at most once."""
    found = query.getlist(name)
    if len(found) > 1:
        raise RequestError(f"{name} is given {len(found)} times. Nothing was sent. Give it once.")
    return found[0] if found else None


def number_of(query: QueryParams, name: str) -> int | None:
    """A whole number, not negative, of a name that is there at most once."""
    text = one_of(query, name)
    if text is None:
        return None
    if not _is_number(text):
        raise RequestError(f"{name} must be a whole number, not negative. Nothing was sent.")
    return int(text)


def _is_number(text: str) -> bool:
    # Python refuses to read thousands of digits, by an error that is not ours.
    return text.isascii() and text.isdecimal() and len(text) < 20
