"""Archives and retention: what leaves MongoDB is proved where it goes, and its place stays so."""

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64

from penstock.audit.archives import Archives
from penstock.audit.archiving import Archived, archive
from penstock.audit.erase import Eraser
from penstock.audit.names import Table, table_of
from penstock.audit.points import place_of
from penstock.audit.repair import Repairer
from penstock.audit.retire import Retired, Retirer
from penstock.audit.trail import Trail
from penstock.audit.writing import Writer
from penstock.errors import AuditError
from tests.audit.proofs import (
    Dying,
    Killed,
    copied,
    erase,
    everything,
    history,
    patience,
    put_all_back,
    sound,
    verify,
)
from tests.audit.support import commit_of, marker, row, steps, stored, write, writer_of

# The stubs of both leave element types open.
pq: Any = pyarrow.parquet
bson: Any = import_module("bson")
pytestmark = pytest.mark.server

ORDERS = Table("db", "orders")
LATER = (1 << 62) // 1_000_000


def rows() -> list[dict[str, Any]]:
    """Two tables, in turn."""
    return [
        *history(),
        *(row(n, after={"id": n, "v": "x"}, collection="lines") for n in range(21, 26)),
        *commit_of(26, 3),
    ]


@pytest.fixture
def filled(any_trail: Trail) -> Trail:
    write(any_trail, rows(), events_max=6)
    return any_trail


def keep(trail: Trail, to: Path, *, table: Table | None = None, before: int = LATER) -> Archived:
    return archive(trail, patience(trail), before_ms=before, table=table, to=to)


def retire(
    trail: Trail, *archives: Path, table: Table | None = ORDERS, who: Any = None, **said: Any
) -> Retired:
    named = Archives.at(archives, source=trail.source) if archives else Archives(())
    take_over = not trail.has_transactions()
    retirer = Retirer(trail, who or patience(trail), named, take_over=take_over)
    said = {"before_ms": LATER, "reason": "90 days", "by": "ann", **said}
    return retirer.retire(table, **said)


def test_a_tables_archive_and_its_retention_follow_its_renames(
    trail: Trail, tmp_path: Path
) -> None:
    to = '{"to":{"db":"db","coll":"orders"}}'
    said: dict[str, Any] = {"kind": 3, "operation_type": "rename", "full_document": to}
    write(
        trail,
        [
            *(row(n, after={"id": n}, collection="draft") for n in (1, 2)),
            row(3, key=None, document_id=None, collection="draft", **said),
            row(4, after={"id": 4}),
            row(5, after={"id": 5}, collection="draft"),
        ],
    )
    assert keep(trail, tmp_path, table=ORDERS).rows == 4  # its rename is one
    done = retire(trail, *tmp_path.iterdir())
    assert (done.taken, done.names) == (3, ["db.draft"])
    assert [one["at"] for one in stored(trail)] == [3, 5, 6, 7]
    told = {one["meta"]["tbl"]: one["sys"]["last"] for one in stored(trail) if one["op"] == "sys"}
    assert told == {"orders": 4, "draft": 2}, "each name's readers are told of its own"
    assert sound(verify(trail, archives=tuple(tmp_path.iterdir())))


def test_an_archive_holds_every_record_as_it_was(filled: Trail, tmp_path: Path) -> None:
    done = keep(filled, tmp_path)
    assert (done.first, done.last, done.rows) == (1, 28, 28)
    (named,) = Archives.at([tmp_path], source="shop").all
    table = pq.read_table(named.folder / named.manifest.files[0].name)
    assert table["at"].to_pylist() == list(range(1, 29))
    assert [bson.decode(one) for one in table["record"].to_pylist()] == [
        bson.decode(one.raw) for one in filled.raw_records.find().sort("at", 1)
    ]
    assert table["tbl"].to_pylist()[20:25] == ["lines"] * 5
    assert table["pk_text"].to_pylist()[0] == "1"
    head = filled.head()
    assert head is not None
    assert named.manifest.hash == head.hash.hex()
    assert sound(verify(filled, archives=(tmp_path,)))


def test_an_archive_goes_on_behind_the_one_before(any_trail: Trail, tmp_path: Path) -> None:
    write(any_trail, rows()[:5], events_max=4)
    assert keep(any_trail, tmp_path).rows == 5
    assert keep(any_trail, tmp_path).folder is None
    write(any_trail, rows(), events_max=4)
    later = keep(any_trail, tmp_path)
    assert (later.first, later.rows) == (6, 23)
    assert keep(any_trail, tmp_path / "elsewhere").rows == 28
    assert sound(verify(any_trail, archives=(tmp_path,)))


def test_only_batches_that_were_all_written_before_are_archived(
    any_trail: Trail, tmp_path: Path
) -> None:
    write(any_trail, rows()[:5], events_max=5)
    between = time.time_ns() // 1_000_000 + 1
    while time.time_ns() // 1_000_000 <= between:
        pass
    write(any_trail, rows(), events_max=5)
    assert keep(any_trail, tmp_path, before=between).last == 5
    assert keep(any_trail, tmp_path, before=0).folder is None


def test_what_is_broken_is_not_archived(filled: Trail, tmp_path: Path) -> None:
    filled.records.update_one({"at": 9}, {"$set": {"op": "d"}})
    with pytest.raises(AuditError, match=r"at 9, .*altered.*Nothing was archived"):
        keep(filled, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_retired_rows_are_proved_in_the_archive_and_their_places_without(
    filled: Trail, tmp_path: Path
) -> None:
    keep(filled, tmp_path, table=ORDERS)
    done = retire(filled, tmp_path)
    assert (done.records, done.taken, done.unarchived) == (22, 22, 0)
    found = stored(filled)
    # Schema changes, other tables, and what was done to the trail stay.
    assert [record["op"] for record in found] == ["ddl", *["i"] * 5, "sys"]
    report = verify(filled)
    assert sound(report)
    assert (report.retired, report.archived, report.proved) == (22, 0, 7)
    assert any("22 retired records: name their --archive" in one for one in report.unchecked)
    report = verify(filled, archives=(tmp_path,))
    assert sound(report)
    assert (report.retired, report.archived) == (22, 22)


def test_a_record_that_is_stolen_is_not_taken_for_retired(filled: Trail, tmp_path: Path) -> None:
    keep(filled, tmp_path)
    retire(filled, tmp_path)
    filled.records.delete_one({"at": 22})
    report = verify(filled)
    assert [(one.problem, one.at) for one in report.findings] == [("missing", 22)]


def test_nothing_goes_that_is_not_archived(filled: Trail, tmp_path: Path) -> None:
    keep(filled, tmp_path, table=Table("db", "lines"))
    before = everything(filled)
    with pytest.raises(AuditError, match="22 of the rows that are due"):
        retire(filled, tmp_path)
    assert retire(filled, tmp_path, dry_run=True).unarchived == 22
    assert everything(filled) == before
    done = retire(filled, without_archive=True)
    assert done.taken == 22
    report = verify(filled)
    assert sound(report)
    assert any("22 records that were retired without an archive" in one for one in report.unchecked)


def test_an_archive_that_was_altered_is_no_archive(filled: Trail, tmp_path: Path) -> None:
    """Altered as one who knows the format would: the file, its digest, and all."""
    keep(filled, tmp_path)
    (named,) = Archives.at([tmp_path], source="shop").all
    path = named.folder / named.manifest.files[0].name
    table = pq.read_table(path)
    changed = table.to_pylist()
    changed[8]["record"] = bson.encode(bson.decode(changed[8]["record"]) | {"op": "d"})
    pq.write_table(pa.Table.from_pylist(changed, schema=table.schema), path)
    report = verify(filled, archives=(tmp_path,))
    assert [(one.what, one.problem, one.at) for one in report.findings] == [
        ("archive", "altered", None),
        ("archive", "altered", 9),
    ]
    assert report.findings[1].file == str(path)
    with pytest.raises(AuditError, match="1 of the rows that are due"):
        retire(filled, tmp_path)
    path.write_bytes(b"PAR1")
    report = verify(filled, archives=(tmp_path,))
    assert [(one.what, one.at) for one in report.findings] == [("archive", None)]


def test_spilled_values_are_archived_and_retired(any_trail: Trail, tmp_path: Path) -> None:
    large = "x" * (9 << 20)
    write(any_trail, [row(1, before={"id": 1, "v": large}, after={"id": 1, "v": f"{large}y"})])
    keep(any_trail, tmp_path)
    retire(any_trail, tmp_path)
    assert any_trail.spilled.count_documents({}) == 0
    report = verify(any_trail, archives=(tmp_path,))
    assert sound(report)
    assert report.archived == 1


def test_a_log_that_is_read_again_adds_nothing_that_was_retired(
    filled: Trail, tmp_path: Path
) -> None:
    """A1, A5: no change is in the trail twice, whether its record is there or archived."""
    keep(filled, tmp_path)
    retire(filled, tmp_path)
    before = stored(filled)
    write(filled, [*rows(), row(29, after={"id": 29})], events_max=7)
    assert stored(filled)[:-1] == before
    assert stored(filled)[-1]["meta"]["pk"] == {"id": 29}
    assert sound(verify(filled, archives=(tmp_path,)))


def test_a_driver_that_runs_meanwhile_adds_nothing_twice(trail: Trail, tmp_path: Path) -> None:
    write(trail, rows()[:20], events_max=6)
    keep(trail, tmp_path)
    writer = writer_of(trail)
    writer.write(steps(rows()[:5], events_max=3), marker=marker)
    retire(trail, tmp_path)
    # Of the first batch nothing is there any more that would tell it to be known.
    writer.write(steps(rows(), events_max=3), marker=marker)
    report = verify(trail, archives=(tmp_path,))
    assert sound(report)
    assert (report.last, report.retired) == (29, 19)


@pytest.mark.parametrize("at", [Int64(3), Int64(28), Int64(99), Int64(-1), 2.5, 9, None, "x", [9]])
def test_an_id_that_no_retirement_took_is_named(filled: Trail, tmp_path: Path, at: object) -> None:
    """A26: whoever may write to the database would have a change left out that is to come."""
    keep(filled, tmp_path)
    retire(filled, tmp_path)
    forged = row(30, after={"id": 30})
    filled.retired.insert_one({"_id": forged["event_id"], "at": at})
    report = verify(filled)
    found = [(one.what, one.problem, one.id) for one in report.findings]
    assert found == [("retirement", "inserted", forged["event_id"])]
    filled.retired.delete_one({"_id": forged["event_id"]})
    assert sound(verify(filled))


def test_a_place_that_is_none_hides_no_other(
    filled: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.audit.reading._TOGETHER", 2)
    for name, at in (("a", [Int64(1)]), ("b", [Int64(2)]), ("c", Int64(99)), ("d", Int64(100))):
        filled.retired.insert_one({"_id": name, "at": at})
    assert sorted(one.id or "" for one in verify(filled).findings) == ["a", "b", "c", "d"]


def test_the_id_of_a_retired_record_cannot_be_another(filled: Trail, tmp_path: Path) -> None:
    """Neither put in its place, nor taken away, so that it would be added again."""
    keep(filled, tmp_path)
    retire(filled, tmp_path)
    (kept, *_) = filled.retired.find().sort("at", 1)
    filled.retired.delete_one({"_id": kept["_id"]})
    report = verify(filled)
    found = [(one.what, one.problem, one.at) for one in report.findings]
    assert found == [("retirement", "missing", kept["at"])]
    filled.retired.insert_one({"_id": "another", "at": kept["at"]})
    report = verify(filled)
    wrong = [(one.problem, one.at, one.id) for one in report.findings]
    assert wrong == [("inserted", kept["at"], "another"), ("missing", kept["at"], None)]
    assert [one for one in repaired(filled) if "another" in one]


def repaired(trail: Trail) -> list[str]:
    """What a repair would leave."""
    repairer = Repairer(trail, patience(trail), Archives(()), None, take_over=True)
    return repairer.repair(by="ann", dry_run=True).left


def test_a_record_with_another_id_is_not_retired(filled: Trail) -> None:
    """Else the trail itself would say that the other change is to be left out."""
    (record,) = filled.records.find({"at": 9})
    filled.records.delete_one({"at": 9})
    filled.records.insert_one({**record, "_id": "another"})
    with pytest.raises(AuditError, match="record 9 is not what was written"):
        retire(filled, without_archive=True)
    assert filled.retired.count_documents({}) == 0


@pytest.mark.slow
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("events_max", [14, pytest.param(6, marks=pytest.mark.soak)])
def test_killed_at_any_step_a_retirement_converges(
    any_trail: Trail, tmp_path: Path, behind: bool, events_max: int
) -> None:
    calls, folder = 0, tmp_path
    write(any_trail, rows(), events_max=events_max)
    keep(any_trail, folder)
    kept = copied(any_trail)
    for calls in range(200):
        put_all_back(any_trail, kept)
        try:
            retire(any_trail, folder, who=Dying(any_trail, calls, behind=behind))
        except Killed:
            head = any_trail.head()
            if head is not None and head.staged is None:
                assert verify(any_trail, archives=(folder,)).broken == 0, calls
            retire(any_trail, folder)
            report = verify(any_trail, archives=(folder,))
            assert sound(report), calls
            assert (report.retired, report.archived) == (22, 22)
        else:
            break
    assert calls > 10


def test_an_erasure_reaches_into_archives(any_trail: Trail, tmp_path: Path) -> None:
    """What is retired is found there, by its key, and nothing of it stays."""
    secret = "wanda@example.org"
    wanda = {"id": 77, "mail": secret}
    write(any_trail, [row(1, after=wanda), row(2, after={"id": 2}), row(3, before=wanda)])
    keep(any_trail, tmp_path)
    retire(any_trail, tmp_path)
    done = erase(any_trail, '{"id": 77}', archives=(tmp_path,))
    assert (done.records, done.taken, done.taken_archived) == (2, 0, 2)
    assert secret not in everything(any_trail)
    for path in tmp_path.rglob("*.parquet"):
        assert secret not in repr(pq.read_table(path).to_pylist())
        assert "77" not in repr(pq.read_table(path).to_pylist()[0].get("pk_text"))
    assert len(list(tmp_path.rglob("records-*.parquet"))) == 1
    report = verify(any_trail, archives=(tmp_path,))
    assert sound(report)
    assert (report.retired, report.archived) == (3, 3)


def test_a_file_that_an_erasure_left_behind_is_told_and_removed(
    any_trail: Trail, tmp_path: Path
) -> None:
    """As if it had been killed between the new manifest and the removal of the old file."""
    write(any_trail, [row(1, after={"id": 77, "mail": "w"}), row(2, after={"id": 2})])
    keep(any_trail, tmp_path)
    (old,) = tmp_path.rglob("records-*.parquet")
    data = old.read_bytes()
    erase(any_trail, "77", archives=(tmp_path,))
    assert not old.exists()
    old.write_bytes(data)
    report = verify(any_trail, archives=(tmp_path,))
    assert (report.broken, report.unfinished, report.findings[0].file) == (0, 1, str(old))
    named = Archives.at([tmp_path], source="shop")
    Eraser(any_trail, patience(any_trail), named).resume(everything=True)
    assert not old.exists()
    assert sound(verify(any_trail, archives=(tmp_path,)))


def test_a_place_beside_what_was_retired_is_where_it_was(any_trail: Trail, tmp_path: Path) -> None:
    """Between the same records of other tables, and never the beginning of the trail."""
    mixed = ["orders", "lines", "lines", "orders", "lines"]
    write(
        any_trail,
        [
            *(row(n, after={"id": n}) for n in (1, 2)),
            row(3, after={"id": 3}, collection="lines"),
            *commit_of(4, 2),
            *(
                row(6 + n, commit=6, ordinal=n, rows=5, after={"id": 6 + n}, collection=name)
                for n, name in enumerate(mixed)
            ),
            row(11, after={"id": 11}, collection="lines"),
            row(12, after={"id": 12}),
        ],
    )

    def places() -> list[int]:
        return [place_of(any_trail, f"at:{at}", head=12).at for at in range(13)]

    assert places() == [0, 1, 2, 3, 3, *[5] * 5, 10, 11, 12]
    keep(any_trail, tmp_path)
    retire(any_trail, tmp_path)
    assert [one["at"] for one in stored(any_trail)[:6]] == [3, 7, 8, 10, 11, 13]
    # Of a transaction of which nothing is left, nothing can be cut.
    assert places() == [0, 1, 2, 3, 4, *[5] * 5, 10, 11, 12]


def test_a_place_is_cut_by_no_older_transaction_of_the_same_name(any_trail: Trail) -> None:
    """A binlog that was reset begins anew with their names."""
    named = [("0-1-1", 1), ("0-1-2", 2), ("0-1-1", 1), ("0-1-2", 3)]
    entries, number = list[dict[str, Any]](), 0
    for commit, (name, rows) in enumerate(named, 1):
        for ordinal in range(rows):
            number += 1
            said: Any = {"transaction": name, "event_id": f"e{number}", "after": {"id": number}}
            entries.append(row(number, commit=commit, ordinal=ordinal, rows=rows, **said))
    write(any_trail, entries)
    places = [place_of(any_trail, f"at:{at}", head=7).at for at in range(8)]
    assert places == [0, 1, 1, 3, 4, 4, 4, 7]


def test_an_erasure_leaves_what_another_one_wrote_since_it_began(
    any_trail: Trail, tmp_path: Path
) -> None:
    """After a retirement, that is all there is of these records."""
    write(any_trail, [row(1, after={"id": 77, "mail": "w"}), row(2, after={"id": 2})])
    keep(any_trail, tmp_path)
    retire(any_trail, tmp_path)
    begun = Archives.at([tmp_path], source="shop")
    erase(any_trail, "77", archives=(tmp_path,))
    Eraser(any_trail, patience(any_trail), begun).resume(everything=True)
    report = verify(any_trail, archives=(tmp_path,))
    assert sound(report)
    assert (report.retired, report.archived) == (2, 2)


def test_an_archive_that_an_erasure_did_not_reach_is_told(any_trail: Trail, tmp_path: Path) -> None:
    write(any_trail, [row(1, after={"id": 77, "mail": "w"}), row(2, after={"id": 2})])
    keep(any_trail, tmp_path)
    erase(any_trail, "77")
    assert sound(verify(any_trail))
    report = verify(any_trail, archives=(tmp_path,))
    assert (report.broken, report.unfinished) == (0, 1)
    assert "run `penstock audit erase` with this --archive" in report.findings[0].says
    erase(any_trail, "77", archives=(tmp_path,))
    assert sound(verify(any_trail, archives=(tmp_path,)))


def test_folders_without_archives_and_tables_without_a_name_are_refused(
    trail: Trail, tmp_path: Path
) -> None:
    with pytest.raises(AuditError, match="no archive"):
        Archives.at([tmp_path], source="shop")
    with pytest.raises(AuditError, match="no trail"):
        keep(trail, tmp_path)
    with pytest.raises(AuditError, match=r"write it as db\.tbl"):
        table_of("orders")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(AuditError, match="no archive"):
        Archives.at([tmp_path], source="shop")


# --- clocks ---------------------------------------------------------------------------------------

DAY_MS = 86_400_000
COMMITTED_MS = 1_700_000_000_000
"""About when the rows of these tests were committed."""


def written_at(trail: Trail, now_ms: int, made: list[dict[str, Any]], **limits: Any) -> None:
    """Write rows by a driver whose clock says `now_ms`."""
    writer = Writer(trail, "trail", patience=patience(trail), now_ms=lambda: now_ms)
    writer.open()
    writer.write(steps(made, **limits), marker=marker)


@pytest.mark.parametrize("events_max", [3, 1000], ids=["staged", "together"])
def test_times_of_batches_never_run_backwards(any_trail: Trail, events_max: int) -> None:
    now = COMMITTED_MS + DAY_MS
    written_at(any_trail, now, commit_of(1, 8), events_max=events_max)
    written_at(any_trail, now - 200 * DAY_MS, commit_of(9, 8), events_max=events_max)
    times = [int(one["ts"].timestamp() * 1000) for one in any_trail.batches.find().sort("_id", 1)]
    assert set(times) == {now}
    written_at(any_trail, now + 5, [row(17, after={"id": 17})])
    head = any_trail.head()
    assert head is not None
    assert head.written_ms == now + 5


@pytest.mark.parametrize("ages", [(0, 200, 200), (0, 0, 200, 0), (200, 0, 200, 200)])
def test_only_what_came_before_all_that_is_young_is_retired(
    trail: Trail, ages: tuple[int, ...]
) -> None:
    """An older Penstock wrote the driver's clock into each batch, and it may have gone back."""
    for number in range(1, len(ages) + 1):
        write(trail, [row(number, after={"id": number})])
    now = COMMITTED_MS + 300 * DAY_MS
    for number, days in enumerate(ages, 1):
        aged = {"$set": {"ts": DatetimeMS(now - days * DAY_MS)}}
        trail.batches.update_one({"_id": Int64(number)}, aged)
    done = retire(trail, without_archive=True, before_ms=now - 90 * DAY_MS)
    assert (done.taken, done.last) == ((1, 1) if ages[0] else (0, 0))


def test_rows_that_were_committed_since_stay_whatever_the_driver_s_clock_said(trail: Trail) -> None:
    """The first driver of all ran with a clock that was behind."""
    written_at(trail, COMMITTED_MS - 200 * DAY_MS, rows())
    before = COMMITTED_MS - 90 * DAY_MS
    assert retire(trail, without_archive=True, before_ms=before).records == 0
    assert retire(trail, without_archive=True, before_ms=COMMITTED_MS + DAY_MS).taken == 22


def test_a_clock_that_is_ahead_makes_nothing_old(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`retain` goes by the earlier of two clocks: this machine's, and that of MongoDB."""
    true_ns = time.time_ns
    year_ns = 365 * DAY_MS * 1_000_000
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: true_ns() + year_ns)
        assert trail.now_ms() < true_ns() // 1_000_000 + DAY_MS
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: true_ns() - year_ns)
        assert trail.now_ms() < true_ns() // 1_000_000 - DAY_MS
