"""Archive and log as one: readers get what the log would have said, had it kept everything."""

# The published types of pyarrow are partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import random
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest

from penstock.archive import writing
from penstock.archive.manifest import Range
from penstock.archive.opening import log_client
from penstock.archive.tiered import TieredClient
from penstock.client.credentials import Credentials
from penstock.client.flight import LogClient, Plan, ReadRequest, Seen
from penstock.errors import (
    ArchiveBehindError,
    ArchiveForeignError,
    GapError,
    PenstockError,
    RequestError,
    StreamChangedError,
    TrimmedError,
)
from penstock.log import LmdbLog
from penstock.log.config import LogConfig
from penstock.log.restoring import restore
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.serve.flight import FlightServer
from penstock.spark.options import resolve
from penstock.wire import ARROW_SCHEMA
from tests.archive.logs import archiver, fill, live_rows, log_config, opened


class Both(NamedTuple):
    """A log that was trimmed, with its archive; and what it was before."""

    log: LmdbLog
    folder: Path
    head: int
    whole: pa.Table
    checks: list[int]
    ends: list[int]
    endpoint: str

    def client(self) -> TieredClient:
        return TieredClient(self.endpoint, str(self.folder / "archive"))

    def place(self, sequence: int) -> Progress:
        return Progress(self.log.bounds_now().log_id, sequence, self.checks[sequence])


@pytest.fixture
async def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Both]:
    monkeypatch.setattr(writing, "_GROUP_BYTES", 9_000)
    async with LmdbLog(log_config(tmp_path)) as log:
        work = archiver(log, tmp_path)
        for seed in range(3):
            await fill(log, seed=seed, commits=15)
            if seed < 2:
                work.step()
        head = log.bounds_now().head
        whole = live_rows(log, 0, head)
        rows: list[dict[str, Any]] = whole.select(["sequence", "ends_commit"]).to_pylist()
        checks = [log.check_at_now(at) or 0 for at in range(head + 1)]
        ends = [0, *(row["sequence"] for row in rows if row["ends_commit"])]
        server = FlightServer(log)
        server.start()
        yield Both(log, tmp_path, head, whole, checks, ends, server.address)
        server.stop()


def read(client: LogClient, after: int, until: int, log_id: int, **more: object) -> pa.Table:
    request = ReadRequest(log_id=log_id, after=after, until=until)
    request = msgspec.structs.replace(request, **more)
    schema = pa.schema([ARROW_SCHEMA.field(name) for name in request.columns or ARROW_SCHEMA.names])
    return pa.Table.from_batches(client.read(request), schema=schema)


@pytest.mark.slow
async def test_all_of_both_is_read_wherever_retention_stands(both: Both) -> None:
    with both.client() as client:
        log_id = client.bounds().log_id
        for trimmed in (0, 1, 70, both.ends[len(both.ends) // 2], both.ends[len(both.ends) // 2]):
            await both.log.trim(trimmed)
            bounds = client.bounds()
            assert (bounds.trimmed, bounds.trimmed_check) == (0, 0)
            for after in (0, 5, max(0, trimmed - 1), trimmed, trimmed + 1):
                found = read(client, after, both.head, log_id)
                assert found.equals(both.whole.slice(after))
            assert client.marker(log_id=log_id, sequence=3) == both.place(3)
            assert read(client, 2, 9, log_id, columns=("check",))["check"].to_pylist() == [
                *both.whole["check"].to_pylist()[2:9]
            ]


@pytest.mark.slow
async def test_plans_are_those_of_a_log_that_kept_all(both: Both) -> None:
    """Invariant 3: a batch ends at a commit; one that spans both ends where they meet."""
    seed = random.randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    of = random.Random(seed)
    cases: list[tuple[int, int | None, int]] = []
    for _ in range(60):
        after, until = sorted(of.sample(both.ends, 2))
        cases.append((after, of.choice([None, 1, 7, 60]), until))
    with LogClient(both.endpoint) as live:
        expected = [
            live.plan(after=both.place(after), events_max=most, until=both.place(until)).to
            for after, most, until in cases
        ]
    await both.log.trim(both.ends[len(both.ends) // 2])
    with both.client() as client:
        trimmed = both.log.bounds_now().trimmed
        joint = next(one.until for one in ranges_of(both) if one.until >= trimmed)
        for (after, most, until), end in zip(cases, expected, strict=True):
            plan = client.plan(
                after=both.place(after),
                events_max=most,
                until=both.place(until),
                partitions_max=5,
                partition_events_min=1,
            )
            limited = most is not None and until - after > most
            crossing = after < trimmed and limited and end.sequence > joint
            assert plan.to == (both.place(joint) if crossing else end)
            assert plan.after == both.place(after)
            edges = [after, *plan.splits, plan.to.sequence]
            assert edges == sorted(set(edges))
            assert len(edges) <= 8


async def test_retention_may_pass_where_they_meet_while_a_batch_is_planned(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is TRIMMED of what the archive has: a query would stop, or be moved back."""
    await both.log.trim(both.ends[2])
    joint = next(one.until for one in ranges_of(both) if one.until >= both.ends[2])
    plan = LogClient.plan
    overtaken: list[int] = []

    def plan_late(client: LogClient, *, after: Progress, **asked: Any) -> Plan:
        if after.sequence == joint and not overtaken:
            overtaken.append(joint)
            raise TrimmedError(oldest=str(both.place(both.ends[-2])))
        return plan(client, after=after, **asked)

    monkeypatch.setattr(LogClient, "plan", plan_late)
    with both.client() as client:
        found = client.plan(
            after=both.place(0),
            until=both.place(both.head),
            partitions_max=5,
            partition_events_min=1,
        )
    assert overtaken == [joint]
    assert (found.after, found.to) == (both.place(0), both.place(both.head))
    assert joint in found.splits


def ranges_of(both: Both) -> tuple[Range, ...]:
    return opened(both.folder).manifest.ranges


@pytest.mark.slow
async def test_retention_may_overtake_a_reader_at_any_batch(both: Both) -> None:
    of = random.Random(1)
    with both.client() as client:
        log_id = client.bounds().log_id
        request = ReadRequest(log_id=log_id, after=0, until=both.head, batch_bytes=1)
        ends = iter(both.ends[10 : len(both.ends) // 2])
        found: list[pa.RecordBatch] = []
        for batch, _ in client.read_covered(request):
            found.append(batch)
            if of.random() < 0.7 and (end := next(ends, None)) is not None:
                await both.log.trim(end)
        assert pa.Table.from_batches(found).equals(both.whole)
        assert both.log.bounds_now().trimmed > 0


@pytest.mark.parametrize("control_events", [True, False])
async def test_a_filter_gives_the_same_on_both_sides(both: Both, control_events: bool) -> None:
    def of(client: LogClient) -> tuple[list[int], str]:
        found: list[int] = []
        request = ReadRequest(
            log_id=client.bounds().log_id,
            after=0,
            until=both.head,
            source="a",
            collections=("orders",),
            columns=("sequence",),
            control_events=control_events,
        )
        try:
            for batch in client.read(request):
                found += batch.column("sequence").to_numpy().tolist()
        except GapError as error:
            return found, str(error)
        return found, ""

    with LogClient(both.endpoint) as live:
        expected = of(live)
    await both.log.trim(both.ends[len(both.ends) // 2])
    with both.client() as client:
        assert of(client) == expected
    assert bool(expected[1]) != control_events


# --- what is refused ----------------------------------------------------------------------------


Ask = Callable[[TieredClient], object]


async def test_markers_must_be_of_what_is_archived(both: Both) -> None:
    """F10, on the archive's side too."""
    await both.log.trim(100)
    good = both.place(both.ends[2])
    with both.client() as client:
        assert client.plan(after=good, until=good).after == good
        for bad in (
            Progress(good.log_id, good.sequence, good.check ^ 1),
            Progress(good.log_id ^ 1, good.sequence, good.check),
        ):
            with pytest.raises(StreamChangedError):
                client.plan(after=bad, until=good)
            with pytest.raises(StreamChangedError):
                client.plan(after=both.place(0), until=bad)


async def test_the_end_of_a_range_is_held_against_the_log_and_named_as_it_names_it(
    both: Both,
) -> None:
    """A batch that was planned before the log was restored is read in the restored one."""
    old = both.place(both.head)
    begin, middle = both.place(both.ends[2]), both.ends[len(both.ends) // 2]
    archiver(both.log, both.folder).step()
    restore(opened(both.folder), both.folder / "again")
    async with LmdbLog(LogConfig(path=both.folder / "again", free_bytes_min=0)) as log:
        await log.trim(middle)
        server = FlightServer(log)
        server.start()
        with TieredClient(server.address, str(both.folder / "archive")) as client:
            plan = client.plan(after=begin, until=old)
            assert plan.to.log_id == plan.after.log_id == log.bounds_now().log_id != old.log_id
            assert (plan.after.sequence, plan.to.sequence) == (begin.sequence, old.sequence)
            with pytest.raises(StreamChangedError):
                client.plan(after=begin, until=Progress(old.log_id, old.sequence, old.check ^ 1))
        server.stop()


async def test_an_archive_that_does_not_reach_the_log_is_refused(both: Both) -> None:
    await both.log.trim(both.head)
    with both.client() as client:
        refused: list[Ask] = [
            lambda client: client.bounds(),
            lambda client: client.plan(after=both.place(0)),
            lambda client: read(client, 0, both.head, both.place(0).log_id),
            lambda client: client.marker(log_id=both.place(0).log_id, sequence=1),
        ]
        for ask in refused:
            with pytest.raises(ArchiveBehindError, match="in neither"):
                ask(client)


async def test_before_the_archive_begins_all_is_trimmed(tmp_path: Path) -> None:
    async with LmdbLog(log_config(tmp_path)) as log:
        await fill(log, commits=10)
        await log.trim(20)
        work = archiver(log, tmp_path)
        work.step()
        await fill(log, seed=1, commits=10)
        work.step()
        head, check = log.bounds_now().head, log.check_at_now(20)
        whole = live_rows(log, 20, head)
        await log.trim(head)
        server = FlightServer(log)
        server.start()
        with log_client(server.address, archive=str(tmp_path / "archive")) as client:
            bounds = client.bounds()
            assert (bounds.trimmed, bounds.trimmed_check) == (20, check)
            assert read(client, 20, head, bounds.log_id).equals(whole)
            oldest = str(Progress(bounds.log_id, 20, check or 0))
            for sequence in (0, 19):
                with pytest.raises(TrimmedError) as raised:
                    read(client, sequence, head, bounds.log_id)
                assert raised.value.oldest == oldest
                with pytest.raises(TrimmedError):
                    client.plan(after=Progress(bounds.log_id, sequence, 0))
        server.stop()


@pytest.mark.slow
async def test_an_archive_of_another_log_is_refused(both: Both, tmp_path: Path) -> None:
    async with LmdbLog(log_config(tmp_path / "other")) as other:
        await fill(other)
        archiver(other, tmp_path / "other").step()
    await both.log.trim(100)
    with (
        log_client(both.endpoint, archive=str(tmp_path / "other" / "archive")) as client,
        pytest.raises(ArchiveForeignError, match="is of log"),
    ):
        client.bounds()


@pytest.mark.slow
async def test_an_archive_that_goes_on_while_it_is_opened_is_the_logs_all_the_same(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's end is asked for first; what is archived by the time it is opened goes beyond."""
    await both.log.trim(100)
    before, bounds = both.log.bounds_now(), LogClient.bounds
    await fill(both.log, seed=3)
    archiver(both.log, both.folder).step()
    answers = [before]

    def answered(client: LogClient) -> Bounds:
        return answers.pop() if answers else bounds(client)

    monkeypatch.setattr(LogClient, "bounds", answered)
    with both.client() as client:
        assert client.marker(log_id=before.log_id, sequence=3) == both.place(3)
    answers = [before, before]
    with both.client() as client, pytest.raises(ArchiveForeignError, match="shares its entries"):
        client.bounds()


async def test_where_they_meet_the_entries_must_be_the_same(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    await both.log.trim(100)
    real = TieredClient._live_check  # pyright: ignore[reportPrivateUsage]

    def other(client: TieredClient, *given: object) -> int:
        return (real(client, *given) or 0) ^ 1  # type: ignore[arg-type]

    monkeypatch.setattr(TieredClient, "_live_check", other)
    with both.client() as client, pytest.raises(ArchiveForeignError, match="is not the one"):
        client.plan(after=both.place(0))


async def test_a_token_that_shows_a_part_does_not_open_the_archive(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partial(_: LogClient) -> Seen:
        return Seen(name="x", partial=True)

    monkeypatch.setattr(LogClient, "seen", partial)
    await both.log.trim(100)
    with (
        log_client(
            both.endpoint,
            archive=str(both.folder / "archive"),
            credentials=Credentials(token="t" * 40),
        ) as client,
        pytest.raises(RequestError, match="only a part"),
    ):
        client.bounds()


async def test_a_damaged_archive_ends_the_read_and_nothing_is_passed_over(both: Both) -> None:
    await both.log.trim(both.ends[len(both.ends) // 2])
    ranges = ranges_of(both)
    (both.folder / "archive" / ranges[1].name).unlink()
    rows: list[int] = []
    with both.client() as client:
        request = ReadRequest(log_id=both.place(0).log_id, after=0, until=both.head)
        counts = (batch.num_rows for batch in client.read(request))
        with pytest.raises(PenstockError, match=ranges[1].name):
            rows.extend(counts)
    assert sum(rows) == ranges[0].until


def test_without_an_archive_a_client_is_a_plain_one() -> None:
    assert type(log_client("127.0.0.1:1")) is LogClient


async def test_the_beginning_is_that_of_the_archive_where_the_log_has_it_no_more(
    both: Both,
) -> None:
    await both.log.trim(both.ends[len(both.ends) // 2])
    with both.client() as client:
        assert resolve(client, "beginning") == both.place(0)
    with LogClient(both.endpoint) as client, pytest.raises(TrimmedError):
        resolve(client, "beginning")


async def test_who_begins_at_the_end_needs_no_archive(both: Both) -> None:
    """One that is away, or behind, stops nobody who reads nothing of it."""
    await both.log.trim(both.ends[-2])
    (both.folder / "archive").rename(both.folder / "away")
    with both.client() as client:
        assert resolve(client, "latest") == both.place(both.head)
        with pytest.raises(PenstockError):
            resolve(client, "earliest")
