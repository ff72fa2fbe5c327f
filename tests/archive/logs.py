"""What the tests of the archive share: a log with every sort of entry, archived and trimmed."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import Raw

from penstock.archive.config import ArchiveConfig
from penstock.archive.reading import Archive
from penstock.archive.writing import Archiver
from penstock.event import (
    AnyEvent,
    ChangeEvent,
    ClusterTime,
    Commit,
    Fragment,
    Operation,
    SchemaEvent,
    SystemEvent,
    event_id,
)
from penstock.log import LmdbLog, LogConfig
from penstock.subscribe.criteria import Criteria
from penstock.wire import ARROW_SCHEMA, to_arrow

WHOLE = Criteria(control_events=True)


def event(number: int, *, source: str = "a", collection: str = "orders") -> AnyEvent:
    """An event that `number` decides: all operations, kinds, and fields that may be missing."""
    of = random.Random(number)
    common: dict[str, Any] = {
        "event_id": event_id(source, str(number), 0),
        "source": source,
        "database": "shop",
        "tenant": "täglich",
        "collection": collection,
        "cluster_time": ClusterTime(1_700_000_000 + number, of.choice([0, 1, 300])),
        "timestamp": 1_700_000_000_000 + of.choice([0, number]),
        "position": of.choice(["", f"p{number}"]),
        "schema_version": of.choice([0, 3]),
        "transaction": of.choice([None, "t:1"]),
        "origin": of.choice([None, Raw(b'{"file":"b.1"}')]),
    }
    sort = of.randrange(12)
    if sort == 0:
        facts = Raw(b'{"to":{"db":"shop","coll":"orders"}}')
        return SchemaEvent(operation=of.choice(["rename", "drop"]), description=facts, **common)
    if sort == 1:
        return SystemEvent(operation=of.choice(["gap", "started"]), **common)
    operation = of.choice(list(Operation))
    text = Raw(b'{"n":{"$numberLong":"9"},"t":"%s"}' % (b"x" * of.choice([0, 5, 2000])))
    return ChangeEvent(
        document_id=of.choice(["", f"ö{number}"]),
        key=Raw(b'{"_id":%d}' % number),
        operation=operation,
        full_document=None if operation is Operation.DELETE else of.choice([None, text]),
        full_document_before_change=of.choice([None, text]),
        update_description=Raw(b'{"updatedFields":{}}') if operation is Operation.UPDATE else None,
        disambiguated_paths=of.choice([None, Raw(b'{"a":["b"]}')]),
        txn_number=of.choice([None, 0, 7]),
        snapshot=operation is Operation.INSERT and of.random() < 0.3,
        unchanged=of.choice([(), ("big",), ("", "b")]),
        full_document_as_of_event=of.random() < 0.5,
        **common,
    )


async def fill(log: LmdbLog, *, seed: int = 0, commits: int = 30) -> None:
    """Commits of two sources and three collections; some are large, and one is staged."""
    of = random.Random(seed)
    number = seed * 100_000
    for _ in range(commits):
        rows = of.choice([1, 1, 2, 5, 40])
        source, collection = of.choice(["a", "b"]), of.choice(["orders", "lines", ""])
        events = tuple(
            event(number + row, source=source, collection=collection) for row in range(rows)
        )
        number += rows
        await log.append([Commit(source=source, position=str(number), events=events)])
    for at in range(0, 90, 30):
        part = tuple(event(number + at + row, source="c") for row in range(30))
        await log.append([Fragment(source="c", events=part)])
    await log.append([Commit(source="c", position=str(number))])


def log_config(folder: Path, **more: Any) -> LogConfig:
    return LogConfig(path=folder / "log", free_bytes_min=0, **more)


def archiver(log: LmdbLog, folder: Path, *, range_bytes: int = 20_000) -> Archiver:
    """Archives all that waits, whenever it is asked."""
    config = ArchiveConfig(range_age=0.000_001, range_bytes=range_bytes)
    return Archiver(log, config, str(folder / "archive"))


def opened(folder: Path) -> Archive:
    return Archive.open(str(folder / "archive"))


def live_rows(log: LmdbLog, after: int, until: int) -> pa.Table:
    """(after, until] as the log has it."""
    return pa.Table.from_batches(list(_live(log, after, until)), schema=ARROW_SCHEMA)


def _live(log: LmdbLog, after: int, until: int) -> Iterator[pa.RecordBatch]:
    while after < until:
        blocks = log.read_now(after=after, until=until)
        yield to_arrow(blocks)
        after = blocks[-1].last_sequence


def archived_rows(archive: Archive, after: int, until: int) -> pa.Table:
    """(after, until] as the archive has it."""
    found = archive.batches(after=after, until=until, columns=ARROW_SCHEMA.names, criteria=WHOLE)
    return pa.Table.from_batches([batch for batch, _ in found], schema=ARROW_SCHEMA)
