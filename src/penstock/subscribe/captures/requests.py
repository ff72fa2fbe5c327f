"""What a client asks to see: criteria, content, and where to begin. Pure.

A request is an object of JSON, the same on every transport (docs/reference/captures.md):

    {"id": "orders", "content": "body", "since": {"version": 12, "index": 0},
     "criteria": [{"area": "data", "site": {"entityType": "orders", "operation": ["insert"]}}]}

Criteria are alternatives; within one, all that its site names must hold; a list is a choice; what
is absent, null, "any" or "*" is anything (E6). What cannot be meant is refused with the name of the
field, for who got everything, or nothing, for a slip would not notice.
"""

import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Struct

from penstock.errors import RequestError
from penstock.progress import Progress, parse_progress

CRITERIA_MAX: Final = 64
"""Criteria of one request."""
VALUES_MAX: Final = 1_000
"""Values that one field of a site may name."""
TEXT_MAX: Final = 512
"""Characters of a name; of an id, half as many."""


class Area(StrEnum):
    """What a change is about."""

    SYSTEM = "system"
    """Catalogs and sources: started, stopped, lost, copied; gaps."""
    CATALOG_SCHEMA = "catalog_schema"
    """Collections of a catalog and their shapes."""
    ENTITY_SCHEMA = "entity_schema"
    """The shape of one collection."""
    SCHEMA = "schema"
    """Both."""
    DATA = "data"
    INFRASTRUCTURE = "infrastructure"
    """Where a transaction begins, with its counts, and where it ends."""


class Content(StrEnum):
    """How much of a change is sent."""

    HEADER = "header"
    """That it happened: where, to what, in which version."""
    BODY = "body"
    """And what there is now."""


class Container(StrEnum):
    """What part of a thing a change touches."""

    CATALOG = "catalog"
    """A database as a whole."""
    ENTITY = "entity"
    """A document; of a schema, a collection as a whole."""
    ATTRIBUTE = "attribute"
    """Fields of a document; of a schema, columns and indexes."""


class Site(Struct, frozen=True, kw_only=True):
    """Where a change must be. Empty: anywhere."""

    catalogs: frozenset[str] = frozenset()
    """Names as "source.database", or "source" for all its databases."""
    entity_types: frozenset[str] = frozenset()
    """Collections or tables."""
    keys: tuple[Any, ...] = ()
    """Primary keys: a value for keys of one field, an object for the key as it is."""
    operations: frozenset[str] = frozenset()
    """In lower case; one that ends in * is a beginning."""
    containers: frozenset[Container] = frozenset()
    fields: frozenset[str] | None = None
    """The change touches one of these, by name, or any at all if there is none; None: no matter."""


class Criterion(Struct, frozen=True, kw_only=True):
    """One of the alternatives."""

    area: Area | None = None
    site: Site = Site()


class Since(Struct, frozen=True, kw_only=True):
    """Where to begin; at most one of them is said, and none means now."""

    version: int | None = None
    index: int = 0
    """With `version`, and inclusive: 0 is the transaction's header."""
    transaction: int | str | None = None
    """Exclusive: the number of a commit, or the source's own name of one."""
    progress: Progress | None = None
    """Exclusive."""
    timestamp: int | None = None
    """Unix milliseconds, by the clock of the source; inclusive."""
    beginning: bool = False
    """The oldest change that is kept."""


NOW: Final = Since()


class CaptureRequest(Struct, frozen=True, kw_only=True):
    """What one request wants, and under what id it gets it."""

    id: str
    criteria: tuple[Criterion, ...] = (Criterion(),)
    content: Content = Content.HEADER
    before: bool = False
    """With the image before the change, where there is one; only with a body."""
    since: Since = NOW
    complete_after: int = 0
    """The request ends after so many captures; 0: never by itself."""


def parse_request(given: object, *, new_id: Callable[[], str]) -> CaptureRequest:
    """The request that a JSON object means; `new_id` names one that has no id.

    Takes the fields of the final filter model, and `scope` = {area, site, content, since} as one
    criterion with its content and start. Raises RequestError, naming the field.
    """
    asked = _object(given, "the request")
    scope = asked.pop("scope", None)
    if scope is not None:
        asked = _flattened(_object(scope, "scope"), asked)
    content = _one_of(Content, asked.pop("content", None), "content") or Content.HEADER
    before = _flag(asked.pop("beforeImages", None), "beforeImages")
    if before and content is not Content.BODY:
        raise _refused("beforeImages", "comes with a body only; ask for content = body")
    request = CaptureRequest(
        id=_id(asked.pop("id", None)) or new_id(),
        criteria=_criteria(asked.pop("criteria", None)),
        content=content,
        before=before,
        since=_since(asked),
        complete_after=_count(asked.pop("completeAfter", None), "completeAfter"),
    )
    _nothing_left(asked, "the request")
    return request


def _flattened(scope: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    if "criteria" in rest:
        raise _refused("scope", "and criteria exclude each other")
    criterion = {name: scope.pop(name) for name in ("area", "site") if name in scope}
    for name in scope:
        if name in rest:
            raise _refused(name, "is given twice, in scope and beside it")
    return {**rest, **scope, "criteria": [criterion]}


def _criteria(given: object) -> tuple[Criterion, ...]:
    if given is None or given == []:
        return (Criterion(),)
    listed = _listed(given)
    if len(listed) > CRITERIA_MAX:
        raise _refused("criteria", f"are more than {CRITERIA_MAX}")
    return tuple(_criterion(one, f"criteria[{number}]") for number, one in enumerate(listed))


_ENGINE: Final = {"engine": "system", "host": "system"}


def _criterion(given: object, where: str) -> Criterion:
    fields = _object(given, where)
    said = fields.pop("area", None)
    if isinstance(said, str):
        said = _ENGINE.get(said.lower(), said)
    area = _one_of(Area, said, f"{where}.area")
    site_given = fields.pop("site", None)
    _nothing_left(fields, where)
    if site_given is None:
        return Criterion(area=area)
    site = _site(_object(site_given, f"{where}.site"), f"{where}.site")
    if area is Area.INFRASTRUCTURE and site != Site(catalogs=site.catalogs):
        raise _refused(f"{where}.site", "of infrastructure can only name catalogs")
    if site.keys and area not in {Area.DATA, None}:
        raise _refused(f"{where}.site.entityPrimaryKey", "is of data only")
    return Criterion(area=area, site=site)


def _site(given: dict[str, Any], where: str) -> Site:
    def texts(name: str) -> frozenset[str]:
        return frozenset(_texts(given.pop(name, None), f"{where}.{name}"))

    containers = {
        _one_of(Container, one, f"{where}.containerType")
        for one in _texts(given.pop("containerType", None), f"{where}.containerType")
    }
    fields = _fields(given, where)
    if fields is not None and containers - {Container.ATTRIBUTE}:
        raise _refused(f"{where}.containerName", "names attributes; other containers have none")
    if Container.ATTRIBUTE in containers and fields is None:
        fields = frozenset[str]()
    site = Site(
        catalogs=texts("catalog"),
        entity_types=texts("entityType") | texts("collection"),
        keys=_keys(given.pop("entityPrimaryKey", None), f"{where}.entityPrimaryKey"),
        operations=frozenset(one.lower() for one in texts("operation")),
        containers=frozenset(one for one in containers if one is not None),
        fields=fields,
    )
    _nothing_left(given, where)
    return site


def _fields(given: dict[str, Any], where: str) -> frozenset[str] | None:
    """`fields`, or `containerName`: the attributes that must be touched; "any" is any at all."""
    found: frozenset[str] | None = None
    for name in ("fields", "containerName"):
        said = given.pop(name, None)
        if said is None:
            continue
        if found is not None:
            raise _refused(f"{where}.{name}", "is given twice, as fields and as containerName")
        found = frozenset(_texts(said, f"{where}.{name}"))
    return found


def _texts(given: object, where: str) -> list[str]:
    """Names; none if anything will do."""
    if given is None:
        return []
    listed = _listed(given)
    if len(listed) > VALUES_MAX:
        raise _refused(where, f"has more than {VALUES_MAX} values")
    found: list[str] = []
    for one in listed:
        if not isinstance(one, str) or not one or len(one) > TEXT_MAX:
            raise _refused(where, f"must be names of 1 to {TEXT_MAX} characters")
        found.append(one)
    return [] if any(one in {"any", "*"} for one in found) else found


def _keys(given: object, where: str) -> tuple[Any, ...]:
    if given is None or given in ("any", "*"):
        return ()
    listed = _listed(given)
    if len(listed) > VALUES_MAX:
        raise _refused(where, f"has more than {VALUES_MAX} values")
    if any(one is None or isinstance(one, list) for one in listed):
        raise _refused(where, "must be values, or objects with the fields of a key")
    if not all(map(_is_written, listed)):
        raise _refused(where, "must be what JSON can say; its numbers, what a double can hold")
    return tuple(listed)


def _is_written(key: object) -> bool:
    """Whether a log can have it. GraphQL reads 1e400 as an infinite number: JSON has none."""
    if isinstance(key, (int, float)) and not is_finite(key):
        return False
    try:
        return bool(msgspec.json.decode(msgspec.json.encode(key)) == key)
    except (msgspec.MsgspecError, TypeError, UnicodeError, RecursionError):
        return False


def is_finite(number: float) -> bool:
    """Whether a double holds it, if not all its digits; of a whole number of any length."""
    return abs(number) <= sys.float_info.max


def _since(asked: dict[str, Any]) -> Since:
    """`since`, or `sinceVersion` and `sinceIndex` of the final model."""
    given = asked.pop("since", None)
    version, index = asked.pop("sinceVersion", None), asked.pop("sinceIndex", None)
    if version is not None or index is not None:
        if given is not None:
            raise _refused("since", "and sinceVersion exclude each other")
        given = {"version": version, "index": index}
    if given is None or given == "now":
        return NOW
    if given == "beginning":
        return Since(beginning=True)
    if isinstance(given, str):
        return Since(progress=_progress(given))
    said = {name: one for name, one in _object(given, "since").items() if one is not None}
    index = said.pop("index", None)
    if index is not None and "version" not in said:
        raise _refused("since.index", "says nothing without a version")
    if len(said) > 1:
        raise _refused("since", f"says {' and '.join(sorted(said))}: only one can be meant")
    if not said:
        return NOW
    ((name, value),) = said.items()
    if name not in _SINCE:
        raise _refused(f"since.{name}", f"is unknown; there are {', '.join(sorted(_SINCE))}")
    found = _SINCE[name](value)
    if index is None:
        return found
    return Since(version=found.version, index=_count(index, "since.index"))


def _progress(given: object) -> Progress:
    if not isinstance(given, str):
        raise _refused("since.progress", "must be a marker as it came")
    return parse_progress(given)


def _version(given: object) -> Since:
    version = _count(given, "since.version")
    if version < 1:
        raise _refused("since.version", "must be at least 1, the first commit of a log")
    return Since(version=version)


def _transaction(given: object) -> Since:
    if isinstance(given, bool) or not isinstance(given, (int, str)) or given == "":
        raise _refused("since.transactionId", "must be a commit's number, or the source's own name")
    if isinstance(given, int) and given < 0:
        raise _refused("since.transactionId", "must not be negative")
    return Since(transaction=given)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _timestamp(given: object) -> Since:
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 62:
        return Since(timestamp=given)
    if isinstance(given, str):
        try:
            moment = datetime.fromisoformat(given)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return Since(timestamp=(moment - _EPOCH) // timedelta(milliseconds=1))
    raise _refused("since.timestamp", "must be Unix milliseconds, or ISO 8601 with its zone")


_SINCE: Final[Mapping[str, Callable[[object], Since]]] = {
    "version": _version,
    "transactionId": _transaction,
    "progress": lambda given: Since(progress=_progress(given)),
    "timestamp": _timestamp,
}

_Choice = TypeVar("_Choice", bound=StrEnum)


def _one_of(kind: type[_Choice], given: object, where: str) -> _Choice | None:
    """The word meant; None if it is absent, or says that any will do."""
    if given is None:
        return None
    word = given.lower() if isinstance(given, str) else None
    if word in {"any", "*"}:
        return None
    for choice in kind:
        if word == choice.value:
            return choice
    raise _refused(where, f"must be one of {', '.join(kind)}")


def _listed(given: object) -> list[Any]:
    return cast("list[Any]", given) if isinstance(given, list) else [given]  # type: ignore[redundant-cast]


def _object(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _refused(where, "must be an object")
    return dict(cast("dict[str, Any]", given))


def _nothing_left(given: Mapping[str, Any], where: str) -> None:
    if given:
        name = str(next(iter(given)))[:TEXT_MAX]
        raise _refused(name, f"is no field of {where}")


def _flag(given: object, where: str) -> bool:
    if given is None or isinstance(given, bool):
        return bool(given)
    raise _refused(where, "must be true or false")


def _count(given: object, where: str) -> int:
    if given is None:
        return 0
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 1 << 62:
        raise _refused(where, "must be a whole number, not negative")
    return given


def _id(given: object) -> str | None:
    if given is None:
        return None
    if isinstance(given, str) and re.fullmatch(r"[!-~]{1,256}", given):
        return given
    raise _refused("id", "must be 1 to 256 visible ASCII characters")


def _refused(where: str, why: str) -> RequestError:
    return RequestError(f"{where} {why}. Nothing was sent, and other requests go on.")


__all__ = [
    "NOW",
    "Area",
    "CaptureRequest",
    "Container",
    "Content",
    "Criterion",
    "Since",
    "Site",
    "parse_request",
]
