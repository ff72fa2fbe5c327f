"""Documents as they were: the fold of all changes up to a place, or an honest refusal."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from msgspec import Raw, structs

from penstock.capture.tenant import of_two_tenants
from penstock.errors import AheadError, GapError, HistoryUnknownError, TrimmedError
from penstock.event import AnyEvent, ChangeEvent, Commit, Operation
from penstock.log.memory import MemoryLog
from penstock.ports import LogReader
from penstock.progress import Progress
from penstock.serve.captures.service import CaptureService
from penstock.state.keeper import StateKeeper
from penstock.subscribe.captures.asof import as_of
from penstock.subscribe.captures.past import Address, Known, Past, PastOf
from penstock.subscribe.current import CurrentRow
from penstock.subscribe.scope import EVERYTHING, Grant, Scope, Verb
from penstock.testing.contracts.capturing import changed, committed, opened_log, reshaped, told
from tests.captures.sockets import captured_by, configured, get
from tests.captures.support import Reader
from tests.flight.blocks import BlockLog, insert
from tests.serve.test_snapshot import STATE, random_commit
from tests.state.histories import KEYS, SOURCES, Model, copied_whole
from tests.waiting import until

NOW = 1_900_000_000_000


async def place(log: LogReader, sequence: int) -> Progress:
    check = await log.check_at(sequence) if sequence else 0
    assert check is not None
    return Progress((await log.bounds()).log_id, sequence, check)


async def was(
    log: LogReader, sequence: int, key: Any = 1, *, rows: Any = None, **more: Any
) -> dict[str, Any] | None:
    """The document `key` of shop.db.orders at a sequence."""
    past = await told_of(log, sequence, key, rows=rows, **more)
    return None if past.document is None else json.loads(past.document)


async def told_of(
    log: LogReader,
    sequence: int,
    key: Any = 1,
    *,
    rows: Any = None,
    collection: str = "orders",
    source: str = "shop",
    bytes_max: int = 1 << 30,
    scope: Scope = EVERYTHING,
) -> Past:
    address = Address(source, "db", collection, key)
    past = PastOf(log, address, rows=rows, bytes_max=bytes_max, scope=scope)
    return await past.at(await place(log, sequence))


async def caught_up(keeper: StateKeeper, log: MemoryLog) -> None:
    head = (await log.bounds()).head
    await until(lambda: keeper.applied.sequence >= head)


async def filled(*events: AnyEvent) -> MemoryLog:
    log = MemoryLog()
    for one in events:
        await log.append([Commit(source=one.source, position=one.position, events=(one,))])
    return log


def updated(at: int, description: dict[str, Any], **more: Any) -> AnyEvent:
    update = json.dumps(description).encode()
    return changed(at, key=1, operation=Operation.UPDATE, update=update, **more)


async def test_a_document_is_what_its_last_change_made_it() -> None:
    log = await filled(
        changed(1, key=1),
        changed(2, key=2),
        updated(3, {"updatedFields": {"a.b": 5, "c": 1}}),
        updated(4, {"updatedFields": {"c": 2.0}, "removedFields": ["at"]}, document={"_id": 0}),
        changed(5, key=1, operation=Operation.DELETE),
        changed(6, key=1),
    )
    with pytest.raises(HistoryUnknownError):
        await was(log, 3)  # a.b leads nowhere: the update can mean more than one thing
    log = await filled(
        changed(1, key=1),
        changed(2, key=2),
        updated(3, {"updatedFields": {"a": {"b": 5}, "c": 1}}),
        updated(4, {"updatedFields": {"a.b": 2.0}, "removedFields": ["at"]}),
        changed(5, key=1, operation=Operation.DELETE),
        changed(6, key=1),
    )
    expected = [
        {"_id": 1, "at": 1},
        {"_id": 1, "at": 1},
        {"_id": 1, "at": 1, "a": {"b": 5}, "c": 1},
        {"_id": 1, "a": {"b": 2.0}, "c": 1},
        None,
        {"_id": 1, "at": 6},
    ]
    assert [await was(log, sequence) for sequence in range(1, 7)] == expected
    assert await was(log, 6, {"_id": 1}) == expected[-1]
    assert [(await told_of(log, at)).changed for at in range(1, 7)] == [1, 1, 3, 4, 5, 6]


async def test_a_field_whose_own_name_has_a_dot_is_none_of_an_object() -> None:
    told = updated(2, {"updatedFields": {"a.b": 5}})
    assert isinstance(told, ChangeEvent)
    log = await filled(
        changed(1, key=1, document={"_id": 1, "a": {}}),
        structs.replace(told, disambiguated_paths=Raw(b'{"a.b":["a.b"]}')),
    )
    assert await was(log, 2) == {"_id": 1, "a": {}, "a.b": 5}


async def test_a_document_that_was_looked_up_later_is_not_taken_for_what_it_was() -> None:
    later = changed(
        2, key=1, operation=Operation.UPDATE, document={"_id": 1, "at": "of a later change"}
    )
    log = await filled(changed(1, key=1), later)
    with pytest.raises(HistoryUnknownError):
        await was(log, 2)


async def test_what_removes_a_collection_removes_its_documents() -> None:
    for event in (
        reshaped(2, "drop", to=""),
        reshaped(2, "rename", to="old"),
        reshaped(2, "dropDatabase", collection="", to=""),
        reshaped(2, "truncate", to=""),
    ):
        log = await filled(changed(1, key=1), event, changed(3, key=2))
        assert await was(log, 1) == {"_id": 1, "at": 1}
        assert await was(log, 3) is None
    log = await filled(changed(1, key=1), reshaped(2, "rename", to="old"))
    with pytest.raises(HistoryUnknownError, match="another name"):
        await told_of(log, 2, collection="old")


async def test_behind_a_gap_nothing_is_guessed() -> None:
    log = await filled(changed(1, key=1), told(2, "gap"), changed(3, key=2))
    assert await was(log, 1) == {"_id": 1, "at": 1}
    assert await was(log, 3, 2) == {"_id": 2, "at": 3}
    with pytest.raises(GapError):
        await was(log, 3)


async def test_before_the_first_change_its_kind_and_its_image_tell() -> None:
    log = await filled(
        changed(1, key=9),
        changed(2, key=1),
        changed(3, key=2, operation=Operation.DELETE, before={"_id": 2, "was": "here"}),
        changed(4, key=3, operation=Operation.DELETE),
    )
    assert await was(log, 1) is None
    assert await was(log, 1, 2) == {"_id": 2, "was": "here"}
    for key in (3, 4):
        with pytest.raises(HistoryUnknownError):
            await was(log, 1, key)


async def test_what_may_not_be_seen_is_as_if_it_were_not_there() -> None:
    log = await filled(changed(1, key=1), reshaped(2, "drop", to=""), changed(3, key=1))
    other = Scope((Grant(sources=frozenset({"erp"})),))
    said: set[str] = set()
    for key, sequence in ((1, 1), (1, 2), (1, 3), ("nobody's", 3)):
        with pytest.raises(HistoryUnknownError) as raised:
            await was(log, sequence, key, scope=other)
        said.add(str(raised.value))
    assert len(said) == 1
    reader = Scope((Grant(verbs=frozenset({Verb.READ})),))
    assert await was(log, 2, scope=reader) is None
    assert await was(log, 3, scope=reader) == {"_id": 1, "at": 3}


async def test_a_document_of_another_tenant_meanwhile_is_not_there_for_the_one_before() -> None:
    came = structs.replace(changed(1, key=1), tenant="a")
    left = changed(2, key=1, operation=Operation.UPDATE, document={"_id": 1, "at": 2})
    halves = of_two_tenants(structs.replace(left, tenant="b"), left="a", new_id="another")
    log = await filled(came, *halves)
    a, b = (Scope((Grant(tenants=frozenset({name})),)) for name in "ab")
    assert await was(log, 1, scope=a) == {"_id": 1, "at": 1}
    assert await was(log, 3, scope=a) is None
    assert await was(log, 3, scope=b) == {"_id": 1, "at": 2}
    assert await was(log, 3) == {"_id": 1, "at": 2}


async def test_no_more_of_the_log_is_read_than_may_be() -> None:
    text = {"_id": 2, "text": "x" * 200_000}
    log = await filled(changed(1, key=1), *(changed(n, key=2, document=text) for n in range(2, 40)))
    with pytest.raises(HistoryUnknownError, match="scan_bytes_max"):
        await was(log, 39, bytes_max=1 << 20)
    assert await was(log, 39) == {"_id": 1, "at": 1}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_at_every_place_it_is_the_fold_of_the_log_or_it_is_refused(
    seed: int, tmp_path: Path
) -> None:
    """Also where history was trimmed: what the current rows still prove is told, nothing else."""
    draw = random.Random(seed)
    log, model = MemoryLog(), Model()
    for source in SOURCES:
        await log.append(copied_whole(source))
    folds: dict[int, Any] = {}
    for _ in range(60):
        one = random_commit(model, draw)
        await log.append([one])
        folds[(await log.bounds()).head] = model.copy()
    with StateKeeper(log, tmp_path, STATE) as keeper:
        await caught_up(keeper, log)
        trimmed = draw.choice(sorted(folds)[:40])
        if seed % 2:
            await log.trim(trimmed)
        answered = refused = 0
        for sequence, fold in folds.items():
            if sequence < (await log.bounds()).trimmed:
                continue
            for source in SOURCES:
                for key in (*KEYS[:2], 5):
                    there = fold.get((source, "orders"), {})
                    name = json.dumps({"_id": key})
                    try:
                        found = await was(log, sequence, key, rows=keeper, source=source)
                    except HistoryUnknownError:
                        refused += 1
                        continue
                    answered += 1
                    assert (found is None) == (name not in there), (sequence, source, key)
                    if there.get(name) is not None:
                        assert found == there[name], (sequence, source, key)
        assert answered > refused / 2


@pytest.mark.slow
async def test_the_current_row_tells_of_the_places_since_its_change_and_of_no_other(
    tmp_path: Path,
) -> None:
    """Also where its change is not kept; but only where every row of its collection is known."""
    for whole in (True, False):
        log = MemoryLog()
        if whole:
            await log.append(copied_whole("shop"))
        places: list[int] = []
        for at, key in ((1, 1), (2, 1), (3, 2), (4, 2), (5, 1)):
            event = structs.replace(changed(at, key=key), full_document_as_of_event=True)
            await log.append([committed(event)])
            places.append((await log.bounds()).head)
        with StateKeeper(log, tmp_path / str(whole), STATE) as keeper:
            await caught_up(keeper, log)
            await log.trim(places[3])
            # Its last change is not kept: only the row has what it was.
            if whole:
                assert await was(log, places[4], 2, rows=keeper) == {"_id": 2, "at": 4}
                assert await was(log, places[3], "none", rows=keeper) is None
            else:
                with pytest.raises(HistoryUnknownError):
                    await was(log, places[4], 2, rows=keeper)
            # The row is of the last place, and was something else before.
            assert await was(log, places[4], 1, rows=keeper) == {"_id": 1, "at": 5}
            past = told_of(log, places[3], 1, rows=keeper)
            assert (await past).document is None  # the insert that follows says so


@pytest.mark.slow
async def test_a_row_that_may_be_written_otherwise_is_not_said_to_be_absent(
    tmp_path: Path,
) -> None:
    log = MemoryLog()
    await log.append(copied_whole("shop"))
    await log.append([committed(changed(1, key=1))])
    with StateKeeper(log, tmp_path, STATE) as keeper:
        await caught_up(keeper, log)
        head = (await log.bounds()).head
        assert await was(log, head, {"a": "x", "b": 1}, rows=keeper) is None
        for key in ({"a": "x", "b": "y", "c": 1}, dict.fromkeys("abcdefgh", "x"), {"a": [1]}):
            with pytest.raises(HistoryUnknownError):
                await was(log, head, key, rows=keeper)


async def test_as_of_is_a_version_a_time_or_a_marker() -> None:
    log = MemoryLog()
    await log.append([committed(changed(1, key=1), changed(1, key=2, ordinal=1))])
    await log.append([committed(changed(2, key=1, source="erp"))])
    for position in (3, 4):
        await log.append([committed(changed(position, key=1))])

    async def at(given: str | None, source: str = "shop") -> tuple[int, bool]:
        found = await as_of(log, given, source=source, now_ms=NOW, bytes_max=1 << 20)
        return found.place.sequence, found.settled

    assert await at(None) == (5, True)
    assert await at("1") == (2, True)
    assert await at("2") == (3, True)
    assert await at("4") == (5, True)
    assert await at(str(await place(log, 3))) == (3, True)
    assert await at("2023-11-14T22:13:21Z") == (3, True)
    assert await at("2023-11-14T22:13:23+00:00") == (4, True)
    # Nobody knows yet whether that is all: the source may be behind.
    assert await at("2023-11-14T22:13:24Z") == (5, False)
    assert await at("2023-11-14T22:13:21Z", "erp") == (2, True)
    for given in ("5", "9", "2099-01-01T00:00:00Z"):
        with pytest.raises(AheadError):
            await at(given)


async def test_a_time_before_what_is_kept_of_its_transaction_is_trimmed() -> None:
    """E1: never a place that nobody has any more."""
    log = BlockLog()
    times = (1_000, 1_000, 9_000)
    log.append([[structs.replace(insert(at), timestamp=time) for at, time in enumerate(times)]])
    oldest = str(log.marker(1))
    log.trim(1)
    moment = "1970-01-01T00:00:05Z"
    with pytest.raises(TrimmedError) as raised:
        await as_of(Reader(log), moment, source="shop", now_ms=NOW, bytes_max=1 << 20)
    assert raised.value.oldest == oldest


class Later:
    """Current rows that have what a change behind the place made of a document."""

    def look(
        self, name: tuple[str, str, str], spellings: Sequence[bytes], *, at: int | None = None
    ) -> Known | None:
        del name, spellings, at
        later = structs.asdict(changed(7, key=1))
        kind: Any = CurrentRow
        row = kind(**{**later, "full_document_as_of_event": True, "sequence": 7})
        return Known(row=row, sequence=20)


async def test_a_row_of_a_later_change_does_not_say_what_was_before_it() -> None:
    """Also where retention overtakes the place while it is looked at."""
    log = BlockLog()
    log.append([[insert(at)] for at in range(1, 21)])
    was = log.marker(3)
    log.trim(10)
    past = PastOf(Reader(log), Address("shop", "db", "orders", 1), rows=Later(), bytes_max=1 << 20)
    with pytest.raises(TrimmedError):
        await past.at(was)


async def test_a_document_is_got_by_its_path() -> None:
    async with opened_log() as log:
        config = configured()
        service = CaptureService(log, lambda: config)
        for at in range(1, 20):
            await log.append([committed(changed(at, key=at % 3))])
        await log.append([committed(changed(20, key="a/5 %"))])
        await log.append([committed(changed(21, key=1, operation=Operation.DELETE))])
        async with captured_by(service) as address:
            path = "/rest/shop.db/entities/orders"
            async with get(address, f"{path}/1?asOf=8") as answer:
                said = await answer.body()
                assert answer.status == 200
                assert said["fullDocument"] == {"_id": 1, "at": 7}
                assert said["entityPrimaryKey"] == {"_id": 1}
                assert (said["version"], said["changedIn"], said["settled"]) == (8, 7, True)
            text = quote('{"_id":"a/5 %"}', safe="")
            for key in (quote("a/5 %", safe=""), text):
                async with get(address, f"{path}/{key}") as answer:
                    assert (await answer.body())["fullDocument"]["_id"] == "a/5 %"
            await log.trim(4)
            for given, status, code in (
                ("1", 404, "history.absent"),
                ("1?asOf=3", 410, "TRIMMED"),
                ("99", 410, "history.unknown"),
                ("1?asOf=22", 409, "AHEAD"),
                ("1?asOf=2023-11-14T22:13:21", 400, "request"),
                ("1?as_of=3", 400, "request"),
            ):
                async with get(address, f"{path}/{given}") as answer:
                    error = (await answer.body())["error"]
                    assert (answer.status, error["code"]) == (status, code), given
            async with get(address, "/rest/shop/entities/orders/1") as answer:
                assert answer.status == 400
