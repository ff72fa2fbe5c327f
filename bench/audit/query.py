"""Reading a trail of a million records, by the queries that have a target.

    PYTHONPATH=. .venv/bin/python bench/audit/query.py [RECORDS]

The records are those of a writer (`entry_of`, `batch_of`), put in without its waiting for the disk:
40 tables of 5 databases, 11 days, three rows to a transaction, one update in two; of an update two
columns of ten change. Each query is run as `penstock audit query` runs it, page by page, up to its
last record as bytes; beside it, the same with every record decoded, and the processor time of
both sides, which says more where the machine is not quiet. Medians of several runs, the first of
which is not counted.
"""

import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from penstock.audit.batches import batch_of
from penstock.audit.config import TrailConfig
from penstock.audit.entries import entry_of
from penstock.audit.filters import Filters, Order, filters_of
from penstock.audit.querying import Querier, decoded
from penstock.audit.records import COLUMNS
from penstock.audit.trail import Head, Trail, document_of_head
from penstock.event import event_id
from tests_support.servers import MongoReplicaSet

RECORDS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
ROUNDS = 7
FIRST_MS = 1_767_225_600_000
"""2026-01-01 in UTC."""
DAY_MS = 86_400_000
KEYS = 50_000


class Target(Struct, frozen=True):
    """A query, and what it may take."""

    name: str
    filters: Filters
    records: int
    milliseconds: float
    order: Order = "desc"


def rows() -> Iterator[dict[str, Any]]:
    """Entries of the log."""
    chosen = random.Random(5)
    for number in range(1, RECORDS + 1):
        commit, ordinal = divmod(number - 1, 3)
        key = chosen.randrange(KEYS)
        before: dict[str, Any] = {
            "id": key,
            "customer": key % 977,
            "state": "placed",
            "total": 12.5,
            "email": f"customer{key}@example.com",
            "street": "x" * 20,
            "note": "n" * 40,
            "a": 1,
            "b": 2,
            "c": None,
        }
        after = before | {"state": "paid", "total": 13.5}
        what = chosen.choices(("replace", "insert", "delete"), (50, 40, 10))[0]
        transaction = f"0-1-{commit}"
        yield {
            **dict.fromkeys(COLUMNS),
            "sequence": number,
            "commit": commit,
            "commit_rows": 3,
            "commit_digest": 0,
            "check": 0,
            "ordinal": ordinal,
            "kind": 0,
            "operation_type": what,
            "source": "shop",
            "database": f"shop{number % 5}",
            "collection": f"table{number % 40}",
            "event_id": event_id("shop", transaction, ordinal),
            "document_id": str(key),
            "key": encoded({"id": key}),
            "full_document": None if what == "delete" else encoded(after),
            "full_document_before_change": None if what == "insert" else encoded(before),
            "position": f"{transaction}:{ordinal}",
            "transaction": transaction,
            "timestamp": time_of(commit),
            "schema_version": 0,
            "snapshot": False,
            "unchanged": [],
            "origin": encoded({"file": "mysql-bin.000042", "offset": number, "thread": 7}),
        }


def time_of(commit: int) -> int:
    """A hundredth of all on the first day, a tenth in the week behind it, the rest in three."""
    share = commit * 3 / RECORDS
    if share < 0.01:
        return FIRST_MS + int(share / 0.01 * DAY_MS)
    if share < 0.11:
        return FIRST_MS + DAY_MS + int((share - 0.01) / 0.1 * 7 * DAY_MS)
    return FIRST_MS + 8 * DAY_MS + int((share - 0.11) / 0.89 * 3 * DAY_MS)


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    left = iter(items)
    while chunk := list(islice(left, size)):
        yield chunk


def encoded(document: dict[str, Any]) -> str:
    return msgspec.json.encode(document).decode()


def fill(trail: Trail) -> None:
    """A trail of all rows, with the batches that prove it."""
    trail.create_indexes()
    head = Head(source="shop", pipeline="trail")
    records = trail.raw_records.with_options(write_concern=trail.client.write_concern)
    batches = trail.batches.with_options(write_concern=trail.client.write_concern)
    for chunk in batched(rows(), 10_000):
        documents: list[Any] = []
        proofs: list[Any] = []
        for some in batched(chunk, 100):
            entries = [entry_of(row, tz="Asia/Kolkata", bytes_max=8 << 20) for row in some]
            batch = batch_of(head, entries, progress="m", key=None, now_ms=0)
            documents += batch.records
            proofs.append(batch.document)
            head = batch.after
        records.insert_many(documents, ordered=False)
        batches.insert_many(proofs, ordered=False)
        trail.heads.replace_one(
            {"_id": "shop"}, document_of_head(head, now_ms=0, told={}), upsert=True
        )


def targets() -> list[Target]:
    def asked(**said: str) -> Filters:
        return filters_of(tz="UTC", **said)

    return [
        Target("the last 100", asked(), 100, 50),
        Target("1,000 of a table", asked(table="shop2.table7"), 1_000, 100),
        Target("a key of a table", asked(table="shop2.table7", pk="4711"), 1_000, 10),
        Target("a key", asked(pk="4711"), 1_000, 10),
        Target("a day of 1 %", asked(since="2026-01-01", until="2026-01-01"), RECORDS // 100, 200),
        Target("a week of 10 %", asked(since="2026-01-02", until="2026-01-08"), RECORDS // 10, 500),
        Target("a transaction", asked(transaction="0-1-4711"), 1_000, 10, "asc"),
    ]


class Taken(NamedTuple):
    """Medians, in milliseconds."""

    wall: float
    ours: float
    """Of our processor time,"""
    servers: float
    """and of the server's, which the kernel counts by hundredths of a second: a mean."""
    records: int


def milliseconds(server: int, run: Callable[[], int]) -> Taken:
    """What a run takes; `server` is mongod's process."""
    walls: list[float] = []
    ours: list[float] = []
    count = run()
    before = processor_seconds(server)
    for _ in range(ROUNDS):
        begun, cpu = time.perf_counter(), time.process_time()
        count = run()
        walls.append((time.perf_counter() - begun) * 1000)
        ours.append((time.process_time() - cpu) * 1000)
    theirs = (processor_seconds(server) - before) * 1000 / ROUNDS
    return Taken(statistics.median(walls), statistics.median(ours), theirs, count)


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(trail: Trail) -> None:
    """Run and print every query."""
    server = int(trail.client.admin.command("serverStatus")["pid"])
    querier = Querier(trail)
    print(f"{'':20} {'records':>9} {'took':>9} {'target':>9}   processor time, here and there")
    for one in targets():

        def found(one: Target = one) -> Iterator[Any]:
            return querier.records(one.filters, order=one.order, limit=one.records)

        def decode(one: Target = one) -> int:
            return sum(1 for record in found(one) if decoded(record))

        def count(one: Target = one) -> int:
            return sum(1 for _ in found(one))

        taken = milliseconds(server, count)
        whole = milliseconds(server, decode)
        print(
            f"{one.name:20} {taken.records:9,} {taken.wall:6.1f} ms {one.milliseconds:6g} ms   "
            f"{taken.ours:.1f} + {taken.servers:.1f} ms   decoded: {whole.wall:.1f} ms   "
            f"{'met' if taken.wall < one.milliseconds else 'MISSED'}",
            flush=True,
        )


def main() -> None:
    with MongoReplicaSet(cache_gb=2, oplog_mb=1024) as server:
        config = TrailConfig.model_validate({"uri": server.uri, "database": "audit"})
        with closing(Trail("shop", config)) as trail:
            begun = time.perf_counter()
            fill(trail)
            print(f"{RECORDS:,} records, filled in {time.perf_counter() - begun:.0f} s")
            measure(trail)


if __name__ == "__main__":
    main()
