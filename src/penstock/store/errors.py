"""Every error of a store, as a branch of Penstock's tree.

    StoreError
    ├── RefusedError               what was asked for cannot be done; nothing was changed
    │   ├── ValueRefusedError      a value that a store cannot hold exactly
    │   │   └── NumberRefusedError a number that is not exact in 38 digits
    │   ├── MalformedValueError    JSON that is no value of DynamoDB's protocol
    │   ├── DocumentTooLargeError  an item over 400 KiB
    │   ├── KeyTooLargeError       a partition key over 2048 bytes, or a sort key over 1024
    │   ├── KeyTypeMismatchError   a key attribute of another type than the table's
    │   ├── MissingKeyAttributeError   an item or key without a key attribute
    │   ├── ResponseTooLargeError  more was asked for than one answer may hold
    │   ├── KeyAttributeUpdateError    an update of a key attribute
    │   ├── UpdateTypeMismatchError    an update that does not fit the value it finds
    │   └── InvalidConditionError  a condition, filter, path or projection that means nothing
    ├── TableNotFoundError
    ├── TableAlreadyExistsError
    ├── IndexNotFoundError
    ├── IndexAlreadyExistsError
    ├── IndexNotReadyError         the index is being made
    ├── ConditionCheckFailedError  the condition was false; nothing was changed
    ├── VersionMismatchError       the item is not of the version that was expected
    ├── TransactionError           a transaction is used where it cannot be
    ├── StoreLockedError           another process writes the store
    ├── StoreSyncError             the disk failed while the store was synced
    ├── StorePointError            a sync point could not be kept; writes are refused until it can
    ├── StoreUnsettledError        the machine went down; the store's writer has to open it first
    ├── StreamError
    │   ├── StreamNotEnabledError  the table has no stream
    │   ├── StreamAlreadyEnabledError
    │   ├── StreamChangedError     the position is of another stream than the table's
    │   ├── TrimmedDataError       retention removed what follows the position
    │   ├── ChangesMissingError    as it, of a reader of all tables; it says of which
    │   ├── AheadOfStreamError     the position was never written
    │   ├── StreamFullError        a stream that only `prune` shortens is at its limit
    │   ├── StreamClosedError      the stream ended, and everything of it was read
    │   └── CheckpointConflictError    somebody else consumes under the same name
    └── StoreClosedError           it was closed

`name` is what a server's clients read in `error`. What can go wrong between a client and a server:
`penstock.store.remote.errors`.
"""

from typing import Any, ClassVar, NamedTuple

from penstock.errors import PenstockError


class StoreError(PenstockError):
    """A store refuses or fails. A write that raises has changed nothing."""

    code = "store"
    name: ClassVar[str] = "StoreError"

    def facts(self) -> dict[str, Any]:
        """What the error says beside its message, for programs."""
        return {}


class RefusedError(StoreError):
    """What was asked for cannot be done; nothing was changed."""

    code = "store.refused"
    name = "ValidationError"


class ValueRefusedError(RefusedError):
    """A value that a store cannot hold exactly."""

    code = "store.value"


class DocumentTooLargeError(RefusedError):
    """An item over the limit."""

    code = "store.document_too_large"
    name = "DocumentTooLarge"

    def __init__(self, *, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(
            f"the item has {size} bytes, and an item may have {limit}. Nothing was written. Keep "
            f"large values elsewhere, or split the item."
        )

    def facts(self) -> dict[str, Any]:
        """The item's bytes, and how many it may have."""
        return {"size": self.size, "limit": self.limit}


class ResponseTooLargeError(RefusedError):
    """What was asked for at once is more than one answer may hold."""

    code = "store.response_too_large"
    name = "ResponseTooLarge"


class KeyTooLargeError(RefusedError):
    """A partition or sort key over its limit."""

    code = "store.key_too_large"
    name = "KeyTooLarge"


class KeyTypeMismatchError(RefusedError):
    """A key attribute of another type than the table's."""

    code = "store.key_type"
    name = "KeyTypeMismatch"


class MissingKeyAttributeError(RefusedError):
    """An item or key without a key attribute."""

    code = "store.missing_key"
    name = "MissingKeyAttribute"


class TableNotFoundError(StoreError):
    """There is no such table."""

    code = "store.table_not_found"
    name = "TableNotFound"

    def __init__(self, table: str) -> None:
        super().__init__(f"there is no table {table!r}. Nothing was changed.")


class TableAlreadyExistsError(StoreError):
    """There is a table of that name."""

    code = "store.table_exists"
    name = "TableAlreadyExists"

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(f"there is a table {table!r} already. Nothing was changed.")


class IndexNotFoundError(StoreError):
    """The table has no such index."""

    code = "store.index_not_found"
    name = "IndexNotFound"

    def __init__(self, table: str, index: str) -> None:
        self.index = index
        super().__init__(
            f"{table} has no index {index!r}. Nothing was changed. describe_table names those that "
            f"it has."
        )

    def facts(self) -> dict[str, Any]:
        """The index."""
        return {"index": self.index}


class IndexAlreadyExistsError(StoreError):
    """The table has an index of that name."""

    code = "store.index_exists"
    name = "IndexAlreadyExists"

    def __init__(self, table: str, index: str) -> None:
        self.index = index
        super().__init__(f"{table} has an index {index!r} already. Nothing was changed.")

    def facts(self) -> dict[str, Any]:
        """The index."""
        return {"index": self.index}


class IndexNotReadyError(StoreError):
    """The index is being made, and does not have every item yet."""

    code = "store.index_not_ready"
    name = "IndexNotReady"

    def __init__(self, table: str, index: str) -> None:
        self.index = index
        super().__init__(
            f"{table}: the index {index!r} is being made, and an answer would leave items out. Ask "
            f"again once create_index has returned; if that failed, create it again."
        )

    def facts(self) -> dict[str, Any]:
        """The index."""
        return {"index": self.index}


class ConditionCheckFailedError(StoreError):
    """The condition was false; nothing was changed."""

    code = "store.condition_failed"
    name = "ConditionCheckFailed"

    def __init__(self, table: str, item: dict[str, Any] | None) -> None:
        self.item = item
        """The item as it stands; None when there is none."""
        super().__init__(
            f"{table}: the condition is false for the item as it stands. Nothing was changed. "
            f"Read it again, and decide anew."
        )


class VersionMismatchError(StoreError):
    """The item is not of the version that was expected."""

    code = "store.version_mismatch"
    name = "VersionMismatch"

    def __init__(self, table: str, *, expected: int, actual: int) -> None:
        self.expected = expected
        self.actual = actual
        """0: there is no item."""
        super().__init__(
            f"{table}: the item is of version {actual}, and {expected} was expected: somebody "
            f"wrote it meanwhile. Nothing was changed. Read it again, and decide anew."
        )

    def facts(self) -> dict[str, Any]:
        """Both versions."""
        return {"expected": self.expected, "actual": self.actual}


class TransactionError(StoreError):
    """A transaction is used where it cannot be."""

    code = "store.transaction"


class StoreLockedError(StoreError):
    """Another process writes the store."""

    code = "store.locked"
    name = "FileLocked"


class StoreSyncError(StoreError):
    """The disk failed while writes that did not wait for it were synced; the store is not written
    any more until it is opened again."""

    code = "store.sync"


class StorePointError(StoreError):
    """A store whose writes do not wait for the disk could not keep what it would go back to after
    a power cut, for want of room or of descriptors; writes are refused until it can."""

    code = "store.sync_refused"
    transient = True


class StoreUnsettledError(StoreError):
    """The machine went down while the store was written without waiting for the disk (`sync`), and
    no writer has opened it since: what it holds is not known yet."""

    code = "store.unsettled"


class StoreClosedError(StoreError):
    """The store was closed."""

    code = "store.closed"


class StreamError(StoreError):
    """A stream cannot be read or written as was asked."""

    code = "store.stream"


class StreamNotEnabledError(StreamError):
    """The table has no stream, or none any more."""

    code = "store.stream_not_enabled"
    name = "StreamNotEnabled"


class StreamAlreadyEnabledError(StreamError):
    """The table has a stream."""

    code = "store.stream_already_enabled"
    name = "StreamAlreadyEnabled"


class StreamChangedError(StreamError):
    """The position is of another stream than the table's (F10)."""

    code = "store.stream_changed"
    name = "StreamChanged"


class TrimmedDataError(StreamError):
    """Retention removed what follows the position (F4)."""

    code = "store.trimmed"
    name = "TrimmedDataAccess"

    def __init__(self, table: str, *, after: int, trimmed: int) -> None:
        self.trimmed = trimmed
        """Records up to this sequence are gone; reading after it is possible."""
        super().__init__(
            f"{table}: changes after sequence {after} were removed by retention; the stream "
            f"begins after {trimmed}. What was read before is good. Copy the table again and go "
            f"on from there, or start from trim_horizon and accept the hole."
        )

    def facts(self) -> dict[str, Any]:
        """The trim point."""
        return {"trimmed": self.trimmed}


class Missing(NamedTuple):
    """Changes of a table that retention removed before a reader of all tables came to them."""

    table: str
    stream: int
    until: int
    """What is missing was written up to this sequence."""


class ChangesMissingError(StreamError):
    """Retention removed what follows a place in the changes of all tables (F4)."""

    code = "store.changes_missing"
    name = "TrimmedDataAccess"

    def __init__(self, missing: "list[Missing]", *, after: int) -> None:
        self.missing = missing
        tables = sorted({one.table for one in missing})
        super().__init__(
            f"{', '.join(tables[:10])}: changes after sequence {after} were removed by retention. "
            f"What was read before is good, and so are the other tables. Copy these tables again, "
            f"or accept the hole by naming it (known)."
        )

    def facts(self) -> dict[str, Any]:
        """The tables, each with the sequence up to which changes of it are missing."""
        return {"missing": {one.table: one.until for one in self.missing}}


class AheadOfStreamError(StreamError):
    """The position was never written: it is of another store, or of this one before a restore."""

    code = "store.ahead"
    name = "AheadOfStream"


class StreamFullError(StreamError):
    """A stream that only `prune_stream` shortens is at its limit; the write was refused."""

    code = "store.stream_full"
    name = "StreamFull"

    def __init__(self, table: str, *, bytes_max: int) -> None:
        super().__init__(
            f"{table}: its stream is at its limit of {bytes_max} bytes, and only prune_stream "
            f"shortens it. The write was refused and nothing was changed. Prune what every "
            f"consumer has read, or raise the limit."
        )


class StreamClosedError(StreamError):
    """The stream was disabled, or its table dropped, and everything of it was read (F19)."""

    code = "store.stream_closed"
    name = "StreamClosed"

    def __init__(self, table: str, *, position: str) -> None:
        self.position = position
        """The stream's end."""
        super().__init__(
            f"{table}: the stream was disabled, or the table dropped, and everything of it was "
            f"read. If the table has a stream again, changes may lie between the two: copy the "
            f"table, and start with the new one."
        )

    def facts(self) -> dict[str, Any]:
        """The stream's end."""
        return {"position": self.position}


class CheckpointConflictError(StreamError):
    """A consumer's checkpoint is not where this consumer left it."""

    code = "store.checkpoint_conflict"
    name = "CheckpointConflict"

    def __init__(self, table: str, name: str, *, expected: str | None, actual: str | None) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(
            f"{table}: the checkpoint of consumer {name!r} stands elsewhere than this consumer "
            f"left it: another one runs under the same name, or somebody moved it. Nothing was "
            f"changed. Give each consumer a name of its own."
        )

    def facts(self) -> dict[str, Any]:
        """Where it was thought to stand, and where it stands."""
        return {"expected": self.expected, "actual": self.actual}


class NumberRefusedError(ValueRefusedError):
    """A number, or what arithmetic would make, that is not exact in 38 digits."""

    code = "store.number"

    def __init__(self, message: str, *, dynamodb: str) -> None:
        self.dynamodb = dynamodb
        super().__init__(message)


class MalformedValueError(RefusedError):
    """JSON that is no value of DynamoDB's protocol; its clients read SerializationException."""

    code = "store.malformed_value"
    name = "SerializationError"


class KeyAttributeUpdateError(RefusedError):
    """An update of a key attribute."""

    code = "store.key_update"
    name = "KeyAttributeUpdate"

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute
        self.dynamodb = (
            f"One or more parameter values were invalid: Cannot update attribute {attribute}. "
            f"This attribute is part of the key"
        )
        super().__init__(
            f"{attribute!r} is part of the item's key, and a key never changes. Nothing was "
            f"changed. Put the item under its new key, and delete the old one."
        )

    def facts(self) -> dict[str, Any]:
        """The key attribute."""
        return {"attribute": self.attribute}


class UpdateTypeMismatchError(RefusedError):
    """An update that does not fit the value it finds."""

    code = "store.update_type"
    name = "UpdateTypeMismatch"

    def __init__(self, message: str, *, path: str, dynamodb: str) -> None:
        self.path = path
        self.dynamodb = dynamodb
        super().__init__(f"{message} Nothing was changed.")

    def facts(self) -> dict[str, Any]:
        """The path in the item."""
        return {"path": self.path}


class InvalidConditionError(RefusedError):
    """A condition, filter, path, update or projection that means nothing."""

    code = "store.invalid_condition"
    name = "InvalidCondition"


def dynamodb_text(error: StoreError) -> str:
    """What DynamoDB says of the error: its own text where it has one, else the error's message."""
    text: str | None = getattr(error, "dynamodb", None)
    return str(error) if text is None else text
