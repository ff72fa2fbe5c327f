"""What a store answers to a request.

An answer is worked out once and written afterwards, in the form that was asked for or, where plain
JSON cannot say it, in the other: so a write that was done is never told as an error because of the
item that it replaced.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias, cast

from msgspec import UNSET

from penstock.store.builders import QueryWith, ReadRecords, ScanWith
from penstock.store.conditions import Condition, Literal
from penstock.store.errors import (
    RefusedError,
    TransactionError,
    ValueRefusedError,
)
from penstock.store.filters import condition_from_json
from penstock.store.indexbuilders import QueryIndex
from penstock.store.keys import KeyType
from penstock.store.projections import projection
from penstock.store.queries import ItemPage, SortBound
from penstock.store.remote import requests as ask
from penstock.store.remote.forms import (
    read_expression,
    read_item,
    read_path,
    read_value,
    write_info,
    write_item,
    write_record,
    write_table,
)
from penstock.store.remote.requests import AnyRequest, Form
from penstock.store.schema import Retention
from penstock.store.store import Store
from penstock.store.streams import BYTES_MAX, Page
from penstock.store.transaction import Transaction
from penstock.store.updates import (
    Action,
    AddAction,
    DeleteAction,
    RemoveAction,
    SetAction,
    Update,
    Updated,
)
from penstock.store.values import Item, Scalar

ITEMS_BYTES_MAX: Final = 16 << 20
"""Of items in one answer of batch_get_item."""
WAIT_MS_MAX: Final = 60_000

Answer: TypeAlias = Callable[[Form], dict[str, Any]]


class Target(Protocol):
    """What single items are read from and written to: a transaction."""

    def get(self, table: str, key: Item) -> Item | None: ...

    def put(
        self,
        table: str,
        item: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None: ...

    def update(
        self,
        table: str,
        key: Item,
        update: Update,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Updated: ...

    def delete(
        self,
        table: str,
        key: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None: ...

    def check(self, table: str, key: Item, condition: Condition) -> None: ...

    def query_index(self, table: str, index: str) -> QueryIndex: ...


def written(answer: Answer, form: Form) -> dict[str, Any]:
    """The answer as it is sent."""
    try:
        return {"ok": True, **answer(form)}
    except ValueRefusedError:
        return {"ok": True, "values": "dynamodb", **answer("dynamodb")}


def form_of(request: AnyRequest) -> Form:
    """The form in which a request's values stand."""
    return request.values if isinstance(request, ask.Valued) else "plain"


def _said(**facts: Any) -> Answer:
    return lambda _: facts


_NOTHING: Final = _said()


# --- one item, inside a transaction ---------------------------------------------------------------

OneItem: TypeAlias = ask.PutItem | ask.UpdateItem | ask.DeleteItem | ask.CheckItem | ask.GetItem
InTransaction: TypeAlias = OneItem | ask.QueryIndex


def one_item(request: OneItem) -> Callable[[Target], Answer]:
    """What reads or changes one item in a transaction, and raises as the transaction does.

    All that the request says is read here: whoever writes has the store to himself, and what takes
    time must not be done meanwhile. Raises RefusedError, and what values are refused with.
    """
    form = request.values
    match request:
        case ask.GetItem():
            key = read_item(form, request.key)
            return lambda target: _found(target.get(request.table, key))
        case ask.PutItem():
            item, condition = read_item(form, request.item), _condition(request.condition)
            return lambda target: _old(
                target.put(
                    request.table,
                    item,
                    condition=condition,
                    expected_version=request.expected_version,
                ),
                request.return_values,
            )
        case ask.DeleteItem():
            key, condition = read_item(form, request.key), _condition(request.condition)
            return lambda target: _old(
                target.delete(
                    request.table,
                    key,
                    condition=condition,
                    expected_version=request.expected_version,
                ),
                request.return_values,
            )
        case ask.UpdateItem():
            key, update = read_item(form, request.key), _update(form, request.updates)
            condition = _condition(request.condition)
            return lambda target: _updated(
                target.update(
                    request.table,
                    key,
                    update,
                    condition=condition,
                    expected_version=request.expected_version,
                ),
                request.return_values,
            )
        case ask.CheckItem():
            key, wanted = read_item(form, request.key), condition_from_json(request.condition)

            def checked(target: Target) -> Answer:
                target.check(request.table, key, wanted)
                return _NOTHING

            return checked


def in_transaction(target: Target, request: InTransaction) -> Answer:
    """Answer what may be asked in a transaction. Raises as the transaction does."""
    if isinstance(request, ask.QueryIndex):
        query = target.query_index(request.table, request.index)
        return _page(_queried(query, request), request)
    return one_item(request)(target)


def _condition(json: Any) -> Condition | None:
    return None if json is None else condition_from_json(json)


def _found(found: Item | None) -> Answer:
    return lambda form: {"item": write_item(form, found)}


def _old(old: Item | None, wanted: str) -> Answer:
    if wanted == "NONE":
        return _NOTHING
    return lambda form: {"old": write_item(form, old)}


def _updated(updated: Updated, wanted: str) -> Answer:
    def answer(form: Form) -> dict[str, Any]:
        said = dict[str, Any]()
        if wanted in ("ALL_OLD", "BOTH"):
            said["old"] = write_item(form, updated.old)
        if wanted in ("ALL_NEW", "BOTH"):
            said["new"] = write_item(form, updated.new)
        return said

    return answer


def _update(form: Form, actions: list[ask.UpdateAction]) -> Update:
    return Update(tuple(_action(form, action) for action in actions))


def _action(form: Form, action: ask.UpdateAction) -> Action:
    path = read_path(action.path)
    if action.action == "REMOVE":
        return RemoveAction(path)
    if action.action == "SET" and action.expression is not UNSET:
        return SetAction(path, read_expression(form, action.expression))
    if action.value is UNSET:
        raise RefusedError(f"{action.action} needs a value. Nothing was changed.")
    value = Literal(read_value(form, action.value))
    match action.action:
        case "SET":
            return SetAction(path, value)
        case "ADD":
            return AddAction(path, value)
        case _:
            return DeleteAction(path, value)


# --- the store ------------------------------------------------------------------------------------


def answer(store: Store, request: AnyRequest) -> Answer:
    """Do what is asked. Raises as the store does, and RefusedError.

    What only a connection can do (transactions in parts, subscriptions) is not done here, and a
    request that may wait answers at once.
    """
    match request:
        case ask.PutItem() | ask.UpdateItem() | ask.DeleteItem():
            write = one_item(request)
            return store.write(write)
        case ask.GetItem() | ask.GetItemVersioned() | ask.BatchGetItem():
            return _get(store, request)
        case ask.BatchWriteItem() | ask.Transact():
            return _write_many(store, request)
        case ask.Query() | ask.Scan():
            return _read_page(store, request)
        case ask.GetStreamRecords():
            return records(read_records(store, request))
        case ask.CheckItem() | ask.CommitTransaction() | ask.AbortTransaction():
            raise TransactionError(
                "no transaction is open on this connection. Nothing was changed. Send "
                "begin_transaction first."
            )
        case ask.BeginTransaction() | ask.Subscribe() | ask.CreateIndex():
            raise AssertionError("the connection's own")
        case _:
            return _manage(store, request)


def _get(store: Store, request: ask.GetItem | ask.GetItemVersioned | ask.BatchGetItem) -> Answer:
    form = request.values
    match request:
        case ask.GetItem():
            return _found(store.get(request.table, read_item(form, request.key)))
        case ask.GetItemVersioned():
            item, version = store.get_versioned(request.table, read_item(form, request.key)) or (
                None,
                0,
            )
            return lambda form: {"item": write_item(form, item), "version": version}
        case ask.BatchGetItem():
            _at_most(len(request.keys), ask.BATCH_GET_MAX, "batch_get_item", "keys")
            keys = [read_item(form, key) for key in request.keys]
            items = store.batch_get(request.table, keys, bytes_max=ITEMS_BYTES_MAX)
            return lambda form: {"items": [write_item(form, item) for item in items]}


def _write_many(store: Store, request: ask.BatchWriteItem | ask.Transact) -> Answer:
    form = request.values
    if isinstance(request, ask.Transact):
        _at_most(len(request.actions), ask.TRANSACT_MAX, "transact", "actions")
        writes = [one_item(action) for action in request.actions]
        answers = store.write(lambda transaction: [write(transaction) for write in writes])
        return lambda form: {"answers": [one(form) for one in answers]}
    count = len(request.puts) + len(request.deletes)
    _at_most(count, ask.BATCH_WRITE_MAX, "batch_write_item", "items")
    puts = [(put.table, read_item(form, put.item)) for put in request.puts]
    deletes = [(delete.table, read_item(form, delete.key)) for delete in request.deletes]

    def batch(transaction: Transaction) -> None:
        for table, item in puts:
            transaction.put(table, item)
        for table, key in deletes:
            transaction.delete(table, key)

    store.write(batch)
    return _NOTHING


def _at_most(count: int, limit: int, operation: str, things: str) -> None:
    if count > limit:
        raise RefusedError(
            f"{operation} takes at most {limit} {things}, and {count} were given. Nothing was "
            f"changed."
        )


def _read_page(store: Store, request: ask.Query | ask.Scan) -> Answer:
    match request:
        case ask.QueryIndex():
            query = store.query_index(request.table, request.index)
            return _page(_queried(query, request), request)
        case ask.Query():
            return _page(_queried(store.query(request.table), request), request)
        case ask.Scan():
            return _page(store.scan(request.table), request)


def _queried(query: QueryWith[ItemPage], request: ask.Query) -> QueryWith[ItemPage]:
    form = request.values
    query.partition_key(cast("Scalar", read_value(form, request.partition_key)))
    query.scan_forward(request.scan_forward)
    if request.sort_key_condition is not None:
        query.bound = _bound(form, request.sort_key_condition)
    return query


def _page(wanted: ScanWith[ItemPage], request: ask.Query | ask.Scan) -> Answer:
    if request.limit is not None:
        wanted.limit(request.limit)
    if request.exclusive_start_key is not None:
        wanted.exclusive_start_key(read_item(request.values, request.exclusive_start_key))
    if request.filter is not None:
        wanted.filter(condition_from_json(request.filter))
    if request.projection:
        wanted.projection = projection(*map(read_path, request.projection))
    page = wanted.execute()
    return lambda form: {
        "items": [write_item(form, item) for item in page.items],
        "last_key": write_item(form, page.last_key),
        "evaluated": page.evaluated,
    }


def _bound(form: Form, condition: ask.SortKeyCondition) -> SortBound:
    given = (condition.low, condition.high) if condition.op == "between" else (condition.value,)
    if any(one is UNSET for one in given):
        needs = "low and high" if condition.op == "between" else "a value"
        raise RefusedError(f"the sort key condition {condition.op} needs {needs}")
    return SortBound(condition.op, tuple(cast("Scalar", read_value(form, one)) for one in given))


# --- tables and streams ---------------------------------------------------------------------------


def _manage(store: Store, request: AnyRequest) -> Answer:
    match request:
        case ask.CreateTable():
            _create(store, request)
            return _NOTHING
        case ask.DropTable():
            store.drop_table(request.table)
            return _NOTHING
        case ask.ListTables():
            return _said(tables=store.list_tables())
        case ask.DescribeTable():
            return _said(table=write_table(store.describe_table(request.table)))
        case ask.DropIndex():
            store.drop_index(request.table, request.index)
            return _NOTHING
        case ask.Count():
            return _said(count=store.count(request.table))
        case ask.SetTtl():
            store.set_ttl(request.table, request.attribute)
            return _NOTHING
        case ask.GetTtl():
            return _said(attribute=store.describe_table(request.table).ttl_attribute)
        case ask.RemoveTtl():
            store.set_ttl(request.table, None)
            return _NOTHING
        case ask.SweepExpiredTtl():
            return _said(removed=store.sweep())
        case ask.Sync():
            store.sync()
            return _NOTHING
        case ask.EnableStream():
            store.enable_stream(
                request.table,
                request.view,
                retention=request.retention,
                unchanged=request.unchanged,
            )
            return _NOTHING
        case ask.DisableStream():
            store.disable_stream(request.table)
            return _NOTHING
        case ask.AlterRetention():
            store.alter_table_stream_retention(request.table, request.retention)
            return _NOTHING
        case ask.PruneStream():
            removed = store.prune_stream(request.table, until_sequence=request.until_sequence)
            return _said(removed=removed)
        case ask.GetStreamInfo():
            return _said(info=write_info(store.get_stream_info(request.table)))
        case ask.RegisterConsumer():
            checkpoint = store.register_consumer(
                request.table,
                request.name,
                start=request.start,
                hold_bytes_max=request.hold_bytes_max,
            )
            return _said(checkpoint=checkpoint)
        case ask.SaveCheckpoint():
            store.save_checkpoint(
                request.table, request.name, request.position, expected=request.expected
            )
            return _NOTHING
        case ask.ForgetConsumer():
            return _said(forgot=store.forget_consumer(request.table, request.name))
        case _:
            raise AssertionError(f"{type(request).__name__} has no answer")


def create_index(store: Store, request: ask.CreateIndex, check: Callable[[], None]) -> Answer:
    """Make an index, unless `check`, called before each step, raises."""
    index = store.create_index(request.table, request.index)
    index.partition_key(request.partition_key.name, KeyType(request.partition_key.type))
    if request.sort_key is not None:
        index.sort_key(request.sort_key.name, KeyType(request.sort_key.type))
    if request.scope is not None:
        index.scope(request.scope)
    index.between(check).execute()
    return _NOTHING


def _create(store: Store, request: ask.CreateTable) -> None:
    table = store.create_table(request.table)
    table.partition_key(request.partition_key.name, KeyType(request.partition_key.type))
    if request.sort_key is not None:
        table.sort_key(request.sort_key.name, KeyType(request.sort_key.type))
    if request.ttl_attribute is not None:
        table.ttl(request.ttl_attribute)
    if request.stream is not None:
        table.stream(request.stream.view, unchanged=request.stream.unchanged)
        table.retention(request.stream.retention or Retention())
    table.execute()


def read_records(store: Store, request: ask.GetStreamRecords) -> Page:
    """A page of a stream, at once whatever `wait_ms` says."""
    return page_of(store.get_stream_records(request.table), request).execute()


def page_of(read: ReadRecords, request: ask.GetStreamRecords) -> ReadRecords:
    """What a request wants to read. Raises RefusedError for what cannot be wanted."""
    begins = (request.after, request.after_sequence, request.at_sequence, request.start)
    if sum(begin is not None for begin in begins) > 1:
        raise RefusedError(
            "get_stream_records goes on from one place: after, after_sequence, at_sequence or start"
        )
    if not 0 <= request.wait_ms <= WAIT_MS_MAX:
        raise RefusedError(f"wait_ms is 0 to {WAIT_MS_MAX}, not {request.wait_ms}")
    size = BYTES_MAX if request.max_bytes is None else request.max_bytes
    if not 1 <= size <= BYTES_MAX:
        raise RefusedError(f"max_bytes is 1 to {BYTES_MAX}, not {size}")
    read.limit(request.limit).max_bytes(size)
    if request.after is not None:
        read.after(request.after)
    elif request.after_sequence is not None:
        read.after_sequence(request.after_sequence)
    elif request.at_sequence is not None:
        read.at_sequence(request.at_sequence)
    elif request.start == "latest":
        read.latest()
    return read


def records(page: Page) -> Answer:
    """A page of a stream."""
    return lambda form: {
        "records": [write_record(form, record) for record in page.records],
        "position": page.position,
        "closed": page.closed,
    }
