"""Query and Scan: pages of at most 1 MiB of items that were looked at."""

from typing import Any, cast

from penstock.serve.dynamodb.capacity import consumed, read_units
from penstock.serve.dynamodb.endpoint import Endpoint
from penstock.serve.dynamodb.errors import validation
from penstock.serve.dynamodb.items import projected
from penstock.serve.dynamodb.keys import check_key, refuse_value
from penstock.store import Item, ItemPage, Table
from penstock.store.attributevalue import decode_attributes, encode_attributes
from penstock.store.expressions.keys import KeyCondition, key_condition
from penstock.store.expressions.request import RequestExpressions, read_request
from penstock.store.queries import (
    Range,
    SortBound,
    partition_range,
    segment_range,
    table_range,
)
from penstock.store.values import Scalar


def query(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Items of one partition, by sort key."""
    asked = read_request(request, "Query")
    assert asked.key is not None, "a Query without a key condition is refused"
    _refuse_select(request)
    start = _start(request)
    name = endpoint.name(request)
    with endpoint.store.view() as view:
        table = endpoint.table(view, name)
        _refuse_index(request)
        wanted = key_condition(asked.key, table.partition_key, table.sort_key)
        asked.refuse_keys(table.key_names, query=True)
        _refuse_values(table, wanted)
        partition: Item = {table.partition_key.name: wanted.partition}
        bound = None
        if wanted.sort is not None:
            bound = SortBound(wanted.sort.op, cast("tuple[Scalar, ...]", wanted.sort.values))
        if start is not None:
            _refuse_start(table, start, partition_range(table, partition, None))
        page = view.page(
            table,
            partition_range(table, partition, bound),
            now_ms=endpoint.now_ms,
            limit=request.get("Limit"),
            start=start,
            reverse=not request.get("ScanIndexForward", True),
            condition=asked.condition,
        )
    return _answer(request, name, asked, page)


def scan(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Items of a whole table, or of one segment of it."""
    asked = read_request(request, "Scan")
    _refuse_select(request)
    _refuse_segment(request)
    start = _start(request)
    name = endpoint.name(request)
    with endpoint.store.view() as view:
        table = endpoint.table(view, name)
        _refuse_index(request)
        asked.refuse_keys(table.key_names)
        keys = table_range(table)
        if "Segment" in request:
            keys = segment_range(table, request["Segment"], request["TotalSegments"])
        if start is not None:
            _refuse_start(table, start, keys)
        page = view.page(
            table,
            keys,
            now_ms=endpoint.now_ms,
            limit=request.get("Limit"),
            start=start,
            condition=asked.condition,
        )
    return _answer(request, name, asked, page)


def _answer(
    request: dict[str, Any], table: str, asked: RequestExpressions, page: ItemPage
) -> dict[str, Any]:
    told: dict[str, Any] = {"Count": len(page.items), "ScannedCount": page.evaluated}
    if request.get("Select") != "COUNT":
        told["Items"] = [projected(asked, item) for item in page.items]
    if page.last_key is not None:
        told["LastEvaluatedKey"] = encode_attributes(page.last_key)
    units = read_units(page.size, consistent=request.get("ConsistentRead", False))
    return told | consumed(request, table, units)


def _start(request: dict[str, Any]) -> Item | None:
    given = request.get("ExclusiveStartKey")
    return None if given is None else decode_attributes(given)


def _refuse_start(table: Table, start: Item, keys: Range) -> None:
    """Refuse to go on after a key that is none of the table's, or not in the range."""
    check_key(table, start, said="The provided starting key is invalid: ")
    place = table.key(start)
    if place < keys.first or (keys.before is not None and place >= keys.before):
        raise validation("The provided starting key is outside query boundaries")


def _refuse_values(table: Table, wanted: KeyCondition) -> None:
    refuse_value(table.partition_key, wanted.partition, sort=False)
    if table.sort_key is not None and wanted.sort is not None:
        for value in wanted.sort.values:
            refuse_value(table.sort_key, value, sort=True)


def _refuse_select(request: dict[str, Any]) -> None:
    select = request.get("Select")
    projections = [name for name in ("ProjectionExpression", "AttributesToGet") if name in request]
    if select == "SPECIFIC_ATTRIBUTES" and not projections:
        raise validation("Must specify the AttributesToGet or ProjectionExpression")
    if projections and select in {"ALL_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES", "COUNT"}:
        only = "only the Count" if select == "COUNT" else select
        raise validation(f"Cannot specify the {projections[0]} when choosing to get {only}")
    if select == "ALL_PROJECTED_ATTRIBUTES":
        raise validation(
            "ALL_PROJECTED_ATTRIBUTES can be used only when Querying using an IndexName"
        )


def _refuse_index(request: dict[str, Any]) -> None:
    if "IndexName" in request:
        raise validation(f"The table does not have the specified index: {request['IndexName']}")


def _refuse_segment(request: dict[str, Any]) -> None:
    segment, segments = request.get("Segment"), request.get("TotalSegments")
    if (segment is None) != (segments is None):
        absent, present = ("TotalSegments", "Segment")
        if segment is None:
            absent, present = present, absent
        raise validation(
            f"The {absent} parameter is required but was not present in the request when "
            f"parameter {present} is present"
        )
    if segment is not None and segments is not None and segment >= segments:
        raise validation(
            f"The Segment parameter is zero-based and must be less than parameter TotalSegments: "
            f"Segment: {segment} is not less than TotalSegments: {segments}"
        )
