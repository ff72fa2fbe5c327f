"""A key is erased so that nothing of it is left, and the chain still proves all else."""

from contextlib import closing
from typing import Any

import pytest
from bson.int64 import Int64

from penstock.audit.archives import Archives
from penstock.audit.chain import ERASED_SALT, cut
from penstock.audit.erase import Eraser
from penstock.audit.names import table_of
from penstock.audit.packing import Step
from penstock.audit.records import ID_KEY_BYTES, id_of
from penstock.audit.searching import key_of
from penstock.audit.trail import Trail
from penstock.audit.writing import Writer
from penstock.errors import AuditError, TrailBusyError, TrailMovedError
from penstock.event import event_id
from tests.audit.proofs import (
    Dying,
    Killed,
    copied,
    erase,
    everything,
    patience,
    put_all_back,
    record_at,
    sound,
    verify,
)
from tests.audit.support import (
    commit_of,
    marker,
    row,
    steps,
    stored,
    trail_of,
    write,
    writer_of,
)

pytestmark = pytest.mark.server

SECRET = "wanda@example.org"


def rows() -> list[dict[str, Any]]:
    """Wanda is customer 77, and later customer 770; and one large commit of others."""
    wanda = {"id": 77, "mail": SECRET, "note": None}
    sql = f'{{"statement":"insert into t values (7, \'{SECRET}\')","actor":"app"}}'
    moved_to, moved_from = '{"movedTo":{"id":770}}', '{"movedFrom":{"id":77}}'
    return [
        row(1, after={"id": 1, "mail": "other"}),
        row(2, after=wanda, origin=sql),
        *commit_of(3, 12),
        row(15, before=wanda, after=wanda | {"note": f"call {SECRET}"}),
        row(16, commit=16, rows=2, before=wanda, origin=moved_to),
        row(17, commit=16, ordinal=1, rows=2, after=wanda | {"id": 770}, origin=moved_from),
        row(18, before=wanda | {"id": 770}, after=wanda | {"id": 770, "mail": f"2{SECRET}"}),
        row(19, after={"id": 19}),
    ]


@pytest.fixture
def filled(any_trail: Trail) -> Trail:
    write(any_trail, rows(), events_max=5)
    return any_trail


def test_what_is_erased_is_nowhere_and_the_chain_holds(filled: Trail) -> None:
    before = stored(filled)
    done = erase(filled, '{"id": 77}')
    # Both records under the key, and the two halves of its move.
    assert done.records == done.taken == 4
    found = stored(filled)
    for at in (2, 15, 16, 17):
        record = found[at - 1]
        assert record["erased"]["at"] == done.at[0]
        assert "chg" not in record
        assert record["meta"] == {"db": "db", "tbl": "orders"}
        assert not {"sql", "actor", "position"} & set(record["src"])
        kept = {"_id", "at", "ts", "op", "seq", "txn", "ts_local"}
        assert {name: record[name] for name in kept} == {
            name: before[at - 1][name] for name in kept
        }
    assert [one for n, one in enumerate(found, 1) if n not in {2, 15, 16, 17}][:-1] == [
        one for n, one in enumerate(before, 1) if n not in {2, 15, 16, 17}
    ]
    assert SECRET in everything(filled)  # customer 770's own records: another key
    assert erase(filled, "770").records == 1
    assert SECRET not in everything(filled)
    report = verify(filled)
    assert sound(report)
    assert (report.erased, report.proved) == (5, 16)


def test_an_erasure_is_a_record_that_names_neither_key_nor_value(filled: Trail) -> None:
    done = erase(filled, '{"id": 77}')
    record = stored(filled)[-1]
    assert done.at == [record["at"]]
    assert (record["op"], record["said"]) == (
        "sys",
        {"operation": "erase", "reason": "request 17", "by": "ann"},
    )
    assert record["sys"]["count"] == 4
    assert record["meta"] == {"db": "db", "tbl": "orders"}
    assert SECRET not in repr(record)


def test_progress_stays_as_it_was_and_the_driver_goes_on(trail: Trail) -> None:
    """Beside a running driver: an erasure takes a place, and no change is lost or there twice."""
    writer = writer_of(trail)
    writer.write(steps(rows(), events_max=5), marker=marker)
    erase(trail, '{"id": 77}')
    head = trail.head()
    assert head is not None
    assert (head.progress, head.epoch) == ("m19", writer.head.epoch)
    writer.write(steps([row(20, after={"id": 20})]), marker=marker)
    erase(trail, '{"id": 20}')
    writer.save("m20")
    writer.flush()
    writer.write(steps([row(21, after={"id": 21})]), marker=marker)
    assert [record["op"] for record in stored(trail)[-4:]] == ["sys", "i", "sys", "i"]
    assert sound(verify(trail))
    assert (trail.head() or writer.head).progress == "m21"


def test_a_log_that_is_read_again_brings_nothing_back(filled: Trail) -> None:
    erase(filled, '{"id": 77}')
    before = stored(filled)
    write(filled, rows(), events_max=3)
    assert stored(filled) == before
    assert sound(verify(filled))


def test_an_erased_key_is_not_found_by_trying_keys(trail: Trail) -> None:
    """The id of a copied row's event is a hash of its key, which anybody can make."""
    event = event_id("shop", 'snapshot:1:orders:{"id":77}', 0)
    made = [row(1, after={"id": 77, "mail": SECRET}, event_id=event, snapshot=True)]
    writer = writer_of(trail)
    id_key = writer.head.id_key
    assert len(id_key) == ID_KEY_BYTES
    writer.write(steps(made, id_key=id_key), marker=marker)
    (record,) = stored(trail)
    assert (record["_id"], record["src"]["event"]) == (id_of(event, id_key), event)
    erase(trail, "77")
    assert event not in everything(trail)
    assert sound(verify(trail))
    # What the trail has had stays away, and its key is no other one for a later writer.
    writer = writer_of(trail)
    assert writer.head.id_key == id_key
    writer.write(steps(made, id_key=id_key), marker=marker)
    assert [one["op"] for one in stored(trail)] == ["i", "sys"]


def test_a_trail_that_an_older_penstock_began_goes_on_with_its_events_own_ids(trail: Trail) -> None:
    write(trail, rows()[:2])
    trail.heads.update_one({}, {"$set": {"version": 1}, "$unset": {"idKey": 1}})
    writer = writer_of(trail)
    assert writer.head.id_key == b""
    writer.write(steps(rows(), id_key=writer.head.id_key), marker=marker)
    assert [one["_id"] for one in stored(trail)] == [one["event_id"] for one in rows()]
    assert "event" not in stored(trail)[-1]["src"]
    found = trail.heads.find_one({})
    assert found is not None
    assert found["version"] == 1
    assert sound(verify(trail))


def renamed(number: int, old: str, new: str) -> dict[str, Any]:
    """A statement that gave a table another name."""
    to = f'{{"to":{{"db":"db","coll":"{new}"}}}}'
    said: dict[str, Any] = {"kind": 3, "operation_type": "rename", "full_document": to}
    return row(number, key=None, document_id=None, collection=old, **said)


def test_a_key_goes_from_under_each_name_that_its_table_had(any_trail: Trail) -> None:
    """`orders` was made as `draft`, and is `past` since; another `draft` was never `orders`."""
    wanda = {"id": 77, "mail": SECRET}
    write(
        any_trail,
        [
            row(1, after=wanda, collection="draft"),
            renamed(2, "draft", "orders"),
            row(3, before=wanda, after=wanda | {"n": 1}),
            row(4, after={"id": 77, "mail": "another table's"}, collection="draft"),
            renamed(5, "orders", "past"),
            row(6, before=wanda, after=wanda | {"n": 2}, collection="past"),
            row(7, after={"id": 78}, collection="past"),
        ],
    )
    for key in ('{"id": 77}', "77"):
        assert erase(any_trail, key, dry_run=True).records == 3
    done = erase(any_trail, "77")
    assert (done.taken, done.names) == (3, ["db.draft", "db.past"])
    assert [one["at"] for one in stored(any_trail) if "erased" in one] == [1, 3, 6]
    assert SECRET not in everything(any_trail)
    assert sound(verify(any_trail))


def test_a_key_whose_column_was_renamed_is_told_under_its_other_form(trail: Trail) -> None:
    write(
        trail,
        [
            row(1, after={"id": 77, "mail": SECRET}),
            row(2, after={"person": 77}, key='{"person":77}', document_id="77"),
            row(3, after={"id": "77"}, key='{"id":"77"}', document_id="77"),
            row(4, after={"id": 78}),
        ],
    )
    for dry_run in (True, False):
        done = erase(trail, '{"id": 77}', dry_run=dry_run)
        assert (done.records, sorted(done.alike)) == (1, ['{"id":"77"}', '{"person":77}'])
    done = erase(trail, '{"person": 77}')
    assert (done.records, done.alike) == (1, ['{"id":"77"}'])


def test_spilled_values_go_and_do_not_come_back(any_trail: Trail) -> None:
    large = [row(1, after={"id": 77, "v": SECRET * (1 << 19)}), row(2, after={"id": 2})]
    write(any_trail, large)
    assert any_trail.spilled.count_documents({}) > 0
    erase(any_trail, "77")
    assert any_trail.spilled.count_documents({}) == 0
    write(any_trail, large)
    assert any_trail.spilled.count_documents({}) == 0
    assert sound(verify(any_trail))
    # Had they come back, a proof would say so.
    name = stored(any_trail)[0]["_id"]
    any_trail.spilled.insert_one({"_id": f"{name}:0", "data": b"x"})
    report = verify(any_trail)
    assert (report.unfinished, report.findings[0].part) == (1, "spilled")


def test_the_salts_of_what_is_erased_are_gone(filled: Trail) -> None:
    """With its salt, who guesses a content could prove that it was this one."""
    erase(filled, '{"id": 77}')
    zero = [
        batch["first"] + offset
        for batch in filled.batches.find().sort("_id", 1)
        for offset, salt in enumerate(cut(batch["salts"], 16))
        if salt == ERASED_SALT
    ]
    assert zero == [2, 15, 16, 17]


@pytest.mark.slow
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("events_max", [14, pytest.param(5, marks=pytest.mark.soak)])
def test_killed_at_any_step_it_converges(any_trail: Trail, behind: bool, events_max: int) -> None:
    """Before the erasure stands in the chain nothing is gone; from then on a proof tells it."""
    seen: set[bool] = set()
    calls = 0
    write(any_trail, rows(), events_max=events_max)
    kept = copied(any_trail)
    for calls in range(200):
        put_all_back(any_trail, kept)
        try:
            erase(any_trail, '{"id": 77}', patience=Dying(any_trail, calls, behind=behind))
        except Killed:
            head = any_trail.head()
            if head is not None and head.staged is None:
                report = verify(any_trail)
                assert report.broken == 0, (calls, report.findings)
                told = any_trail.records.count_documents({"op": "sys"})
                gone = any_trail.records.count_documents({"erased": {"$exists": True}})
                assert told or not gone
                # What is not all gone is told.
                assert not told or gone == 4 or report.unfinished
                seen.add(bool(report.unfinished))
            erase(any_trail, '{"id": 77}')
            assert sound(verify(any_trail)), calls
            assert any_trail.records.count_documents({"erased": {"$exists": True}}) == 4
            assert any_trail.records.count_documents({"op": "sys"}) == 1
        else:
            break
    assert calls > 10
    assert seen == {False, True}


def test_an_erasure_that_was_carried_out_in_part_is_finished_without_its_key(
    filled: Trail,
) -> None:
    """As after a backup of one collection was put back."""
    kept = record_at(filled, 2)
    batch = filled.batches.find_one({"first": {"$lte": 2}, "last": {"$gte": 2}}) or {}
    erase(filled, '{"id": 77}')
    filled.raw_records.replace_one({"at": 2}, kept)
    filled.batches.replace_one({"_id": batch["_id"]}, batch)
    report = verify(filled)
    assert (report.broken, report.unfinished) == (0, 1)
    assert "told to be erased" in report.findings[0].says
    Eraser(filled, patience(filled), Archives(())).resume(everything=True)
    assert sound(verify(filled))


def test_what_is_erased_without_an_erasure_is_broken(filled: Trail) -> None:
    """Who may write to the database cannot hide a change by calling it erased."""
    erase(filled, '{"id": 77}')
    head = filled.head()
    assert head is not None
    erased = stored(filled)[1]
    whole = stored(filled)[0]
    filled.records.replace_one(
        {"at": 1}, {"erased": erased["erased"]} | {k: v for k, v in whole.items() if k != "chg"}
    )
    assert verify(filled).findings[0].at == 1
    filled.records.replace_one({"at": 1}, whole)
    # An erased record that names another erasure, or none.
    for field, value in (("at", head.at - 1), ("by", "sys:x:0")):
        filled.records.update_one({"at": 2}, {"$set": {f"erased.{field}": value}})
        report = verify(filled)
        assert (report.broken, report.findings[0].at) == (1, 2)
        filled.records.replace_one({"at": 2}, erased)
    # The erasure itself is gone, or names other places.
    own = stored(filled)[-1]
    filled.records.update_one({"at": own["at"]}, {"$set": {"sys.first": 1}})
    assert [one.at for one in verify(filled).findings] == [2, 15, 16, 17, own["at"]]
    filled.records.delete_one({"at": own["at"]})
    assert [one.problem for one in verify(filled).findings] == [*["uncovered"] * 4, "missing"]


def test_a_text_that_stands_for_several_keys_is_refused(any_trail: Trail) -> None:
    """A12: 5 and "5" are two keys and one text."""
    write(any_trail, [row(1, after={"id": 5}), row(2, after={"id": "5"})])
    with pytest.raises(AuditError, match=r"2 keys of db\.orders"):
        erase(any_trail, "5")
    assert erase(any_trail, '{"id": "5"}').records == 1
    assert [("erased" in record) for record in stored(any_trail)] == [False, True, False]
    assert erase(any_trail, "5").records == 1
    with pytest.raises(AuditError, match="no JSON object"):
        erase(any_trail, "{5")


def test_a_dry_run_changes_nothing(filled: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(filled)
    told = erase(filled, '{"id": 77}', dry_run=True)
    assert (told.records, told.more) == (4, False)
    monkeypatch.setattr("penstock.audit.searching._TOGETHER", 2)
    told = erase(filled, '{"id": 77}', dry_run=True)
    assert (2 <= told.records < 4, told.more) == (True, True)
    assert everything(filled) == before


def test_sql_text_that_is_with_another_key_is_told_and_erased_if_asked(any_trail: Trail) -> None:
    sql = f"{{\"statement\":\"insert into t values (1, 'x'), (7, '{SECRET}')\"}}"
    write(
        any_trail,
        [
            row(1, rows=2, after={"id": 1}, origin=sql),
            row(2, commit=1, ordinal=1, rows=2, after={"id": 77}, origin='{"statementAt":0}'),
        ],
    )
    assert erase(any_trail, "77", dry_run=True).statements == 1
    assert erase(any_trail, "77", dry_run=True, statements=True).records == 2
    erase(any_trail, "77", statements=True)
    assert SECRET not in everything(any_trail)
    assert sound(verify(any_trail))


def test_a_broken_record_is_erased_only_if_that_is_said(filled: Trail) -> None:
    filled.records.update_one({"at": 15}, {"$set": {"chg.note.t": "forged"}})
    with pytest.raises(AuditError, match="not what was written"):
        erase(filled, '{"id": 77}')
    assert filled.records.count_documents({"erased": {"$exists": True}}) == 0
    erase(filled, '{"id": 77}', broken=True)
    report = verify(filled)
    assert [(one.problem, one.at) for one in report.findings] == [("altered", 15)]
    assert filled.records.count_documents({"erased": {"$exists": True}}) == 4


def test_while_a_large_commit_comes_in_an_erasure_waits(trail: Trail) -> None:
    write(trail, rows(), events_max=5)
    staged = {
        "first": 9, "last": 9, "at": 20, "hash": bytes(32), "progress": "", "epoch": 1
    }  # fmt: skip
    trail.heads.update_one({"_id": "shop"}, {"$set": {"staged": staged}})
    quick = trail.config.model_copy(update={"answer_seconds": 0.3})
    trail.config = quick
    with pytest.raises(TrailBusyError, match="large commit is on its way"):
        erase(trail, '{"id": 77}')
    assert trail.records.count_documents({"erased": {"$exists": True}}) == 0
    trail.heads.update_one({"_id": "shop"}, {"$unset": {"staged": 1}})
    assert erase(trail, '{"id": 77}').taken == 4


def test_a_server_without_transactions_has_the_trail_taken_over_only_if_told(
    any_trail: Trail,
) -> None:
    if any_trail.has_transactions():
        return
    write(any_trail, rows())
    with pytest.raises(AuditError, match="say --take-over"):
        Eraser(any_trail, patience(any_trail), Archives(())).erase(
            table_of("db.orders"), key_of("1"), reason="", by=""
        )


# --- what a commit that has not ended left ----------------------------------------------------


def staged(trail: Trail, *, bytes_max: int = 1 << 20) -> tuple[Writer, list[Step]]:
    """A writer in the middle of a large commit of Wanda's rows, and the steps that it has left."""
    rows = [
        row(20 + n, commit=20, ordinal=n, rows=6, after={"id": 77, "mail": f"{n} {SECRET}" * 99})
        for n in range(6)
    ]
    writer, (*some, last, end) = writer_of(trail), steps(rows, events_max=2, bytes_max=bytes_max)
    writer.write(some, marker=marker)
    assert SECRET in everything(trail)
    return writer, [last, end]


@pytest.mark.parametrize("bytes_max", [1 << 20, 1024], ids=["whole", "spilled"])
def test_what_a_driver_that_died_has_staged_goes_and_comes_again(
    any_trail: Trail, bytes_max: int
) -> None:
    """A26: its parts hold the key's content, and nobody knows when the next driver starts."""
    write(any_trail, [row(1, after={"id": 1})])
    staged(any_trail, bytes_max=bytes_max)
    erase(any_trail, '{"id": 77}')
    assert SECRET not in everything(any_trail)
    assert any_trail.staging.count_documents({"status": "pending"}) == 0
    _, left = staged(any_trail, bytes_max=bytes_max)
    assert len(left) == 2
    writer_of(any_trail)  # of another driver, which drops them: then one of an older epoch
    any_trail.heads.update_one({}, {"$inc": {"epoch": Int64(1)}})
    staged(any_trail, bytes_max=bytes_max)
    any_trail.heads.update_one({}, {"$inc": {"epoch": Int64(1)}})
    erase(any_trail, '{"id": 77}')
    assert SECRET not in everything(any_trail)
    assert sound(verify(any_trail))


@pytest.mark.parametrize("bytes_max", [1 << 20, 1024], ids=["whole", "spilled"])
def test_a_driver_that_lives_writes_the_commit_again_behind_an_erasure(
    any_trail: Trail, bytes_max: int
) -> None:
    write(any_trail, [row(1, after={"id": 1})])
    writer, left = staged(any_trail, bytes_max=bytes_max)
    erase(any_trail, '{"id": 77}')
    with pytest.raises(TrailMovedError) as raised:
        writer.write(left, marker=marker)
    assert raised.value.transient
    assert any_trail.staging.count_documents({"status": "pending"}) == 0
    writer, left = staged(any_trail, bytes_max=bytes_max)
    writer.write(left, marker=marker)
    assert [one["seq"] for one in stored(any_trail)] == [0, *range(6)]
    assert sound(verify(any_trail))


def test_an_erasure_leaves_the_values_of_records_that_are_in_the_trail(any_trail: Trail) -> None:
    """Which an older attempt, whose parts are still there, has written too."""
    writer, left = staged(any_trail, bytes_max=1024)
    part = any_trail.staging.find_one({})
    writer.write(left, marker=marker)
    assert part is not None
    any_trail.staging.replace_one({"_id": "left"}, {**part, "_id": "left"}, upsert=True)
    any_trail.heads.update_one({}, {"$inc": {"epoch": Int64(1)}})
    erase(any_trail, '{"id": 78}')
    assert any_trail.staging.count_documents({"status": "pending"}) == 0
    assert any_trail.spilled.count_documents({}) == 6
    assert sound(verify(any_trail))


def test_while_a_commit_is_on_its_way_in_an_erasure_says_that_it_cannot_see_it(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are in the trail, and would be left out of what is erased."""
    writer, left = staged(trail)

    def away(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("penstock.audit.writing.bring_parts", away)
        with pytest.raises(Killed):
            writer.write(left, marker=marker)
    uri = trail.config.uri.get_secret_value()
    with closing(trail_of(uri, trail.config.database, answer_seconds=0.5)) as brief:
        with pytest.raises(TrailBusyError):
            erase(brief, '{"id": 77}')
        assert trail.staging.count_documents({"status": "pending"}) == 3
        writer_of(trail)
        assert erase(brief, '{"id": 77}').taken == 6
    assert SECRET not in everything(trail)
    assert sound(verify(trail))
