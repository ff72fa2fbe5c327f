"""TransactWriteItems and TransactGetItems.

A ClientRequestToken is kept in the store, in the very transaction that it names, for ten minutes:
whoever sends the request again, after a lost answer or a restart, does nothing a second time.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from penstock.serve.dynamodb.batches import refuse_duplicates
from penstock.serve.dynamodb.capacity import (
    Spent,
    consumed_each,
    item_size,
    read_units,
    wants_capacity,
    written_size,
)
from penstock.serve.dynamodb.endpoint import Endpoint
from penstock.serve.dynamodb.errors import (
    CONDITION_FAILED,
    EmptyKeyError,
    WireError,
    validation,
    wire_error,
)
from penstock.serve.dynamodb.items import (
    Write,
    Written,
    collections_of,
    failed,
    projected,
    read_get,
)
from penstock.serve.dynamodb.keys import check_key
from penstock.store import ConditionCheckFailedError, Item, RefusedError, Table, Transaction
from penstock.store.expressions.request import RequestExpressions

TOKEN_SECONDS: Final = 600
BYTES_MAX: Final = 4 << 20
"""Of all items of a transaction together."""
_TWICE: Final = "Transaction request cannot include multiple operations on one item"
_TOO_LARGE: Final = "The aggregate size of the items in the transaction cannot exceed 4 MB"
_OPERATIONS: Final = {
    "ConditionCheck": "ConditionCheck",
    "Put": "PutItem",
    "Delete": "DeleteItem",
    "Update": "UpdateItem",
}
_MEMBERS: Final = frozenset(
    {
        "TableName",
        "Key",
        "Item",
        "UpdateExpression",
        "ConditionExpression",
        "ProjectionExpression",
        "ExpressionAttributeNames",
        "ExpressionAttributeValues",
        "ReturnValuesOnConditionCheckFailure",
    }
)
"""Of an action."""
_NO_REASON: Final = {"Code": "None"}


def transact_write_items(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """At most 100 writes and checks, all done or none, no two of one item, at most 4 MiB of items.

    Raises TransactionCanceledException, with a reason for each. Keys are looked at first.
    """
    actions = [_action(one) for one in request["TransactItems"]]
    writes = [Write(_OPERATIONS[kind], endpoint, asked) for kind, asked in actions]

    def do(transaction: Transaction) -> list[Written] | dict[str, Any]:
        places = list[tuple[str, Table, Item]]()
        _cancel_if_any([_reason(partial(_place, transaction, write, places)) for write in writes])
        refuse_duplicates(transaction, writes, _TWICE)
        if _is_repeated(transaction, request):
            return _repeated(transaction, request, places)
        done, reasons, size = list[Written](), list[dict[str, Any]](), 0
        for write, (_, asked) in zip(writes, actions, strict=True):
            reasons.append(_reason(partial(_do, transaction, write, done), asked))
            if reasons[-1] is _NO_REASON:
                size += written_size(done[-1].old, done[-1].new)
            if size > BYTES_MAX:
                raise validation(_TOO_LARGE)
        _cancel_if_any(reasons)
        return done

    written = endpoint.store.write(do)
    if isinstance(written, dict):
        return written
    told: dict[str, Any] = {}
    if wants_capacity(request):
        spent = defaultdict[str, Spent](Spent)
        for done in written:
            spent[done.named] += done.spent + done.spent
        told = consumed_each(request, spent, kind="Write")
    collections = collections_of(endpoint, request, written)
    return told | ({"ItemCollectionMetrics": collections} if collections else {})


def _repeated(
    transaction: Transaction, request: dict[str, Any], places: list[tuple[str, Table, Item]]
) -> dict[str, Any]:
    """The answer to what was done before: it consumes reads of the items (API_TransactWriteItems,
    ClientRequestToken)."""
    spent = defaultdict[str, Spent](Spent)
    for named, table, key in places if wants_capacity(request) else ():
        size = item_size(transaction.get(table.name, key))
        spent[named] += Spent(2 * read_units(size, consistent=True))
    return consumed_each(request, spent, kind="Read")


def transact_get_items(endpoint: Endpoint, request: dict[str, Any]) -> dict[str, Any]:
    """At most 100 items and 4 MiB as of one moment, by their places."""
    gets = [_known(one["Get"]) for one in request["TransactItems"]]
    asked = [read_get(get, get["Key"]) for get in gets]
    answers, spent = list[dict[str, Any]](), defaultdict[str, Spent](Spent)
    seen, read, now_ms = set[bytes](), 0, endpoint.now_ms
    with endpoint.store.view() as view:
        tables = [endpoint.table(view, endpoint.name(get)) for get in gets]
        checked = zip(tables, asked, strict=True)
        _cancel_if_any([_reason(partial(_check, table, *one)) for table, one in checked])
        for get, table, (key, expressions) in zip(gets, tables, asked, strict=True):
            place = table.key(key)
            if place in seen:
                raise validation(_TWICE)
            seen.add(place)
            found = view.get(table, key, now_ms=now_ms)
            size = item_size(found)
            read += size
            if read > BYTES_MAX:
                raise validation(_TOO_LARGE)
            answers.append({} if found is None else {"Item": projected(expressions, found)})
            spent[get["TableName"]] += Spent(2 * read_units(size, consistent=True))
    return {"Responses": answers, **consumed_each(request, spent, kind="Read")}


def _check(table: Table, key: Item, expressions: RequestExpressions) -> None:
    check_key(table, key)
    expressions.refuse_keys(table.key_names)


def _action(item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    given = [(kind, item[kind]) for kind in _OPERATIONS if item.get(kind) is not None]
    if len(given) != 1:
        raise validation("TransactItems can only contain one of Check, Put, Update or Delete")
    kind, asked = given[0]
    return kind, _known(asked)


def _known(asked: dict[str, Any]) -> dict[str, Any]:
    """The members that an action has: of PutItem and its like it has not all, and unknown ones are
    passed over."""
    return {name: value for name, value in asked.items() if name in _MEMBERS}


def _is_repeated(transaction: Transaction, request: dict[str, Any]) -> bool:
    """Whether the request's token was used for the same before. Raises WireError for another."""
    token = request.get("ClientRequestToken")
    if token is None:
        return False
    written = msgspec.json.encode(request["TransactItems"], order="sorted")
    digest = hashlib.sha256(written).digest()
    before = transaction.use_token(token.encode(), digest, seconds=TOKEN_SECONDS)
    if before not in {None, digest}:
        raise WireError(
            "IdempotentParameterMismatchException",
            "The request uses the same client token as a previous, but non-identical request. Do "
            "not reuse a client token with different requests, unless the requests are identical.",
        )
    return before is not None


def _place(transaction: Transaction, write: Write, places: list[tuple[str, Table, Item]]) -> None:
    places.append((write.named, *write.key(transaction)))


def _do(transaction: Transaction, write: Write, written: list[Written]) -> None:
    written.append(write.do(transaction))


def _reason(do: Callable[[], object], asked: dict[str, Any] | None = None) -> dict[str, Any]:
    """Do something for one action; returns its reason to cancel all, or _NO_REASON.

    Raises what is said of the whole request: that there is no such table, or an empty key.
    """
    try:
        do()
    except ConditionCheckFailedError as error:
        message = {"Message": CONDITION_FAILED}
        return {"Code": "ConditionalCheckFailed", **message, **failed(error, asked or {})}
    except (RefusedError, WireError) as error:
        told = wire_error(error)
        if isinstance(told, EmptyKeyError) or told.name != "ValidationException":
            raise
        return {"Code": "ValidationError", "Message": str(told)}
    return _NO_REASON


def _cancel_if_any(reasons: list[dict[str, Any]]) -> None:
    if any(reason is not _NO_REASON for reason in reasons):
        raise _cancelled(reasons)


def _cancelled(reasons: list[dict[str, Any]]) -> WireError:
    codes = ", ".join(reason["Code"] for reason in reasons)
    return WireError(
        "TransactionCanceledException",
        f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]",
        CancellationReasons=reasons,
    )
