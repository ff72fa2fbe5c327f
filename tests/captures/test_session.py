"""Subscriptions: exactly what was asked, once, in order, and what is safe to save."""

import asyncio
from typing import Any

import pytest

from penstock.errors import (
    AheadError,
    GapError,
    RequestError,
    ServiceUnavailableError,
    TrimmedError,
)
from penstock.event import Operation
from penstock.log.memory import MemoryLog
from penstock.progress import Progress
from penstock.subscribe.captures import Boundary, Captured, Confirmed, parse_request
from penstock.subscribe.captures.session import ANSWERS_MAX
from tests import waiting
from tests.captures.support import (
    Reader,
    add,
    captures,
    confirmed,
    filled,
    finished,
    hubbed,
    maintained,
    rest,
    sequences,
    subscribed,
    until,
)
from tests.flight.blocks import BlockLog, insert
from tests.subscribe.events import change, commit, one_each, schema, system

pytestmark = pytest.mark.slow

ALL: dict[str, Any] = {"since": "beginning", "criteria": [{"area": "data"}]}


def data(**site: Any) -> list[dict[str, Any]]:
    return [{"area": "data", "site": site}]


async def test_history_and_what_comes_are_one_stream_without_a_hole() -> None:
    log = await filled(*one_each(1, 5))
    async with subscribed(log, ALL) as session:
        found = await until(session, 5)
        for one in one_each(6, 9):
            await log.append([one])
        found += await until(session, 4)
    assert sequences(found) == list(range(1, 10))


async def test_the_confirmation_comes_first_and_says_where_the_request_begins() -> None:
    """E9."""
    log = await filled(*one_each(1, 3))
    async with subscribed(log, {"id": "a"}) as session:
        await log.append(one_each(4, 4))
        first, *found = await until(session, 1)
    assert isinstance(first, Confirmed)
    assert (first.id, first.after.sequence, first.version) == ("a", 3, 3)
    assert min(sequences(found)) == 4


async def test_a_session_that_its_service_closes_has_not_come_to_its_end() -> None:
    """E14: who is told that all is over asks for nothing more, and what was left is lost to it."""
    log = await filled(*one_each(1, 3))
    async with subscribed(log, ALL) as session:
        await until(session, 3)
        session.close()
        assert not session.is_over
        with pytest.raises(ServiceUnavailableError):
            await session.next()


async def test_criteria_are_alternatives_and_a_wildcard_is_everything() -> None:
    """E6: any OR data is any."""
    log = await filled(commit(change(1)), commit(schema(2)), commit(system(3)))
    criteria = [{"site": None}, {"area": "data"}]
    async with subscribed(log, {"since": "beginning", "criteria": criteria}) as session:
        found = await rest(session)
    assert [kind for _, _, kind in captures(found)] == [
        *("begin", "insert", "commit"),
        *("begin", "create", "commit"),
        *("begin", "started", "commit"),
    ]


async def test_an_event_that_matches_two_requests_comes_once_with_both_ids() -> None:
    """E7."""
    log = await filled(commit(change(1)), commit(change(2, collection="lines")))
    both = {"id": "both", "since": "beginning", "criteria": data()}
    orders = {"id": "orders", "since": "beginning", "criteria": data(entityType="orders")}
    async with subscribed(log, both, orders) as session:
        found = await until(session, 2)
        await log.append([commit(change(3), change(4, collection="lines", ordinal=1))])
        found += await until(session, 2)
    assert captures(found) == [
        (("both", "orders"), 1, "insert"),
        (("both",), 2, "insert"),
        (("both", "orders"), 3, "insert"),
        (("both",), 4, "insert"),
    ]


async def test_requests_come_and_go_while_others_run() -> None:
    """E7: extend with an own start, limit, cancel all."""
    log = await filled(*one_each(1, 3))
    async with subscribed(log, {"id": "live", "criteria": data()}) as session:
        await add(session, {"id": "past", **ALL})
        found = await until(session, 3)
        assert captures(found) == [(("past",), n, "insert") for n in (1, 2, 3)]
        assert await rest(session) == []
        await log.append(one_each(4, 4))
        assert captures(await until(session, 1)) == [(("live", "past"), 4, "insert")]
        session.remove("past")
        await log.append(one_each(5, 5))
        found = await until(session, 1)
        assert [one.id for one in finished(found)] == ["past"]
        assert captures(found) == [(("live",), 5, "insert")]
        session.remove_all()
        await log.append(one_each(6, 6))
        found = await rest(session)
        assert captures(found) == []
        assert [one.id for one in finished(found)] == ["live"]
        with pytest.raises(RequestError, match="no request live"):
            session.remove("live")


async def test_a_request_that_is_changed_goes_on_from_its_place() -> None:
    log = await filled(*one_each(1, 4), commit(change(5, collection="lines")))
    first = {"id": "a", "since": "beginning", "criteria": data(entityType="orders")}
    async with subscribed(log, first, credit=2) as session:
        assert sequences(await until(session, 2)) == [1, 2]
        other = parse_request({"id": "a", "criteria": data(entityType="lines")}, new_id=str)
        await session.change(other)
        session.request(10)
        assert sequences(await rest(session)) == [5]


async def test_an_id_in_use_is_refused_and_nothing_changes() -> None:
    log = await filled(*one_each(1, 1))
    async with subscribed(log, {"id": "a", **ALL}) as session:
        with pytest.raises(RequestError, match="in use"):
            await add(session, {"id": "a"})
        assert sequences(await rest(session)) == [1]


async def test_credit_is_what_may_be_sent_and_not_one_more() -> None:
    log = await filled(*one_each(1, 5))
    async with subscribed(log, ALL, credit=2) as session:
        assert sequences(await rest(session)) == [1, 2]
        session.request(1)
        assert sequences(await rest(session)) == [3]
        session.request(1 << 200)
        assert sequences(await rest(session)) == [4, 5]
        with pytest.raises(RequestError, match="at least 1"):
            session.request(0)


async def test_a_request_ends_after_as_many_captures_as_it_asked_for() -> None:
    log = await filled(*one_each(1, 5))
    async with subscribed(log, {"id": "two", "completeAfter": 2, **ALL}) as session:
        found = await rest(session)
        assert sequences(found) == [1, 2]
        assert [(one.id, one.error) for one in finished(found)] == [("two", None)]
        assert session.ids == ()


async def test_a_thousand_events_of_one_commit_come_through_a_buffer_of_four() -> None:
    """E4: neither a repeat nor a hole, and the marker is exclusive beside an inclusive start."""
    events = [change(n, ordinal=n) for n in range(1_000)]
    log = await filled(commit(*events))
    async with subscribed(log, ALL) as session:
        found = await until(session, 1_000, count_max=4)
    assert sequences(found) == list(range(1, 1_001))
    marker = [one for one in found if isinstance(one, Captured)][499]
    async with subscribed(log, {**ALL, "since": {"progress": marker.progress}}) as session:
        assert sequences(await rest(session)) == list(range(501, 1_001))
    async with subscribed(log, {**ALL, "since": {"version": 1, "index": 500}}) as session:
        assert sequences(await rest(session)) == list(range(500, 1_001))


async def test_a_header_has_the_counts_by_which_completeness_is_proved() -> None:
    """E11: of the whole transaction, and of what each request matches of it."""
    events = [change(n, ordinal=n, collection="orders" if n % 3 else "lines") for n in range(900)]
    log = await filled(commit(*events))
    criteria = [{"area": "infrastructure"}, *data(entityType="lines")]
    request = {"id": "a", "since": "beginning", "criteria": criteria}
    async with subscribed(log, request) as session:
        found = await rest(session)
    edges = [one for one in found if isinstance(one, Boundary)]
    assert [(edge.begins, edge.rows, edge.matched) for edge in edges] == [
        (True, 900, {"a": 300}),
        (False, 900, {"a": 300}),
    ]
    assert captures(found)[0][2] == "begin"
    assert captures(found)[-1][2] == "commit"
    assert len(sequences(found)) == 300
    resumed = {**request, "since": {"progress": edges[0].progress}}
    async with subscribed(log, resumed) as session:
        assert captures(await rest(session)) == captures(found)


async def test_what_is_safe_is_never_ahead_of_what_was_sent() -> None:
    """E2: a client that was paused and saves what it is told loses nothing."""
    log = MemoryLog()
    await log.append(one_each(1, 50))  # one block
    async with subscribed(log, ALL, credit=3, maintenance_seconds=0.05) as session:
        seen: list[int] = []
        for _ in range(20):
            outputs = await session.next()
            seen += sequences(outputs)
            for one in maintained(outputs):
                assert one.progress is not None
                assert one.progress.sequence == len(seen)
        assert seen == [1, 2, 3]


async def test_nothing_is_said_only_after_it_was_quiet_for_as_long_as_was_asked() -> None:
    """However long it is to the next maintenance, and whatever was waited for before."""
    log = await filled(*one_each(1, 1))
    async with subscribed(log, {"id": "a", "criteria": data()}) as session:
        await session.next()  # its confirmation
        waiting = asyncio.create_task(session.next())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert await session.next(quiet_seconds=0.01) == []
        await log.append(one_each(2, 2))
        assert sequences(await session.next(quiet_seconds=60)) == [2]


async def test_a_filter_that_never_matches_moves_what_is_safe() -> None:
    """E5."""
    log = await filled(*one_each(1, 20))
    nothing = {"id": "n", "criteria": data(entityType="nothing")}
    async with (
        hubbed(log) as hub,
        subscribed(log, nothing, hub=hub, maintenance_seconds=0.02) as session,
    ):
        for one in one_each(21, 40):
            await log.append([one])
        places: list[int] = []
        while not places or places[-1] < 40:
            for told in maintained(await session.next()):
                assert told.progress is not None
                places.append(told.progress.sequence)
        assert places == sorted(places)


async def test_a_marker_ahead_is_refused_and_a_version_ahead_is_waited_for() -> None:
    """E8."""
    log = await filled(*one_each(1, 50))
    bounds = await log.bounds()
    log_id = bounds.log_id
    ahead = str(Progress(log_id, 1_000, 0))
    async with hubbed(log) as hub, subscribed(log, hub=hub) as session:
        with pytest.raises(AheadError):
            await add(session, {"since": {"progress": ahead}})
        later = {"id": "later", "since": {"version": 53, "index": 1}, "criteria": data()}
        await add(session, later)
        (said,) = confirmed(await session.next())
        assert said.waiting
        for one in one_each(51, 55):
            await log.append([one])
        assert sequences(await rest(session)) == [53, 54, 55]


async def test_a_gap_ends_whoever_did_not_ask_to_be_told_of_it() -> None:
    lost = system(2, "gap")
    log = await filled(commit(change(1)), commit(lost), commit(change(3)))
    told = {"id": "told", "since": "beginning", "criteria": [{"area": "system"}, *data()]}
    async with subscribed(log, {"id": "blind", **ALL}, told) as session:
        found = await rest(session)
    (over,) = finished(found)
    assert over.id == "blind"
    assert isinstance(over.error, GapError)
    assert [(ids, n) for ids, n, _ in captures(found)] == [
        (("blind", "told"), 1),
        (("told",), 2),
        (("told",), 3),
    ]


async def test_a_rename_is_told_to_who_follows_either_name() -> None:
    """E12: behind it, the name means something else."""
    log = await filled(commit(change(1)), commit(schema(2, "rename", to="old")), commit(change(3)))
    for name in ("orders", "old"):
        request = {"since": "beginning", "criteria": data(entityType=name)}
        async with subscribed(log, request) as session:
            assert 2 in sequences(await rest(session))
    request = {"since": "beginning", "criteria": data(entityType="lines")}
    async with subscribed(log, request) as session:
        assert sequences(await rest(session)) == []


async def test_keys_are_numbers_whatever_their_type_and_text_is_another_key() -> None:
    log = await filled(*(commit(change(n, key=n % 3)) for n in range(1, 10)))
    for key, expected in (
        (1, [1, 4, 7]),
        ([0, 2], [2, 3, 5, 6, 8, 9]),
        ("1", []),
        (1.0, [1, 4, 7]),
    ):
        request = {"since": "beginning", "criteria": data(entityPrimaryKey=key)}
        async with subscribed(log, request) as session:
            assert sequences(await rest(session)) == expected
    request = {"since": "beginning", "criteria": data(entityPrimaryKey={"_id": 1})}
    async with subscribed(log, request) as session:
        assert sequences(await rest(session)) == [1, 4, 7]


async def test_operations_by_our_words_and_by_the_final_models() -> None:
    log = await filled(
        commit(change(1)),
        commit(change(2, operation=Operation.UPDATE)),
        commit(change(3, operation=Operation.DELETE)),
    )
    asked = {
        ("insert", "delete"): [1, 3],
        ("UPSERT",): [1, 2],
        ("REMOVE",): [3],
        ("any",): [1, 2, 3],
        ("up*",): [1, 2],
    }
    for words, expected in asked.items():
        request = {"since": "beginning", "criteria": data(operation=list(words))}
        async with subscribed(log, request) as session:
            assert sequences(await rest(session)) == expected


async def test_a_trimmed_place_is_an_error_when_it_is_asked_for() -> None:
    """E1: never an empty stream; and the oldest marker comes with it."""
    log = BlockLog()
    log.append([[insert(n)] for n in range(1, 30)])
    before, oldest = log.marker(3), log.marker(10)
    log.trim(10)
    reader = Reader(log)
    async with hubbed(reader) as hub, subscribed(reader, hub=hub) as session:
        for since in ({"version": 5}, {"progress": str(before)}, {"transactionId": 9}):
            with pytest.raises(TrimmedError) as raised:
                await add(session, {"since": since, "criteria": data()})
            assert raised.value.oldest == str(oldest)
        await add(session, {"id": "behind", "since": {"transactionId": 10}, "criteria": data()})
        await add(session, {"id": "from", "since": {"version": 11}, "criteria": data()})
        found = await rest(session)
    assert captures(found) == [(("behind", "from"), n, "insert") for n in range(11, 30)]


async def test_a_reader_that_retention_overtakes_is_told_so() -> None:
    """E1, E13: the server neither drops nor waits for it."""
    log = BlockLog()
    log.append([[insert(n)] for n in range(1, 30)])
    reader = Reader(log)
    async with subscribed(reader, {"id": "slow", **ALL}, credit=5) as session:
        assert len(sequences(await until(session, 5))) == 5
        log.append([[insert(n)] for n in range(30, 60)])
        log.trim(50)
        session.request(1_000)
        found = await rest(session)
    (over,) = finished(found)
    assert isinstance(over.error, TrimmedError)
    seen = sequences(found)
    assert seen == list(range(6, 6 + len(seen)))


@pytest.mark.parametrize(
    "since", [{"version": 3}, {"version": 7}, {"timestamp": 1_700_000_007_000}]
)
async def test_a_filter_that_never_matches_moves_what_is_safe_wherever_it_began(
    since: dict[str, Any],
) -> None:
    """E5, E8: a version or time that is here, or comes later."""
    log = await filled(*one_each(1, 5))
    asked = {"id": "none", "since": since, "criteria": data(catalog="elsewhere")}
    async with subscribed(log, asked, maintenance_seconds=0.01) as session:
        for _ in range(5):  # until it listens
            await session.next()
        for one in one_each(6, 9):
            await log.append([one])
        while (place := session.positions().get("none")) is None or place.sequence < 9:
            await session.next()


async def test_what_is_safe_lies_before_a_transactions_end_that_was_not_told() -> None:
    """E2, E4: who resumes from it gets the end, after the last entry once more."""
    log = await filled(commit(change(1), change(2, ordinal=1)))
    criteria = [{"area": "infrastructure"}, *data()]
    asked = {"id": "a", "since": "beginning", "criteria": criteria}
    async with subscribed(log, asked, credit=3) as session:
        found = await until(session, 3)
        assert captures(found) == [(("a",), 1, kind) for kind in ("begin", "insert")] + [
            (("a",), 2, "insert")
        ]
        place = session.positions()["a"]
    assert place.sequence == 1
    async with subscribed(log, {**asked, "since": {"progress": str(place)}}) as session:
        assert captures(await until(session, 2)) == [(("a",), 2, "insert"), (("a",), 1, "commit")]


async def test_who_sends_commands_and_reads_no_answers_waits() -> None:
    """Invariant 6: answers have a bound."""
    log = await filled(*one_each(1, 1))
    async with subscribed(log) as session:
        for number in range(ANSWERS_MAX // 2 + 1):
            await session.answered()
            await add(session, {"id": f"r{number}"})
            session.remove(f"r{number}")
        waiting = asyncio.create_task(session.answered())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        await session.next()
        await waiting
        assert session.is_over


async def test_a_gap_behind_the_awaited_version_is_told_in_whatever_it_comes() -> None:
    """E1: also where the version that is waited for is the gap itself."""
    log = await filled(commit(change(1)))
    async with subscribed(log, {"id": "a", "since": {"version": 2}, "criteria": data()}) as session:
        await log.append([commit(system(2, "gap"))])
        (over,) = finished(await rest(session))
    assert isinstance(over.error, GapError)


async def test_no_header_comes_before_the_time_that_is_waited_for() -> None:
    """E8, E11."""
    log = await filled(commit(change(1)))
    criteria = [{"area": "infrastructure"}]
    asked = {"id": "a", "since": {"timestamp": 1 << 50}, "criteria": criteria}
    async with subscribed(log, asked) as session:
        await log.append([commit(change(2))])
        assert captures(await rest(session)) == []


async def test_a_request_that_waits_and_is_changed_waits_on() -> None:
    log = await filled(commit(change(1)))
    asked = {"id": "a", "since": {"version": 3}, "criteria": data(entityType="lines")}
    async with subscribed(log, asked) as session:
        await session.change(parse_request({"id": "a", "criteria": data()}, new_id=str))
        await log.append([commit(change(2)), commit(change(3))])
        assert sequences(await rest(session)) == [3]


async def test_who_joins_others_and_is_changed_gets_nothing_again() -> None:
    """E7: the lane that took it over may have stood still for long."""
    log = await filled(commit(change(1)))
    lines = {"id": "idle", "criteria": data(entityType="lines")}
    async with hubbed(log) as hub, subscribed(log, lines, hub=hub) as session:
        await rest(session)
        await log.append([commit(change(2)), commit(change(3))])
        await waiting.until(lambda: hub.place.sequence >= 3)
        await add(session, {"id": "b", "criteria": data()})
        await session.change(parse_request({"id": "b", "criteria": data()}, new_id=str))
        assert sequences(await rest(session)) == []


async def test_captures_come_however_often_maintenance_is_due() -> None:
    """Whoever takes longer to send one thing than the time between two still gets everything."""
    log = await filled(*one_each(1, 3))
    async with subscribed(log, ALL, maintenance_seconds=1e-9) as session:
        assert sequences(await until(session, 3)) == [1, 2, 3]
        # Nothing to tell is no reason to say nothing.
        assert maintained(await session.next()) + maintained(await session.next())
