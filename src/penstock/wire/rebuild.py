"""Arrow columns -> events and their places: what `arrow.py` took apart, for blocks to be built of.

Encoding an event is deterministic, so the columns of an entry give its very bytes, which the
column `check` proves.
"""

# The published types of pyarrow are partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Raw
from numpy.typing import NDArray

from penstock.event import (
    AnyEvent,
    ChangeEvent,
    ClusterTime,
    Kind,
    Operation,
    SchemaEvent,
    SystemEvent,
)
from penstock.wire.layout import COMMIT, PLACE

_OPERATIONS = {operation.value: operation for operation in Operation}


def events_of_batch(batch: pa.RecordBatch) -> list[AnyEvent]:
    """The events of a batch of ARROW_SCHEMA with all its columns.

    Raises ValueError for rows that no event could have given.
    """
    return [_event(row) for row in batch.to_pylist()]


def _event(row: dict[str, Any]) -> AnyEvent:
    kind = row["kind"]
    common: dict[str, Any] = {
        "event_id": row["event_id"],
        "source": row["source"],
        "database": row["database"],
        "tenant": row["tenant"],
        "collection": row["collection"],
        "cluster_time": ClusterTime(row["cluster_time_t"], row["cluster_time_i"]),
        "timestamp": row["timestamp"],
        "position": row["position"],
        "schema_version": row["schema_version"],
        "transaction": row["transaction"],
        "origin": _raw(row["origin"]),
    }
    if kind != Kind.DATA:
        of_kind = SchemaEvent if kind == Kind.SCHEMA else SystemEvent
        description = _raw(row["full_document"]) or Raw(b"")
        return of_kind(operation=row["operation_type"], description=description, **common)
    operation = _OPERATIONS.get(row["operation_type"])
    if operation is None:
        raise ValueError(f"there is no operation {row['operation_type']!r}")
    return ChangeEvent(
        document_id=row["document_id"],
        key=_raw(row["key"]) or Raw(b""),
        operation=operation,
        full_document=_raw(row["full_document"]),
        full_document_before_change=_raw(row["full_document_before_change"]),
        update_description=_raw(row["update_description"]),
        disambiguated_paths=_raw(row["disambiguated_paths"]),
        txn_number=row["txn_number"],
        snapshot=row["snapshot"],
        unchanged=tuple(row["unchanged"]),
        full_document_as_of_event=row["full_document_as_of_event"],
        **common,
    )


def _raw(text: str | None) -> Raw | None:
    return None if text is None else Raw(text.encode())


def places_of_batch(batch: pa.RecordBatch) -> NDArray[np.void]:
    """Where each row stands (PLACE) in its commit; commits are counted from the batch's first."""
    commits = _numbers(batch, "commit")
    places = np.zeros(batch.num_rows, PLACE)
    places["commit"] = commits - commits[0]
    places["ordinal"] = _numbers(batch, "ordinal")
    places["ends"] = batch.column("ends_commit").to_numpy(zero_copy_only=False)
    return places


def summaries_of_batch(batch: pa.RecordBatch) -> NDArray[np.void]:
    """The summary (COMMIT) of each commit that the batch has rows of, in order.

    Raises ValueError if the commits are not dense.
    """
    commits = _numbers(batch, "commit")
    first = np.flatnonzero(np.diff(commits, prepend=commits[0] - 1))
    if (np.diff(commits[first]) != 1).any():
        raise ValueError("its commits do not follow each other")
    summaries = np.empty(len(first), COMMIT)
    summaries["rows"] = _numbers(batch, "commit_rows")[first]
    summaries["digest"] = _numbers(batch, "commit_digest")[first]
    return summaries


def _numbers(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    return batch.column(name).to_numpy()
