"""BatchWriteItem and BatchGetItem.

A batch of writes is done whole or not at all, which the protocol does not promise; a batch of reads
sees one moment.
"""

from collections import defaultdict
from typing import Any, Final

from penstock.serve.dynamodb.capacity import (
    Spent,
    consumed_each,
    item_size,
    read_units,
    wants_capacity,
)
from penstock.serve.dynamodb.endpoint import Endpoint
from penstock.serve.dynamodb.errors import validation
from penstock.serve.dynamodb.items import Write, Written, collections_of, projected
from penstock.serve.dynamodb.keys import check_key
from penstock.store import Item, Transaction
from penstock.store.attributevalue import decode_attributes
from penstock.store.expressions.request import (
    RequestExpressions,
    read_expressions,
    refuse_mixture,
)

WRITES_MAX: Final = 25
GETS_MAX: Final = 100
ANSWER_BYTES_MAX: Final = 16 << 20
_DUPLICATES: Final = "Provided list of item keys contains duplicates"


def batch_write_item(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Write and remove items, at most 25, none of them twice."""
    asked = request["RequestItems"]
    if sum(map(len, asked.values())) > WRITES_MAX:
        raise validation("Too many items requested for the BatchWriteItem call")
    writes = [_write(endpoint, table, one) for table, requests in asked.items() for one in requests]

    def do(transaction: Transaction) -> list[Written]:
        refuse_duplicates(transaction, writes, _DUPLICATES)
        return [write.do(transaction) for write in writes]

    written = endpoint.store.write(do)
    spent = defaultdict[str, Spent](Spent)
    for done in written if wants_capacity(request) else ():
        spent[done.named] += done.spent
    told: dict[str, Any] = {"UnprocessedItems": {}, **consumed_each(request, spent)}
    collections = collections_of(endpoint, request, written)
    return told | ({"ItemCollectionMetrics": collections} if collections else {})


def refuse_duplicates(transaction: Transaction, writes: list[Write], message: str) -> None:
    """Raise WireError if two writes are of one item."""
    seen = set[bytes]()
    for write in writes:
        table, key = write.key(transaction)
        place = table.key(key)
        if place in seen:
            with write.measured():
                raise validation(message)
        seen.add(place)


def batch_get_item(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Read at most 100 items and 16 MiB; what does not fit comes back as UnprocessedKeys."""
    asked = request["RequestItems"]
    if sum(len(one["Keys"]) for one in asked.values()) > GETS_MAX:
        raise validation("Too many items requested for the BatchGetItem call")
    keys, wanted = dict[str, list[Item]](), list[tuple[str, str, RequestExpressions, Any]]()
    for given, one in asked.items():
        refuse_mixture(one, "GetItem")
        keys[given] = [decode_attributes(key) for key in one["Keys"]]
        expressions = read_expressions(one, "GetItem")
        wanted.append((given, endpoint.names.table_name(given), expressions, one))
    found: dict[str, list[dict[str, Any]]] = {}
    left: dict[str, Any] = {}
    spent, size, now_ms = defaultdict[str, Spent](Spent), 0, endpoint.now_ms
    with endpoint.store.view() as view:
        for given, name, expressions, one in wanted:
            table, seen = endpoint.table(view, name), set[bytes]()
            for key in keys[given]:
                check_key(table, key)
                seen.add(table.key(key))
            if len(seen) < len(keys[given]):
                raise validation(_DUPLICATES)
            expressions.refuse_keys(table.key_names)
            items = found.setdefault(given, [])
            for key, written in zip(keys[given], one["Keys"], strict=True):
                item = None
                if size < ANSWER_BYTES_MAX:
                    item = view.get(table, key, now_ms=now_ms)
                size += item_size(item)
                if size >= ANSWER_BYTES_MAX and any(found.values()):
                    # Nothing more fits, this one neither.
                    left.setdefault(given, {**one, "Keys": []})["Keys"].append(written)
                    continue
                consistent = bool(one.get("ConsistentRead", False))
                spent[given] += Spent(read_units(item_size(item), consistent=consistent))
                if item is not None:
                    items.append(projected(expressions, item))
    return {"Responses": found, "UnprocessedKeys": left, **consumed_each(request, spent)}


def _write(endpoint: Endpoint, table: str, request: dict[str, Any]) -> Write:
    kinds = ("PutRequest", "DeleteRequest")
    given = [(kind, request[kind]) for kind in kinds if request.get(kind) is not None]
    if len(given) != 1:
        raise validation(
            "Supplied WriteRequest must have exactly one of PutRequest and DeleteRequest"
        )
    kind, one = given[0]
    operation = "PutItem" if kind == "PutRequest" else "DeleteItem"
    members = {name: value for name, value in one.items() if name in {"Item", "Key"}}
    return Write(operation, endpoint, {"TableName": table, **members}, batched=True)
