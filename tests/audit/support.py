"""Rows of a log, and trails to put them into."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.audit.config import TrailConfig
from penstock.audit.entries import entry_of
from penstock.audit.outages import Patience
from penstock.audit.packing import Entry, Packer, Step
from penstock.audit.records import COLUMNS
from penstock.audit.trail import Head, Trail
from penstock.audit.writing import Writer
from penstock.event import event_id

BYTES_MAX = 8 << 20


def row(
    number: int,
    *,
    commit: int | None = None,
    ordinal: int = 0,
    rows: int = 1,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    **said: Any,
) -> dict[str, Any]:
    """An entry of a commit of `rows`: the change of one row from `before` to `after`.

    Its check is its number, and its commit's digest that of its rows, one after the other.
    """
    commit = number if commit is None else commit
    whose = after if after is not None else before or {"id": number}
    operation = "delete" if after is None else "replace" if before is not None else "insert"
    transaction = f"0-1-{commit}"
    first = number - ordinal
    made: dict[str, Any] = {
        **dict.fromkeys(COLUMNS),
        "sequence": number,
        "commit": commit,
        "commit_rows": rows,
        "commit_digest": sum(range(first, first + rows)),
        "check": number,
        "ordinal": ordinal,
        "kind": 0,
        "operation_type": operation,
        "source": "shop",
        "database": "db",
        "collection": "orders",
        "event_id": event_id("shop", transaction, ordinal),
        "document_id": str(whose.get("id")),
        "key": text({"id": whose.get("id")}),
        "full_document": text(after),
        "full_document_before_change": text(before),
        "position": f"{transaction}:{ordinal}",
        "transaction": transaction,
        "timestamp": 1_700_000_000_000 + number,
        "schema_version": 0,
        "snapshot": False,
        "unchanged": [],
    }
    return made | said


def commit_of(first: int, rows: int, **said: Any) -> list[dict[str, Any]]:
    """A commit of inserts."""
    return [
        row(first + n, commit=first, ordinal=n, rows=rows, after={"id": first + n, "v": n}, **said)
        for n in range(rows)
    ]


def text(document: dict[str, Any] | None) -> str | None:
    return None if document is None else msgspec.json.encode(document).decode()


def entries(
    rows: Sequence[dict[str, Any]], *, bytes_max: int = BYTES_MAX, id_key: bytes = b""
) -> list[Entry]:
    return [entry_of(one, tz="Asia/Kolkata", bytes_max=bytes_max, id_key=id_key) for one in rows]


def steps(
    rows: Sequence[dict[str, Any]],
    *,
    events_max: int = 100,
    bytes_max: int = BYTES_MAX,
    id_key: bytes = b"",
) -> Iterator[Step]:
    packer = Packer(events_max=events_max, bytes_max=bytes_max)
    for entry in entries(rows, bytes_max=bytes_max, id_key=id_key):
        yield from packer.add(entry)
    yield from packer.end()


def marker(sequence: int) -> str:
    return f"m{sequence}"


def trail_of(uri: str, database: str, **said: Any) -> Trail:
    config = TrailConfig.model_validate({"uri": uri, "database": database, **said})
    return Trail("shop", config)


def writer_of(trail: Trail, *, pipeline: str = "trail") -> Writer:
    """A writer that is open."""
    patience = Patience(trail, stopping=threading.Event())
    writer = Writer(trail, pipeline, patience=patience)
    writer.open()
    return writer


def write(trail: Trail, rows: Sequence[dict[str, Any]], **limits: Any) -> Head:
    """Write rows by a writer of their own."""
    writer = writer_of(trail)
    writer.write(steps(rows, **limits), marker=marker)
    return writer.head


def stored(trail: Trail) -> list[dict[str, Any]]:
    """All records, in order."""
    return list(trail.records.find().sort("at", 1))
