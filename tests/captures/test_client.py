"""The Python client: what is asked for, once and in order, whatever becomes of the server."""

import asyncio
import contextlib
import json
import random
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock._generated.penstock.v1 import captures_pb2 as pb
from penstock.client import Retry, captures
from penstock.client.captures import Boundary, Capture, Request, Subscription, where
from penstock.client.captures.events import confirmed_of
from penstock.errors import (
    CapturesIncompleteError,
    GapError,
    RequestError,
    ServiceUnavailableError,
    TrimmedError,
)
from penstock.event import Operation
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.progress import Progress, parse_progress
from penstock.serve.captures.config import CapturesConfig
from penstock.serve.captures.service import CaptureService
from penstock.testing.contracts.capturing import changed, committed, opened_log, singles, told
from tests.captures.grpc_client import served
from tests.children import MODULE, Child
from tests.seeds import seed_of
from tests.waiting import patience, until

SOON = Retry(initial_seconds=0.01, max_seconds=0.1)


@asynccontextmanager
async def serving(log: LmdbLog, **options: Any) -> AsyncGenerator[str]:
    """The address of a server of `log`."""
    config = CapturesConfig.model_validate({"maintenance_interval": 0.02, **options})
    async with (
        CaptureService(log, lambda: config).running() as service,
        served(service) as server,
    ):
        yield server.address


@asynccontextmanager
async def connected(**options: Any) -> AsyncGenerator[tuple[LmdbLog, captures.CaptureClient]]:
    """A log, and a client of its server."""
    async with (
        opened_log() as log,
        serving(log, **options) as address,
        captures.connect(address, retry=None) as client,
    ):
        yield log, client


async def take(changes: Subscription, count: int) -> list[Any]:
    return [await anext(changes) for _ in range(count)]


def places(events: list[Any]) -> list[tuple[int, int]]:
    return [(one.version, one.index) for one in events]


async def test_what_is_asked_for_comes_and_nothing_else() -> None:
    async with connected() as (log, client):
        await log.append(
            [
                committed(changed(1, key=5), changed(1, key=6, ordinal=1)),
                committed(changed(2, key=5, operation=Operation.DELETE)),
                committed(changed(3, key=5, collection="lines")),
                committed(changed(4, key=7), changed(4, key=6, ordinal=1)),
            ]
        )
        wanted = where.data("orders").keys(5, 6).operations("insert", "del*")
        async with await client.subscribe(wanted.body().since_beginning()) as changes:
            found = await take(changes, 4)
    assert [(one.operation, one.document_id) for one in found] == [
        ("insert", "5"),
        ("insert", "6"),
        ("delete", "5"),
        ("insert", "6"),
    ]
    first = found[0]
    assert first.body is not None
    assert (first.key, first.body.document) == ({"_id": 5}, {"_id": 5, "at": 1})
    assert (first.area, first.mutation, first.catalog) == ("data", "upsert", "shop.db")
    assert found[2].mutation == "remove"
    assert found[2].body is not None
    assert found[2].body.document is None


async def test_alternatives_are_either_and_share_what_narrows_them() -> None:
    async with connected() as (log, client):
        await log.append(
            [
                *singles(1, 1),
                committed(changed(2, collection="lines")),
                committed(changed(3, collection="lines", operation=Operation.DELETE)),
                committed(changed(4, collection="bills")),
            ]
        )
        wanted = (where.data("orders") | where.data("lines")).operations("insert")
        async with await client.subscribe(wanted.since(version=1)) as changes:
            found = await take(changes, 2)
            assert [one.entity_type for one in found] == ["orders", "lines"]
            assert all(one.body is None for one in found)


async def test_requests_come_change_and_go_while_it_is_read() -> None:
    """E7."""
    async with connected() as (log, client):
        await log.append(singles(1, 3))
        async with await client.subscribe(where.data().named("live")) as changes:
            past = await changes.extend(where.data("orders").named("past").since_beginning())
            found = await take(changes, 3)
            assert [one.ids for one in found] == [("past",)] * 3
            assert past.confirmed is not None
            assert (past.confirmed.version, past.confirmed.waiting) == (3, False)
            await log.append(singles(4, 4))
            found = await take(changes, 1)
            while set(found[-1].ids) != {"live", "past"} and len(found) < 2:
                found += await take(changes, 1)
            assert {name for one in found for name in one.ids} == {"live", "past"}
            await changes.change("past", where.data("lines"))
            await changes.limit("live")
            await log.append([*singles(5, 5), committed(changed(6, collection="lines"))])
            (last,) = await take(changes, 1)
            assert (last.ids, last.entity_type) == (("past",), "lines")
            await changes.cancel()
            assert [one async for one in changes] == []
            again = await changes.extend(where.data().since(version=6))
            assert places(await take(changes, 1)) == [(6, 1)]
            assert not again.ended


async def test_what_refuses_a_request_is_raised_as_the_service_raised_it() -> None:
    """E1, E8: with the oldest marker."""
    async with connected(requests_max=2) as (log, client):
        await log.append(singles(1, 2))
        with pytest.raises(RequestError, match="timestamp"):
            await client.subscribe(where.data().since(timestamp=-1))
        async with await client.subscribe(where.data().named("a")) as changes:
            await changes.extend(where.data().named("b"))
            third = await changes.extend(where.data().named("c"))
            with pytest.raises(RequestError, match="at most 2"):
                await anext(changes)
            assert isinstance(third.error, RequestError)
            await log.append(singles(3, 3))
            assert places(await take(changes, 1)) == [(3, 1)]
            with pytest.raises(RequestError, match="in use"):
                await changes.extend(where.data().named("a"))
        async with await client.subscribe(where.data().since_beginning()) as changes:
            with pytest.raises(RequestError, match="at least 1"):
                await changes.request(0)
        with pytest.raises(RequestError, match="exactly one"):
            where.data().since(version=1, commit=1)


async def test_a_place_that_was_trimmed_is_an_error_with_the_oldest_one() -> None:
    """E1."""
    async with (
        opened_log(retention_events=1) as log,
        serving(log) as address,
        captures.connect(address, retry=None) as client,
    ):
        text = "x" * 70_000
        for at in range(1, 40):
            await log.append([committed(changed(at, document={"_id": at, "text": text}))])
        await until(lambda: log.bounds_now().trimmed)
        with pytest.raises(TrimmedError) as raised:
            await client.subscribe(where.data().since(version=1))
        oldest = where.data().since(progress=raised.value.oldest)
        async with await client.subscribe(oldest) as changes:
            assert await take(changes, 1)


async def test_a_gap_ends_the_request_that_did_not_ask_for_it_and_the_others_go_on() -> None:
    async with connected() as (log, client):
        await log.append([*singles(1, 1), committed(told(2, "gap")), *singles(3, 3)])
        data = where.data().named("data").since_beginning()
        both = (where.data() | where.system()).named("both").since_beginning()
        async with await client.subscribe(data, both) as changes:
            ended = changes.requests["data"]
            found: list[Any] = []
            with pytest.raises(GapError) as raised:  # noqa: PT012
                while True:
                    found.append(await anext(changes))
            assert parse_progress(raised.value.after).sequence == 2
            assert ended.error is raised.value
            while found[-1].version < 3:
                found.append(await anext(changes))
            assert [one.version for one in found if "both" in one.ids] == [1, 2, 3]
            assert [one.version for one in found if "data" in one.ids] == [1]


async def test_credit_is_what_may_come() -> None:
    async with connected() as (log, client):
        await log.append(singles(1, 5))
        wanted = where.data().since_beginning()
        async with await client.subscribe(wanted, credit=2) as changes:
            assert len(await take(changes, 2)) == 2
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(changes), 0.2)
            assert parse_progress(changes.progress).sequence == 2
            await changes.request(3)
            assert places(await take(changes, 3)) == [(3, 1), (4, 1), (5, 1)]


async def test_asking_may_be_given_up_at_any_moment_and_nothing_is_skipped() -> None:
    async with connected() as (log, client):
        async with await client.subscribe(where.data().since_beginning()) as changes:
            found: list[Any] = []

            async def write() -> None:
                for at in range(1, 60):
                    await log.append(singles(at, at))

            writing = asyncio.create_task(write())
            while len(found) < 59:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.001):
                        found.append(await anext(changes))
            await writing
        assert places(found) == [(at, 1) for at in range(1, 60)]


async def test_what_is_safe_is_what_was_processed_and_moves_without_a_match() -> None:
    """E2, E5."""
    async with connected() as (log, client):
        await log.append(singles(1, 3))
        mine = where.data("orders").named("mine").since_beginning()
        none = where.data("none").named("none")
        async with await client.subscribe(mine, none) as changes:
            for at in (1, 2, 3):
                await anext(changes)  # and it is in hand
                safe = changes.positions["mine"]
                assert changes.progress == safe
                assert parse_progress(safe).sequence == at - 1
            await log.append([committed(changed(4, collection="lines"))])
            asking = asyncio.create_task(anext(changes))
            await until(lambda: parse_progress(changes.progress).sequence >= 4)
            asking.cancel()
            await asyncio.wait({asking})


async def test_what_comes_can_be_in_the_envelope_that_a_consumer_reads() -> None:
    """And is known by its place all the same: counted, and handed out once."""
    async with connected() as (log, client):
        await log.append([committed(changed(1, key=1), changed(1, key=2, ordinal=1))])
        wanted = where.anything().body().since_beginning()
        async with await client.subscribe(wanted, envelope="debezium") as changes:
            begin, first, _, end = await take(changes, 4)
        assert places([begin, first, end]) == [(1, 0), (1, 1), (1, 3)]
        told = [json.loads(one.enveloped) for one in (begin, first, end)]
        assert [told[0]["status"], told[1]["op"], told[2]["status"]] == ["BEGIN", "c", "END"]
        assert told[1]["after"] == {"_id": 1, "at": 1}
        with pytest.raises(RequestError, match="envelope is avro"):
            await client.subscribe(wanted, envelope="avro")
        async with await client.subscribe(wanted) as changes:
            assert (await anext(changes)).enveloped == b""


# --- completeness --------------------------------------------------------------------------------


async def test_a_transaction_comes_between_its_edges_and_is_counted() -> None:
    """E11."""
    async with connected() as (log, client):
        rows = [changed(1, key=at, ordinal=at) for at in range(4)]
        await log.append([committed(*rows, changed(1, collection="lines", ordinal=4))])
        wanted = (where.data("orders") | where.infrastructure()).since_beginning().named("a")
        async with await client.subscribe(wanted) as changes:
            begin, *inside, end = await take(changes, 6)
    assert isinstance(begin, Boundary)
    assert isinstance(end, Boundary)
    assert (begin.begins, begin.mutation_count, begin.matched) == (True, 5, {"a": 4})
    assert all(isinstance(one, Capture) for one in inside)
    assert (end.begins, end.index) == (False, 6)


def mark(sequence: int) -> str:
    """A marker."""
    return str(Progress(1, sequence, 0))


def test_a_transaction_that_lacks_something_is_an_error() -> None:
    """E11."""
    asked = pb.CaptureRequest(id="a")
    whole, torn = Request(asked), Request(asked)
    for request, count in ((whole, 3), (torn, 2)):
        assert request.take_begin(7, 3, mark(0))
        for index in range(1, count + 1):
            assert request.take(7, index, mark(index))
    assert whole.take_end(7, mark(3))
    with pytest.raises(CapturesIncompleteError, match="3 changes of commit 7 match, and 2 came"):
        torn.take_end(7, mark(3))


def counted(*, after: int = 0) -> Request:
    """A request of ten captures that was confirmed."""
    request = Request(pb.CaptureRequest(id="a", complete_after=10))
    request.confirm(confirmed_of(pb.CaptureConfirmed(request_id="a", progress=mark(after))))
    return request


def test_what_was_handed_out_is_known_again_and_the_end_is_never_missed() -> None:
    """E4: the end has the marker of the last entry, so the entry comes again before it."""
    request = counted()
    assert request.take_begin(1, 2, mark(0))
    assert request.again().since.progress == mark(0)
    assert request.again().complete_after == 10  # nine are left, and the beginning comes again
    assert request.take(1, 1, mark(1))
    assert request.take(1, 2, mark(2))
    assert request.again().since.progress == mark(1)
    assert request.again().complete_after == 8
    assert not request.take(1, 2, mark(2))
    assert request.take_end(1, mark(2))
    assert request.again().since.progress == mark(2)
    assert not request.take_end(1, mark(2))


def test_maintenance_between_a_beginning_and_its_entry_makes_no_count_wrong() -> None:
    """E4, E11: the beginning comes again behind the place before it, and costs one more."""
    request = counted(after=2)
    assert request.take_begin(5, 1, mark(7))
    request.maintain(mark(7))
    again = request.again()
    assert (again.since.progress, again.complete_after) == (mark(7), 10)
    assert request.take(5, 1, mark(8))
    request.maintain(mark(7))  # its end was not sent yet
    again = request.again()
    assert (again.since.progress, again.complete_after) == (mark(7), 10)
    assert request.take_end(5, mark(8))
    request.maintain(mark(20))
    again = request.again()
    assert (again.since.progress, again.complete_after) == (mark(20), 7)


async def lose(changes: Subscription) -> None:
    """Its connection."""
    await changes._disconnect()  # pyright: ignore[reportPrivateUsage]


async def test_a_change_that_was_refused_takes_no_other_one_with_it() -> None:
    """E7: nor is it forgotten when the connection is lost."""
    refused, good = where.data("x" * 600), where.data("lines")
    async with connected() as (log, client), patience():
        for several in ((refused, good), (good, refused)):
            async with await client.subscribe(where.data("orders").named("a")) as changes:
                for wanted in several:
                    await changes.change("a", wanted)
                with pytest.raises(RequestError):
                    await anext(changes)
                for _ in range(2):
                    both = changed(1), changed(1, collection="lines", ordinal=1)
                    await log.append([committed(*both)])
                    assert [one.entity_type for one in await take(changes, 1)] == ["lines"]
                    await lose(changes)


@pytest.mark.parametrize("lost", [False, True])
async def test_changes_in_a_row_begin_where_the_first_of_them_says(lost: bool) -> None:
    """E7: also one behind which the connection is lost."""
    async with connected() as (log, client), patience():
        await log.append(singles(1, 3))
        wanted = where.data("orders").named("a")
        (first, *_) = starts = [
            wanted.since(version=1),
            wanted.since_beginning(),
            wanted.since(timestamp=1),
        ]
        async with await client.subscribe(first) as changes:
            told = [(1, 1), (2, 1), (3, 1)]
            assert places(await take(changes, 3)) == told
            for start in starts:
                await changes.change("a", start)
                await changes.change("a", wanted.body())
                if lost:
                    await lose(changes)
                found = await take(changes, len(told))
                assert places(found) == told
                # Some may have been told before the second change was heard of.
                while found[-1].body is None:
                    await log.append(singles(len(told) + 1, len(told) + 1))
                    found = await take(changes, 1)
                    told += places(found)
                assert told == [(n + 1, 1) for n in range(len(told))]


def test_a_refusal_may_overtake_the_confirmation_of_an_earlier_change() -> None:
    """Each takes back the change that it names."""
    taken = confirmed_of(pb.CaptureConfirmed(request_id="a", progress=mark(1)))
    request = Request(pb.CaptureRequest(id="a"))
    assert request.again().content == pb.CONTENT_HEADER
    request.change(pb.CaptureRequest(id="a", content=pb.CONTENT_BODY), "change 1")
    request.confirm(taken)  # of the request itself
    request.change(pb.CaptureRequest(id="a", content=pb.CONTENT_HEADER), "change 2")
    request.keep("change 2")
    request.confirm(taken)
    again = request.again()
    assert (again.content, again.since.progress) == (pb.CONTENT_BODY, mark(1))
    assert request.again() == again


# --- servers that die ----------------------------------------------------------------------------


def server_process(path: Path, address: str) -> Child:
    """It says its address once it serves."""
    return Child(*MODULE, "tests.captures.server_process", path, address)


async def test_without_retry_a_lost_server_is_an_error_and_a_marker_resumes() -> None:
    async with opened_log() as log:
        await log.append(singles(1, 3))
        async with contextlib.AsyncExitStack() as client_side:
            async with serving(log) as address:
                client = captures.connect(address, retry=None)
                await client_side.enter_async_context(client)
                changes = await client.subscribe(where.data().since_beginning().named("a"))
                found = await take(changes, 3)
            with pytest.raises(ServiceUnavailableError):
                await anext(changes)
        await log.append(singles(4, 4))
        async with serving(log) as address, captures.connect(address, retry=None) as client:
            wanted = where.data().since(progress=changes.positions["a"])
            async with await client.subscribe(wanted) as resumed:
                found += await take(resumed, 1)
    assert places(found) == [(at, 1) for at in range(1, 5)]


async def test_a_client_that_is_closed_says_so_to_who_reads_on() -> None:
    async with opened_log() as log, serving(log) as address:
        async with captures.connect(address) as client:
            changes = await client.subscribe(where.data())
        with pytest.raises(RequestError, match="closed"):
            await anext(changes)


LOST = ServiceUnavailableError("restarted")
FEW = Retry(initial_seconds=0.001, max_retries=2)


async def test_a_quiet_subscription_comes_back_however_often_the_service_restarts() -> None:
    """As one that gets changes: the service works again once it tells where it stands."""
    async with (
        opened_log() as log,
        serving(log) as address,
        captures.connect(address, retry=FEW) as client,
        patience(),
    ):
        changes = await client.subscribe(where.data("lines").named("a"))
        for count in range(1, 6):
            await changes._wait_after(LOST)  # pyright: ignore[reportPrivateUsage]
            await log.append(singles(count, count))
            # Only maintenance says that this is not for it, and on a slow machine where it starts.
            while (
                not (place := changes.positions.get("a")) or parse_progress(place).sequence < count
            ):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(anext(changes), 0.2)


async def test_a_service_that_confirms_and_fails_again_is_given_up() -> None:
    async with (
        opened_log() as log,
        serving(log, maintenance_interval=60) as address,
        captures.connect(address, retry=FEW) as client,
    ):
        changes = await client.subscribe(where.data("lines"))
        for _ in range(2):
            await changes._wait_after(LOST)  # pyright: ignore[reportPrivateUsage]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(anext(changes), 0.1)
        with pytest.raises(ServiceUnavailableError):
            await changes._wait_after(LOST)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.slow
@pytest.mark.parametrize("total", [130, pytest.param(250, marks=pytest.mark.soak)])
async def test_kills_of_the_server_cost_no_change_and_repeat_none_e4_e9(
    tmp_path: Path, total: int
) -> None:
    """Every request gets each of its changes once and in order, transactions whole."""
    seed = seed_of("captures-client")
    chance = random.Random(seed)
    path = tmp_path / "log"
    log_config = LogConfig(path=path, free_bytes_min=0)
    rows_of: dict[int, list[str]] = {}

    def commits(first: int, last: int) -> list[Any]:
        made: list[Any] = []
        for version in range(first, last + 1):
            kinds = [chance.choice(["orders", "lines"]) for _ in range(chance.randrange(1, 6))]
            rows_of[version] = kinds
            made.append(
                committed(
                    *(
                        changed(version, key=at, ordinal=at, collection=kind)
                        for at, kind in enumerate(kinds)
                    )
                )
            )
        return made

    got: dict[str, list[tuple[int, int]]] = {"all": [], "orders": [], "late": [], "some": []}
    async with LmdbLog(log_config) as log:
        await log.append(commits(1, 40))
        with contextlib.ExitStack() as processes:
            server = processes.enter_context(server_process(path, "127.0.0.1:0"))
            address = await asyncio.to_thread(server.line)
            last = 40
            kills = 0

            async def kill_and_write() -> None:
                nonlocal server, last, kills
                while last < total:
                    more = min(total, last + chance.randrange(1, 25))
                    await log.append(commits(last + 1, more))
                    last = more
                    await asyncio.sleep(chance.random() * 0.05)
                    if chance.random() < 0.3 or (last == total and not kills):
                        kills += 1
                        await asyncio.to_thread(server.kill)
                        server = processes.enter_context(server_process(path, address))
                        await asyncio.to_thread(server.line)

            def is_whole() -> bool:
                if total not in rows_of or len(got["some"]) < 200:
                    return False
                end = (total, len(rows_of[total]))
                edge = (end[0], end[1] + 1)
                return got["late"][-1:] == [end] and got["all"][-1:] == got["orders"][-1:] == [edge]

            async with captures.connect(address, retry=SOON, silence_seconds=5) as client:
                every = where.anything().named("all").since_beginning()
                orders = where.data("orders") | where.infrastructure()
                changes = await client.subscribe(
                    every, orders.named("orders").since(version=10, index=0), credit=50
                )
                writing = asyncio.create_task(kill_and_write())
                late = some = False
                async for one in changes:
                    for name in one.ids:
                        got[name].append((one.version, one.index))
                    await changes.request(1)
                    if not late and one.version > 60:
                        late = True
                        await changes.extend(where.data().named("late").since(version=50, index=2))
                    if not some and one.version > 100:
                        some = True
                        counted = where.anything().named("some").since(commit=30)
                        await changes.extend(counted.complete_after(200))
                    if chance.random() < 0.02:
                        await asyncio.sleep(0.01)
                    if is_whole():
                        break
                await writing
                await changes.aclose()

    def expected(first: int, *, edges: bool, only: str = "") -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for version in range(first, total + 1):
            rows = rows_of[version]
            found += [(version, 0)] if edges else []
            found += [(version, at + 1) for at, kind in enumerate(rows) if only in {"", kind}]
            found += [(version, len(rows) + 1)] if edges else []
        return found

    assert got["all"] == expected(1, edges=True)
    assert got["orders"] == expected(10, edges=True, only="orders")
    assert got["late"] == [one for one in expected(50, edges=False) if one >= (50, 2)]
    assert got["some"] == expected(31, edges=True)[:200]


@pytest.mark.slow
async def test_a_server_that_says_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "log"
    async with LmdbLog(LogConfig(path=path, free_bytes_min=0)) as log:
        await log.append(singles(1, 2))
        with server_process(path, "127.0.0.1:0") as server:
            address = await asyncio.to_thread(server.line)
            async with captures.connect(address, retry=None, silence_seconds=1 << 20) as client:
                changes: Any = await client.subscribe(where.data().since_beginning())
                await take(changes, 2)

                async def knows_the_interval() -> bool:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(anext(changes), 0.1)
                    return bool(changes._interval_seconds)

                await until(knows_the_interval)
                server.send_signal(signal.SIGSTOP)
                changes._silence_seconds = 0.2
                with pytest.raises(ServiceUnavailableError, match="too long"):
                    await anext(changes)
                server.send_signal(signal.SIGCONT)
                await changes.aclose()
