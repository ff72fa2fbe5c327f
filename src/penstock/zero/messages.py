"""The messages of change source protocol v0, as @rocicorp/zero 1.9.0 speaks it.

Downstream is what an endpoint says, upstream what its client answers. Each is a JSON array whose
first element names it. Fields that are not known are ignored, as zero-cache does.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

PATH: Final = "/changes/v0/stream"


class RowKey(Struct, frozen=True, omit_defaults=True):
    """The columns by which a row is known."""

    columns: tuple[str, ...]
    type: Literal["default", "nothing", "full", "index"] | None = None


class Relation(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A table, where rows of it change."""

    schema: str
    name: str
    row_key: RowKey | None = None
    key_columns: tuple[str, ...] | None = None
    """The form of older clients."""
    replica_identity: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of its key, however they were told."""
        return self.row_key.columns if self.row_key is not None else self.key_columns or ()


class TableId(Struct, frozen=True):
    """A table, by name."""

    schema: str
    name: str


class ColumnSpec(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A column: its type as PostgreSQL names it."""

    pos: int
    data_type: str
    not_null: bool | None = None
    dflt: str | None = None
    character_maximum_length: int | None = None
    pg_type_class: str | None = None
    """`e` for an enumeration."""
    elem_pg_type_class: str | None = None
    """Of an array, whose `data_type` ends with `[]`: never absent."""


class NamedColumn(Struct, frozen=True):
    """A column and its name."""

    name: str
    spec: ColumnSpec


class TableSpec(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A table. What makes its rows known is a unique index on columns that are never null (Z5)."""

    schema: str
    name: str
    columns: dict[str, ColumnSpec]
    primary_key: tuple[str, ...] | None = None


class IndexSpec(Struct, frozen=True, kw_only=True, rename="camel"):
    """An index. Its name is one for the whole schema."""

    schema: str
    table_name: str
    name: str
    unique: bool
    columns: dict[str, Literal["ASC", "DESC"]]


# --- changes ------------------------------------------------------------------------------------


class _Change(Struct, frozen=True, tag_field="tag", kw_only=True, rename="camel"):
    pass


class Insert(_Change, frozen=True, tag="insert"):
    """A row: of a key that is there, the row replaces it."""

    relation: Relation
    new: dict[str, Raw]


class Update(_Change, frozen=True, tag="update"):
    """Columns of a row; a row that is not there is made of them."""

    relation: Relation
    key: dict[str, Raw] | None
    """The key before, where it changed."""
    new: dict[str, Raw]


class Delete(_Change, frozen=True, tag="delete"):
    """The end of a row; of none, nothing."""

    relation: Relation
    key: dict[str, Raw]


class Truncate(_Change, frozen=True, tag="truncate"):
    """The end of all rows of tables."""

    relations: tuple[Relation, ...]


class CreateTable(_Change, frozen=True, tag="create-table", omit_defaults=True):
    """A table begins; its indexes follow."""

    spec: TableSpec
    metadata: Any = None
    backfill: Any = None


class RenameTable(_Change, frozen=True, tag="rename-table"):
    """A table has another name."""

    old: TableId
    new: TableId


class UpdateTableMetadata(_Change, frozen=True, tag="update-table-metadata"):
    """What its endpoint says of a table besides."""

    table: TableId
    old: Raw
    new: Raw


class AddColumn(_Change, frozen=True, tag="add-column", omit_defaults=True):
    """A column begins; rows that are there have its default."""

    table: TableId
    column: NamedColumn
    table_metadata: Any = None
    backfill: Any = None


class UpdateColumn(_Change, frozen=True, tag="update-column"):
    """A column has another name or type."""

    table: TableId
    old: NamedColumn
    new: NamedColumn


class DropColumn(_Change, frozen=True, tag="drop-column"):
    """A column ends."""

    table: TableId
    column: str


class DropTable(_Change, frozen=True, tag="drop-table"):
    """A table ends."""

    id: TableId


class CreateIndex(_Change, frozen=True, tag="create-index"):
    """An index begins."""

    spec: IndexSpec


class DropIndex(_Change, frozen=True, tag="drop-index"):
    """An index ends."""

    id: TableId


class Backfill(_Change, frozen=True, tag="backfill"):
    """Values of columns that were added before; clients refuse it of custom sources."""


class BackfillCompleted(_Change, frozen=True, tag="backfill-completed"):
    """The end of those."""


Change = (
    Insert
    | Update
    | Delete
    | Truncate
    | CreateTable
    | RenameTable
    | UpdateTableMetadata
    | AddColumn
    | UpdateColumn
    | DropColumn
    | DropTable
    | CreateIndex
    | DropIndex
    | Backfill
    | BackfillCompleted
)

# --- downstream ---------------------------------------------------------------------------------


class Begin(Struct, frozen=True, kw_only=True):
    """A transaction begins."""

    watermark: str
    """That of its commit."""
    json: Literal["p", "s"] = "p"
    """Whether json columns carry values, or their text."""
    skip_ack: bool = False


class Data(Struct, frozen=True):
    """A change of the transaction."""

    change: Change


class Committed(Struct, frozen=True, kw_only=True):
    """The transaction ends."""

    watermark: str
    commit_time_ms: float | None = None


class Rollback(Struct, frozen=True):
    """What was said since `begin` did not happen."""


class ResetRequired(Struct, frozen=True, kw_only=True):
    """The client must begin anew, and why."""

    message: str | None = None
    error_details: Any = None


class Status(Struct, frozen=True, kw_only=True):
    """Nothing changed up to a watermark."""

    watermark: str
    ack: bool = True


class AckRequested(Struct, frozen=True, kw_only=True):
    """The same in the dialect of the first design."""

    watermark: str | None = None


Downstream = Begin | Data | Committed | Rollback | ResetRequired | Status | AckRequested


class _BeginBody(
    Struct, frozen=True, tag="begin", tag_field="tag", rename="camel", omit_defaults=True
):
    json: Literal["p", "s"] = "p"
    skip_ack: bool = False


class _BeginMark(Struct, frozen=True, rename="camel"):
    commit_watermark: str


class _CommitBody(
    Struct, frozen=True, tag="commit", tag_field="tag", rename="camel", omit_defaults=True
):
    commit_time_ms: float | None = None


class _Mark(Struct, frozen=True):
    watermark: str


class _StatusBody(Struct, frozen=True, omit_defaults=True):
    ack: bool = True


class _Control(Struct, frozen=True, rename="camel", omit_defaults=True):
    tag: str
    message: str | None = None
    error_details: Any = None
    latest_upstream_watermark: str | UnsetType = field(default=UNSET)


_encode: Final = msgspec.json.Encoder().encode


def downstream_text(message: Downstream) -> bytes:
    """A message of an endpoint, as JSON."""
    return _encode(_downstream(message))


def _downstream(message: Downstream) -> list[Any]:
    match message:
        case Data(change):
            return ["data", change]
        case Begin():
            body = _BeginBody(json=message.json, skip_ack=message.skip_ack)
            return ["begin", body, _BeginMark(message.watermark)]
        case Committed():
            body_of = _CommitBody(commit_time_ms=message.commit_time_ms)
            return ["commit", body_of, _Mark(message.watermark)]
        case Rollback():
            return ["rollback", {"tag": "rollback"}]
        case ResetRequired():
            control = _Control("reset-required", message.message, message.error_details)
            return ["control", control]
        case Status():
            return ["status", _StatusBody(ack=message.ack), _Mark(message.watermark)]
        case AckRequested():
            mark = UNSET if message.watermark is None else message.watermark
            return ["control", _Control("ack-requested", latest_upstream_watermark=mark)]


# --- downstream, read ---------------------------------------------------------------------------


class MessageError(ValueError):
    """A text that is no message of the protocol. It names what is wrong, and has nothing of the
    text but the message's own words."""


_WORD_MAX: Final = 40


class _ChangeTag(Struct, frozen=True):
    tag: str


_parts: Final = msgspec.json.Decoder(list[Raw]).decode
_word: Final = msgspec.json.Decoder(str).decode
_change: Final = msgspec.json.Decoder(Change).decode
_change_tag: Final = msgspec.json.Decoder(_ChangeTag).decode
_begin_body: Final = msgspec.json.Decoder(_BeginBody).decode
_begin_mark: Final = msgspec.json.Decoder(_BeginMark).decode
_commit_body: Final = msgspec.json.Decoder(_CommitBody).decode
_mark: Final = msgspec.json.Decoder(_Mark).decode
_status_body: Final = msgspec.json.Decoder(_StatusBody).decode
_control: Final = msgspec.json.Decoder(_Control).decode
_CHANGE_TAGS: Final = frozenset(str(kind.__struct_config__.tag) for kind in Change.__args__)


def parse_downstream(text: str | bytes) -> Downstream:
    """What an endpoint says, from its JSON. Fields that are not known are ignored.

    Raises MessageError for everything else, a tag that is not known too.
    """
    message: Downstream = _read(text, _READERS)
    return message


def _read(text: str | bytes, readers: dict[str, Callable[[Sequence[Raw]], Any]]) -> Any:
    name = "without a name"
    try:
        parts = _parts(text)
        name = _word(parts[0])
        reader = readers.get(name)
        if reader is None:
            raise MessageError(f"a message {name[:_WORD_MAX]!r}, which this version does not know")
        return reader(parts)
    except MessageError:
        raise
    except IndexError:
        raise MessageError(f"a message {name[:_WORD_MAX]!r} that lacks parts") from None
    except (msgspec.MsgspecError, ValueError) as error:
        # A text that is no JSON may be anything, and its error says where alone.
        raise MessageError(f"a message {name[:_WORD_MAX]!r}: {error}") from None


def _read_data(parts: Sequence[Raw]) -> Data:
    try:
        return Data(_change(parts[1]))
    except msgspec.ValidationError:
        tag = _change_tag(parts[1]).tag
        if tag not in _CHANGE_TAGS:
            raise MessageError(
                f"a change {tag[:_WORD_MAX]!r}, which this version does not know"
            ) from None
        raise


def _read_begin(parts: Sequence[Raw]) -> Begin:
    body = _begin_body(parts[1])
    mark = _begin_mark(parts[2]).commit_watermark
    return Begin(watermark=mark, json=body.json, skip_ack=body.skip_ack)


def _read_commit(parts: Sequence[Raw]) -> Committed:
    millis = _commit_body(parts[1]).commit_time_ms
    return Committed(watermark=_mark(parts[2]).watermark, commit_time_ms=millis)


def _read_status(parts: Sequence[Raw]) -> Status:
    return Status(watermark=_mark(parts[2]).watermark, ack=_status_body(parts[1]).ack)


def _read_control(parts: Sequence[Raw]) -> ResetRequired | AckRequested:
    said = _control(parts[1])
    if said.tag == "reset-required":
        return ResetRequired(message=said.message, error_details=said.error_details)
    if said.tag == "ack-requested":
        mark = said.latest_upstream_watermark
        return AckRequested(watermark=None if mark is UNSET else mark)
    raise MessageError(
        f"a control message {said.tag[:_WORD_MAX]!r}, which this version does not know"
    )


_READERS: Final[dict[str, Callable[[Sequence[Raw]], Downstream]]] = {
    "begin": _read_begin,
    "data": _read_data,
    "commit": _read_commit,
    "rollback": lambda _: Rollback(),
    "control": _read_control,
    "status": _read_status,
}

# --- upstream -----------------------------------------------------------------------------------


class CommitAck(Struct, frozen=True, kw_only=True):
    """Whoever says it holds the transactions up to this one durably."""

    watermark: str


class StatusAck(Struct, frozen=True, kw_only=True):
    """The echo of a status that asked for one."""

    watermark: str


class FirstAck(Struct, frozen=True, kw_only=True):
    """`CommitAck` in the dialect of the first design."""

    watermark: str


Upstream = CommitAck | StatusAck | FirstAck


def upstream_text(message: Upstream) -> bytes:
    """A message of a client, as JSON."""
    mark = _Mark(message.watermark)
    match message:
        case CommitAck():
            return _encode(["status", {"tag": "commit"}, mark])
        case StatusAck():
            return _encode(["status", {"ack": True}, mark])
        case FirstAck():
            return _encode(["ack", mark])


class _UpstreamBody(Struct, frozen=True):
    tag: str = ""
    ack: bool = False


_upstream_body: Final = msgspec.json.Decoder(_UpstreamBody).decode


def parse_upstream(text: str | bytes) -> Upstream:
    """What a client says, from its JSON; raises as `parse_downstream`."""
    message: Upstream = _read(text, _UPSTREAM_READERS)
    return message


def _read_upstream_status(parts: Sequence[Raw]) -> Upstream:
    body, mark = _upstream_body(parts[1]), _mark(parts[2]).watermark
    return CommitAck(watermark=mark) if body.tag == "commit" else StatusAck(watermark=mark)


_UPSTREAM_READERS: Final[dict[str, Callable[[Sequence[Raw]], Upstream]]] = {
    "status": _read_upstream_status,
    "ack": lambda parts: FirstAck(watermark=_mark(parts[1]).watermark),
}
