"""What a pipeline says of itself is believed from who may say it, kept, and held in the log."""

import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from penstock.cli.page import count_pipelines
from penstock.client.credentials import Credentials
from penstock.client.flight import LogClient
from penstock.client.pipelines import AWAY_SECONDS, PipelineOrder, PipelineTold
from penstock.errors import (
    AheadError,
    ForbiddenError,
    PartialViewError,
    RequestError,
    StreamChangedError,
    TrimmedError,
)
from penstock.event import Commit
from penstock.log import LmdbLog
from penstock.log.config import LogConfig
from penstock.ports import Ancestor, Hold
from penstock.progress import Progress
from penstock.serve.access import Access, AccessConfig
from penstock.serve.access.actions import kept_of
from penstock.serve.flight import FlightServer
from penstock.serve.pipelines import PipelineBook, PipelineHolds, PlacedLog
from penstock.subscribe.scope import EVERYTHING
from penstock.telemetry import SERVE_REGISTRY
from penstock.testing.contracts.entries import changes
from tests.access.support import ALL, issue
from tests.flight.blocks import BlockLog, insert

HOLD_SECONDS = 3600.0
GIB = 1 << 30


class Wall:
    """Milliseconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def passes(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)


@pytest.fixture
def log() -> BlockLog:
    log = BlockLog()
    log.append([insert(number)] for number in range(20))
    return log


@pytest.fixture
def wall() -> Wall:
    return Wall()


@contextmanager
def opened(
    path: Path, log: PlacedLog, wall: Wall | None, *, hold_seconds: float = HOLD_SECONDS
) -> Generator[PipelineBook]:
    book = PipelineBook(
        path,
        log,
        hold_seconds=hold_seconds,
        hold_bytes=GIB,
        wall_ms=wall,
        log_bytes=lambda: 2000,
    )
    try:
        yield book
    finally:
        book.close()


@pytest.fixture
def book(tmp_path: Path, log: BlockLog, wall: Wall) -> Iterator[PipelineBook]:
    with opened(tmp_path / "consumers", log, wall) as book:
        yield book


def told(place: Progress, name: str = "orders", **more: Any) -> PipelineTold:
    said = PipelineTold(pipeline=name, run="1", source="shop", to="table", place=place)
    return structs.replace(said, **more)


def held(path: Path, wall: Wall) -> Hold | None:
    holds = PipelineHolds(path, wall_ms=wall, steady_seconds=iter(range(1000)).__next__)
    try:
        return holds()
    finally:
        holds.close()


def test_a_clock_that_is_set_back_lets_no_place_go_sooner(
    tmp_path: Path, log: BlockLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set right again one day, and what was dated by it would be over at once."""
    with opened(tmp_path / "consumers", log, None) as book:
        book.tell(told(log.marker(8)), EVERYTHING)
        (before,) = book.status(EVERYTHING)
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() - 200 * 86_400 * 10**9)
        book.tell(told(log.marker(9)), EVERYTHING)
        (one,) = book.status(EVERYTHING)
        assert one.held_until_ms >= before.held_until_ms - 1000


def test_what_a_pipeline_says_is_listed_and_counted(
    book: PipelineBook, log: BlockLog, wall: Wall
) -> None:
    wall.passes(5)
    counts: dict[str, Any] = {"batches": 2, "entries": 8, "rows": 7, "rejected": 1, "lost": 4}
    rates: dict[str, Any] = {"batch_seconds": 0.5, "entries_per_second": 8.0}
    compared: dict[str, Any] = {"verified_at_ms": 9500, "differences": 3, "untidied": 2}
    book.tell(told(log.marker(8), **counts, **rates, **compared), EVERYTHING)
    (one,) = book.status(EVERYTHING)
    assert (one.state, one.sequence, one.progress) == ("running", 8, str(log.marker(8)))
    assert (one.lag_entries, one.trimmed, one.held_bytes) == (12, False, 1200)
    assert one.lag_seconds == (wall.now_ms - 1) / 1000  # the blocks of the log say 1
    count_pipelines([one])
    shown = SERVE_REGISTRY.get_sample_value
    for name, value in (
        ("penstock_query_running", 1.0),
        ("penstock_query_lag_entries", 12.0),
        ("penstock_query_lag_seconds", one.lag_seconds),
        ("penstock_query_held_bytes", 1200.0),
        ("penstock_query_entries", 8.0),
        ("penstock_query_rows", 7.0),
        ("penstock_query_rejected", 1.0),
        ("penstock_query_lost_entries", 4.0),
        ("penstock_query_batch_seconds", 0.5),
        ("penstock_query_entries_per_second", 8.0),
        ("penstock_query_verified_timestamp_seconds", 9.5),
        ("penstock_query_differences", 3.0),
        ("penstock_query_untidied_tables", 2.0),
    ):
        assert shown(name, {"pipeline": "orders"}) == value
    count_pipelines([])
    assert shown("penstock_query_running", {"pipeline": "orders"}) is None


def test_one_that_says_nothing_for_long_is_away_and_one_that_ended_is_not(
    book: PipelineBook, log: BlockLog, wall: Wall
) -> None:
    book.tell(told(log.marker(20)), EVERYTHING)
    book.tell(told(log.marker(20), "done", state="ended"), EVERYTHING)
    book.tell(told(log.marker(20), "broken", state="failed", code="pipeline"), EVERYTHING)
    wall.passes(AWAY_SECONDS + 1)
    states = {one.pipeline: (one.state, one.code) for one in book.status(EVERYTHING)}
    assert states == {
        "broken": ("failed", "pipeline"),
        "done": ("ended", ""),
        "orders": ("away", ""),
    }
    assert [one.lag_seconds for one in book.status(EVERYTHING)] == [0, 0, 0]


def test_the_log_is_held_for_the_one_that_is_furthest_behind_until_its_time_is_over(
    book: PipelineBook, log: BlockLog, wall: Wall, tmp_path: Path
) -> None:
    path = tmp_path / "consumers"
    book.tell(told(log.marker(4), "slow"), EVERYTHING)
    wall.passes(HOLD_SECONDS / 2)
    book.tell(told(log.marker(9), "fast"), EVERYTHING)
    found = held(path, wall)
    assert found is not None
    assert (found.sequence, found.bytes_max) == (4, GIB)
    wall.passes(HOLD_SECONDS / 2 + 1)
    found = held(path, wall)
    assert found is not None
    assert found.sequence == 9
    wall.passes(HOLD_SECONDS)
    assert held(path, wall) is None


def test_what_was_said_is_there_after_a_crash_of_the_service(
    tmp_path: Path, log: BlockLog, wall: Wall
) -> None:
    """Without a word of goodbye: a place may be an older one, never a newer one, and a run that is
    to stop is told so."""
    path = tmp_path / "consumers"
    crashed = PipelineBook(path, log, hold_seconds=HOLD_SECONDS, hold_bytes=GIB, wall_ms=wall)
    crashed.tell(told(log.marker(4)), EVERYTHING)
    crashed.order(PipelineOrder(pipeline="orders", order="stop"), EVERYTHING)
    found = held(path, wall)
    assert found is not None
    assert found.sequence == 4
    with opened(path, log, wall) as book:
        assert book.status(EVERYTHING)[0].stopping
        assert book.tell(told(log.marker(7)), EVERYTHING).stop
    crashed._env.close()  # pyright: ignore[reportPrivateUsage]


def test_a_place_that_moves_back_is_held_at_once_and_one_that_moves_on_soon(
    tmp_path: Path, log: BlockLog, wall: Wall
) -> None:
    """A pipeline that was reset needs what it had passed; one that moved on needs less."""
    path, now = tmp_path / "consumers", [0.0]
    book = PipelineBook(
        path,
        log,
        hold_seconds=HOLD_SECONDS,
        hold_bytes=GIB,
        wall_ms=wall,
        steady_seconds=lambda: now[0],
    )
    seen: list[int] = []
    for sequence, steady in ((9, 0.0), (4, 0.1), (12, 0.2), (13, 1.2)):
        now[0] = steady
        book.tell(told(log.marker(sequence)), EVERYTHING)
        found = held(path, wall)
        assert found is not None
        seen.append(found.sequence)
    book.close()
    assert seen == [9, 4, 4, 13]


def test_only_the_run_that_was_asked_to_stop_stops(book: PipelineBook, log: BlockLog) -> None:
    with pytest.raises(RequestError, match="knows no pipeline"):
        book.order(PipelineOrder(pipeline="orders", order="stop"), EVERYTHING)
    assert not book.tell(told(log.marker(1)), EVERYTHING).stop
    book.order(PipelineOrder(pipeline="orders", order="stop"), EVERYTHING)
    assert book.tell(told(log.marker(2)), EVERYTHING).stop
    book.tell(told(log.marker(2), state="stopped"), EVERYTHING)
    with pytest.raises(RequestError, match="does not run: its last run has stopped"):
        book.order(PipelineOrder(pipeline="orders", order="stop"), EVERYTHING)
    assert not book.tell(told(log.marker(2), run="2"), EVERYTHING).stop


def test_one_that_is_forgotten_holds_nothing_and_one_that_runs_is_not_forgotten(
    book: PipelineBook, log: BlockLog, wall: Wall, tmp_path: Path
) -> None:
    book.tell(told(log.marker(1)), EVERYTHING)
    with pytest.raises(RequestError, match="is running"):
        book.order(PipelineOrder(pipeline="orders", order="forget"), EVERYTHING)
    book.tell(told(log.marker(1), state="ended"), EVERYTHING)
    book.order(PipelineOrder(pipeline="orders", order="forget"), EVERYTHING)
    assert book.status(EVERYTHING) == []
    assert held(tmp_path / "consumers", wall) is None


def test_a_place_that_is_not_of_this_log_is_refused_and_holds_nothing(
    book: PipelineBook, log: BlockLog, wall: Wall, tmp_path: Path
) -> None:
    with pytest.raises(StreamChangedError):
        book.tell(told(Progress(log.log_id + 1, 4, 0)), EVERYTHING)
    with pytest.raises(AheadError):
        book.tell(told(Progress(log.log_id, 21, 0)), EVERYTHING)
    with pytest.raises(RequestError):
        book.tell(told(log.marker(4), ""), EVERYTHING)
    assert held(tmp_path / "consumers", wall) is None
    place = log.marker(4)
    log.trim(8)
    book.tell(told(place), EVERYTHING)
    (one,) = book.status(EVERYTHING)
    assert (one.trimmed, one.sequence) == (True, 4)


def test_holds_of_another_log_are_let_go(tmp_path: Path, log: BlockLog, wall: Wall) -> None:
    with opened(tmp_path / "consumers", log, wall) as book:
        book.tell(told(log.marker(4)), EVERYTHING)
    log.log_id += 1
    with opened(tmp_path / "consumers", log, wall) as book:
        book.tell(told(log.marker(9), "other"), EVERYTHING)
        found = held(tmp_path / "consumers", wall)
        assert found is not None
        assert found.sequence == 9


def test_holds_of_the_log_that_this_one_was_restored_from_stay(
    tmp_path: Path, log: BlockLog, wall: Wall
) -> None:
    with opened(tmp_path / "consumers", log, wall) as book:
        book.tell(told(log.marker(4)), EVERYTHING)
    log.ancestors = (Ancestor(log_id=log.log_id, head=10),)
    log.log_id += 1
    with opened(tmp_path / "consumers", log, wall) as book:
        book.tell(told(log.marker(9), "other"), EVERYTHING)
        found = held(tmp_path / "consumers", wall)
        assert found is not None
        assert found.sequence == 4


# --- who is believed --------------------------------------------------------------------------


GRANTS: dict[str, dict[str, Any]] = {
    "owner": {"verbs": ALL, "sources": ("shop",)},
    "masked": {"verbs": ALL, "sources": ("shop",), "hidden": ("n",)},
    "other": {"verbs": ALL, "sources": ("hr",)},
    "reader": {"verbs": ("read",)},
    "admin": {"verbs": ALL},
}


@pytest.fixture
def client(
    tmp_path: Path, log: BlockLog, book: PipelineBook
) -> Iterator[Callable[[str], LogClient]]:
    """Somebody with a token that grants what GRANTS says."""
    tokens = tmp_path / "access.json"
    issued = {name: issue(tokens, name, **grant) for name, grant in GRANTS.items()}
    access = Access(AccessConfig(tokens=tokens))
    server = FlightServer(log, access=access, book=book)
    server.start()
    clients = {
        name: LogClient(server.address, credentials=Credentials(token=token))
        for name, token in issued.items()
    }
    yield clients.__getitem__
    for one in clients.values():
        one.close()
    server.stop()
    access.close()


def test_only_who_may_read_all_of_a_source_moves_its_pipelines(
    client: Callable[[str], LogClient], log: BlockLog
) -> None:
    owner = client("owner")
    assert not owner.tell(told(log.marker(4))).stop
    with pytest.raises(PartialViewError):
        client("masked").tell(told(log.marker(9)))
    other = client("other")
    for name in ("orders", "new"):
        with pytest.raises(PartialViewError):
            other.tell(told(log.marker(9), name))
    with pytest.raises(PartialViewError):
        other.tell(told(log.marker(9), source="hr"))  # a name that another source's pipeline has
    assert [one.sequence for one in owner.pipelines()] == [4]
    assert other.pipelines() == []


def test_stopping_needs_the_verb_admin(client: Callable[[str], LogClient], log: BlockLog) -> None:
    owner = client("owner")
    owner.tell(told(log.marker(4)))
    order = PipelineOrder(pipeline="orders", order="stop")
    with pytest.raises(ForbiddenError):
        client("reader").order(order)
    client("admin").order(order)
    assert owner.tell(told(log.marker(5))).stop


def test_a_service_that_keeps_no_pipelines_says_so(log: BlockLog) -> None:
    server = FlightServer(log)
    server.start()
    try:
        with LogClient(server.address) as client, pytest.raises(RequestError, match="no action"):
            client.tell(told(log.marker(4)))
    finally:
        server.stop()


# --- the log ----------------------------------------------------------------------------------


@pytest.fixture
async def real(tmp_path: Path) -> AsyncGenerator[LmdbLog]:
    config = LogConfig(path=tmp_path / "log", retention_events=10, free_bytes_min=0)
    async with LmdbLog(config) as log:
        yield log


async def appended(log: LmdbLog, commits: int) -> int:
    for number in range(commits):
        events = changes("shop", str(number), 2)
        await log.append([Commit(source="shop", position=str(number), events=events)])
    return (await log.bounds()).trimmed


def place_at(log: LmdbLog, sequence: int) -> Progress:
    check = log.check_at_now(sequence)
    assert check is not None
    return Progress(log.bounds_now().log_id, sequence, check)


async def test_the_log_waits_for_a_pipeline_that_is_away_and_then_goes_on_without_it(
    real: LmdbLog, tmp_path: Path, wall: Wall
) -> None:
    """Invariant 4: up to the limit nothing is lost; beyond it the pipeline is told TRIMMED."""
    path = tmp_path / "consumers"
    holds = PipelineHolds(path, wall_ms=wall, steady_seconds=iter(range(10**6)).__next__)
    real.held_by(holds)
    await appended(real, 3)
    with opened(path, real, wall) as book:
        server = FlightServer(real, book=book)
        server.start()
        try:
            with LogClient(server.address) as client:
                place = place_at(real, 4)
                client.tell(told(place))
                assert await appended(real, 40) == 4
                assert client.plan(after=place).to.sequence == 86
                wall.passes(HOLD_SECONDS - 1)
                assert await appended(real, 1) == 4
                wall.passes(2)
                assert await appended(real, 10) > 4
                with pytest.raises(TrimmedError):
                    client.plan(after=place)
                assert client.pipelines()[0].trimmed
        finally:
            server.stop()
    holds.close()


async def test_many_drivers_at_once_lose_no_word_of_each_other(
    book: PipelineBook, log: BlockLog, wall: Wall, tmp_path: Path
) -> None:
    def say(number: int) -> None:
        for sequence in range(5, 20):
            book.tell(told(log.marker(sequence), f"p{number}"), EVERYTHING)

    threads = [threading.Thread(target=say, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [one.sequence for one in book.status(EVERYTHING)] == [19] * 8
    found = held(tmp_path / "consumers", wall)
    assert found is not None
    assert 5 <= found.sequence <= 19


async def test_a_pipeline_that_retention_has_passed_holds_nothing_and_others_still_do(
    real: LmdbLog, tmp_path: Path, wall: Wall
) -> None:
    """It is told TRIMMED and must begin anew: what it lacks is gone, whatever else stays."""
    path = tmp_path / "consumers"
    holds = PipelineHolds(path, wall_ms=wall, steady_seconds=iter(range(10**6)).__next__)
    real.held_by(holds)
    await appended(real, 3)
    with opened(path, real, wall) as book:
        book.tell(told(place_at(real, 4)), EVERYTHING)
        assert await appended(real, 40) == 4
        book.tell(told(place_at(real, 60), "lines"), EVERYTHING)
        await real.trim(20)
        assert await appended(real, 40) == 60
        late, held = sorted(book.status(EVERYTHING), key=lambda one: one.sequence)
        assert (late.trimmed, late.held_until_ms, late.held_bytes) == (True, 0, 0)
        assert (held.trimmed, held.held_until_ms > wall.now_ms) == (False, True)
        await real.trim(61)
        assert await appended(real, 40) > 120
    holds.close()


def test_one_token_cannot_take_the_places_of_all_pipelines(
    book: PipelineBook, log: BlockLog
) -> None:
    kept = kept_of("flight pipeline")
    for number in range(kept.of_one_max):
        book.tell(told(log.marker(8), f"{number}"), EVERYTHING, "token:greedy")
    with pytest.raises(RequestError, match="one more"):
        book.tell(told(log.marker(8), "more"), EVERYTHING, "token:greedy")
    book.tell(told(log.marker(8), "more"), EVERYTHING, "token:other")
    book.tell(told(log.marker(9), "0"), EVERYTHING, "token:greedy")


@pytest.mark.parametrize("field", ["pipeline", "source", "run", "to", "code", "verify_code"])
def test_what_a_driver_says_of_itself_has_a_length(
    book: PipelineBook, log: BlockLog, field: str
) -> None:
    said = structs.replace(told(log.marker(8)), **{field: "x" * 201})
    with pytest.raises(RequestError, match="200 characters"):
        book.tell(said, EVERYTHING)
    assert book.status(EVERYTHING) == []
