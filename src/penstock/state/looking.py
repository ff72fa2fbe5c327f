"""One current row, by its key."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from penstock.event import ClusterTime, Operation
from penstock.kv import Env, Transaction
from penstock.state.layout import (
    ROWS,
    Name,
    Row,
    key_in,
    number_key,
    row_key,
    sequence_of,
    unpack_row,
)
from penstock.subscribe.current import CurrentRow


def row_of(
    txn: Transaction, env: Env, name: Name, number: int, spellings: Sequence[bytes]
) -> CurrentRow | None:
    """The row whose key is one of `spellings`, as JSON; or whose key has one field, and that is one
    of them. None if there is none."""
    field = _only_field(txn, env, number)
    for spelling in spellings:
        keys = [spelling] if spelling.startswith(b"{") else []
        if field is not None:
            keys.append(b"{%b:%b}" % (field, spelling))
        for key in keys:
            place, _ = row_key(number, key)
            value = txn.get(place, db=env[ROWS])
            if value is not None:
                return current_row(name, key_in(place, row := unpack_row(value)), row, value)
    return None


def _only_field(txn: Transaction, env: Env, number: int) -> bytes | None:
    """The name of the field of a collection's keys, as JSON; None if there are several, or no
    rows."""
    prefix = number_key(number)
    with txn.cursor(env[ROWS]) as cursor:
        if not cursor.set_range(prefix) or not cursor.key().startswith(prefix):
            return None
        key = key_in(cursor.key(), unpack_row(cursor.value()))
    fields = list(msgspec.json.decode(key, type=dict[str, Raw]))
    return msgspec.json.encode(fields[0]) if len(fields) == 1 else None


def current_row(name: Name, key: bytes, row: Row, value: bytes) -> CurrentRow:
    """A stored row, told: an insert that says `snapshot`."""
    return CurrentRow(
        sequence=sequence_of(value),
        event_id=row.event_id,
        source=name.source,
        database=name.database,
        tenant=row.tenant,
        collection=name.collection,
        cluster_time=ClusterTime(row.t, row.i),
        timestamp=row.timestamp,
        position="",
        document_id=row.document_id,
        key=Raw(key),
        operation=Operation.INSERT,
        full_document=None if row.document is None else Raw(row.document),
        snapshot=True,
        full_document_as_of_event=row.as_of_event,
    )
