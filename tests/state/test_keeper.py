"""The state holds what the log adds up to, exactly once, and a reading is of one moment."""

# A log is replaced under the keeper, as a restore does.
# pyright: reportPrivateUsage=false

import json
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import (
    HistoryUnknownError,
    LogLockedError,
    ServiceUnavailableError,
    StateIncompleteError,
)
from penstock.event import Commit, Operation
from penstock.log.memory import MemoryLog
from penstock.state import keeper as keeper_module
from penstock.state.config import StateConfig
from penstock.state.keeper import StateKeeper
from penstock.state.layout import APPLIED_KEY, META
from penstock.state.tables import find_state
from penstock.subscribe import Criteria
from penstock.subscribe.current import Reading
from tests.cleanup import memory_folder
from tests.state.histories import (
    COLLECTIONS,
    KEYS,
    SOURCES,
    Model,
    Rows,
    change,
    commits_of_steps,
    copied_whole,
    schema,
)

EXAMPLES = int(os.environ.get("PENSTOCK_EXAMPLES", "25"))
CONFIG = StateConfig(free_bytes_min=0, interval=0)


@contextmanager
def keeping(log: MemoryLog, folder: Path, **config: Any) -> Generator[StateKeeper]:
    """A keeper without a thread: a test makes each of its steps."""
    keeper = StateKeeper(log, folder, CONFIG.model_copy(update=config))
    try:
        yield keeper
    finally:
        keeper.close()


def all_steps(keeper: StateKeeper) -> None:
    while keeper.step():
        pass


def rows_of(reading: Reading, *, bytes_max: int = 1 << 20) -> Rows:
    """What is left of a reading; each row once."""
    found: Rows = {}
    while rows := reading.read(bytes_max=bytes_max):
        for row in rows:
            assert row.snapshot
            assert row.operation == "insert"
            of_name = found.setdefault((row.source, row.collection), {})
            key = bytes(row.key).decode()
            assert key not in of_name, "a row came twice"
            said = row.full_document
            of_name[key] = None if said is None else json.loads(bytes(said))
    reading.close()
    return found


def current(keeper: StateKeeper, **criteria: Any) -> Rows:
    return rows_of(keeper.open(Criteria(**criteria)))


async def log_of_empty_sources() -> MemoryLog:
    log = MemoryLog()
    for source in SOURCES:
        await log.append(copied_whole(source))
    return log


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(history=commits_of_steps, data=st.data())
async def test_the_state_is_the_fold_of_the_log_and_a_crash_repeats_nothing(
    history: list[list[Any]], data: st.DataObject
) -> None:
    """Invariant 7: drops, renames, deltas and all, killed anywhere in a write or between two."""
    model = Model()
    log = await log_of_empty_sources()
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        for steps in history:
            await log.append([model.commit(steps)])
            if data.draw(st.booleans(), label="crash in a write"):
                with keeping(log, Path(folder)) as keeper, pytest.MonkeyPatch.context() as patch:
                    patch.setattr(keeper_module, "write_applied", _power_cut)
                    with suppress(PowerCutError):
                        all_steps(keeper)
            if data.draw(st.booleans(), label="apply now"):
                with keeping(log, Path(folder)) as keeper:
                    all_steps(keeper)
        with keeping(log, Path(folder)) as keeper:
            all_steps(keeper)
            assert current(keeper) == model.copy()
            for collection in COLLECTIONS:
                asked = f"shop/{collection}"
                rows = model.rows.get(("shop", collection))
                expected = {("shop", collection): rows} if rows else {}
                assert current(keeper, collections=frozenset({asked})) == expected
    await log.close()


class PowerCutError(Exception):
    pass


def _power_cut(*_: object) -> None:
    raise PowerCutError


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(
    before=commits_of_steps,
    during=commits_of_steps,
    chunk=st.sampled_from([1, 200, 1000]),
    data=st.data(),
)
async def test_a_reading_is_of_the_moment_it_began_whatever_is_written_meanwhile(
    before: list[list[Any]], during: list[list[Any]], chunk: int, data: st.DataObject
) -> None:
    """Following from its progress gives exactly the later changes: no row of them is in it."""
    model = Model()
    log = await log_of_empty_sources()
    with (
        tempfile.TemporaryDirectory(dir=memory_folder()) as folder,
        keeping(log, Path(folder)) as keeper,
    ):
        await log.append([model.commit(steps) for steps in before])
        all_steps(keeper)
        expected = model.copy()
        reading = keeper.open(Criteria())
        assert reading.progress.sequence == (await log.bounds()).head
        found: Rows = {}
        for steps in during:
            await log.append([model.commit(steps)])
            all_steps(keeper)
            if data.draw(st.booleans(), label="read"):
                for row in reading.read(bytes_max=chunk):
                    rows = found.setdefault((row.source, row.collection), {})
                    said = row.full_document
                    rows[bytes(row.key).decode()] = (
                        None if said is None else json.loads(bytes(said))
                    )
        for name, rows in rows_of(reading).items():
            assert not set(rows) & set(found.get(name, {})), "a row came twice"
            found.setdefault(name, {}).update(rows)
        assert found == expected
        all_steps(keeper)
        assert current(keeper) == model.copy()
    await log.close()


async def test_what_a_reading_kept_and_what_was_dropped_is_removed_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "_REMOVED_MAX", 3)
    log = await log_of_empty_sources()
    rows = [change("shop", "a", n, document={"_id": n}, position=n) for n in range(10)]
    await log.append([Commit(source="shop", position="1", events=tuple(rows))])
    with keeping(log, tmp_path) as keeper:
        all_steps(keeper)
        reading = keeper.open(Criteria())
        drop = schema("shop", "drop", "a", position=2)
        again = change("shop", "a", 3, document={"_id": 3}, position=2)
        await log.append([Commit(source="shop", position="2", events=(drop, again))])
        all_steps(keeper)
        assert stored(keeper) == (11, 0, 1), "the rows stay while somebody reads them"
        assert len(rows_of(reading)["shop", "a"]) == 10
        all_steps(keeper)
        assert stored(keeper) == (1, 0, 0)
    await log.close()


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
async def test_a_reading_never_ends_as_if_whole_when_the_log_is_replaced_under_it(
    tmp_path: Path, bytes_max: int
) -> None:
    logs = [await log_of_empty_sources() for _ in range(2)]
    rows = [change("shop", "a", n, document={"_id": n}, position=n) for n in range(3)]
    for log in logs:
        await log.append([Commit(source="shop", position="1", events=tuple(rows))])
    with keeping(logs[0], tmp_path) as keeper:
        all_steps(keeper)
        begun, ended = keeper.open(Criteria()), keeper.open(Criteria())
        assert len(begun.read(bytes_max=1)) == 1
        assert len(rows_of(ended)["shop", "a"]) == 3
        keeper._log = logs[1]
        all_steps(keeper)
        with pytest.raises(ServiceUnavailableError, match="Throw away what came"):
            begun.read(bytes_max=bytes_max)
        begun.close()
        assert len(current(keeper)["shop", "a"]) == 3
    for log in logs:
        await log.close()


async def test_what_a_failed_write_left_in_memory_is_never_read_even_if_loading_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "_OPEN_SECONDS", 0.0)
    log = await log_of_empty_sources()
    row = change("shop", "a", 1, document={"_id": 1}, position=1)
    with keeping(log, tmp_path) as keeper:
        all_steps(keeper)
        await log.append([Commit(source="shop", position="1", events=(row,))])
        with monkeypatch.context() as patch:
            patch.setattr(keeper_module, "write_applied", _power_cut)
            patch.setattr(keeper_module, "read_facts", _power_cut)
            with pytest.raises(PowerCutError):
                keeper.step()
            with pytest.raises(ServiceUnavailableError):
                keeper.open(Criteria())
            with pytest.raises(PowerCutError):
                keeper.step()
        all_steps(keeper)
        assert current(keeper) == {("shop", "a"): {'{"_id": 1}': {"_id": 1}}}
        with keeping(log, tmp_path / "anew") as anew:
            all_steps(anew)
            assert keeper.facts.next_number == anew.facts.next_number
    await log.close()


@pytest.mark.slow
async def test_rows_that_lie_in_the_log_already_are_waited_for_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a service would send its user to copy a collection that it is about to know whole."""
    log = await log_of_empty_sources()
    with keeping(log, tmp_path) as keeper:
        with monkeypatch.context() as patch:
            patch.setattr(keeper_module, "_OPEN_SECONDS", 0.0)
            with pytest.raises(ServiceUnavailableError, match="behind the log") as refused:
                keeper.open(Criteria())
        assert refused.value.transient
        keeper.start()
        keeper.open(Criteria()).close()
        with pytest.raises(StateIncompleteError):
            keeper.open(Criteria(sources=frozenset(["unknown"])))
    await log.close()


async def test_two_processes_never_keep_one_state(tmp_path: Path) -> None:
    """The second would apply what the first has applied, to rows of its own memory."""
    log = await log_of_empty_sources()
    served = f"process {os.getpid()} serves this log"
    with keeping(log, tmp_path), pytest.raises(LogLockedError, match=served):
        StateKeeper(log, tmp_path, CONFIG)
    with keeping(log, tmp_path) as keeper:
        all_steps(keeper)
    await log.close()


async def test_a_log_whose_files_were_put_back_by_hand_is_another_log(tmp_path: Path) -> None:
    """P7: it has the same name and, grown again, the same numbers, for other entries."""
    logs = [MemoryLog(), MemoryLog()]
    logs[1]._origin = logs[0]._origin
    for number, log in enumerate(logs):
        await log.append(copied_whole("shop"))
        row = change("shop", "a", number, document={"_id": number}, position=1)
        await log.append([Commit(source="shop", position="1", events=(row,))])
    for number, log in enumerate(logs):
        with keeping(log, tmp_path) as keeper:
            all_steps(keeper)
            assert list(current(keeper)["shop", "a"]) == [f'{{"_id": {number}}}']
        await log.close()


def renamed(old: str, new: str, position: int) -> Commit:
    said = {"to": {"db": "db", "coll": new}}
    event = schema("shop", "rename", old, said, position=position)
    return Commit(source="shop", position=str(position), events=(event,))


def looked(keeper: StateKeeper, collection: str, *, at: int) -> Any:
    """The document that a look for key 1 finds; None where there is none."""
    known = keeper.look(("shop", "db", collection), [b'{"_id": 1}'], at=at)
    assert known is not None
    if known.row is None:
        return None
    return known.row.collection, json.loads(bytes(known.row.full_document or b"null"))


async def test_a_row_is_found_by_the_name_that_its_collection_had(tmp_path: Path) -> None:
    """Also by who opens the state later."""
    log = await log_of_empty_sources()
    row = change("shop", "a", 1, document={"_id": 1, "n": 1}, position=1)
    await log.append([Commit(source="shop", position="1", events=(row,))])
    before = (await log.bounds()).head
    later = change("shop", "a", 1, document={"_id": 1, "n": 2}, position=3)
    commit = Commit(source="shop", position="3", events=(later,))
    await log.append([renamed("a", "b", 2), commit])
    after = (await log.bounds()).head
    for _ in range(2):
        with keeping(log, tmp_path) as keeper:
            all_steps(keeper)
            assert looked(keeper, "a", at=before) == ("b", {"_id": 1, "n": 1})
            assert looked(keeper, "a", at=after) == ("a", {"_id": 1, "n": 2})
            assert looked(keeper, "b", at=before) is None
    await log.close()


async def test_renames_that_the_state_did_not_see_are_not_taken_for_none(tmp_path: Path) -> None:
    """Those that an older Penstock applied, and those that were trimmed before they came."""
    log = await log_of_empty_sources()
    await log.append([renamed("a", "b", 1)])
    head = (await log.bounds()).head
    with keeping(log, tmp_path) as keeper:
        all_steps(keeper)
        older = msgspec.to_builtins(keeper.applied)[:-1]
        with keeper._env.write() as txn:
            txn.put(APPLIED_KEY, msgspec.msgpack.encode(older), db=keeper._env[META])
    row = change("shop", "a", 1, document={"_id": 1}, position=2)
    await log.append([Commit(source="shop", position="2", events=(row,))])
    for _ in range(2):
        with keeping(log, tmp_path) as keeper:
            all_steps(keeper)
            with pytest.raises(HistoryUnknownError):
                looked(keeper, "a", at=head - 1)
            assert looked(keeper, "a", at=head) == ("a", {"_id": 1})
    await log.append([renamed("a", "b", 3), renamed("b", "c", 4)])
    await log.trim((await log.bounds()).head)
    with keeping(log, tmp_path) as keeper:
        all_steps(keeper)
        with pytest.raises(HistoryUnknownError):
            looked(keeper, "a", at=head + 1)
    await log.close()


@pytest.mark.parametrize("key", KEYS, ids=lambda key: str(key)[-12:])
async def test_a_letter_leaves_the_row_that_it_names_unknown_and_no_other(
    key: Any, tmp_path: Path
) -> None:
    log = await log_of_empty_sources()
    rows = [change("shop", name, key, document={"_id": key}, position=1) for name in "ab"]
    letter = {"_id": "l", "database": "db", "collection": "a", "tenant": "db", "key": {"_id": key}}
    said = change("shop", "penstock_dead_letters", "l", document=letter, position=2)
    await log.append([Commit(source="shop", position="2", events=(*rows, said))])
    with keeping(log, tmp_path) as keeper:
        all_steps(keeper)
        found = current(keeper)
    of_key = json.dumps({"_id": key})
    assert found["shop", "a"] == {of_key: None}
    assert found["shop", "b"] == {of_key: {"_id": key}}
    await log.close()


async def test_a_change_that_cannot_be_applied_leaves_its_own_collection_alone_in_doubt(
    tmp_path: Path,
) -> None:
    """Whatever defect it is of: the rows of others go on, and a copy makes them whole."""
    log = await log_of_empty_sources()
    rows = [change("shop", name, 1, document={"_id": 1}, position=1) for name in "ab"]
    changed = change("shop", "a", 1, document=None, position=2)
    broken = msgspec.structs.replace(
        changed, operation=Operation.UPDATE, update_description=msgspec.Raw(b'{"updatedFields":7}')
    )
    later = change("shop", "b", 2, document={"_id": 2}, position=3)
    await log.append([Commit(source="shop", position="3", events=(*rows, broken, later))])
    for _ in range(2):
        with keeping(log, tmp_path) as keeper:
            all_steps(keeper)
            assert current(keeper, collections=frozenset({"shop/b"}))["shop", "b"] == {
                '{"_id": 1}': {"_id": 1},
                '{"_id": 2}': {"_id": 2},
            }
            with pytest.raises(StateIncompleteError, match=r"shop/db\.a"):
                current(keeper, collections=frozenset({"shop/a"}))
    await log.close()


def stored(keeper: StateKeeper) -> tuple[int, int, int]:
    """How many rows, rows kept for readings and dropped collections there are."""
    with find_state(keeper.path) as env, env.read() as txn:  # type: ignore[union-attr]
        return tuple(txn.stat(env[name])["entries"] for name in (b"rows", b"before", b"dropped"))  # type: ignore[return-value]
