"""A26: whatever is altered in a trail is found, and named by its first record or batch."""

from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from penstock.audit.trail import RAW, Trail
from penstock.audit.writing import Writer
from penstock.errors import AuditError
from tests.audit.proofs import Dying, Killed, history, put_back, record_at, sound, verify
from tests.audit.support import marker, row, steps, stored, trail_of, write

pytestmark = pytest.mark.server


@pytest.fixture
def filled(trail: Trail) -> Trail:
    """Twenty records in batches of a few."""
    write(trail, history(), events_max=6)
    return trail


def test_a_trail_as_it_was_written_is_proved(any_trail: Trail) -> None:
    head = write(any_trail, history(), events_max=6)
    report = verify(any_trail)
    assert sound(report)
    assert (report.first, report.last, report.proved) == (1, 20, 20)
    assert report.hash == head.hash.hex()
    assert report.batches == head.batch


def test_an_empty_trail_is_proved_and_one_that_is_not_there_is_refused(trail: Trail) -> None:
    with pytest.raises(AuditError, match="there is no trail"):
        verify(trail)
    write(trail, [])
    assert sound(verify(trail))


def paths(value: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every field of a document, and of those in it."""
    for name, inner in value.items():
        yield (*before, name)
        if isinstance(inner, dict):
            yield from paths(inner, (*before, name))


def altered(value: Any) -> Any:
    """Another value, as near as may be."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, Int64):
        return Int64(value + 1000)
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value} "
    if isinstance(value, list):
        return [*value, None]
    if isinstance(value, dict):
        return {"more": 1}
    if isinstance(value, datetime):
        return value + timedelta(milliseconds=1)
    assert value is None
    return 0


def test_every_field_of_every_record_is_proved(filled: Trail) -> None:
    """Altered, removed or of another type: the record is named, and nothing else is."""
    tried = 0
    for at in range(1, 8):
        kept = record_at(filled, at)
        record = filled.records.find_one({"at": Int64(at)}) or {}
        for path in paths(record):
            name = ".".join(path)
            value: Any = record
            for part in path:
                value = value[part]
            for change in ({"$set": {name: altered(value)}}, {"$unset": {name: 1}}):
                if name == "_id":
                    filled.records.delete_one({"at": Int64(at)})
                    filled.records.insert_one(record | {"_id": f"{value}0"})
                else:
                    filled.records.update_one({"_id": record["_id"]}, change)
                report = verify(filled)
                found = report.first_broken
                assert found is not None, (name, change)
                assert found.at == at or found.id == record["_id"], (name, change, found)
                assert report.proved == 19, (name, change)
                put_back(filled, kept)
                tried += 1
    assert tried > 200
    assert sound(verify(filled))


def test_a_field_more_or_in_another_order_is_found(filled: Trail) -> None:
    kept = record_at(filled, 4)
    record = dict(kept)
    for change in (
        {"$set": {"more": 1}},
        {"$set": {"meta.more": 1}},
        {"$set": {"src.more": 1}},
        {"$set": {"chg.more": {"t": 1}}},
        {"$set": {"erased": {"at": Int64(1), "digest": b"", "by": ""}}},
    ):
        filled.records.update_one({"_id": record["_id"]}, change)
        report = verify(filled)
        assert report.first_broken is not None
        assert report.first_broken.at == 4
        put_back(filled, kept)
    turned = dict(reversed(list(dict(kept["chg"]).items())))
    filled.records.update_one({"_id": record["_id"]}, {"$set": {"chg": turned}})
    assert verify(filled).broken == 1


def test_a_field_twice_or_of_a_type_that_reads_alike_is_found(filled: Trail) -> None:
    """Bytes that our reading would take for what was written."""
    kept = record_at(filled, 4)
    meta, raw = bytes(kept["meta"].raw), bytes(kept.raw)
    twice = b"\x02op\0\x02\0\0\0d\0" + raw[4:]
    symbol = raw[4:].replace(b"\x02op\0", b"\x0eop\0")
    inner = (meta[:-1] + b"\x02db\0\x03\0\0\0db\0\0")[4:]
    inner = (len(inner) + 4).to_bytes(4, "little") + inner
    for forged in (twice, symbol, raw[4:].replace(meta, inner)):
        assert forged != raw[4:]
        filled.records.delete_one({"at": 4})
        whole = (len(forged) + 4).to_bytes(4, "little") + forged
        filled.raw_records.insert_one(RawBSONDocument(whole, RAW))
        report = verify(filled)
        assert report.first_broken is not None, forged
        assert report.first_broken.at == 4
    put_back(filled, kept)
    assert sound(verify(filled))


def test_a_deleted_record_is_missing_by_its_place(filled: Trail) -> None:
    filled.records.delete_many({"at": {"$in": [4, 5, 17]}})
    report = verify(filled)
    assert [(one.problem, one.at) for one in report.findings] == [
        ("missing", 4),
        ("missing", 5),
        ("missing", 17),
    ]
    assert report.broken == 3


def test_swapped_records_are_named_with_the_place_of_each(filled: Trail) -> None:
    one, other = record_at(filled, 7), record_at(filled, 8)
    filled.records.delete_many({"at": {"$in": [7, 8]}})
    filled.records.insert_one({**filled_as(one), "at": Int64(8)})
    filled.records.insert_one({**filled_as(other), "at": Int64(7)})
    report = verify(filled)
    assert [(one.problem, one.at) for one in report.findings] == [
        ("misplaced", 7),
        ("misplaced", 8),
    ]
    assert report.findings[0].says == "it is the record of place 8"


def filled_as(record: RawBSONDocument) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "at"}


def test_an_inserted_record_is_named_wherever_it_lies(filled: Trail) -> None:
    """Beside another, between two places, behind the head, before the first, of no place."""
    filled.records.drop_index("at_1")
    for at in (Int64(4), 4.5, Int64(21), Int64(0), "4", None):
        filled.records.insert_one({"_id": "forged", "at": at, "meta": {"db": "d", "tbl": "t"}})
        report = verify(filled)
        assert report.broken == 1, at
        assert report.first_broken is not None
        assert report.first_broken.id == "forged"
        assert report.first_broken.problem in {"inserted", "beyond"}
        assert report.proved == 20
        filled.records.delete_one({"_id": "forged"})
    assert sound(verify(filled))


def test_a_record_that_is_dated_anew_is_named(filled: Trail) -> None:
    record = filled.records.find_one({"at": 9}) or {}
    filled.records.update_one({"at": 9}, {"$set": {"ts": record["ts"].replace(year=2001)}})
    report = verify(filled)
    assert report.first_broken is not None
    assert (report.first_broken.at, report.first_broken.id) == (9, record["_id"])
    assert (report.first_broken.db, report.first_broken.tbl) == ("db", "orders")
    assert report.first_broken.pk == "9"


BATCH = ("source", "first", "last", "leaves", "salts", "root", "before", "hash")


@pytest.mark.parametrize("field", BATCH)
@pytest.mark.parametrize("number", [1, 3, "last"])
def test_every_field_of_a_batch_is_proved(filled: Trail, field: str, number: Any) -> None:
    """But for `ts`, of which nothing is said."""
    head = filled.head()
    assert head is not None
    number = head.batch if number == "last" else number
    batch = filled.batches.find_one({"_id": number}) or {}
    value = batch[field]
    if isinstance(value, bytes):
        for at in (0, len(value) - 1):
            other = bytearray(value)
            other[at] ^= 1
            filled.batches.update_one({"_id": number}, {"$set": {field: Binary(bytes(other))}})
            expect_batch(filled, number, field)
        filled.batches.update_one({"_id": number}, {"$set": {field: Binary(value[:-1])}})
        expect_batch(filled, number, field, cut=True)
    else:
        filled.batches.update_one({"_id": number}, {"$set": {field: altered(value)}})
        expect_batch(filled, number, field)
    filled.batches.update_one({"_id": number}, {"$unset": {field: 1}})
    expect_batch(filled, number, field, cut=True)
    filled.batches.replace_one({"_id": number}, batch)
    assert sound(verify(filled))


def expect_batch(trail: Trail, number: int, field: str, *, cut: bool = False) -> None:
    report = verify(trail)
    found = report.first_broken
    assert found is not None
    if field == "salts" and not cut:
        assert (found.what, found.part) == ("record", "head, content or salt")
        assert report.broken == 1
        return
    assert (found.what, found.batch) == ("batch", number), found
    assert field in (found.part or ""), found
    others = [one for one in report.findings if one.what == "batch" and one.batch != number]
    assert not others


def test_a_missing_batch_is_named_and_its_records_are_counted(filled: Trail) -> None:
    for number in (1, 2, 4):
        batch = filled.batches.find_one_and_delete({"_id": number}) or {}
        report = verify(filled)
        assert [(one.what, one.problem, one.batch) for one in report.findings] == [
            ("batch", "missing", number)
        ]
        lost = batch["last"] - batch["first"] + 1
        assert report.proved == 20 - lost
        assert any(f"{lost} records" in one for one in report.unchecked)
        filled.batches.insert_one(batch)


def test_an_inserted_or_swapped_batch_is_named(filled: Trail) -> None:
    batch = filled.batches.find_one({"_id": 2}) or {}
    for number in (99, 2.5, 0, "x"):
        filled.batches.insert_one({**batch, "_id": number})
        report = verify(filled)
        assert [(one.what, one.problem) for one in report.findings] in (
            [("batch", "beyond")],
            [("batch", "inserted")],
        )
        filled.batches.delete_one({"_id": number})
    other = filled.batches.find_one({"_id": 3}) or {}
    filled.batches.replace_one({"_id": 2}, {**other, "_id": 2})
    filled.batches.replace_one({"_id": 3}, {**batch, "_id": 3})
    report = verify(filled)
    assert report.first_broken is not None
    assert (report.first_broken.what, report.first_broken.batch) == ("batch", 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("at", Int64(19)),
        ("at", Int64(1 << 60)),
        ("batch", Int64(3)),
        ("batch", Int64(1 << 60)),
        ("hash", Binary(bytes(32))),
        ("version", 1),
        ("version", 3),
        ("sealed", True),
        ("sealed", "no"),
        ("at", "x"),
    ],
)
def test_an_altered_head_is_named(filled: Trail, field: str, value: Any) -> None:
    filled.heads.update_one({"_id": "shop"}, {"$set": {field: value}})
    report = verify(filled)
    if field == "sealed" and value is True:
        assert any("no seal_key here" in one for one in report.unchecked)
        return
    assert not report.sound
    # A head that names batches that are not there: they may be gone, for all that is known.
    assert {one.what for one in report.findings} & {"head", "batch"}
    assert report.proved >= 18 or field in {"at", "batch"}


def test_a_missing_head_is_named(filled: Trail) -> None:
    filled.heads.delete_one({"_id": "shop"})
    report = verify(filled)
    assert [(one.what, one.problem) for one in report.findings] == [("head", "missing")]
    assert report.proved == 20


def test_what_was_made_anew_in_whole_is_told_by_the_hash_kept_elsewhere(filled: Trail) -> None:
    """Who may write to the database can forge a chain that has no seal; not the hash we kept."""
    kept = filled.head()
    assert kept is not None
    filled.client.drop_database(filled.config.database)
    write(filled, [row(n, after={"id": n, "v": "forged"}) for n in range(1, 21)], events_max=6)
    assert sound(verify(filled))
    report = verify(filled, expect=kept.hash)
    assert [(one.what, one.problem) for one in report.findings] == [("head", "missing")]


def test_an_older_head_is_found_on_the_chain(filled: Trail) -> None:
    kept = filled.head()
    assert kept is not None
    write(filled, [row(30, after={"id": 30})])
    report = verify(filled, expect=kept.hash)
    assert sound(report)
    assert report.expected == f"batch {kept.batch}, up to place 20"
    cut = filled.batches.find_one({"_id": kept.batch - 1}) or {}
    filled.records.delete_many({"at": {"$gt": cut["last"]}})
    filled.batches.delete_many({"_id": {"$gt": cut["_id"]}})
    moved = {"at": cut["last"], "batch": cut["_id"], "hash": cut["hash"]}
    filled.heads.update_one({"_id": "shop"}, {"$set": moved})
    assert sound(verify(filled))
    assert verify(filled, expect=kept.hash).broken == 1


def test_a_sealed_chain_cannot_be_forged_without_its_key(trail: Trail) -> None:
    uri, database = trail.config.uri.get_secret_value(), trail.config.database
    sealed = trail_of(uri, database, seal_key="k" * 16)
    write(sealed, history(), events_max=6)
    assert sound(verify(sealed))
    report = verify(trail)
    assert report.proved == 20
    assert any("sealed" in one for one in report.unchecked)
    # All of it, made anew without the key.
    rows = [row(n, after={"id": n}) for n in range(1, 21)]
    trail.client.drop_database(database)
    write(trail, rows, events_max=6)
    report = verify(sealed)
    assert report.first_broken is not None
    assert report.first_broken.part == "sealed"
    trail.heads.update_one({"_id": "shop"}, {"$set": {"sealed": True}})
    report = verify(sealed)
    assert report.first_broken is not None
    assert (report.first_broken.what, report.first_broken.part) == ("chain", "seal_key")
    assert report.broken == 1, report.findings
    sealed.close()


def test_another_seal_key_is_told_once_and_a_forged_batch_by_its_number(trail: Trail) -> None:
    uri, database = trail.config.uri.get_secret_value(), trail.config.database
    with (
        closing(trail_of(uri, database, seal_key="k" * 16)) as sealed,
        closing(trail_of(uri, database, seal_key="x" * 16)) as other,
    ):
        head = write(sealed, history(), events_max=6)
        assert head.batch > 2
        report = verify(other)
        assert report.first_broken is not None
        assert report.first_broken.what == "chain"
        assert report.first_broken.sentence().startswith("chain: no batch has a hash that")
        assert (report.broken, report.proved, report.sound) == (1, 20, False)
        assert any("with another seal_key" in one for one in report.unchecked)
        # What needs no key is proved all the same.
        sealed.records.update_one({"at": 3}, {"$set": {"meta.tbl": "other"}})
        assert [(one.what, one.at) for one in verify(other).findings[1:]] == [("record", 3)]
        sealed.records.update_one({"at": 3}, {"$set": {"meta.tbl": "orders"}})
        assert sound(verify(sealed))
        # Who has no key makes the last batch anew: another one still tells that the key is right.
        forged = Binary(bytes(32))
        sealed.batches.update_one({"_id": head.batch}, {"$set": {"hash": forged}})
        sealed.heads.update_one({"_id": "shop"}, {"$set": {"hash": forged}})
        (found,) = verify(sealed).findings
        assert (found.what, found.batch, found.part) == ("batch", head.batch, "hash")
        assert "another key than the configured seal_key" in found.says


def test_of_a_single_batch_what_was_altered_is_told_and_not_another_key(trail: Trail) -> None:
    uri, database = trail.config.uri.get_secret_value(), trail.config.database
    with closing(trail_of(uri, database, seal_key="k" * 16)) as sealed:
        write(sealed, history()[:3], events_max=6)
        batch = sealed.batches.find_one({"_id": 1}) or {}
        for field in ("hash", "root", "before", "leaves", "first"):
            value = altered(batch[field]) if field == "first" else Binary(b"x" * len(batch[field]))
            sealed.batches.update_one({"_id": 1}, {"$set": {field: value}})
            found = verify(sealed).findings
            assert [(one.what, one.part) for one in found] == [("batch", field)], found
            sealed.batches.replace_one({"_id": 1}, batch)
        assert sound(verify(sealed))


def test_a_walk_may_begin_later_and_says_so(filled: Trail) -> None:
    filled.records.update_one({"at": 2}, {"$set": {"op": "d"}})
    report = verify(filled, first=10)
    assert sound(report)
    assert 1 < report.first <= 10
    assert any("the walk began behind them" in one for one in report.unchecked)
    with pytest.raises(AuditError, match="no batch"):
        verify(filled, first=99)


def test_spilled_values_are_proved_by_their_digest(trail: Trail) -> None:
    """A8."""
    large = "x" * (9 << 20)
    write(trail, [row(1, before={"id": 1, "v": large}, after={"id": 1, "v": f"{large}y"})])
    assert sound(verify(trail))
    piece = trail.spilled.find_one({}, sort=[("_id", -1)]) or {}
    for change in ({"$set": {"data": piece["data"][:-1] + b"!"}}, {"$unset": {"data": 1}}):
        trail.spilled.update_one({"_id": piece["_id"]}, change)
        report = verify(trail)
        assert report.first_broken is not None
        assert (report.first_broken.problem, report.first_broken.at) == ("spilled", 1)
    trail.spilled.delete_one({"_id": piece["_id"]})
    assert verify(trail).broken == 1


def test_a_piece_that_belongs_to_no_record_is_found(any_trail: Trail) -> None:
    """Nobody would read it, and it may hold what is erased."""
    large = row(1, after={"id": 1, "v": "x" * (9 << 20)})
    head = write(any_trail, [large, row(2, after={"id": 2})])
    spilled, whole = [str(record["_id"]) for record in stored(any_trail)]
    assert any_trail.spilled.count_documents({}) == 2
    assert sound(verify(any_trail))
    ours = {"epoch": Int64(head.epoch), "recalled": Int64(0)}
    newer = {"epoch": Int64(head.epoch + 1), "recalled": Int64(0)}
    cases: list[tuple[Any, dict[str, Any], tuple[Any, ...]]] = [
        ("nobody:0", {}, (None, "nobody", "0")),
        ("nobody:0", newer, (None, "nobody", "0")),
        (f"{whole}:0", ours, (2, whole, "0")),
        (f"{spilled}:3", ours, (1, spilled, "3")),
        (f"{spilled}:01", ours, (None, f"{spilled}:01", None)),
        (spilled, ours, (None, spilled, None)),
        (7, ours, (None, "7", None)),
    ]
    for name, stamp, wanted in cases:
        any_trail.spilled.insert_one({"_id": name, "data": b"x", **stamp})
        report = verify(any_trail)
        (found,) = report.findings
        assert (found.what, found.problem, report.broken) == ("piece", "inserted", 1)
        assert (found.at, found.id, found.part) == wanted
        any_trail.spilled.delete_one({"_id": name})
    assert sound(verify(any_trail))


def test_pieces_are_looked_at_page_by_page(filled: Trail) -> None:
    names: list[Any] = [*range(700), *(f"nobody:{number}" for number in range(900))]
    filled.spilled.insert_many([{"_id": name, "data": b"x"} for name in names])
    report = verify(filled, findings_max=2000)
    assert report.broken == 1600
    assert {one.problem for one in report.findings} == {"inserted"}
    assert len({(one.id, one.part) for one in report.findings}) == 1600


def test_pieces_whose_batch_is_not_written_are_no_forgery(any_trail: Trail) -> None:
    """Whether it is on its way, or its writer died and the next one has room for the values."""
    change, tried = row(1, after={"id": 1, "v": "x" * 5000}), 0
    for calls in range(100):
        dying = Dying(any_trail, 1000, behind=True)
        writer = Writer(any_trail, "trail", patience=dying)
        writer.open()
        dying.calls = calls
        with suppress(Killed):
            writer.write(steps([change], bytes_max=2048), marker=marker)
            break
        if any_trail.spilled.count_documents({}) and not stored(any_trail):
            assert says_pieces(any_trail)
            write(any_trail, [change], bytes_max=1 << 20)
            (record,) = stored(any_trail)
            assert says_pieces(any_trail) is ("spilled" not in record)
            tried += "spilled" not in record
        any_trail.client.drop_database(any_trail.config.database)
    assert tried > 0


def says_pieces(trail: Trail) -> bool:
    """Whether the proof of a sound trail says that there is a piece without a record."""
    report = verify(trail)
    assert sound(report)
    return any(one.startswith("1 pieces of spilled values") for one in report.unchecked)


def test_what_is_on_its_way_is_no_forgery(standalone: Any, mongo_database: str) -> None:
    """Staged batches lie beyond the head until it shows them."""
    with_parts = trail_of(standalone.uri, mongo_database)
    write(with_parts, history(), events_max=6)
    head = with_parts.heads.find_one({"_id": "shop"}) or {}
    raw = with_parts.batches.with_options(codec_options=RAW)
    last = raw.find_one({"_id": head["batch"] - 1})
    assert last is not None
    staged: Any = {
        "first": head["batch"],
        "last": head["batch"],
        "at": head["at"],
        "hash": head["hash"],
        "progress": "",
        "epoch": head["epoch"],
    }
    moved = {"at": last["last"], "batch": last["_id"], "hash": last["hash"], "staged": staged}
    with_parts.heads.update_one({"_id": "shop"}, {"$set": moved})
    assert sound(verify(with_parts))
    with_parts.client.drop_database(mongo_database)
    with_parts.close()


def test_a_trail_of_which_all_records_are_gone_is_still_looked_through(trail: Trail) -> None:
    write(trail, [row(n, after={"id": n}) for n in range(1, 1202)])
    trail.records.delete_many({})
    trail.records.insert_many([{"_id": n, "at": 5000 + n} for n in range(1001)])
    report = verify(trail)
    assert (report.broken, len(report.findings)) == (1201 + 1000, 100)
    assert any("what else lies beyond" in one for one in report.unchecked)


def test_findings_are_listed_up_to_a_limit_and_all_counted(filled: Trail) -> None:
    filled.records.update_many({}, {"$set": {"op": "x"}})
    report = verify(filled, findings_max=5)
    assert (report.broken, len(report.findings)) == (20, 5)
    assert report.first_broken == report.findings[0]
