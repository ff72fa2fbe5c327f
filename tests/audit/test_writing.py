"""A trail holds every change once, whole commits at a time, whatever is written again."""

import threading
from contextlib import closing
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from penstock.audit.batches import batch_of
from penstock.audit.bringing import part_of, put_parts
from penstock.audit.chain import HASH_BYTES, batch_hash, cut, leaf_of, root_of
from penstock.audit.outages import Patience
from penstock.audit.own import require_head
from penstock.audit.records import parts_of
from penstock.audit.trail import Trail
from penstock.audit.writing import Writer
from penstock.errors import AuditError, TrailConflictError, TrailTakenError
from tests.audit.proofs import verify
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
from tests.waiting import PATIENCE_SECONDS
from tests_support.servers import MongoReplicaSet

pytestmark = pytest.mark.server


def test_records_and_place_are_written_together(any_trail: Trail) -> None:
    """A14, A18, A19: in order, with explicit nulls, and of which transaction each is."""
    rows = [
        row(1, after={"id": 1, "name": None}),
        *commit_of(2, 3),
        row(5, before={"id": 1, "name": None}, after={"id": 1, "name": ""}),
        row(6, before={"id": 1, "name": ""}),
    ]
    head = write(any_trail, rows)
    found = stored(any_trail)
    assert [record["at"] for record in found] == [1, 2, 3, 4, 5, 6]
    assert [record["op"] for record in found] == ["i", "i", "i", "i", "u", "d"]
    assert [record["seq"] for record in found] == [0, 0, 1, 2, 0, 0]
    assert found[0]["chg"] == {"id": {"t": 1}, "name": {"t": None}}
    assert found[4]["chg"] == {"name": {"f": None, "t": ""}}
    assert found[5]["chg"] == {"id": {"f": 1}, "name": {"f": ""}}
    assert found[2]["txn"] == {"id": "0-1-2", "size": 3}
    assert (head.at, head.progress) == (6, "m6")
    assert any_trail.head() == head


def test_a_chain_of_batches_proves_every_record(any_trail: Trail) -> None:
    head = write(any_trail, [one for n in range(1, 40, 3) for one in commit_of(n, 3)], events_max=7)
    before = bytes(HASH_BYTES)
    at = 0
    for batch in any_trail.batches.find().sort("_id", 1):
        leaves, salts = cut(batch["leaves"], 32), cut(batch["salts"], 16)
        for leaf, salt in zip(leaves, salts, strict=True):
            at += 1
            (record,) = any_trail.raw_records.find({"at": at})
            assert leaf_of(parts_of(record), salt) == leaf
        assert root_of(leaves) == batch["root"]
        before = batch_hash(
            before=before,
            root=batch["root"],
            number=batch["_id"],
            first=batch["first"],
            last=batch["last"],
            key=None,
        )
        assert before == batch["hash"]
    assert (before, at) == (head.hash, head.at)


def test_what_is_in_the_trail_is_not_written_again(any_trail: Trail) -> None:
    """A1, A5: a log that is read again from an older place adds nothing and loses nothing."""
    rows = [one for n in range(1, 30, 3) for one in commit_of(n, 3)]
    write(any_trail, rows[:15], events_max=4)
    before = stored(any_trail)
    head = write(any_trail, rows, events_max=7)
    assert stored(any_trail)[:15] == before
    assert [record["at"] for record in stored(any_trail)] == list(range(1, 31))
    assert len({record["_id"] for record in stored(any_trail)}) == 30
    assert head.at == 30


def test_another_record_of_the_same_id_is_refused(any_trail: Trail) -> None:
    write(any_trail, [row(1, after={"id": 1, "v": 1})])
    with pytest.raises(TrailConflictError, match="says something else"):
        write(any_trail, [row(1, after={"id": 1, "v": 2})])
    assert [record["chg"]["v"] for record in stored(any_trail)] == [{"t": 1}]


def test_a_commit_of_many_parts_becomes_visible_at_its_end(any_trail: Trail) -> None:
    """Parts are pending until the last is in: nobody who keeps to the head sees half a commit."""
    write(any_trail, [row(1, after={"id": 1})])
    writer = writer_of(any_trail)
    heads: list[int] = []
    for step in steps(commit_of(2, 25), events_max=4):
        writer.write([step], marker=marker)
        heads.append((any_trail.head() or writer.head).at)
    assert heads == [1, 1, 1, 1, 1, 1, 1, 26]
    assert any_trail.staging.count_documents({"status": "pending"}) == 0
    assert any_trail.staging.count_documents({"committedAt": {"$exists": True}}) >= 7
    assert [record["at"] for record in stored(any_trail)] == list(range(1, 27))


def test_parts_without_an_end_are_dropped_and_come_again(any_trail: Trail) -> None:
    """A2, A3: what was staged before a crash is neither lost nor there twice."""
    rows = commit_of(1, 10)
    writer = writer_of(any_trail)
    for step in list(steps(rows, events_max=4))[:2]:
        writer.write([step], marker=marker)
    assert any_trail.staging.count_documents({"status": "pending"}) == 2
    assert (any_trail.head() or writer.head).at == 0
    writer_of(any_trail)
    assert any_trail.staging.count_documents({}) == 0
    write(any_trail, rows, events_max=3)
    assert [record["seq"] for record in stored(any_trail)] == list(range(10))


def test_an_older_writer_stops_and_writes_nothing(any_trail: Trail) -> None:
    """A driver that was thought dead and lives on can neither repeat nor interleave anything."""
    older = writer_of(any_trail)
    older.write(steps([row(1, after={"id": 1})]), marker=marker)
    parts = list(steps(commit_of(2, 5), events_max=2))
    older.write(parts[:1], marker=marker)
    newer = writer_of(any_trail)
    with pytest.raises(TrailTakenError, match="another process has begun"):
        older.write(parts[1:], marker=marker)
    with pytest.raises(TrailTakenError):
        older.write(steps([row(2, after={"id": 2})]), marker=marker)
    newer.write(steps([row(3, after={"id": 3})]), marker=marker)
    assert [record["meta"]["pk"] for record in stored(any_trail)] == [{"id": 1}, {"id": 3}]
    older.save("m9")
    with pytest.raises(TrailTakenError):
        older.flush()


def test_a_trail_belongs_to_one_pipeline_and_one_key(trail: Trail) -> None:
    write(trail, [row(1, after={"id": 1})])
    with pytest.raises(TrailTakenError, match="pipeline trail, not other"):
        writer_of(trail, pipeline="other")
    sealed = trail.config.model_dump(exclude={"uri", "seal_key"}) | {"seal_key": "k" * 16}
    with (
        closing(trail_of(trail.config.uri.get_secret_value(), **sealed)) as again,
        pytest.raises(TrailTakenError, match="begun without a seal_key"),
    ):
        writer_of(again)


def test_under_another_seal_key_nothing_is_added(trail: Trail) -> None:
    uri, database = trail.config.uri.get_secret_value(), trail.config.database
    with (
        closing(trail_of(uri, database, seal_key="k" * 16)) as sealed,
        closing(trail_of(uri, database, seal_key="x" * 16)) as other,
    ):
        head = write(sealed, commit_of(1, 3))
        with pytest.raises(TrailTakenError, match="no batch has a hash that the configured"):
            writer_of(other)
        waiting = Patience(other, stopping=threading.Event())
        with pytest.raises(TrailTakenError, match="no batch has a hash"):
            Writer(other, "trail", patience=waiting).look()
        with pytest.raises(AuditError, match="Set seal_key to the key"):
            require_head(other, waiting)
        assert sealed.head() == head
        # The last batch alone was altered: the key is right, and the trail goes on.
        sealed.batches.update_one({"_id": head.batch}, {"$set": {"before": bytes(32)}})
        writer_of(sealed)


def heads_of(trail: Trail, events: int, **said: int) -> list[int]:
    """Where the head comes to stand, one after the other, as commits of three are written."""
    rows = [one for n in range(1, events, 3) for one in commit_of(n, 3)]
    seen: list[int] = []
    uri, database = trail.config.uri.get_secret_value(), trail.config.database
    with closing(trail_of(uri, database, **said)) as written:
        writer = writer_of(written)

        def moving(sequence: int) -> str:
            seen.append((trail.head() or writer.head).at)
            return marker(sequence)

        writer.write(steps(rows, events_max=6), marker=moving)
        return [*seen[1:], writer.head.at]


def test_several_batches_become_visible_together(any_trail: Trail) -> None:
    """`transaction_events`: each batch is proved by itself, and one transaction writes several."""
    assert heads_of(any_trail, 60, transaction_events=18) == [18, 36, 54, 60]
    assert any_trail.batches.count_documents({}) == 10
    assert verify(any_trail).sound


def test_a_batch_of_more_than_one_transaction_is_to_hold_is_written_alone(
    any_trail: Trail,
) -> None:
    assert heads_of(any_trail, 18, transaction_events=1) == [6, 12, 18]


def test_parts_are_written_by_as_many_as_the_settings_say(
    any_trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`writers`: both while they are staged, and while they are brought in."""
    threads: dict[str, set[str]] = {"replace_one": set(), "find_one": set()}
    waiting = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def seen(name: str) -> None:
        act = getattr(Collection, name)

        def called(collection: Any, *arguments: Any, **options: Any) -> Any:
            mine = threading.current_thread().name
            if mine.startswith("penstock-audit") and mine not in threads[name]:
                threads[name].add(mine)
                waiting.wait()
            return act(collection, *arguments, **options)

        monkeypatch.setattr(Collection, name, called)

    for name in threads:
        seen(name)
    uri, database = any_trail.config.uri.get_secret_value(), any_trail.config.database
    with closing(trail_of(uri, database, writers=2)) as trail:
        write(trail, commit_of(1, 40), events_max=4)
    assert [len(names) for names in threads.values()] == [2, 2]


def test_a_part_whose_answer_was_lost_is_staged_again(any_trail: Trail) -> None:
    """A3: a retry writes over what is pending, and no more."""
    head = writer_of(any_trail).head
    batch = batch_of(head, entries(commit_of(1, 3)), progress="", key=None, now_ms=0)
    part = part_of(batch, now_ms=0)
    put_parts(any_trail, [part])
    put_parts(any_trail, [part])
    assert any_trail.staging.count_documents({"status": "pending"}) == 1


def test_a_record_that_is_too_large_spills_its_values(any_trail: Trail) -> None:
    """A8: two images of eight megabytes are more than a document of MongoDB holds."""
    before, after = {"id": 1, "v": "x" * (9 << 20)}, {"id": 1, "v": "y" * (9 << 20)}
    write(any_trail, [row(1, before=before, after=after)])
    (record,) = stored(any_trail)
    pieces = list(any_trail.spilled.find().sort("_id", 1))
    assert record["spilled"]["bytes"] == sum(len(piece["data"]) for piece in pieces)
    assert "chg" not in record


def test_only_what_is_committed_expires(any_trail: Trail) -> None:
    """A8: a part that is pending has not the field by which MongoDB lets parts go."""
    write(any_trail, commit_of(1, 10), events_max=3)
    indexes = any_trail.staging.index_information().values()
    (expiring,) = [one for one in indexes if "expireAfterSeconds" in one]
    assert expiring["key"] == [("committedAt", 1)]
    assert expiring["expireAfterSeconds"] == 7 * 86_400


def test_a_place_is_filled_once(trail: Trail) -> None:
    write(trail, [row(1, after={"id": 1})])
    with pytest.raises(DuplicateKeyError):
        trail.records.insert_one({"_id": "other", "at": 1})
    assert len(entries([row(1, after={"id": 1})])) == 1


@pytest.mark.parametrize("compression", ["zstd", "zlib"])
def test_what_is_sent_is_compressed_by_one_setting(
    mongo: MongoReplicaSet, mongo_database: str, compression: str
) -> None:
    with closing(trail_of(mongo.uri, mongo_database, compression=compression)) as trail:

        def received() -> int:
            network = trail.client.admin.command("serverStatus")["network"]
            return int(network["compression"][compression]["decompressor"]["bytesIn"])

        before = received()
        write(trail, commit_of(1, 50))
        assert received() > before
