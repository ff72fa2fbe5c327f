"""Whoever asks finds every record that he asks for, once, in order, and none beyond the head."""

import random
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.audit.cursors import cursor_of
from penstock.audit.filters import Filters, Order, filters_of
from penstock.audit.plans import BY_PLACE, BY_TIME, Times, parts_of
from penstock.audit.querying import Querier, decoded
from penstock.audit.records import without_content
from penstock.audit.trail import Trail
from penstock.errors import AuditError, ConfigError, TrailMissingError, TrailSlowError
from tests.audit.support import commit_of, marker, row, steps, text, write, writer_of
from tests.seeds import cases

pytestmark = pytest.mark.server
EVERYTHING = Filters()


def asked(**said: str) -> Filters:
    return filters_of(tz="Asia/Kolkata", **said)


def places(trail: Trail, filters: Filters, order: Order = "asc", *, page: int = 3) -> list[int]:
    return [record["at"] for record in Querier(trail).records(filters, order=order, page=page)]


def keys(trail: Trail, **said: str) -> list[Any]:
    found = Querier(trail).records(asked(**said), order="asc")
    return [decoded(record)["meta"]["pk"] for record in found]


# --- the head ---------------------------------------------------------------------------------


def test_a_trail_that_nobody_wrote_is_said_to_be_none(trail: Trail) -> None:
    with pytest.raises(TrailMissingError, match="no audit trail of shop"):
        Querier(trail).head()


def test_nothing_beyond_the_head_is_shown(any_trail: Trail) -> None:
    """A commit of many parts is not seen by halves, though some of its records lie there."""
    write(any_trail, commit_of(1, 5))
    for at in (6, 7, 8):
        any_trail.records.insert_one({"_id": f"staged {at}", "at": Int64(at), "op": "i"})
    assert places(any_trail, EVERYTHING) == [1, 2, 3, 4, 5]
    assert places(any_trail, EVERYTHING, "desc") == [5, 4, 3, 2, 1]
    assert places(any_trail, asked(op="i")) == [1, 2, 3, 4, 5]


# --- filters ----------------------------------------------------------------------------------


def test_a_key_is_found_by_its_type_and_a_text_is_never_a_number(trail: Trail) -> None:
    """A12: 123, "123" and "123abc" are three keys; as text, the first two are one."""
    write(trail, [row(n, after={"id": key}) for n, key in enumerate([123, "123", "123abc"], 1)])
    assert keys(trail, pk="123") == [{"id": 123}]
    assert keys(trail, pk='"123"') == [{"id": "123"}]
    assert keys(trail, pk='{"id":"123"}') == [{"id": "123"}]
    assert keys(trail, pk='{"other":"123"}') == []
    assert keys(trail, pk="123abc") == [{"id": "123abc"}]
    assert keys(trail, pk_text="123") == [{"id": 123}, {"id": "123"}]


def test_composite_keys_that_would_be_joined_alike_are_two(trail: Trail) -> None:
    """A12: ("a|b", "c") and ("a", "b|c")."""
    composite = [{"x": "a|b", "y": "c"}, {"x": "a", "y": "b|c"}]
    write(
        trail,
        [
            row(n, after={"id": 0, **key}, key=text(key), document_id=text_of(list(key.values())))
            for n, key in enumerate(composite, 1)
        ],
    )
    for key in composite:
        assert keys(trail, pk=text_of(key)) == [key]
        assert keys(trail, pk_text=text_of(list(key.values()))) == [key]
    assert keys(trail, pk='{"y":"c","x":"a|b"}') == [], "the order of the columns is the key's"


def text_of(value: Any) -> str:
    return (text({"v": value}) or "")[5:-1]


def test_a_changed_key_is_found_under_both(trail: Trail) -> None:
    """A13: each half of the change names the other's key."""
    write(
        trail,
        [
            row(1, after={"id": 1}),
            row(2, before={"id": 1}, rows=2, origin=text({"movedTo": {"id": 2}})),
            row(
                *(3,), commit=2, ordinal=1, rows=2, after={"id": 2},
                origin=text({"movedFrom": {"id": 1}}),
            ),
        ],
    )  # fmt: skip
    old = list(Querier(trail).records(asked(pk="1"), order="asc"))
    new = list(Querier(trail).records(asked(pk="2"), order="asc"))
    assert [record["op"] for record in old] == ["i", "d"]
    assert decoded(old[1])["meta"]["moved_to"] == {"id": 2}
    assert [record["op"] for record in new] == ["i"]
    assert decoded(new[0])["meta"]["moved_from"] == {"id": 1}


def test_records_are_found_by_table_operation_actor_and_whole_transaction(trail: Trail) -> None:
    """A19."""
    write(
        trail,
        [
            *commit_of(1, 3),
            row(4, after={"id": 4}, collection="a.b", origin=text({"actor": "ann"})),
            row(5, before={"id": 4, "v": 1}, after={"id": 4, "v": 2}, database="other"),
            row(6, before={"id": 4}),
            row(7, kind=3, operation_type="modify", full_document=text({"statement": "ALTER"})),
        ],
    )
    assert places(trail, asked(db="db")) == [1, 2, 3, 4, 6, 7]
    assert places(trail, asked(table="db.orders")) == [1, 2, 3, 6, 7]
    assert places(trail, asked(table="db.a.b")) == [4]
    assert places(trail, asked(db="db", table="a.b")) == [4]
    assert places(trail, asked(op="d,u")) == [5, 6]
    assert places(trail, asked(op="ddl")) == [7]
    assert places(trail, asked(actor="ann")) == [4]
    assert places(trail, asked(transaction="0-1-1")) == [1, 2, 3]
    assert places(trail, asked(transaction="0-1-1", op="u")) == []


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"op": "x"}, "--op 'x': 'x' is no operation"),
        ({"op": "i,"}, "'' is no operation"),
        ({"since": "yesterday"}, "--since: 'yesterday' is no moment"),
        ({"since": "2026-01-31T12:00:00"}, "--since"),
        ({"since": "2026-02-30"}, "--since: '2026-02-30' is no moment"),
        ({"until": "2026-01-31 12:00:00Z"}, "--until"),
        ({"until": "1"}, "--until"),
        ({"since": "2026-02-01", "until": "2026-01-31"}, "--since 2026-02-01 is behind --until"),
        ({"table": "orders"}, "--table 'orders' says no database"),
        ({"table": ""}, "--table is empty"),
        ({"pk": "[1,2]"}, "can be no key"),
        ({"pk": '{"a":{"$numberLong":"x"}}'}, "no Extended JSON"),
        ({"pk": "1", "pk_text": "1"}, "exclude each other"),
        ({"transaction": ""}, "--transaction is empty"),
    ],
)
def test_what_is_written_wrongly_is_refused_by_name(said: dict[str, str], sentence: str) -> None:
    """A23: a bad flag is an error, and never ignored."""
    with pytest.raises(ConfigError) as refused:
        asked(**said)
    assert sentence in str(refused.value)


def test_until_has_all_of_the_unit_that_is_said(trail: Trail) -> None:
    """A24: the last day ends with its last millisecond, in the trail's time zone."""
    begin = 1_767_205_800_000  # 2026-01-01 00:00 in Kolkata
    times = [begin - 1, begin, begin + 86_399_999, begin + 86_400_000]
    write(trail, [row(n, after={"id": n}, timestamp=ts) for n, ts in enumerate(times, 1)])
    assert places(trail, asked(since="2026-01-01", until="2026-01-01")) == [2, 3]
    assert places(trail, asked(since="2026-01-02")) == [4]
    assert places(trail, asked(until="2025-12-31T18:30:00Z")) == [1, 2]
    assert places(trail, asked(until="2026-01-01T23:59:59+05:30")) == [1, 2, 3]
    assert places(trail, asked(until="2026-01-01T23:59:59.998+05:30")) == [1, 2]
    assert places(trail, asked(until="2025-12-31T18:29:59.99Z")) == [1], "990 to 999 ms"


# --- order and pages --------------------------------------------------------------------------


@settings(max_examples=cases(200))
@given(
    head=st.integers(0, 40),
    times=st.none() | st.builds(Times, st.integers(-5, 50), st.integers(-5, 50)),
    order=st.sampled_from(["asc", "desc"]),
    table=st.booleans(),
)
def test_the_parts_of_a_query_are_all_places_once_and_in_order(
    head: int, times: Times | None, order: Order, table: bool
) -> None:
    filters = Filters(database="d" if table else None, table="t" if table else None, since_ms=1)
    parts = parts_of(filters, first=1, last=head, order=order, times=times)
    assert all(part.first <= part.last for part in parts)
    ordered = parts if order == "asc" else parts[::-1]
    assert [n for part in ordered for n in range(part.first, part.last + 1)] == list(
        range(1, head + 1)
    )


def test_a_day_in_the_middle_is_walked_along_and_never_all_that_is_around_it() -> None:
    parts = parts_of(
        Filters(since_ms=1), first=1, last=10_000_000, order="desc", times=Times(5_000, 6_000)
    )
    assert [(part.first, part.last, part.by) for part in parts] == [
        (6_001, 10_000_000, BY_TIME),
        (5_000, 6_000, BY_PLACE),
        (1, 4_999, BY_TIME),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_queries_by_time_find_every_record_though_clocks_go_back(trail: Trail, seed: int) -> None:
    """A18: in the order of the source, also where times are the same, or in another order."""
    random_ = random.Random(seed)
    times = [
        1_700_000_000_000 + 1000 * (n // 4 + random_.choice((0, 0, 0, -9, 9))) for n in range(80)
    ]
    write(
        trail,
        [
            row(n, after={"id": n}, timestamp=ts, collection=random_.choice(("orders", "items")))
            for n, ts in enumerate(times, 1)
        ],
    )
    for table in (None, "items"):
        for _ in range(5):
            low, high = sorted(random_.choices(times, k=2))
            filters = Filters(since_ms=low, until_ms=high + 1, database=table and "db", table=table)
            match: dict[str, Any] = {"ts": {"$gte": DatetimeMS(low), "$lte": DatetimeMS(high)}}
            match |= {"meta.tbl": table} if table else {}
            expected = [found["at"] for found in trail.records.find(match).sort("at", 1)]
            assert places(trail, filters) == expected, (seed, low, high)
            assert places(trail, filters, "desc") == expected[::-1], (seed, low, high)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("said", [{}, {"op": "i"}, {"since": "2023-11-01"}, {"table": "db.orders"}])
def test_pages_neither_repeat_nor_skip_while_records_are_added(
    any_trail: Trail, order: Order, said: dict[str, str]
) -> None:
    """A24: each page by a querier of its own, as a command is."""
    write(any_trail, commit_of(1, 10))
    filters, seen = asked(**said), list[int]()
    cursor: str | None = None
    for number in range(11, 40, 3):
        querier = Querier(any_trail)
        after = None
        if cursor is not None:
            went = cursor_of(cursor, filters=filters, order=order)
            querier.require(went)
            after = went.after
        page = querier.page(filters, order=order, limit=4, after=after)
        seen += [record["at"] for record in page.records]
        cursor = str(querier.cursor(filters, order=order, after=page.after, head=page.head))
        write(any_trail, commit_of(number, 3))
    expected = range(1, 38) if order == "asc" else range(10, 0, -1)
    assert seen == list(expected)


def test_a_cursor_of_another_query_or_trail_is_refused(trail: Trail) -> None:
    write(trail, commit_of(1, 5))
    querier = Querier(trail)
    page = querier.page(EVERYTHING, order="asc", limit=2)
    said = str(querier.cursor(EVERYTHING, order="asc", after=page.after, head=page.head))
    with pytest.raises(ConfigError, match="other filters, or another order"):
        cursor_of(said, filters=asked(op="i"), order="asc")
    with pytest.raises(ConfigError, match="other filters, or another order"):
        cursor_of(said, filters=EVERYTHING, order="desc")
    for wrong in ("", "x", said[:-2], said + "AAAA", "ä"):
        with pytest.raises(ConfigError, match="none of ours"):
            cursor_of(wrong, filters=EVERYTHING, order="asc")
    for collection in (trail.records, trail.batches, trail.heads, trail.staging):
        collection.drop()
    write(trail, commit_of(1, 5))
    with pytest.raises(AuditError, match="of another trail"):
        querier.require(cursor_of(said, filters=EVERYTHING, order="asc"))


def test_a_page_holds_no_more_than_one_answer_of_mongodb(trail: Trail) -> None:
    """A24: memory is bounded by bytes too, and what did not fit comes next."""
    write(trail, [row(n, after={"id": n, "v": "x" * (6 << 20)}) for n in range(1, 6)])
    querier = Querier(trail)
    page = querier.page(EVERYTHING, order="asc", limit=100)
    assert len(page.records) < 5
    assert places(trail, EVERYTHING, page=100) == [1, 2, 3, 4, 5]


def test_no_cursor_is_left_open_on_the_server(trail: Trail) -> None:
    def open_cursors() -> int:
        status = trail.client.admin.command("serverStatus")
        return int(status["metrics"]["cursor"]["open"]["total"])

    write(trail, commit_of(1, 300))
    before = open_cursors()
    next(Querier(trail).records(EVERYTHING, order="asc", page=100))
    assert open_cursors() == before


# --- values -----------------------------------------------------------------------------------


def test_spilled_values_are_loaded_when_they_are_asked_for_and_checked(any_trail: Trail) -> None:
    """A8."""
    before, after = {"id": 1, "v": "x" * (9 << 20)}, {"id": 1, "v": "y" * (9 << 20)}
    write(any_trail, [row(1, before=before, after=after)])
    querier = Querier(any_trail)
    (record,) = querier.records(EVERYTHING, order="asc")
    assert "chg" not in record
    assert querier.whole(record)["chg"] == {"v": {"f": before["v"], "t": after["v"]}}
    assert querier.columns([record], most=1) == ({"v"}, False)
    one = any_trail.spilled.find_one({"_id": f"{record['_id']}:1"})
    assert one is not None
    any_trail.spilled.update_one({"_id": one["_id"]}, {"$set": {"data": one["data"][:-1] + b"!"}})
    with pytest.raises(AuditError, match="not those that were written"):
        querier.whole(record)
    any_trail.spilled.delete_one({"_id": one["_id"]})
    with pytest.raises(AuditError, match="not those that were written"):
        querier.whole(record)


def test_a_query_that_takes_too_long_ends_with_a_sentence(trail: Trail) -> None:
    write(trail, commit_of(1, 200))
    with pytest.raises(TrailSlowError, match=r"within 1e-06 s.*Ask for less"):
        Querier(trail, query_seconds=0.000_001).page(EVERYTHING, order="asc", limit=100)


def erase(trail: Trail, at: int) -> None:
    """As an erasure leaves a record."""
    record = trail.records.find_one({"at": at})
    assert record is not None
    trail.records.replace_one({"at": at}, {**without_content(record), "erased": {"by": 3}})


def test_an_erased_record_stays_in_its_place_and_is_not_found_by_its_key(trail: Trail) -> None:
    write(trail, commit_of(1, 3))
    erase(trail, 2)
    assert places(trail, EVERYTHING) == [1, 2, 3]
    assert keys(trail, pk="2") == []


def test_a_writer_may_go_on_while_a_reader_walks(trail: Trail) -> None:
    writer = writer_of(trail)
    writer.write(steps(commit_of(1, 30)), marker=marker)
    found: list[int] = []
    for record in Querier(trail).records(EVERYTHING, order="asc", page=7):
        found.append(record["at"])
        if record["at"] == 10:
            writer.write(steps(commit_of(31, 10)), marker=marker)
    assert found == list(range(1, 41))
