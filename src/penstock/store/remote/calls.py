"""What a client asks and how it reads the answer: the same for the one that waits and the one that
is awaited."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec

from penstock.errors import PenstockError
from penstock.store.builders import (
    CreateTableWith,
    QueryWith,
    ReadRecordsWith,
    ScanWith,
    UpdateItemWith,
)
from penstock.store.conditions import Condition, Literal
from penstock.store.consumers import Checkpoint, Start
from penstock.store.errors import RefusedError
from penstock.store.filters import condition_to_json
from penstock.store.indexbuilders import CreateIndexWith, QueryIndexWith
from penstock.store.keys import KeyAttribute
from penstock.store.queries import ItemPage, SortBound
from penstock.store.remote import requests as ask
from penstock.store.remote.answers import WAIT_MS_MAX
from penstock.store.remote.forms import (
    read_error,
    read_info,
    read_item,
    read_record,
    read_table,
    write_expression,
    write_item,
    write_path,
    write_value,
)
from penstock.store.remote.requests import Form
from penstock.store.schema import Retention, StreamViewType, Table
from penstock.store.streams import BYTES_MAX, Page, StreamInfo
from penstock.store.updates import (
    Action,
    AddAction,
    DeleteAction,
    RemoveAction,
    SetAction,
    Update,
    Updated,
)
from penstock.store.values import Item

FORM: Form = "dynamodb"
"""The form in which our clients send values: it has every value."""

_INDEX_SECONDS: Final = 86_400.0
"""How long an index may take to be made: as long as it does, in effect."""

Result = TypeVar("Result")
Answer = Mapping[str, Any]


class Turn(Enum):
    """What a client's connections are used for at once, each with its own share: whoever waits for
    another would else hold what the other needs."""

    READ = auto()
    WRITE = auto()
    WAIT = auto()
    TRANSACTION = auto()


SHARES: Final = {Turn.READ: 8, Turn.WRITE: 16, Turn.WAIT: 32, Turn.TRANSACTION: 4}
"""Connections of one client; a server takes those of four such by default. Of those that wait for
records one for each of many consumers: whoever has to wait for a turn hears late."""
IDLE_MAX: Final = 16
"""Connections that a client keeps though nobody uses them."""


class Call(NamedTuple, Generic[Result]):
    """One request, and what its answer means."""

    request: ask.Request
    read: Callable[[Answer], Result]
    writes: bool
    """Whether it may have been done though no answer came."""
    wait_seconds: float = 0.0
    """How long the server may take beyond what answering takes."""

    @property
    def turn(self) -> Turn:
        """Whose turn it waits for."""
        if self.writes:
            return Turn.WRITE
        return Turn.WAIT if self.wait_seconds else Turn.READ


def answered(line: bytes) -> Answer:
    """A line from the server. Raises what it says is wrong, and PenstockError for no answer."""
    try:
        said: Answer = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise RefusedError(f"the server answers with what is no answer: {error}") from error
    if "error" in said:
        raise read_error(_form(said), said)
    return said


def error_of(line: bytes) -> PenstockError | None:
    """The error that a line tells of, if it does."""
    try:
        answered(line)
    except PenstockError as error:
        return error
    return None


def _form(said: Answer) -> Form:
    return cast("Form", said.get("values", FORM))


def _nothing(_: Answer) -> None:
    return None


def _fact(name: str) -> Callable[[Answer], Any]:
    return itemgetter(name)


def _table(said: Answer) -> Table:
    return read_table(said["table"])


def _info(said: Answer) -> StreamInfo:
    return read_info(said["info"])


def _checkpoint(said: Answer) -> Checkpoint:
    return msgspec.convert(said["checkpoint"], Checkpoint)


def _item(name: str) -> Callable[[Answer], Item | None]:
    def read(said: Answer) -> Item | None:
        found = said[name]
        return None if found is None else read_item(_form(said), found)

    return read


# --- items ----------------------------------------------------------------------------------------


def get(table: str, key: Item) -> Call[Item | None]:
    """One item."""
    request = ask.GetItem(table=table, key=write_item(FORM, key), values=FORM)
    return Call(request, _item("item"), writes=False)


def get_versioned(table: str, key: Item) -> Call[tuple[Item, int] | None]:
    """One item and its version."""

    def read(said: Answer) -> tuple[Item, int] | None:
        item = _item("item")(said)
        return None if item is None else (item, said["version"])

    request = ask.GetItemVersioned(table=table, key=write_item(FORM, key), values=FORM)
    return Call(request, read, writes=False)


def batch_get(table: str, keys: Sequence[Item]) -> Call[list[Item | None]]:
    """Items of one moment."""

    def read(said: Answer) -> list[Item | None]:
        form = _form(said)
        return [None if one is None else read_item(form, one) for one in said["items"]]

    written = [write_item(FORM, key) for key in keys]
    return Call(ask.BatchGetItem(table=table, keys=written, values=FORM), read, writes=False)


def put(
    table: str, item: Item, condition: Condition | None, expected_version: int | None
) -> Call[Item | None]:
    """Write an item, whole."""
    request = ask.PutItem(
        table=table,
        item=write_item(FORM, item),
        condition=_condition(condition),
        expected_version=expected_version,
        return_values="ALL_OLD",
        values=FORM,
    )
    return Call(request, _item("old"), writes=True)


def delete(
    table: str, key: Item, condition: Condition | None, expected_version: int | None
) -> Call[Item | None]:
    """Remove an item."""
    request = ask.DeleteItem(
        table=table,
        key=write_item(FORM, key),
        condition=_condition(condition),
        expected_version=expected_version,
        return_values="ALL_OLD",
        values=FORM,
    )
    return Call(request, _item("old"), writes=True)


def update(
    table: str,
    key: Item,
    changes: Update,
    condition: Condition | None,
    expected_version: int | None,
) -> Call[Updated]:
    """Change an item in part."""

    def read(said: Answer) -> Updated:
        return Updated(_item("old")(said), read_item(_form(said), said["new"]))

    request = ask.UpdateItem(
        table=table,
        key=write_item(FORM, key),
        updates=[_action(action) for action in changes.actions],
        condition=_condition(condition),
        expected_version=expected_version,
        return_values="BOTH",
        values=FORM,
    )
    return Call(request, read, writes=True)


def described_update(described: UpdateItemWith[Any]) -> Call[Updated]:
    """What the fluent calls gathered."""
    only_if, version = described.only_if, described.version
    return update(described.table, described.key, described.update, only_if, version)


def check(table: str, key: Item, condition: Condition) -> Call[None]:
    """Hold a transaction to a condition."""
    request = ask.CheckItem(
        table=table,
        key=write_item(FORM, key),
        condition=condition_to_json(condition),
        values=FORM,
    )
    return Call(request, _nothing, writes=False)


def write_batch(
    puts: Iterable[tuple[str, Item]], deletes: Iterable[tuple[str, Item]]
) -> Call[None]:
    """Write and remove items together."""
    request = ask.BatchWriteItem(
        puts=[ask.Put(table=table, item=write_item(FORM, item)) for table, item in puts],
        deletes=[ask.Delete(table=table, key=write_item(FORM, key)) for table, key in deletes],
        values=FORM,
    )
    return Call(request, _nothing, writes=True)


def _condition(condition: Condition | None) -> Any:
    return None if condition is None else condition_to_json(condition)


def _action(action: Action) -> ask.UpdateAction:
    path = write_path(action.path)
    match action:
        case SetAction(_, Literal(value)):
            return ask.UpdateAction(action="SET", path=path, value=write_value(FORM, value))
        case SetAction(_, expression):
            written = write_expression(FORM, expression)
            return ask.UpdateAction(action="SET", path=path, expression=written)
        case RemoveAction():
            return ask.UpdateAction(action="REMOVE", path=path)
        case AddAction(_, operand):
            return ask.UpdateAction(action="ADD", path=path, value=write_value(FORM, operand.value))
        case DeleteAction(_, operand):
            return ask.UpdateAction(
                action="DELETE", path=path, value=write_value(FORM, operand.value)
            )


# --- reading many ---------------------------------------------------------------------------------


def _page(said: Answer) -> ItemPage:
    form = _form(said)
    items = [read_item(form, item) for item in said["items"]]
    return ItemPage(items, _item("last_key")(said), said["evaluated"])


def scan(described: ScanWith[Any]) -> Call[ItemPage]:
    """A page of a table."""
    return Call(ask.Scan(table=described.table, **_wanted(described)), _page, writes=False)


def query(described: QueryWith[Any]) -> Call[ItemPage]:
    """A page of a partition."""
    request = ask.Query(table=described.table, **_queried(described))
    return Call(request, _page, writes=False)


def query_index(described: QueryIndexWith[Any]) -> Call[ItemPage]:
    """A page of a partition of an index."""
    request = ask.QueryIndex(table=described.table, index=described.index, **_queried(described))
    return Call(request, _page, writes=False)


def _queried(described: QueryWith[Any]) -> dict[str, Any]:
    if described.partition is None:
        raise RefusedError("a query reads one partition; say partition_key(value)")
    return {
        "partition_key": write_value(FORM, described.partition),
        "sort_key_condition": None if described.bound is None else _bound(described.bound),
        "scan_forward": not described.reversed,
        **_wanted(described),
    }


def _wanted(described: ScanWith[Any]) -> dict[str, Any]:
    return {
        "limit": described.limit_,
        "exclusive_start_key": write_item(FORM, described.start),
        "filter": _condition(described.condition),
        "projection": [write_path(path) for path in described.projection or ()],
        "values": FORM,
    }


def _bound(bound: SortBound) -> ask.SortKeyCondition:
    first = write_value(FORM, bound.values[0])
    if bound.op == "between":
        last = write_value(FORM, bound.values[-1])
        return ask.SortKeyCondition(op="between", low=first, high=last)
    return ask.SortKeyCondition(op=cast("Any", bound.op), value=first)


def count(table: str) -> Call[int]:
    """How many items a table has."""
    return Call(ask.Count(table=table), _fact("count"), writes=False)


# --- tables ---------------------------------------------------------------------------------------


def create_table(described: CreateTableWith[Any]) -> Call[None]:
    """Make a table."""
    assert described.partition is not None, "the builder saw to it"
    view = described.view
    request = ask.CreateTable(
        table=described.name,
        partition_key=_key(described.partition),
        sort_key=None if described.sort is None else _key(described.sort),
        ttl_attribute=described.ttl_attribute,
        stream=None
        if view is None
        else ask.StreamSpecification(
            view=view, unchanged=described.unchanged, retention=described.stream_retention
        ),
    )
    return Call(request, _nothing, writes=True)


def _key(key: KeyAttribute) -> ask.Key:
    return ask.Key(name=key.name, type=key.type.value)


def drop_table(table: str) -> Call[None]:
    """Remove a table."""
    return Call(ask.DropTable(table=table), _nothing, writes=True)


def list_tables() -> Call[list[str]]:
    """The names of all tables."""
    return Call(ask.ListTables(), _fact("tables"), writes=False)


def describe_table(table: str) -> Call[Table]:
    """A table's schema."""
    return Call(
        ask.DescribeTable(table=table),
        _table,
        writes=False,
    )


def create_index(described: CreateIndexWith[Any]) -> Call[None]:
    """Make an index. The server looks at every item of the table before it answers."""
    assert described.partition is not None, "the builder saw to it"
    request = ask.CreateIndex(
        table=described.table,
        index=described.name,
        partition_key=_key(described.partition),
        sort_key=None if described.sort is None else _key(described.sort),
        scope=described.only,
    )
    return Call(request, _nothing, writes=True, wait_seconds=_INDEX_SECONDS)


def drop_index(table: str, index: str) -> Call[None]:
    """Remove an index."""
    return Call(ask.DropIndex(table=table, index=index), _nothing, writes=True)


def set_ttl(table: str, attribute: str | None) -> Call[None]:
    """Let items expire, or never."""
    request = (
        ask.RemoveTtl(table=table)
        if attribute is None
        else ask.SetTtl(table=table, attribute=attribute)
    )
    return Call(request, _nothing, writes=True)


def sweep() -> Call[int]:
    """A step of the sweep."""
    return Call(ask.SweepExpiredTtl(), _fact("removed"), writes=True)


def sync() -> Call[None]:
    """Everything on the disk."""
    return Call(ask.Sync(), _nothing, writes=False)


# --- streams --------------------------------------------------------------------------------------


def enable_stream(
    table: str, view: StreamViewType, retention: Retention | None, unchanged: bool
) -> Call[None]:
    """Begin a stream."""
    request = ask.EnableStream(table=table, view=view, retention=retention, unchanged=unchanged)
    return Call(request, _nothing, writes=True)


def disable_stream(table: str) -> Call[None]:
    """End a stream."""
    return Call(ask.DisableStream(table=table), _nothing, writes=True)


def alter_retention(table: str, retention: Retention) -> Call[None]:
    """Keep more or less of a stream."""
    return Call(ask.AlterRetention(table=table, retention=retention), _nothing, writes=True)


def prune_stream(table: str, until_sequence: int) -> Call[int]:
    """Remove the oldest of a stream."""
    request = ask.PruneStream(table=table, until_sequence=until_sequence)
    return Call(request, _fact("removed"), writes=True)


def get_stream_info(table: str) -> Call[StreamInfo]:
    """A stream, as of one moment."""
    return Call(ask.GetStreamInfo(table=table), _info, writes=False)


def read_page(said: Answer) -> Page:
    """A page of a stream."""
    form = _form(said)
    records = [read_record(form, record) for record in said["records"]]
    return Page(records, said["position"], said["closed"])


def get_stream_records(
    described: ReadRecordsWith[Any], begin: str | int, *, wait_seconds: float
) -> Call[Page]:
    """A page of a stream from `begin`, waiting no longer than the server lets one wait."""
    wait_ms = min(round(wait_seconds * 1000), WAIT_MS_MAX)
    request = ask.GetStreamRecords(
        table=described.table,
        after=begin if isinstance(begin, str) and begin not in _STARTS else None,
        after_sequence=begin if isinstance(begin, int) else None,
        start="latest" if begin == "latest" else None,
        limit=described.limit_,
        max_bytes=min(described.bytes_max, BYTES_MAX),
        wait_ms=wait_ms,
        values=FORM,
    )
    return Call(request, read_page, writes=False, wait_seconds=wait_ms / 1000)


_STARTS = ("trim_horizon", "latest")


def subscribe(table: str, begin: str) -> ask.Subscribe:
    """Be pushed what follows a position, "trim_horizon" or "latest"."""
    if begin in _STARTS:
        return ask.Subscribe(table=table, start=cast("Any", begin), values=FORM)
    return ask.Subscribe(table=table, after=begin, values=FORM)


# --- consumers ------------------------------------------------------------------------------------


def register_consumer(
    table: str, name: str, start: Start, hold_bytes_max: int | None
) -> Call[Checkpoint]:
    """A consumer's checkpoint."""
    request = ask.RegisterConsumer(
        table=table, name=name, start=start, hold_bytes_max=hold_bytes_max
    )
    return Call(request, _checkpoint, writes=True)


def save_checkpoint(table: str, name: str, position: str, expected: str | None) -> Call[None]:
    """Move a consumer's checkpoint."""
    request = ask.SaveCheckpoint(table=table, name=name, position=position, expected=expected)
    return Call(request, _nothing, writes=True)


def forget_consumer(table: str, name: str) -> Call[bool]:
    """Forget a consumer."""
    return Call(ask.ForgetConsumer(table=table, name=name), _fact("forgot"), writes=True)
