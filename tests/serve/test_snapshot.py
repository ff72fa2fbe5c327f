"""A consumer rebuilds for itself: current rows, then exactly the later changes."""

import asyncio
import random
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.client import follow, snapshot, snapshot_sync
from penstock.client.change import Change
from penstock.client.flight import LogClient, ReadRequest, RowsRequest
from penstock.client.rows import Rows as SnapshotRows
from penstock.errors import (
    PenstockError,
    RequestError,
    ServiceUnavailableError,
    StateIncompleteError,
)
from penstock.event import Commit, Kind
from penstock.log.memory import MemoryLog
from penstock.serve.config import ServeConfig
from penstock.serve.flight import FlightServer
from penstock.serve.grpc import serve_grpc
from penstock.serve.snapshot import row_batches
from penstock.state.config import StateConfig
from penstock.state.keeper import StateKeeper
from penstock.subscribe import Criteria
from penstock.subscribe.current import Declared, Reading, row_json
from penstock.subscribe.shards import Shards
from penstock.wire import ARROW_SCHEMA
from tests.state.histories import (
    COLLECTIONS,
    KEYS,
    SOURCES,
    Model,
    Rows,
    Step,
    copied_whole,
    system,
)
from tests.waiting import patience, until

STATE = StateConfig(free_bytes_min=0, interval=0)


def random_commit(model: Model, rng: random.Random) -> Commit:
    what = ("insert", "replace", "update", "delta", "delete", "drop", "rename", "create")
    source = rng.choice(SOURCES)
    return model.commit(
        [
            Step(
                source=source,
                what=rng.choices(what, (8, 2, 2, 2, 3, 0.2, 0.2, 0.2))[0],
                collection=rng.choice(COLLECTIONS),
                key=rng.choice((*KEYS, *range(3, 40))),
                to=rng.choice(COLLECTIONS),
                value=rng.randrange(9),
            )
            for _ in range(rng.randint(1, 8))
        ]
    )


class Served:
    """A log with its state, over gRPC and Flight."""

    def __init__(self, log: MemoryLog, keeper: StateKeeper, grpc: str, flight: str) -> None:
        self.log = log
        self.keeper = keeper
        self.grpc = grpc
        self.flight = flight

    async def caught_up(self) -> None:
        """Wait until the state has the whole log."""
        head = (await self.log.bounds()).head
        await until(lambda: self.keeper.applied.sequence >= head)


@asynccontextmanager
async def serving(folder: Path, **config: Any) -> AsyncGenerator[Served]:
    log = MemoryLog()
    serve = ServeConfig.model_validate({"grpc": "127.0.0.1:0", **config})
    with StateKeeper(log, folder, STATE) as keeper:
        flight = FlightServer(log, current=keeper)
        flight.start()
        try:
            async with await serve_grpc(log, serve, current=keeper) as server:
                yield Served(log, keeper, server.address, flight.address)
        finally:
            await asyncio.to_thread(flight.stop)
    await log.close()


class Fold:
    """What a consumer has after rows and changes, as the model says it."""

    def __init__(self) -> None:
        self.model = Model()

    @property
    def rows(self) -> Rows:
        return self.model.copy()

    def row(self, row: Change) -> None:
        assert row.operation == "insert"
        assert row.event.snapshot  # type: ignore[union-attr]
        assert not row.progress
        rows = self.model.rows.setdefault((row.event.source, row.collection), {})
        key = bytes(row.event.key).decode()  # type: ignore[union-attr]
        assert key not in rows, "a row came twice"
        rows[key] = row.document

    def change(self, change: Change) -> None:
        """Play a change through the model, which knows deltas, drops and renames."""
        if change.kind not in {Kind.DATA, Kind.SCHEMA}:
            return
        said = change.document or {}
        key: Any = None
        if change.kind is Kind.DATA:
            key = msgspec.json.decode(change.event.key)["_id"]  # type: ignore[union-attr]
        what, value = change.operation, said.get("n", 0)
        if change.update is not None:
            fields: dict[str, Any] = change.update["updatedFields"]
            what, value = ("delta", fields["at.m"]) if "at.m" in fields else ("strange", 0)
        step = Step(
            source=change.event.source,
            what=what,
            collection=change.collection,
            key=key,
            to=said.get("to", {}).get("coll", ""),
            value=value,
        )
        self.model.commit([step])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_rows_and_then_the_later_changes_are_the_fold_of_the_log_under_writers(
    tmp_path: Path, seed: int
) -> None:
    """P19: whoever lost its place rebuilds exactly, while others go on writing."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    model = Model()
    stop = asyncio.Event()
    async with serving(tmp_path, batch_bytes_max=200) as served:
        for source in SOURCES:
            await served.log.append(copied_whole(source))
        for _ in range(40):
            await served.log.append([random_commit(model, rng)])

        async def write() -> None:
            while not stop.is_set():
                await served.log.append([random_commit(model, rng)])
                await asyncio.sleep(0)

        await served.caught_up()
        writing = asyncio.create_task(write())
        fold = Fold()
        async with snapshot(served.grpc) as rows:
            async for row in rows:
                fold.row(row)
                # The writer goes on between two rows.
                await asyncio.sleep(0.001)
        head_after_rows = (await served.log.bounds()).head
        stop.set()
        await writing
        head = (await served.log.bounds()).head
        async with follow(served.grpc, after=rows.progress, control_events=True) as changes:
            first = await anext(changes)
            fold.change(first)
            last = first
            while last.sequence < head:
                last = await anext(changes)
                fold.change(last)
        assert first.sequence < head_after_rows, "nobody wrote while the rows were read"
        assert fold.rows == model.copy()


@pytest.mark.slow
async def test_every_protocol_gives_the_same_rows_and_marker(tmp_path: Path) -> None:
    model, rng = Model(), random.Random(1)
    async with serving(tmp_path) as served:
        for source in SOURCES:
            await served.log.append(copied_whole(source))
        for _ in range(100):
            await served.log.append([random_commit(model, rng)])
        await served.caught_up()

        async with snapshot(served.grpc, collections=["shop/a", "b"]) as rows:
            over_grpc = {row.message async for row in rows}

        def read_sync() -> tuple[set[bytes], str]:
            with snapshot_sync(served.grpc, collections=["shop/a", "b"]) as rows:
                return {row.message for row in rows}, rows.progress

        assert await asyncio.to_thread(read_sync) == (over_grpc, rows.progress)

        def read_flight() -> tuple[list[dict[str, Any]], str]:
            found: list[dict[str, Any]] = []
            with LogClient(served.flight) as client:
                batches = client.rows(RowsRequest(collections=("shop/a", "b"), batch_bytes=500))
                while True:
                    try:
                        batch = next(batches)
                    except StopIteration as end:
                        return found, str(end.value)
                    assert batch.schema == ARROW_SCHEMA
                    found += batch.to_pylist()

        table, marker = await asyncio.to_thread(read_flight)
        assert marker == rows.progress
        told = [msgspec.json.decode(row_json(row)) async for row in _rows(served)]
        seen = sorted((row["source"], row["sequence"], row["key"]) for row in table)
        assert seen == sorted(
            (
                row["source"],
                row["sequence"],
                msgspec.json.encode(row["key"]).decode().replace(":", ": "),
            )
            for row in told
        )
        assert len(table) == len(over_grpc) > 20
        assert {row["commit"] for row in table} == {None}
        assert all(row["snapshot"] and row["operation_type"] == "insert" for row in table)
        assert {(row["source"], row["collection"]) for row in table} == {
            ("shop", "a"),
            ("shop", "b"),
            ("crm", "b"),
        }


@pytest.mark.slow
async def test_shards_share_the_rows_between_them(tmp_path: Path) -> None:
    """Each row in exactly one, as its later changes are; what is not known goes to all."""
    model, rng = Model(), random.Random(4)
    async with serving(tmp_path) as served:
        for source in SOURCES:
            await served.log.append(copied_whole(source))
        await served.log.append([random_commit(model, rng) for _ in range(100)])
        await served.caught_up()
        for by in ("documentId", "n"):
            seen: list[tuple[str, str, bytes]] = []
            unknown = 0
            for number in range(3):
                shards = Shards(by=(by,), count=3, ids=frozenset({number}))
                async with snapshot(served.grpc, shards=shards) as rows:
                    async for row in rows:
                        if row.document is None:
                            unknown += number == 0
                            if by == "n" and number:
                                continue
                        key = bytes(row.event.key)  # type: ignore[union-attr]
                        seen.append((row.event.source, row.collection, key))
            assert len(seen) == len(set(seen)) == sum(map(len, model.copy().values()))
            assert unknown


async def _rows(served: Served) -> AsyncGenerator[Any]:
    criteria = Criteria(collections=frozenset({"shop/a", "b"}))
    async for batch in row_batches(served.keeper, criteria, bytes_max=1000):
        for row in batch.rows:
            yield row


@pytest.mark.slow
async def test_rows_that_may_be_missing_are_an_error_with_the_way_out_never_a_smaller_answer(
    tmp_path: Path,
) -> None:
    """P19, P20: after a gap nothing of the source is called complete until it was copied again."""
    model, rng = Model(), random.Random(2)
    async with serving(tmp_path) as served:
        await served.log.append(copied_whole("shop"))
        for _ in range(20):
            await served.log.append([random_commit(model, rng)])
        await served.caught_up()
        with pytest.raises(StateIncompleteError, match="penstock snapshot crm"):
            await _taken(served, [])
        await _taken(served, ["shop/a"])
        gap = system("shop", "gap", **{"from": "1", "to": "2", "reason": "lost"})
        await served.log.append([Commit(source="shop", position="x", events=(gap,))])
        await served.caught_up()
        for refused in (["shop/a"], ["shop/never_heard_of"]):
            with pytest.raises(StateIncompleteError, match="penstock snapshot shop"):
                await _taken(served, refused)
        with pytest.raises(PenstockError) as error, LogClient(served.flight) as client:
            await asyncio.to_thread(list, client.rows(RowsRequest(source="shop")))
        assert type(error.value) is StateIncompleteError


async def _taken(served: Served, collections: list[str]) -> list[Change]:
    async with snapshot(served.grpc, collections=collections) as rows:
        return [row async for row in rows]


class Waiting:
    """A state whose writer is busy until it is let go."""

    def __init__(self, keeper: StateKeeper) -> None:
        self.keeper = keeper
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.closers: list[int] = []

    def open(self, criteria: Criteria) -> Reading:
        self.begun.release()
        self.go.wait()
        reading = self.keeper.open(criteria)
        close = reading.close

        def closed() -> None:
            self.closers.append(threading.get_ident())
            close()

        reading.close = closed  # type: ignore[method-assign]
        return reading

    def declared(self, source: str, *, at: int) -> list[Declared] | None:
        return self.keeper.declared(source, at=at)


@pytest.mark.slow
async def test_readings_that_wait_to_begin_keep_nobody_from_reading_the_log(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        for source in SOURCES:
            await served.log.append(copied_whole(source))
        await served.caught_up()
        bounds = await served.log.bounds()
        state = Waiting(served.keeper)
        flight = FlightServer(served.log, current=state)
        flight.start()

        def rows() -> list[Any]:
            with LogClient(flight.address) as client:
                return list(client.rows(RowsRequest(source="shop")))

        def entries() -> int:
            read = ReadRequest(log_id=bounds.log_id, after=0, until=bounds.head)
            with LogClient(flight.address) as client:
                return sum(batch.num_rows for batch in client.read(read))

        waiting = [asyncio.create_task(asyncio.to_thread(rows)) for _ in range(3)]
        try:
            async with patience():  # else a failure would hang
                for _ in waiting:
                    await asyncio.to_thread(state.begun.acquire)
                assert await asyncio.to_thread(entries) == bounds.head
        finally:
            state.go.set()
            await asyncio.gather(*waiting)
            await asyncio.to_thread(flight.stop)
        assert len(state.closers) == 3


@pytest.mark.slow
async def test_a_reading_is_never_closed_on_the_loop_where_it_would_wait_for_the_writer(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        for source in SOURCES:
            await served.log.append(copied_whole(source))
        await served.caught_up()
        state = Waiting(served.keeper)
        state.go.set()
        async for _ in row_batches(state, Criteria(), bytes_max=1000):
            pass
    assert len(state.closers) == 1
    assert threading.get_ident() not in state.closers


async def test_without_a_state_the_rows_are_refused_with_the_setting_that_keeps_them() -> None:
    config = ServeConfig.model_validate({"grpc": "127.0.0.1:0"})
    async with await serve_grpc(MemoryLog(), config) as server, snapshot(server.address) as rows:
        with pytest.raises(RequestError, match=r"enabled = true under \[state\]"):
            await anext(rows)


@pytest.mark.slow
async def test_there_is_no_marker_before_the_last_row(tmp_path: Path) -> None:
    model, rng = Model(), random.Random(3)
    async with serving(tmp_path, batch_bytes_max=1) as served:
        for source in SOURCES:
            await served.log.append(copied_whole(source))
        await served.log.append([random_commit(model, rng) for _ in range(50)])
        await served.caught_up()
        async with snapshot(served.grpc) as rows:
            await anext(rows)
            with pytest.raises(RequestError, match="not read to their end"):
                _ = rows.progress


@pytest.mark.slow
async def test_rows_that_were_given_up_or_failed_never_end_like_whole_ones(tmp_path: Path) -> None:
    """Whoever asks again is told so, each time, though it never looks at the marker."""
    model, rng = Model(), random.Random(5)
    async with serving(tmp_path, batch_bytes_max=1) as served:
        for source in SOURCES:
            await served.log.append(copied_whole(source))
        await served.log.append([random_commit(model, rng) for _ in range(50)])
        await served.caught_up()
        async with snapshot(served.grpc) as given_up:
            await anext(given_up)
            asking = asyncio.create_task(anext(given_up))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait({asking})
            assert asking.cancelled()
            await _never_ends(given_up)
        async with snapshot(served.grpc) as closed:
            await anext(closed)
        await _never_ends(closed)
        whole = snapshot(served.grpc)
        assert [row async for row in whole]
        assert not [row async for row in whole]

    failed, failed_sync = snapshot(served.grpc), snapshot_sync(served.grpc)
    with pytest.raises(ServiceUnavailableError):
        await anext(failed)
    await _never_ends(failed)
    with pytest.raises(ServiceUnavailableError):
        await asyncio.to_thread(list, failed_sync)
    for _ in range(2):
        with pytest.raises(ServiceUnavailableError, match="begin anew"):
            await asyncio.to_thread(list, failed_sync)


async def _never_ends(rows: SnapshotRows) -> None:
    for _ in range(2):
        with pytest.raises(ServiceUnavailableError, match="begin anew"):
            _ = [row async for row in rows]
