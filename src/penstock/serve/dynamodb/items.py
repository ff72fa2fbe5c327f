"""PutItem, DeleteItem, UpdateItem, GetItem."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, NamedTuple

from penstock.serve.dynamodb.capacity import Spent, consumed, item_size, read_units, wants_capacity
from penstock.serve.dynamodb.endpoint import Endpoint
from penstock.serve.dynamodb.errors import (
    CONDITION_FAILED,
    UPDATE_TOO_LARGE,
    WireError,
    validation,
)
from penstock.serve.dynamodb.indexes import has_local, refuse_item
from penstock.serve.dynamodb.keys import check_item, check_key
from penstock.store import (
    ConditionCheckFailedError,
    DocumentTooLargeError,
    Item,
    RefusedError,
    Table,
    Transaction,
)
from penstock.store.attributevalue import decode_attributes, encode_attributes
from penstock.store.expressions.request import RequestExpressions, read_expressions, refuse_mixture
from penstock.store.projections import project
from penstock.store.updates import Update
from penstock.store.values import encode_item


class Written(NamedTuple):
    """What a write did."""

    named: str
    """How the request named the table, by its name or its ARN: so it is answered."""
    table: Table
    key: Item
    old: Item | None
    new: Item | None

    @property
    def spent(self) -> Spent:
        """What it would have consumed."""
        return Spent.written(self.table, self.old, self.new)


class Write:
    """One write of an item, as PutItem, DeleteItem, UpdateItem and transactions ask for it.

    Made of what a request says; `do` is given a transaction. What it raises is to undo that.
    """

    def __init__(
        self, operation: str, endpoint: Endpoint, request: dict[str, Any], *, batched: bool = False
    ) -> None:
        self._operation = operation
        self._batched = batched
        self._endpoint = endpoint
        self.named: str = request["TableName"]
        self._table_name = endpoint.name(request)
        refuse_mixture(request, operation)
        self._attributes = decode_attributes(request["Item" if operation == "PutItem" else "Key"])
        if operation in {"PutItem", "DeleteItem"}:
            _refuse_returned(request)
        with self.measured():
            self._expressions = read_expressions(request, operation)

    @contextmanager
    def measured(self) -> Generator[None]:
        """Refuse an item that is too large before what is refused inside the block: so the service
        orders them, and what is not refused need not be measured twice."""
        try:
            yield
        except (WireError, RefusedError):
            if self._operation == "PutItem":
                encode_item(self._attributes)
            raise

    def key(self, transaction: Transaction) -> tuple[Table, Item]:
        """The table and the key of the item. Raises WireError for what is no key of the table."""
        with self.measured():
            return self._key(transaction)

    def _key(self, transaction: Transaction) -> tuple[Table, Item]:
        table = self._endpoint.table(transaction, self._table_name)
        if self._operation == "PutItem":
            check_item(table, self._attributes, batched=self._batched)
            refuse_item(table, self._attributes)
            key = table.keys_of(self._attributes)
        else:
            check_key(table, self._attributes)
            key = self._attributes
        self._expressions.refuse_keys(table.key_names)
        return table, key

    def do(self, transaction: Transaction) -> "Written":
        """Do it; returns the item before and after. Raises as the transaction does."""
        table, key = self.key(transaction)
        condition = self._expressions.condition
        match self._operation:
            case "PutItem":
                old = transaction.put(table.name, self._attributes, condition=condition)
                return Written(self.named, table, key, old, self._attributes)
            case "DeleteItem":
                old = transaction.delete(table.name, key, condition=condition)
                return Written(self.named, table, key, old, None)
            case "ConditionCheck":
                assert condition is not None, "the operation's shape requires one"
                transaction.check(table.name, key, condition)
                return Written(self.named, table, key, None, None)
            case _:
                update = self.update
                try:
                    done = transaction.update(table.name, key, update, condition=condition)
                except DocumentTooLargeError as error:
                    raise validation(UPDATE_TOO_LARGE) from error
                refuse_item(table, done.new, changed={str(path[0]) for path in update.paths})
                there = done.old is not None or update.creates
                return Written(self.named, table, key, done.old, done.new if there else None)

    @property
    def update(self) -> Update:
        """What an UpdateItem changes."""
        return self._expressions.update or Update()


def put_item(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Write an item, whole."""
    write = Write("PutItem", endpoint, request)
    done = _done(endpoint, write, request)
    return _answer(endpoint, request, done, _returned(request, write, done))


def delete_item(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Remove an item."""
    write = Write("DeleteItem", endpoint, request)
    done = _done(endpoint, write, request)
    return _answer(endpoint, request, done, _returned(request, write, done))


def update_item(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Change an item in part, or make it."""
    write = Write("UpdateItem", endpoint, request)
    done = _done(endpoint, write, request)
    return _answer(endpoint, request, done, _returned(request, write, done))


def get_item(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """Read an item; no Item if there is none."""
    key, asked = read_get(request, request["Key"])
    name = endpoint.name(request)
    with endpoint.store.view() as view:
        table = endpoint.table(view, name)
        check_key(table, key)
        asked.refuse_keys(table.key_names)
        found = view.get(table, key, now_ms=endpoint.now_ms)
    consistent = request.get("ConsistentRead", False)
    units = read_units(item_size(found), consistent=consistent)
    told = consumed(request, request["TableName"], Spent(units))
    return told if found is None else {"Item": projected(asked, found), **told}


def collections_of(
    endpoint: Endpoint, request: dict[str, Any], written: Iterable[Written]
) -> dict[str, list[dict[str, Any]]]:
    """The item collections that were written, by tables as the request named them, if it wants it.

    An item collection is a partition of a table that has a local index.
    """
    if request.get("ReturnItemCollectionMetrics") != "SIZE":
        return {}
    found: dict[str, list[dict[str, Any]]] = {}
    seen = set[bytes]()
    with endpoint.store.view() as view:
        for named, table, key, _, _ in written:
            place = table.partition(key)
            if not has_local(table) or place in seen:
                continue
            seen.add(place)
            least = endpoint.counter.collection_gigabytes(view, table, key)
            found.setdefault(named, []).append(
                {
                    "ItemCollectionKey": encode_attributes(
                        {table.partition_key.name: key[table.partition_key.name]}
                    ),
                    "SizeEstimateRangeGB": [float(least), float(least + 1)],
                }
            )
    return found


def read_get(request: dict[str, Any], key: object) -> tuple[Item, RequestExpressions]:
    """A key, and what is wanted of its item, of a request that reads."""
    refuse_mixture(request, "GetItem")
    return decode_attributes(key), read_expressions(request, "GetItem")


def projected(asked: RequestExpressions, item: Item) -> dict[str, Any]:
    """What a request wants of an item, as JSON."""
    chosen = item if asked.projection is None else project(item, asked.projection)
    return encode_attributes(chosen)


def failed(error: ConditionCheckFailedError, request: dict[str, Any]) -> dict[str, Any]:
    """What is told of a condition that was false beside its name: the item, if it is wanted."""
    wanted = request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
    return {"Item": encode_attributes(error.item)} if wanted and error.item is not None else {}


def _done(endpoint: Endpoint, write: Write, request: dict[str, Any]) -> Written:
    try:
        return endpoint.store.write(write.do)
    except ConditionCheckFailedError as error:
        raise WireError(
            "ConditionalCheckFailedException", CONDITION_FAILED, **failed(error, request)
        ) from error


def _answer(
    endpoint: Endpoint, request: dict[str, Any], done: Written, returned: Item | None
) -> dict[str, Any]:
    told = {} if returned is None else {"Attributes": encode_attributes(returned)}
    if wants_capacity(request):
        told |= consumed(request, done.named, done.spent)
    collections = collections_of(endpoint, request, [done])
    for metrics in collections.get(done.named, []):
        told["ItemCollectionMetrics"] = metrics
    return told


def _returned(request: dict[str, Any], write: Write, done: Written) -> Item | None:
    """The Attributes of an answer; None for no such member."""
    chosen: Item | None
    match request.get("ReturnValues", "NONE"):
        case "ALL_OLD":
            return done.old
        case "ALL_NEW":
            chosen = done.new or {}
        case "UPDATED_OLD":
            chosen = project(done.old or {}, write.update.paths)
        case "UPDATED_NEW":
            chosen = project(done.new or {}, write.update.paths)
        case _:
            return None
    return chosen or None


def _refuse_returned(request: dict[str, Any]) -> None:
    if request.get("ReturnValues", "NONE") not in {"NONE", "ALL_OLD"}:
        raise validation("ReturnValues can only be ALL_OLD or NONE")
