"""What the tests of functions share: stories of a source, and the functions without Spark."""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from msgspec import structs

from penstock.event import AnyEvent, Kind
from penstock.spark.functions.folding import CHANGE_SCHEMA, built, current, latest, rejected
from penstock.spark.functions.lives import Lives
from penstock.spark.functions.survey import SURVEYED, Survey, report, summed
from penstock.spark.functions.told import COLUMNS, LIFE, ROW, settle
from penstock.spark.functions.versions import versions
from penstock.spark.history.apply import Tracking
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.transform.replay import signed
from tests.spark.histories import at
from tests.spark.tables import Entries, change, schema_event

COLLECTIONS = ("orders", "archive", "carts")
Row = dict[str, Any]
Batches = Iterable[pa.RecordBatch]
Identity = tuple[str, str, str]


EVENTS = ("drop", "dropDatabase", "rename", "rename", "rename", "away", "create")


def story(
    seed: int,
    *,
    commits: int = 14,
    collections: Sequence[str] = COLLECTIONS,
    events: Sequence[str] = EVENTS,
) -> Entries:
    """As `told_by`, in a log."""
    entries = Entries()
    for commit in told_by(seed, commits=commits, collections=collections, events=events):
        entries.commit(*commit)
    return entries


def told_by(
    seed: int,
    *,
    commits: int = 14,
    collections: Sequence[str] = COLLECTIONS,
    events: Sequence[str] = EVENTS,
) -> list[list[AnyEvent]]:
    """At most so many commits over few keys of some collections in two databases: whole documents,
    changes that build on rows, also on ones that are not there or cannot be reached; drops, renames
    in chains and onto others, and events that change no row. The clock may stand still or go
    backwards."""
    dice = random.Random(seed)
    told: list[list[AnyEvent]] = []
    now = 1_700_000_000_000
    for _ in range(dice.randint(1, commits)):
        now += dice.choice([0, 1, 1000, -500])
        if events and dice.random() < 0.3:
            told.append([at(_event(dice, collections, events), now)])
        else:
            count = dice.randint(1, 5)
            told.append([at(_change(dice, collections), now) for _ in range(count)])
    return told


def _place(dice: random.Random, collections: Sequence[str]) -> dict[str, Any]:
    return {"database": dice.choice("ab"), "collection": dice.choice(collections)}


def _change(dice: random.Random, collections: Sequence[str]) -> AnyEvent:
    key, place = dice.randint(0, 2), _place(dice, collections)
    number, name = dice.randint(0, 9), dice.choice(["", "x", "y"])
    kind = dice.choice(["put", "put", "delete", "delta", "delta", "deep", "unchanged"])
    if kind == "put":
        document: Row = {"_id": key, "n": number, "name": name}
        if dice.random() < 0.5:
            document["deep"] = {"at": number}
        event = change(key, "insert", document, **place)
        copied, sure = dice.random() < 0.2, dice.random() < 0.7
        return structs.replace(event, snapshot=copied, full_document_as_of_event=sure)
    if kind == "delete":
        return change(key, "delete", **place)
    if kind == "unchanged":
        return change(key, "update", {"_id": key, "n": number}, unchanged=["name"], **place)
    field = {"deep.at": number} if kind == "deep" else {"n": number}
    removed = ["name"] if dice.random() < 0.2 else []
    update = {"updatedFields": field, "removedFields": removed}
    return change(key, "update", update=update, **place)


def _event(dice: random.Random, collections: Sequence[str], events: Sequence[str]) -> AnyEvent:
    place, kind = _place(dice, collections), dice.choice(events)
    if kind == "dropDatabase":
        return schema_event(kind, database=place["database"], collection="")
    if kind in {"drop", "create"}:
        return schema_event(kind, **place)
    target = _place(dice, collections)
    while target == place:
        target = _place(dice, collections)
    to = {"db": target["database"], "coll": target["collection"]}
    return schema_event("rename", **place, to=to, targetCaptured=kind != "away")


# --- without Spark --------------------------------------------------------------------------------


def scattered(entries: pa.Table, seed: int = 0) -> pa.Table:
    """As a DataFrame may have them: in any order, and some twice."""
    dice = random.Random(seed)
    rows = [*range(entries.num_rows), *(dice.choices(range(entries.num_rows), k=5))]
    dice.shuffle(rows)
    return signed(entries.take(arrow.array(rows)).combine_chunks())


def surveyed(
    entries: pa.Table, *, collections: Sequence[str] = (), halts: bool = True, parts: int = 2
) -> Survey:
    """As `survey`, in `parts` partitions and small batches."""
    order = _sorted(entries.select(SURVEYED), "commit", "sequence")
    commits = compute.fill_null(order["commit"], 0).to_numpy()
    reports: list[Row] = []
    for part in range(parts):
        own = order.filter(arrow.array(commits % parts == part))
        for one in report(own.to_batches(max_chunksize=3), whole=not collections):
            reports += one.to_pylist()
    return summed(reports, collections=collections, halts=halts)


def told(
    entries: pa.Table, known: Survey, *, collections: Sequence[str] = (), ended: bool = False
) -> list[pa.RecordBatch]:
    """As `told_of`, in small batches."""
    data = compute.equal(entries["kind"], int(Kind.DATA))
    rows = entries.filter(compute.and_(data, compute.less_equal(entries["sequence"], known.last)))
    if collections:
        rows = rows.filter(compute.is_in(rows["collection"], arrow.array(collections)))
    rows = rows.select(COLUMNS)
    nothing = arrow.array([0] * rows.num_rows, pa.int64())
    for name, column in zip(LIFE, (rows["database"], rows["collection"], nothing), strict=True):
        rows = rows.append_column(name, column)
    batches = list(settle(rows.to_batches(max_chunksize=3), lives=known.lives, ended=ended))
    whole = pa.Table.from_batches(batches, schema=rows.schema).combine_chunks()
    return _sorted(whole, *ROW, "sequence").to_batches(max_chunksize=2)


def _sorted(table: pa.Table, *names: str) -> pa.Table:
    whole: Any = table
    ordered: pa.Table = whole.sort_by([(name, "ascending") for name in names])
    return ordered


def rows_of(made: Iterator[pa.RecordBatch]) -> list[Row]:
    """All rows of these batches."""
    return list(itertools.chain.from_iterable(batch.to_pylist() for batch in made))


def current_of(entries: pa.Table, *, collections: Sequence[str] = ()) -> list[Row]:
    """As `current_rows`."""
    known = surveyed(entries, collections=collections)
    lives: Lives = known.lives
    return rows_of(current(told(entries, known, collections=collections), lives=lives))


def latest_of(entries: pa.Table) -> list[Row]:
    """As `latest_changes`, apart from events."""
    return rows_of(latest(told(entries, surveyed(entries))))


def rejected_of(entries: pa.Table) -> list[Row]:
    """As `rejected_changes`."""
    rows = rows_of(rejected(told(entries, surveyed(entries), ended=True)))
    return sorted(rows, key=lambda row: row["sequence"])


def versions_of(
    entries: pa.Table, *, tracking: Tracking | None = None, collections: Sequence[str] = ()
) -> list[Row]:
    """As `row_versions`."""
    known = surveyed(entries, collections=collections)
    batches = told(entries, known, collections=collections, ended=True)
    return rows_of(versions(batches, lives=known.lives, tracking=tracking or Tracking()))


def built_of(changes: list[Row], kept: Callable[[Row], Row | None]) -> list[Row]:
    """As `build_on`, of rows that `kept` gives."""
    base = [
        ("base_document", pa.string()),
        ("base_sequence", pa.int64()),
        ("base_rejected_sequence", pa.int64()),
    ]
    schema: pa.Schema = arrow.schema([*CHANGE_SCHEMA, *base])
    joined: list[Row] = []
    for row in changes:
        before = kept(row) or {}
        joined.append({**row, **{name: before.get(name[5:]) for name, _ in base}})
    batch = arrow.RecordBatch.from_pylist(joined, schema=schema)
    return rows_of(built([batch]))
