"""What the tests of tables share: a log of entries in memory, its fold, and a table's rows."""

import itertools
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from msgspec import Raw

from penstock.event import (
    AnyEvent,
    ChangeEvent,
    ClusterTime,
    Operation,
    SchemaEvent,
    SystemEvent,
    event_id,
)
from penstock.extjson import encode
from penstock.spark.config import HistoryPipelineConfig, TablePipelineConfig
from penstock.spark.table.apply import table_states
from penstock.spark.table.arrow import compute
from penstock.spark.table.chunk import (
    CHUNK_SCHEMA,
    INPUT_COLUMNS,
    Collected,
    from_chunks,
    join,
    removed_by,
    to_chunks,
)
from penstock.spark.table.lake import Lake
from penstock.spark.table.reduce import verify_commits
from penstock.spark.table.unfollowed import Unfollowed
from penstock.spark.table.writing import BatchResult, cuts_of
from penstock.spark.tables import writer_of
from penstock.wire import Block, build_block, encode_commit, places_of, summaries_of, to_arrow

LOG_ID = 0xFEDC_BA98_7654_3210
"""Above 2**63: as a signed number it is negative."""

Document = dict[str, Any]


class Entries:
    """A log as one Arrow table; sequences start at 1."""

    def __init__(self) -> None:
        self._blocks: list[pa.RecordBatch] = []
        self._commits = 0
        self.head = 0

    def commit(self, *events: AnyEvent) -> None:
        """Append one commit."""
        self._commits += 1
        encoded, rows = encode_commit("shop", events, position="p").events, [len(events)]
        data = build_block(
            encoded,
            places_of(rows),
            summaries_of(encoded, rows),
            first_commit=self._commits,
            ingested_at=1,
            before=0,
        )
        block = Block(data, log_id=LOG_ID, first_sequence=self.head + 1)
        self._blocks.append(to_arrow((block,)))
        self.head += len(events)

    def table(self, after: int = 0, until: int | None = None) -> pa.Table:
        """The entries of (after, until]."""
        whole = pa.Table.from_batches(self._blocks)
        return whole.slice(after, (self.head if until is None else until) - after)


def change(
    key: object,
    operation: str,
    document: Document | None = None,
    *,
    update: Document | None = None,
    paths: Document | None = None,
    unchanged: Sequence[str] = (),
    database: str = "db",
    collection: str = "orders",
    text: str | None = None,
) -> ChangeEvent:
    """A change of the document `key`; `text` instead of `document` is Extended JSON as it is."""
    full = Raw(text.encode()) if text is not None else encode(document) if document else None
    return ChangeEvent(
        event_id=event_id("shop", f"{key}", 0),
        source="shop",
        database=database,
        tenant=database,
        collection=collection,
        cluster_time=ClusterTime(1_700_000_000),
        timestamp=1_700_000_000_000,
        position="p",
        document_id=str(key),
        key=encode({"_id": key}),
        operation=Operation(operation),
        full_document=full,
        update_description=encode(update) if update is not None else None,
        disambiguated_paths=encode(paths or {}) if update is not None else None,
        unchanged=tuple(unchanged),
    )


def dotted(key: object) -> ChangeEvent:
    """An update of the field `a.b`, which is none of an object `a`."""
    said: Document = {"updatedFields": {"a.b": 1}, "removedFields": []}
    return change(key, "update", update=said, paths={"a.b": ["a.b"]})


def put(key: object, /, **fields: Any) -> ChangeEvent:
    """An insert of a whole document."""
    return change(key, "insert", {"_id": key, **fields})


def schema_event(
    operation: str, *, database: str = "db", collection: str = "orders", **facts: Any
) -> SchemaEvent:
    """An event about a whole collection."""
    return SchemaEvent(
        event_id=event_id("shop", operation, 0),
        source="shop",
        database=database,
        tenant=database,
        collection=collection,
        cluster_time=ClusterTime(1_700_000_000),
        timestamp=1_700_000_000_000,
        position="p",
        operation=operation,
        description=encode(facts),
    )


def gap() -> SystemEvent:
    """Changes that were lost."""
    return SystemEvent(
        event_id=event_id("shop", "gap", 0),
        source="shop",
        database="",
        tenant="",
        collection="",
        cluster_time=ClusterTime(0),
        timestamp=0,
        position="p",
        operation="gap",
        description=encode({"reason": "oplog"}),
    )


def pipeline(path: Path, *collections: str, **more: Any) -> TablePipelineConfig:
    """A pipeline into `path`."""
    return TablePipelineConfig(
        source="shop", collections=collections or ("orders",), path=str(path), **more
    )


def apply(
    entries: pa.Table,
    config: TablePipelineConfig | HistoryPipelineConfig,
    *,
    batch_id: int = 0,
    name: str = "p",
    log_id: int = LOG_ID,
    parts: int = 1,
    scratch: str | None = None,
    tables: dict[str, int] | None = None,
    lake: Lake | None = None,
    unfollowed: Unfollowed | None = None,
) -> BatchResult:
    """Apply one batch as Spark would, in `parts` partitions, in this process."""
    every = config.to == "history"

    def collect(some: pa.Table) -> Collected:
        collected = collect_cut(some, ())
        cuts = () if every else cuts_of(collected.controls)
        return collect_cut(some, cuts) if cuts else collected

    def collect_cut(some: pa.Table, cuts: Sequence[int]) -> Collected:
        edges = [some.num_rows * part // parts for part in range(parts + 1)]
        made = [
            chunk
            for start, stop in itertools.pairwise(edges)
            if stop > start
            for chunk in to_chunks(
                some.slice(start, stop - start).select(INPUT_COLUMNS).to_batches(),
                cuts=cuts,
                scratch=scratch,
                every=every,
            )
        ]
        table = pa.Table.from_batches(made, schema=CHUNK_SCHEMA)
        opened = from_chunks(table)
        first: int = compute.min(table["first"]).as_py() or 1
        collected = Collected(
            chunk=join([chunk for chunk, _ in opened], cuts=cuts, every=every),
            after=first - 1,
            entries=some.num_rows,
        )
        if opened:
            sums = pa.concat_tables([sums for _, sums in opened])
            verify_commits(sums, whole=True, lost=removed_by(collected.controls))
        return collected

    def before(sequence: int) -> Collected:
        commits = entries["commit"]
        commit = commits.filter(compute.equal(entries["sequence"], sequence))[0]
        return collect(entries.filter(compute.less(commits, commit)))

    def entries_at(wanted: Sequence[int]) -> pa.Table:
        return entries.filter(compute.is_in(entries["sequence"], pa.array(wanted)))

    writer = writer_of(config)(
        pipeline=name,
        log_id=log_id,
        batch_id=batch_id,
        entries_at=entries_at,
        tables=tables,
        lake=lake,
        unfollowed=unfollowed,
    )
    return writer.apply(collect(entries), before=before)


def rows_of(path: Path | str) -> dict[tuple[str, str], Document]:
    """The documents of a table by (database, key), nulls left out."""
    table = DeltaTable(str(path)).to_pyarrow_table()
    return {
        (database, key): state.document or {}
        for (key, _, database), state in table_states(table).items()
    }


def rejects_of(path: Path | str) -> list[Document]:
    """The rows of the rejects table, by sequence."""
    rejects: list[Document] = DeltaTable(f"{path}_rejects").to_pyarrow_table().to_pylist()
    return sorted(rejects, key=lambda row: row["sequence"])


def version_of(path: Path | str) -> int:
    """The table's version: it grows with each commit."""
    return DeltaTable(str(path)).version()


def fold(entries: pa.Table, collection: str | None = None) -> dict[tuple[str, str], Document]:
    """What the table must be, of this collection or of all: whole documents, deletes, and
    collections that are dropped or renamed."""
    tables: dict[str, dict[tuple[str, str], Document]] = {}
    for entry in entries.to_pylist():
        rows = tables.setdefault(entry["collection"], {})
        own = (entry["database"], entry["key"])
        if entry["kind"]:
            gone = {at: row for at, row in rows.items() if at[0] == entry["database"]}
            if entry["operation_type"] in {"drop", "rename"}:
                for at in gone:
                    del rows[at]
            if entry["operation_type"] == "rename":
                to = json.loads(entry["full_document"])["to"]
                new = tables.setdefault(to["coll"], {})
                for at in [at for at in new if at[0] == to["db"]]:
                    del new[at]
                new |= {(to["db"], key): row for (_, key), row in gone.items()}
            continue
        if entry["operation_type"] == "delete":
            rows.pop(own, None)
            continue
        if entry["full_document"] is None:
            document = dict(rows[own])
            said = json.loads(entry["update_description"])
            document |= said.get("updatedFields", {})
            for field in said.get("removedFields", []):
                document.pop(field, None)
        else:
            document = json.loads(entry["full_document"])
            for field in entry["unchanged"] or ():
                if field in rows[own]:
                    document[field] = rows[own][field]
        rows[own] = {field: value for field, value in document.items() if value is not None}
    wanted = tables.values() if collection is None else [tables.get(collection, {})]
    return {own: row for rows in wanted for own, row in rows.items()}


def as_of_days_ago(path: Path, days: int) -> None:
    """Have all that is in a Delta table have happened then."""
    then = time.time() - days * 86_400
    for commit in (path / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] = int(then * 1000)
        commit.write_text("\n".join(map(json.dumps, actions)) + "\n")
        os.utime(commit, (then, then))
    for file in path.rglob("*.parquet"):
        os.utime(file, (then, then))
