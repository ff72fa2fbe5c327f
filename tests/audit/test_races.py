"""Two drivers, a restored database, other settings: nothing is lost, and nothing is believed."""

import threading
from contextlib import closing
from typing import Any

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo.errors import AutoReconnect

from penstock.audit import bringing
from penstock.audit.archives import Archives
from penstock.audit.bringing import bring_parts
from penstock.audit.entries import entry_of, made_ready
from penstock.audit.names import Names, Table
from penstock.audit.outages import Patience
from penstock.audit.own import Told, id_digest, records_of
from penstock.audit.records import COLUMNS, with_place
from penstock.audit.retire import Retirer
from penstock.audit.searching import Search, key_of
from penstock.audit.trail import RAW, Staged, Trail
from penstock.audit.writing import Writer
from penstock.errors import TrailBehindError, TrailConflictError, TrailTakenError
from penstock.spark.audit import AuditTarget
from penstock.spark.config import AuditPipelineConfig
from penstock.spark.rows import gap_row
from penstock.spark.target import TargetStoppedError
from tests.audit.proofs import patience, verify
from tests.audit.support import (
    commit_of,
    entries,
    marker,
    row,
    steps,
    stored,
    trail_of,
    write,
    writer_of,
)
from tests_support.servers import MongoReplicaSet

pytestmark = pytest.mark.server


def saved(trail: Trail) -> dict[str, list[RawBSONDocument]]:
    collections = (trail.records, trail.batches, trail.heads, trail.staging)
    return {one.name: list(one.with_options(codec_options=RAW).find()) for one in collections}


def restore(trail: Trail, backup: dict[str, list[RawBSONDocument]]) -> None:
    for name, documents in backup.items():
        trail.database[name].delete_many({})
        if documents:
            trail.database[name].insert_many(documents)


def test_a_database_that_was_restored_under_a_driver_is_not_written_on(any_trail: Trail) -> None:
    """A2: what the backup lacks would be missing, and the place beyond it."""
    writer = writer_of(any_trail)
    writer.write(steps([row(1, after={"id": 1})]), marker=marker)
    backup = saved(any_trail)
    writer.write(steps([row(2, after={"id": 2})]), marker=marker)
    restore(any_trail, backup)
    writer.save("m3")
    with pytest.raises(TrailBehindError):
        writer.flush()
    head = any_trail.head()
    assert head is not None
    assert (head.at, head.progress) == (1, "m1")


def test_a_trail_that_was_narrowed_is_not_widened_again(trail: Trail) -> None:
    """What the others changed meanwhile is not in it."""

    def opened(*collections: str) -> Writer:
        patience = Patience(trail, stopping=threading.Event())
        writer = Writer(trail, "trail", patience=patience, collections=collections)
        writer.open()
        return writer

    opened("a", "b")
    opened("a").append(entries([row(1, after={"id": 1})]), progress="m9")
    with pytest.raises(TrailTakenError, match="the pipeline has more"):
        opened("a", "b")


def test_an_older_driver_that_wakes_does_not_take_the_trail_back(
    any_trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = writer_of(any_trail)
    show = older._show  # pyright: ignore[reportPrivateUsage]
    held: list[Any] = []

    def sleep(*arguments: Any) -> None:
        held.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(older, "_show", sleep)
    with pytest.raises(KeyboardInterrupt):
        older.write(steps(commit_of(1, 6), events_max=2), marker=marker)

    def wake(*arguments: Any, **options: Any) -> None:
        bring_parts(*arguments, **options)
        if held:
            with pytest.raises(TrailTakenError):
                show(*held.pop())

    monkeypatch.setattr("penstock.audit.writing.bring_parts", wake)
    newer = writer_of(any_trail)
    assert newer.head.epoch == older.head.epoch + 1
    assert any_trail.head() == newer.head
    assert newer.head.at == 6


def test_an_older_driver_that_wakes_puts_nothing_back_that_was_retired(
    any_trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A26: it holds a part of a commit in memory while another brings it in, and rows go."""
    uri, transactions = any_trail.config.uri.get_secret_value(), any_trail.has_transactions()
    name = "_insert_together" if transactions else "_insert_alone"
    insert = getattr(bringing, name)
    slept: list[Any] = []

    def sleep(*arguments: Any) -> Any:
        if not slept:
            slept.append(arguments)
            newer = writer_of(any_trail)
            assert newer.head.at == 6
            retirer = Retirer(
                any_trail, patience(any_trail), Archives(()), take_over=not transactions
            )
            options: dict[str, Any] = {"reason": "", "by": "ann", "without_archive": True}
            assert retirer.retire(None, before_ms=1 << 50, **options).taken == 6
        return insert(*arguments)

    monkeypatch.setattr(bringing, name, sleep)
    with closing(trail_of(uri, any_trail.config.database, writers=1)) as asleep:
        older = writer_of(asleep)
        with pytest.raises(TrailTakenError):
            older.write(steps(commit_of(1, 6), events_max=2), marker=marker)
    assert slept
    assert [record["op"] for record in stored(any_trail)] == ["sys"]
    assert verify(any_trail).sound


def test_behind_a_part_that_fails_no_more_are_begun(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A20: who waits for a thousand of them, each by its own, is not told to stop for long."""
    begun: list[str] = []

    def fail(_trail: Trail, name: str, **_: Any) -> None:
        begun.append(name)
        threading.Event().wait(0 if len(begun) == 1 else 0.1)
        raise AutoReconnect("away")

    monkeypatch.setattr("penstock.audit.bringing.bring_part", fail)
    known = {"source": trail.source, "epoch": Int64(1), "status": "pending"}
    trail.staging.insert_many([{**known, "_id": n, "number": Int64(n)} for n in range(1, 301)])
    staged = Staged(first=1, last=300, at=300, hash=b"", progress="", epoch=1)
    with pytest.raises(AutoReconnect):
        bring_parts(trail, staged, transactions=True)
    assert len(begun) < 300


def test_another_time_to_keep_staged_parts_is_taken_over(trail: Trail) -> None:
    writer_of(trail)
    uri = trail.config.uri.get_secret_value()
    with closing(trail_of(uri, trail.config.database, staged_days=8)) as other:
        writer_of(other)
    (kept,) = [one for one in trail.staging.list_indexes() if "expireAfterSeconds" in one]
    assert kept["expireAfterSeconds"] == 8 * 86_400


def test_a_driver_that_is_told_to_stop_while_it_opens_the_trail_stops() -> None:
    """A20."""
    said = {"to": "audit", "source": "shop", "uri": "mongodb://127.0.0.1:1/"}
    config = AuditPipelineConfig.model_validate({**said, "answer_seconds": 0.3})
    stopping = threading.Event()
    target = AuditTarget("p", config, "127.0.0.1:1", stopping=stopping)
    timer = threading.Timer(0.5, stopping.set)
    timer.start()
    with closing(target), pytest.raises(TargetStoppedError):
        target.start(None)  # type: ignore[arg-type]
    timer.join()


def test_what_retention_took_before_it_was_read_is_a_gap_in_the_trail(trail: Trail) -> None:
    """A9: with on_gap = 'record', which is the default."""
    (lost,) = gap_row(log_id=1, after=3, until=9, check=5, columns=COLUMNS).to_pylist()
    entry = entry_of(lost, tz="Asia/Kolkata", bytes_max=1 << 20)
    writer_of(trail).append([entry], progress="m9")
    (record,) = stored(trail)
    assert (record["op"], record["said"]["from"], record["said"]["to"]) == ("gap", 3, 9)


def test_values_are_compared_wherever_they_lie(trail: Trail) -> None:
    """A5: with another batch_bytes, the same change may be spilled or not."""
    change = row(1, after={"id": 1, "v": "x" * 5000})
    write(trail, [change], bytes_max=2048)
    write(trail, [change], bytes_max=1 << 20)
    assert len(stored(trail)) == 1
    for limit in (2048, 1 << 20):
        with pytest.raises(TrailConflictError):
            write(trail, [row(1, after={"id": 1, "v": "y" * 5000})], bytes_max=limit)


def test_what_is_read_to_write_is_read_from_the_primary(
    mongo: MongoReplicaSet, mongo_database: str
) -> None:
    uri = f"{mongo.uri}&readPreference=secondary"
    with closing(trail_of(uri, mongo_database)) as trail:
        write(trail, [row(1, after={"id": 1})])
        assert len(stored(trail)) == 1


def test_a_retirement_covers_nothing_behind_itself(trail: Trail) -> None:
    """A26: else one that is forged where nobody looks hides what is stolen later."""
    write(trail, [*commit_of(1, 3), *commit_of(4, 20)], events_max=5)
    (taken,) = trail.records.find({"at": 20})
    digests = [id_digest(taken["_id"])]
    (forged,) = records_of(Told(act="retire"), [20], digests, source="shop", tz="UTC", now_ms=5)
    ready = made_ready(forged, bytes_max=1 << 20)
    batch = trail.batches.find_one({"_id": 1})
    assert batch is not None
    joined = {
        "leaves": Binary(ready["leaf"] + batch["leaves"][32:]),
        "salts": Binary(ready["salt"] + batch["salts"][16:]),
    }
    trail.batches.update_one({"_id": 1}, {"$set": joined})
    trail.records.delete_one({"at": 1})
    trail.raw_records.insert_one(RawBSONDocument(with_place(ready["record"], 1)))
    trail.records.delete_one({"at": 20})
    assert not verify(trail, first=8).sound


def test_a_key_with_a_time_is_found_in_an_archive() -> None:
    """Erasure that says 0 records and leaves the content would be the worst answer."""
    key = '{"at": {"$date": "2026-01-31T23:59:59.000Z"}}'
    (entry,) = entries([row(1, after={"id": 1}) | {"key": key}])
    search = Search(None, None, Names(Table("db", "orders")), key_of(key), None)  # type: ignore[arg-type]
    record = RawBSONDocument(with_place(entry.record or b"", 1), RAW)
    assert search._is_own(record)  # pyright: ignore[reportPrivateUsage]
