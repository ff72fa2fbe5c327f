"""What was altered is put back from what is proved: from the trail, an archive or the log."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from msgspec import Raw, structs

from penstock.audit.archives import Archives
from penstock.audit.archiving import archive
from penstock.audit.entries import entry_of
from penstock.audit.packing import Packer
from penstock.audit.records import COLUMNS
from penstock.audit.remaking import Log
from penstock.audit.repair import Repaired, Repairer
from penstock.audit.trail import Trail
from penstock.client.flight import LogClient, ReadRequest
from penstock.errors import AuditError
from penstock.event import AnyEvent, Operation
from penstock.serve.flight import FlightServer
from tests.audit.proofs import erase, patience, record_at, sound, verify
from tests.audit.support import marker, stored, writer_of
from tests.flight.blocks import BlockLog, gap, insert

pytestmark = pytest.mark.server


@pytest.fixture
def commits() -> list[list[AnyEvent]]:
    """Twenty changes and a gap; of another source as well."""
    single: list[list[AnyEvent]] = [[insert(n)] for n in range(8)]
    return [
        *single,
        [insert(n, source="other") for n in range(3)],
        [gap()],
        [insert(n) for n in range(20, 31)],
        [insert(9, document={"v": "x" * 3000})],
    ]


@pytest.fixture
def endpoint(commits: list[list[AnyEvent]]) -> Iterator[str]:
    """A service whose log has them."""
    log = BlockLog()
    log.append(commits)
    server = FlightServer(log)
    server.start()
    yield server.address
    server.stop()


@pytest.fixture
def filled(any_trail: Trail, endpoint: str) -> Trail:
    """The trail that a pipeline makes of it."""
    writer = writer_of(any_trail)
    packer = Packer(events_max=6, bytes_max=1 << 20)
    with LogClient(endpoint) as client:
        bounds = client.bounds()
        request = ReadRequest(
            log_id=bounds.log_id, after=0, until=bounds.head, source="shop", columns=COLUMNS
        )
        for batch in client.read(request):
            for row in batch.to_pylist():
                entry = entry_of(
                    row, tz=any_trail.config.tz, bytes_max=2000, id_key=writer.head.id_key
                )
                writer.write(packer.add(entry), marker=marker)
    writer.write(packer.end(), marker=marker)
    return any_trail


def repair(
    trail: Trail, endpoint: str | None = None, *archives: Path, dry_run: bool = False
) -> Repaired:
    config = trail.config
    log = None
    if endpoint is not None:
        head = trail.head()
        assert head is not None
        log = Log(
            endpoint,
            source="shop",
            tz=config.tz,
            bytes_max=config.batch_bytes,
            id_key=head.id_key,
        )
    named = Archives.at(archives, source="shop") if archives else Archives(())
    take_over = not trail.has_transactions()
    return Repairer(trail, patience(trail), named, log, take_over=take_over).repair(
        by="ann", dry_run=dry_run
    )


def damage(trail: Trail) -> list[int]:
    """Records altered, removed alone and in a row, the first and the last, swapped, stripped."""
    trail.records.update_one({"at": 3}, {"$set": {"chg.total.t": 1_000_000}})
    trail.records.delete_many({"at": {"$in": [1, 6, 7, 8, 9, 21]}})
    one, other = dict(record_at(trail, 12)), dict(record_at(trail, 13))
    trail.records.delete_many({"at": {"$in": [12, 13]}})
    trail.records.insert_many([one | {"at": Int64(13)}, other | {"at": Int64(12)}])
    trail.records.update_one({"at": 15}, {"$set": {"_penstock": 1}, "$unset": {"chg": 1}})
    trail.spilled.delete_many({})
    return [1, 3, 6, 7, 8, 9, 12, 13, 15, 21]


def test_records_are_put_back_from_the_log(filled: Trail, endpoint: str) -> None:
    before = stored(filled)
    broken = damage(filled)
    assert not verify(filled).sound
    planned = repair(filled, endpoint, dry_run=True)
    assert planned.records == broken
    assert planned.left == []
    assert not verify(filled).sound
    done = repair(filled, endpoint)
    assert done.records == broken
    assert done.sources == {"log": 8, "trail": 2}
    assert stored(filled)[:-1] == before
    own = stored(filled)[-1]
    assert (own["op"], own["said"]["operation"], own["sys"]["count"]) == ("sys", "repair", 10)
    assert sound(verify(filled))


@pytest.mark.parametrize(
    "names",
    [("disambiguated_paths",), ("origin",), ("disambiguated_paths", "origin")],
    ids=["paths", "masked", "both"],
)
def test_an_update_is_put_back_from_a_log_that_says_more_of_it(
    any_trail: Trail, names: tuple[str, ...]
) -> None:
    """Trails of before do not have its paths, nor which masked columns changed."""
    log, packer = BlockLog(), Packer(events_max=6, bytes_max=1 << 20)
    update = structs.replace(
        insert(1),
        operation=Operation.UPDATE,
        full_document=None,
        update_description=Raw(b'{"updatedFields":{"a.b":1}}'),
        disambiguated_paths=Raw(b"{}"),
        origin=Raw(b'{"masked":["phone"]}'),
    )
    log.append([[insert(0)], [update]])
    server = FlightServer(log)
    server.start()
    with LogClient(server.address) as client:
        read = ReadRequest(log_id=client.bounds().log_id, after=0, until=2, columns=COLUMNS)
        rows = [row for batch in client.read(read) for row in batch.to_pylist()]
    assert (rows[1]["disambiguated_paths"], rows[1]["origin"]) == ("{}", '{"masked":["phone"]}')
    rows[1] |= dict.fromkeys(names)
    writer = writer_of(any_trail)
    for row in rows:
        entry = entry_of(row, tz=any_trail.config.tz, bytes_max=1 << 20, id_key=writer.head.id_key)
        writer.write(packer.add(entry), marker=marker)
    writer.write(packer.end(), marker=marker)
    before = stored(any_trail)
    any_trail.records.delete_one({"at": 2})
    assert repair(any_trail, server.address).records == [2]
    server.stop()
    assert stored(any_trail)[:-1] == before


def test_records_are_put_back_from_an_archive(filled: Trail, tmp_path: Path) -> None:
    before = stored(filled)
    archive(filled, patience(filled), before_ms=1 << 50, table=None, to=tmp_path)
    broken = damage(filled)
    assert repair(filled, None, tmp_path).records == broken
    assert stored(filled)[:-1] == before
    assert sound(verify(filled, archives=(tmp_path,)))


def test_what_nobody_has_is_said_and_not_written(filled: Trail) -> None:
    broken = damage(filled)
    done = repair(filled)
    assert done.records == [12, 13]  # which have each other's place
    assert [one.split(":")[0] for one in done.left] == [
        f"place {at}" for at in broken if at not in {12, 13}
    ]
    assert {one.at for one in verify(filled).findings} == set(broken) - {12, 13}


def test_a_log_that_says_something_else_is_not_believed(
    filled: Trail, commits: list[list[AnyEvent]]
) -> None:
    """Only what gives the stored leaf with the stored salt is written."""
    log = BlockLog()
    forged = structs.replace(commits[2][0], timestamp=commits[2][0].timestamp + 1)
    log.append([*commits[:2], [forged], *commits[3:]])
    server = FlightServer(log)
    server.start()
    filled.records.delete_one({"at": 3})
    done = repair(filled, server.address)
    server.stop()
    assert done.records == []
    assert verify(filled).broken == 1


def test_an_altered_salt_cannot_be_put_back(filled: Trail, endpoint: str) -> None:
    batch = filled.batches.find_one({"_id": 2}) or {}
    salts = bytes(16) + batch["salts"][16:]
    filled.batches.update_one({"_id": 2}, {"$set": {"salts": Binary(salts)}})
    done = repair(filled, endpoint)
    assert (done.records, len(done.left)) == ([], 1)


def test_an_erased_content_does_not_come_back(filled: Trail, endpoint: str) -> None:
    """The log still has it: what is put back is what an erasure leaves."""
    erase(filled, '{"_id": 3}')
    before = stored(filled)
    at = next(one["at"] for one in before if "erased" in one)
    for harm in ({"$set": {"op": "d"}}, {"$set": {"erased.digest": Binary(bytes(32))}}):
        filled.records.update_one({"at": at}, harm)
        assert repair(filled, endpoint).records == [at]
        assert stored(filled)[:22] == before
        filled.records.delete_one({"at": at})
        assert repair(filled, endpoint).records == [at]
        assert stored(filled)[:22] == before
    assert sound(verify(filled))


FIELDS = ("first", "last", "leaves", "root", "before", "hash", "source")


@pytest.mark.parametrize("number", [1, 2, "last"])
def test_a_batch_is_put_back_where_its_leaves_give_the_chained_hash(
    filled: Trail, number: Any
) -> None:
    head = filled.head()
    assert head is not None
    number = head.batch if number == "last" else number
    batch = filled.batches.find_one({"_id": number}) or {}
    for name in FIELDS:
        value = batch[name]
        other = Binary(bytes(255 - n for n in value)) if isinstance(value, bytes) else f"{value}0"
        filled.batches.update_one({"_id": number}, {"$set": {name: other}})
        done = repair(filled)
        assert (done.batches, done.records, done.left) == ([number], [], []), name
        assert filled.batches.find_one({"_id": number}) == batch
        assert sound(verify(filled))
        if number == head.batch:
            return  # it is not the last one any more


def test_a_missing_batch_is_put_back_from_an_archive_or_said(filled: Trail, tmp_path: Path) -> None:
    archive(filled, patience(filled), before_ms=1 << 50, table=None, to=tmp_path)
    batch = filled.batches.find_one_and_delete({"_id": 2})
    filled.staging.delete_many({})
    done = repair(filled)
    assert (done.batches, len(done.left)) == ([], 1)
    done = repair(filled, None, tmp_path)
    assert done.batches == [2]
    assert filled.batches.find_one({"_id": 2}) == batch
    assert sound(verify(filled))


def test_strays_are_left_to_people_and_a_broken_head_is_refused(filled: Trail) -> None:
    filled.records.insert_one({"_id": "forged", "at": Int64(99)})
    filled.spilled.insert_one({"_id": "alone:0", "data": b"x"})
    done = repair(filled)
    left = [one.split(":")[0] for one in done.left]
    assert left == ["record at 99, _id forged", "piece _id alone"]
    assert filled.records.find_one({"_id": "forged"}) is not None
    assert filled.spilled.find_one({"_id": "alone:0"}) is not None
    filled.heads.update_one({"_id": "shop"}, {"$set": {"hash": Binary(bytes(32))}})
    with pytest.raises(AuditError, match="the head of the trail of shop is broken"):
        repair(filled)
