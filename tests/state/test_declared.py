"""What sources declare of columns is kept with the rows, for who comes when the log has lost it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.event import AnyEvent, Commit
from penstock.log.memory import MemoryLog
from penstock.state import keeper as keeper_module
from penstock.state.layout import CollectionFacts, Name
from penstock.subscribe.current import Declared
from tests.state.histories import change, schema, system
from tests.state.test_facts import known
from tests.state.test_keeper import all_steps, keeping

JSON = {"j": "json"}
TOLD = schema("shop", "modify", "a", {"columns": [], "varying": JSON})
MOVED = schema("shop", "rename", "b", {"to": {"db": "db", "coll": "a"}})


def row(collection: str = "a") -> AnyEvent:
    return change("shop", collection, 1, document={"_id": 1})


def lost(collection: str) -> AnyEvent:
    gap = system("shop", "gap", reason="lost", **{"from": "1", "to": "2"})
    return msgspec.structs.replace(gap, collection=collection)


@pytest.mark.parametrize(
    ("events", "declared"),
    [
        pytest.param([row()], {}, id="nothing"),
        pytest.param([TOLD], JSON, id="before its first row"),
        pytest.param([row(), TOLD, row()], JSON, id="between rows"),
        pytest.param([schema("shop", "create", "a", {"varying": JSON})], JSON, id="created"),
        pytest.param(
            [msgspec.structs.replace(system("shop", "columns", varying=JSON), collection="a")],
            JSON,
            id="with a copy",
        ),
        pytest.param(
            [TOLD, schema("shop", "modify", "a", {"statement": "ALTER"})], JSON, id="altered"
        ),
        pytest.param(
            [TOLD, schema("shop", "modify", "a", {"columns": []})], {}, id="none varies any more"
        ),
        pytest.param([TOLD, schema("shop", "drop", "a")], {}, id="dropped"),
        pytest.param(
            [TOLD, schema("shop", "drop", "a", {"truncated": "true"})], JSON, id="emptied"
        ),
        pytest.param(
            [row("b"), msgspec.structs.replace(TOLD, collection="b"), MOVED], JSON, id="renamed"
        ),
        pytest.param([TOLD, row("b"), MOVED], {}, id="another took its name"),
        pytest.param([TOLD, lost("")], {}, id="changes were lost"),
        pytest.param([TOLD, lost("a")], {}, id="changes of it were lost"),
        pytest.param([TOLD, lost("b")], JSON, id="changes of another were lost"),
    ],
)
def test_what_is_declared_of_a_collection(events: list[AnyEvent], declared: dict[str, str]) -> None:
    facts = known(*events).collections.get(Name("shop", "db", "a"))
    assert (facts.varying if facts is not None else {}) == declared


def test_what_an_older_penstock_wrote_declares_nothing() -> None:
    written = b'{"number": 1, "since": 3, "complete": true}'
    assert msgspec.json.decode(written, type=CollectionFacts).varying == {}


async def log_of(*commits: list[Any]) -> MemoryLog:
    log = MemoryLog()
    for number, events in enumerate(commits, 1):
        await log.append([Commit(source="shop", position=f"{number}", events=tuple(events))])
    return log


async def test_a_declaration_outlives_the_log_and_the_keeper(tmp_path: Path) -> None:
    log = await log_of([TOLD], [row()], [TOLD], [row()])
    with keeping(log, tmp_path) as keeper:
        all_steps(keeper)
    await log.trim(3)
    with keeping(log, tmp_path) as keeper:
        told = Declared(database="db", collection="a", varying=JSON, sequence=1)
        assert keeper.declared("shop", at=4) == [told]
        assert keeper.declared("shop", at=1) == [told], "said again, it is none since then alone"
        assert keeper.declared("shop", at=0) == [], "it came behind that"
        assert keeper.declared("another", at=4) == []
    await log.close()


async def test_while_the_rows_are_on_their_way_nobody_is_told_that_nothing_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "_OPEN_SECONDS", 0.0)
    log = await log_of([TOLD])
    with keeping(log, tmp_path) as keeper:
        assert keeper.declared("shop", at=1) is None
        all_steps(keeper)
        assert len(keeper.declared("shop", at=1) or ()) == 1
        assert keeper.declared("shop", at=2) == [], "nobody waits for what the log has not"
    await log.close()


async def test_a_type_that_is_no_name_declares_nothing(tmp_path: Path) -> None:
    """Of a source of others; what is written can be read again."""
    odd = schema("shop", "modify", "a", {"columns": [], "varying": {"j": "json", "k": {"a": 1}}})
    log = await log_of([odd, row()])
    for _ in range(2):
        with keeping(log, tmp_path) as keeper:
            all_steps(keeper)
            told = keeper.declared("shop", at=2)
            assert told is not None
            assert [one.varying for one in told] == [JSON]
    await log.close()
