"""Which requests an entry of the log is for. Pure.

Requests are compiled once; what of them can match a stream (source, database, collection) is found
once a stream. A set of requests is an int, with a bit for each. An entry of a stream that nobody
asks for costs nothing, and one that needs no look at its key or fields costs a look-up.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from penstock.errors import GapError, RenamedError, RequestError
from penstock.event import Kind, Operation
from penstock.subscribe.captures.keys import forms_of, forms_of_stored
from penstock.subscribe.captures.requests import (
    Area,
    CaptureRequest,
    Container,
    Site,
)
from penstock.subscribe.captures.touched import meets, touched
from penstock.subscribe.scope import EVERYTHING, Scope, Verb
from penstock.wire import OPERATION_CODES, Block, Mask, Stream, decode_message, key_shown

_STREAMS_MAX: Final = 10_000
_CODES: Final = len(OPERATION_CODES)
_UPSERT: Final = frozenset({Operation.INSERT, Operation.UPDATE, Operation.REPLACE})
_SHAPES: Final[Mapping[str, Container]] = {
    **dict.fromkeys(("dropdatabase", "createdatabase", "alterdatabase"), Container.CATALOG),
    **dict.fromkeys(("create", "drop", "rename", "truncate", "invalidate"), Container.ENTITY),
}
"""What a change of shape is of, by its word in lower case; others are of attributes."""
_GONE: Final = frozenset({"drop", "dropdatabase", "dropindexes"})


class Match(NamedTuple):
    """An entry, and for whom it is."""

    i: int
    requests: int
    ended: int = 0
    """Requests that cannot go past this entry: see `Matcher.ending`."""


class Control(NamedTuple):
    """An event that is no change of data, as far as filters look."""

    kind: Kind
    operation: str
    renamed_to: tuple[str, str] | None
    """The database and collection that a rename fills."""


class Conditional(NamedTuple):
    """A criterion that must see an entry itself."""

    codes: frozenset[int]
    """Of its operations."""
    fields: frozenset[str] | None
    requests: int


class Plan:
    """What of the requests can match one stream."""

    def __init__(self) -> None:
        self.by_code = [0] * _CODES
        """Requests by the operation of a data entry: these need no second look."""
        self.conditional: list[Conditional] = []
        self.by_key: dict[bytes, list[Conditional]] = {}
        self.infrastructure = 0
        self.mask: Mask | None = None
        """Set where fields are hidden: keys are compared as they are shown."""

    @property
    def has_data(self) -> bool:
        return bool(any(self.by_code) or self.conditional or self.by_key)

    @property
    def is_empty(self) -> bool:
        return not (self.has_data or self.infrastructure)


class Matcher:
    """The requests of one lane, compiled. Requests are known by their place in `requests`."""

    def __init__(self, requests: Sequence[CaptureRequest], scope: Scope = EVERYTHING) -> None:
        self.requests = tuple(requests)
        self.scope = scope
        self._plans: dict[Stream, Plan] = {}
        self._masks: dict[Stream, Mask | None] = {}
        self._masks_nothing = scope.is_everything
        self.infrastructure = _bits(
            any(one.area in {None, Area.INFRASTRUCTURE} for one in request.criteria)
            for request in requests
        )
        """Requests that get the beginning and end of transactions."""

    def headers(self, stream: Stream) -> int:
        """Requests that get the beginning and end of a transaction that touches `stream`."""
        return self.plan(stream).infrastructure

    def mask(self, stream: Stream) -> Mask | None:
        """What is left out of what is sent of `stream`; None for nothing."""
        if self._masks_nothing:
            return None
        if stream not in self._masks:
            if len(self._masks) >= _STREAMS_MAX:
                self._masks.clear()
            self._masks[stream] = self.scope.mask(stream)
        return self._masks[stream]

    def select(self, block: Block, entries: Sequence[int] | None = None) -> list[Match]:
        """The entries in view that are for somebody, in order; of `entries`, if they are given,
        which are changes of data."""
        if entries is not None:
            return self._select_of(block, entries)
        start, stop = block.start, block.stop
        plans = [self.plan(stream) for stream in block.streams]
        kinds: list[int] = block.kinds()[start:stop].tolist()
        control = any(kinds)
        if not control and not any(plan.has_data for plan in plans):
            return []
        numbers: list[int] = block.stream_numbers()[start:stop].tolist()
        codes: list[int] = block.index["operation"][start:stop].tolist()
        found: list[Match] = []
        for at, (number, code) in enumerate(zip(numbers, codes, strict=True)):
            i = start + at
            if control and kinds[at]:
                match = self._control(block, i)
                if match.requests or match.ended:
                    found.append(match)
                continue
            plan = plans[number]
            requests = plan.by_code[code]
            if plan.conditional or plan.by_key:
                requests |= _looked_at(plan, block, i, code)
            if requests:
                found.append(Match(i, requests))
        return found

    def _select_of(self, block: Block, entries: Sequence[int]) -> list[Match]:
        found: list[Match] = []
        codes = block.index["operation"]
        for i in entries:
            plan, code = self.plan(block.stream(i)), int(codes[i])
            requests = plan.by_code[code] | _looked_at(plan, block, i, code)
            if requests:
                found.append(Match(i, requests))
        return found

    def plan(self, stream: Stream) -> Plan:
        """What of `stream` could be for somebody."""
        plan = self._plans.get(stream)
        if plan is None:
            if len(self._plans) >= _STREAMS_MAX:
                self._plans.clear()
            plan = self._plans[stream] = self._planned(stream)
        return plan

    def _planned(self, stream: Stream) -> Plan:
        plan = Plan()
        reads = self.scope.allows(Verb.READ, stream)
        if not reads and not self.scope.allows(Verb.SCHEMA, stream):
            return plan
        mask = self.mask(stream)
        plan.mask = mask if mask is not None and mask.hides_rows else None
        for bit, request in enumerate(self.requests):
            for area, site in ((one.area, one.site) for one in request.criteria):
                if not _of_catalog(site, stream):
                    continue
                if area in {None, Area.INFRASTRUCTURE}:
                    plan.infrastructure |= 1 << bit
                if area in {None, Area.DATA} and reads and stream.collection:
                    _add(plan, site, stream, 1 << bit)
        return plan

    # --- what is not data -----------------------------------------------------------------------

    def _control(self, block: Block, i: int) -> Match:
        stream = block.stream(i)
        event = control_of(block, i)
        seen = self.scope.allows(Verb.SCHEMA, stream)
        requests = ended = 0
        for bit, request in enumerate(self.requests):
            wanted = seen and any(
                _wants(one.area, one.site, stream, event) for one in request.criteria
            )
            renamed = None if wanted else self._renamed(request, stream, event)
            if wanted or (seen and renamed is not None):
                requests |= 1 << bit
            elif renamed is not None or (event.kind is Kind.GAP and self._follows(request, stream)):
                ended |= 1 << bit
        return Match(i, requests, ended)

    def ending(self, block: Block, i: int, request: int) -> GapError | RenamedError:
        """Why a request, by its bit, cannot go past entry `i`: a gap of what it follows, or a
        rename of it that its principal may not be shown."""
        stream, after = block.stream(i), block.progress(i)
        renamed = self._renamed(self.requests[request], stream, control_of(block, i))
        if renamed is not None:
            return RenamedError(after=after, collection=renamed.collection)
        return GapError(
            after=after,
            description=f"{stream.source}: ask for the area system to be told what, and go on",
        )

    def _renamed(self, request: CaptureRequest, stream: Stream, event: Control) -> Stream | None:
        """The name that the request follows and a rename takes or fills (E12); None for others.

        One that names no collection follows all that it may read: a rename among those is none
        to it, and one that leads into what it follows, or out of it, is.
        """
        if event.renamed_to is None:
            return None
        database, collection = event.renamed_to
        tenant = database if stream.tenant == stream.database else stream.tenant
        filled = stream._replace(database=database, tenant=tenant, collection=collection)
        ends = [one for one in (stream, filled) if self.scope.shows(one)]
        for area, site in ((one.area, one.site) for one in request.criteria):
            followed = [one for one in ends if _of_catalog(site, one)]
            if site.entity_types and area is not Area.INFRASTRUCTURE:
                followed = [one for one in followed if one.collection in site.entity_types]
            elif area not in {None, Area.DATA} or len(followed) == 2:
                continue
            if followed:
                return followed[0]
        return None

    def _follows(self, request: CaptureRequest, stream: Stream) -> bool:
        """Whether a gap of `stream` may hide something that the request asks for."""
        return self.scope.shows(stream) and any(
            one.area is not Area.SYSTEM
            and _of_catalog(one.site, stream)
            and (not stream.collection or _named(one.site.entity_types, stream.collection))
            for one in request.criteria
        )


def require_shown(request: CaptureRequest, scope: Scope) -> None:
    """Raises RequestError for a field of which something is hidden: what matches would tell when it
    changes."""
    for name in {name for one in request.criteria for name in one.site.fields or ()}:
        if scope.may_hide(name):
            raise RequestError(
                "fields names one that is not there in every document that you may read. Nothing "
                "was changed. Take another one."
            )


def control_of(block: Block, i: int) -> Control:
    """What filters look at of an event that is no change of data."""
    event: Any = decode_message(block.message(i)).event
    kind = block.kind(i)
    renamed = None
    if kind is Kind.SCHEMA and event.operation == "rename":
        renamed = _renamed_to(msgspec.json.decode(event.description), event.database)
    return Control(kind, event.operation.lower(), renamed)


def _renamed_to(description: Mapping[str, Any], database: str) -> tuple[str, str] | None:
    to = description.get("to")
    if isinstance(to, Mapping):
        named = cast("Mapping[str, Any]", to)
        return str(named.get("db", database)), str(named.get("coll", ""))
    return None


def _bits(flags: Any) -> int:
    return sum(1 << bit for bit, flag in enumerate(flags) if flag)


def _named(names: frozenset[str], name: str) -> bool:
    return not names or name in names


def _of_catalog(site: Site, stream: Stream) -> bool:
    """Whether the stream is of a catalog that the site names. What is about a whole source is about
    every catalog of it."""
    if not site.catalogs:
        return True
    if stream.source in site.catalogs:
        return True
    if not stream.database:
        return any(name.startswith(f"{stream.source}.") for name in site.catalogs)
    return f"{stream.source}.{stream.database}" in site.catalogs


def _add(plan: Plan, site: Site, stream: Stream, request: int) -> None:
    """Let `request` match the data of `stream` that `site` names."""
    if not _named(site.entity_types, stream.collection):
        return
    if site.containers and not site.containers & {Container.ENTITY, Container.ATTRIBUTE}:
        return
    codes = frozenset(
        code
        for operation, code in OPERATION_CODES.items()
        if operation and _operates(site.operations, str(operation), operation in _UPSERT)
    )
    fields = None if Container.ENTITY in site.containers else site.fields
    if not site.keys and fields is None:
        for code in codes:
            plan.by_code[code] |= request
        return
    condition = Conditional(codes, fields, request)
    if not site.keys:
        plan.conditional.append(condition)
        return
    for form in {one for key in site.keys for one in forms_of(key)}:
        plan.by_key.setdefault(form, []).append(condition)


def _operates(wanted: frozenset[str], operation: str, upserts: bool) -> bool:
    """Whether an operation is one of the `wanted` words."""
    if not wanted:
        return True
    words = {operation.lower(), "upsert" if upserts else "remove"}
    return any(
        word in words or (word.endswith("*") and any(one.startswith(word[:-1]) for one in words))
        for word in wanted
    )


def keys_of(block: Block, i: int, mask: Mask | None) -> tuple[bytes, ...]:
    """What requests may call the key of entry `i`, in the forms of `keys`: whole, and the value of
    its only field."""
    key = block.cell(i, "key")
    if mask is not None:
        # A guess at what is hidden in it is a key that is not there.
        stream = block.stream(i)
        key, _ = key_shown(key, mask, (stream.source, stream.database, stream.collection))
    return forms_of_stored(key) if key else ()


def _looked_at(plan: Plan, block: Block, i: int, code: int) -> int:
    """The requests of `plan` that want entry `i`, by its key and what it touches."""
    candidates = list(plan.conditional)
    if plan.by_key:
        for key in keys_of(block, i, plan.mask):
            candidates += plan.by_key.get(key, ())
    requests = 0
    paths: frozenset[str] | None = None
    for codes, fields, request in candidates:
        if code not in codes:
            continue
        if fields is not None:
            paths = touched(block, i) if paths is None else paths
            if not meets(paths, fields):
                continue
        requests |= request
    return requests


def _of_area(area: Area, stream: Stream, event: Control) -> bool:
    """Whether an event that is no change of data is of an area."""
    shape = event.kind is Kind.SCHEMA
    if area is Area.SYSTEM:
        return not shape or _SHAPES.get(event.operation) is Container.CATALOG
    if area is Area.ENTITY_SCHEMA:
        return shape and bool(stream.collection)
    return shape and area in {Area.CATALOG_SCHEMA, Area.SCHEMA}


def _wants(area: Area | None, site: Site, stream: Stream, event: Control) -> bool:
    """Whether a criterion is met by an event that is no change of data."""
    if area is not None and not _of_area(area, stream, event):
        return False
    if not _of_catalog(site, stream) or site.keys or site.fields:
        return False
    if not _operates(site.operations, event.operation, event.operation not in _GONE):
        return False
    if site.containers and _SHAPES.get(event.operation, Container.ATTRIBUTE) not in site.containers:
        return False
    return not site.entity_types or (
        stream.collection in site.entity_types
        if stream.collection
        else event.kind is not Kind.SCHEMA or event.operation == "dropdatabase"
    )
