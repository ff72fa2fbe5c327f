"""Query and Scan: pages of at most 1 MiB of items that were looked at, of a table or an index."""

from typing import Any, Final, cast

from msgspec import Struct

from penstock.serve.dynamodb.capacity import Spent, consumed, item_size, read_units, wants_capacity
from penstock.serve.dynamodb.endpoint import Endpoint
from penstock.serve.dynamodb.errors import validation
from penstock.serve.dynamodb.indexes import (
    index_named,
    projected_names,
    settings_of,
    shown_by,
)
from penstock.serve.dynamodb.items import projected
from penstock.serve.dynamodb.keys import INVALID, MISFIT, attributes, check_key, refuse_value
from penstock.store import Item, ItemPage, Table, View
from penstock.store.attributevalue import NAME_TOO_LONG, decode_attributes, encode_attributes
from penstock.store.conditions import holds
from penstock.store.errors import ValueRefusedError, dynamodb_text
from penstock.store.expressions.keys import KeyCondition, key_condition
from penstock.store.expressions.request import RequestExpressions, read_expressions, refuse_mixture
from penstock.store.indexes import as_table
from penstock.store.kinds import type_of
from penstock.store.queries import (
    Range,
    SortBound,
    partition_range,
    segment_range,
    table_range,
)
from penstock.store.schema import Index
from penstock.store.values import Scalar

_INVALID_START: Final = "The provided starting key is invalid"


class _Source(Struct, frozen=True):
    """What is read: a table, or an index of one."""

    table: Table
    index: Index | None

    @property
    def keyed(self) -> Table:
        """By whose keys items are found and ordered."""
        return self.table if self.index is None else as_table(self.table, self.index)

    @property
    def fetches(self) -> bool:
        """Whether it may read what it does not project from the table: a local index does."""
        return self.index is None or settings_of(self.index).local

    def page(
        self,
        view: View,
        request: dict[str, Any],
        asked: RequestExpressions,
        keys: Range,
        start: Item | None,
        now_ms: int,
    ) -> ItemPage:
        """A page of what a request asks.

        It ends where the service's does, with the item that reaches `Limit` or 1 MiB. A Query that
        can find one item only cannot be gone on with, and says nothing to go on after.
        """
        one = asked.key is not None and self.index is None and self.table.sort_key is None
        limit, reverse = request.get("Limit"), not request.get("ScanIndexForward", True)
        if self.index is None:
            return view.page(
                self.table,
                keys,
                now_ms=now_ms,
                limit=limit,
                start=start,
                reverse=reverse,
                condition=asked.condition,
                stops=not one,
            )
        fetched = self.is_fetched(request, asked)
        return view.index_page(
            self.table,
            self.index,
            keys,
            now_ms=now_ms,
            limit=limit,
            start=start,
            reverse=reverse,
            # What is fetched is counted before it is filtered.
            condition=None if fetched else asked.condition,
            seen=None if fetched else shown_by(self.table, self.index),
            stops=True,
        )

    def is_fetched(self, request: dict[str, Any], asked: RequestExpressions) -> bool:
        """Whether items are read from the table, for what a local index does not project."""
        if self.index is None or not self.fetches:
            return False
        return _wants_more(self.table, self.index, request, asked)

    def spent(self, request: dict[str, Any], asked: RequestExpressions, page: ItemPage) -> Spent:
        """What a page consumed, before items that were fetched are filtered.

        Each of those costs the table what it costs to read it whole (developer guide: Local
        secondary indexes, read capacity units).
        """
        consistent = bool(request.get("ConsistentRead", False))
        if self.index is None or not self.is_fetched(request, asked):
            return Spent.read(read_units(page.size, consistent=consistent), self.index)
        show = shown_by(self.table, self.index)
        found = sum(item_size(show(item)) for item in page.items)
        whole = sum(read_units(item_size(item), consistent=consistent) for item in page.items)
        return Spent.read(read_units(found, consistent=consistent), self.index) + Spent(whole)


def query(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Items of one partition, by sort key."""
    refuse_mixture(request, "Query")
    start = _start(request)
    asked = read_expressions(request, "Query")
    assert asked.key is not None, "a Query without a key condition is refused"
    _refuse_select(request)
    with endpoint.store.view() as view:
        source = _source(endpoint, view, request)
        keyed = source.keyed
        wanted = key_condition(asked.key, keyed.partition_key, keyed.sort_key)
        asked.refuse_keys(keyed.key_names, query=True)
        _refuse_unprojected(source, request, asked)
        _refuse_values(keyed, wanted)
        partition: Item = {keyed.partition_key.name: wanted.partition}
        bound = None
        if wanted.sort is not None:
            bound = SortBound(wanted.sort.op, cast("tuple[Scalar, ...]", wanted.sort.values))
        keys = partition_range(keyed, partition, bound)
        if start is not None:
            _refuse_start(source, start, said="")
            if not partition_range(keyed, partition, None).has(keyed.key(start)):
                raise validation(
                    "The provided starting key is outside query boundaries based on provided "
                    "conditions"
                )
            if source.index is None and keyed.sort_key is None:
                raise validation("The query can return at most one row and cannot be restarted")
            if not keys.has(keyed.key(start)):
                raise validation("The provided starting key does not match the range key predicate")
        page = source.page(view, request, asked, keys, start, endpoint.now_ms)
    return _answer(request, source, asked, page)


def scan(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Items of a whole table or index, or of one segment of it."""
    refuse_mixture(request, "Scan")
    start = _start(request)
    _refuse_segment(request)
    asked = read_expressions(request, "Scan")
    _refuse_select(request)
    with endpoint.store.view() as view:
        source = _source(endpoint, view, request)
        asked.refuse_keys(source.keyed.key_names)
        _refuse_unprojected(source, request, asked)
        keys = table_range(source.keyed)
        if "Segment" in request:
            keys = segment_range(source.keyed, request["Segment"], request["TotalSegments"])
        if start is not None:
            _refuse_start(source, start, said=f": {MISFIT}")
            if not keys.has(source.keyed.key(start)):
                raise validation(
                    f"{_INVALID_START}: Invalid ExclusiveStartKey. Please use "
                    f"ExclusiveStartKey with correct Segment. TotalSegments: "
                    f"{request['TotalSegments']} Segment: {request['Segment']}"
                )
        page = source.page(view, request, asked, keys, start, endpoint.now_ms)
    return _answer(request, source, asked, page)


def _source(endpoint: Endpoint, view: View, request: dict[str, Any]) -> _Source:
    table = endpoint.table(view, endpoint.name(request))
    if "IndexName" not in request:
        return _Source(table, None)
    index = index_named(table, request["IndexName"])
    if not index.ready:
        raise validation(f"Cannot read from backfilling global secondary index: {index.name}")
    if request.get("ConsistentRead") and not settings_of(index).local:
        raise validation("Consistent reads are not supported on global secondary indexes")
    return _Source(table, index)


def _answer(
    request: dict[str, Any],
    source: _Source,
    asked: RequestExpressions,
    page: ItemPage,
) -> dict[str, Any]:
    items, condition = page.items, asked.condition
    if condition is not None and source.is_fetched(request, asked):
        items = [item for item in items if holds(condition, item)]
    told: dict[str, Any] = {"Count": len(items), "ScannedCount": page.evaluated}
    if request.get("Select") != "COUNT":
        told["Items"] = [projected(asked, item) for item in items]
    if page.last_key is not None:
        told["LastEvaluatedKey"] = encode_attributes(page.last_key)
    if wants_capacity(request):
        told |= consumed(request, request["TableName"], source.spent(request, asked, page))
    return told


def _start(request: dict[str, Any]) -> Item | None:
    given = request.get("ExclusiveStartKey")
    try:
        return None if given is None else decode_attributes(given)
    except ValueRefusedError as error:
        if dynamodb_text(error) == NAME_TOO_LONG:
            raise
        raise validation(f"{_INVALID_START}: {dynamodb_text(error)}") from error


def _refuse_start(source: _Source, start: Item, *, said: str) -> None:
    """Refuse to go on after what is no key of the table, or of the table and the index."""
    key_names = {*source.table.key_names, *source.keyed.key_names}
    if set(start) != key_names:
        raise validation(f"{_INVALID_START}{said}")
    if source.index is not None:
        for attribute in attributes(source.index):
            if type_of(start[attribute.name]).value != attribute.type.value:
                raise validation(f"{_INVALID_START}: {MISFIT}")
            sort = attribute is source.index.sort_key
            refuse_value(attribute, start[attribute.name], sort=sort)
    check_key(source.table, source.table.keys_of(start), said=f"{_INVALID_START}: ")


def _refuse_values(keyed: Table, wanted: KeyCondition) -> None:
    refuse_value(keyed.partition_key, wanted.partition, sort=False)
    if keyed.sort_key is not None and wanted.sort is not None:
        for value in wanted.sort.values:
            refuse_value(keyed.sort_key, value, sort=True)


def _refuse_select(request: dict[str, Any]) -> None:
    select = request.get("Select")
    if select == "ALL_PROJECTED_ATTRIBUTES" and "IndexName" not in request:
        raise validation(
            "ALL_PROJECTED_ATTRIBUTES can be used only when Querying using an IndexName"
        )
    projections = [name for name in ("ProjectionExpression", "AttributesToGet") if name in request]
    if select == "SPECIFIC_ATTRIBUTES" and not projections:
        raise validation(
            "Must specify the AttributesToGet or ProjectionExpression when choosing to get "
            "SPECIFIC_ATTRIBUTES"
        )
    if projections and select in {"ALL_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES", "COUNT"}:
        only = "only the Count" if select == "COUNT" else select
        raise validation(f"Cannot specify the {projections[0]} when choosing to get {only}")


def _refuse_unprojected(
    source: _Source, request: dict[str, Any], asked: RequestExpressions
) -> None:
    """Refuse to read from a global index what it does not project."""
    if source.fetches or source.index is None:
        return
    if request.get("Select") == "ALL_ATTRIBUTES" and settings_of(source.index).projection != "ALL":
        raise validation(
            f"{INVALID}Select type ALL_ATTRIBUTES is not supported for global secondary index "
            f"{source.index.name} because its projection type is not ALL"
        )
    missing = _unprojected(source.table, source.index, asked)
    if missing:
        raise validation(
            f"{INVALID}Global secondary index {source.index.name} does not project "
            f"[{', '.join(missing)}]"
        )


def _wants_more(
    table: Table, index: Index, request: dict[str, Any], asked: RequestExpressions
) -> bool:
    """Whether a request asks for attributes that an index does not project."""
    if request.get("Select") == "ALL_ATTRIBUTES":
        return settings_of(index).projection != "ALL"
    return bool(_unprojected(table, index, asked))


def _unprojected(table: Table, index: Index, asked: RequestExpressions) -> list[str]:
    """The attributes that a request names and an index does not project."""
    names = projected_names(table, index)
    if names is None:
        return []
    named = (str(path[0]) for path in asked.paths())
    return [name for name in dict.fromkeys(named) if name not in names]


def _refuse_segment(request: dict[str, Any]) -> None:
    segment, segments = request.get("Segment"), request.get("TotalSegments")
    if segment is None and segments is not None:
        raise validation(
            "The Segment parameter is required but was not present in the request when parameter "
            "TotalSegments is present"
        )
    if segments is None and segment is not None:
        raise validation(
            "The TotalSegments parameter is required but was not present in the request when "
            "Segment parameter is present"
        )
    if segment is not None and segments is not None and segment >= segments:
        raise validation(
            f"The Segment parameter is zero-based and must be less than parameter TotalSegments: "
            f"Segment: {segment} is not less than TotalSegments: {segments}"
        )
