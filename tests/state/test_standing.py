"""How far the current rows are behind the log, and whether they are all of a source's rows."""

from pathlib import Path
from typing import Any

import pytest

from penstock.event import Commit
from penstock.log.memory import MemoryLog
from penstock.state import standing as module
from penstock.state.config import StateConfig
from penstock.state.keeper import StateKeeper
from penstock.state.standing import Standing, standing
from penstock.subscribe import Criteria
from tests.state.histories import change, copied_whole


def row(source: str, n: int) -> Commit:
    events = (change(source, "a", n, document={"_id": n}, position=n),)
    return Commit(source=source, position=str(n), events=events)


async def kept_up(log: MemoryLog, folder: Path) -> None:
    """Let the rows come to the log's end, and their keeper go."""
    keeper = StateKeeper(log, folder, StateConfig(free_bytes_min=0, interval=0))
    try:
        while keeper.step():
            pass
    finally:
        keeper.close()


async def found(log: MemoryLog, folder: Path, **options: Any) -> Standing:
    stands = await standing(log, folder, **{"now_ms": 1 << 45, **options})
    assert stands is not None
    return stands


def rows(stands: Standing) -> dict[str, tuple[str, int | None]]:
    return {name: (one.rows, one.lag_events) for name, one in stands.sources.items()}


async def test_rows_are_current_behind_or_incomplete_each_source_by_itself(tmp_path: Path) -> None:
    """P19: what is missing is said, and of whom; the lag is in entries and since when."""
    log = MemoryLog()
    assert await standing(log, tmp_path, now_ms=0) is None
    for source in ("shop", "crm"):
        await log.append(copied_whole(source))
    await log.append([row("late", 1)])
    await kept_up(log, tmp_path)
    head = (await log.bounds()).head
    stands = await found(log, tmp_path)
    assert (stands.sequence, stands.lag_events, stands.lag_seconds) == (head, 0, 0.0)
    assert rows(stands) == {
        "shop": ("current", 0),
        "crm": ("current", 0),
        "late": ("incomplete", 0),
    }
    assert "penstock snapshot late" in stands.sources["late"].message
    await log.append([row("shop", 1), row("shop", 2), row("late", 2)])
    (block, *_) = await log.read(after=head)
    stands = await found(log, tmp_path, now_ms=block.ingested_at + 1500)
    assert (stands.sequence, stands.lag_events, stands.lag_seconds) == (head, 3, 1.5)
    assert rows(stands) == {"shop": ("behind", 2), "crm": ("current", 0), "late": ("incomplete", 1)}
    await log.close()


async def test_rows_that_are_being_copied_say_so_until_the_copy_is_complete(tmp_path: Path) -> None:
    log = MemoryLog()
    for commit, word in zip(copied_whole("shop"), ("copying", "current"), strict=True):
        await log.append([commit])
        await kept_up(log, tmp_path)
        assert rows(await found(log, tmp_path)) == {"shop": (word, 0)}
    await log.close()


async def test_what_is_too_much_to_count_is_not_called_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status is quick, however far behind the rows are."""
    log = MemoryLog()
    await log.append(copied_whole("shop"))
    await kept_up(log, tmp_path)
    monkeypatch.setattr(module, "COUNTED_BYTES_MAX", 0)
    reads: list[int] = []
    read = log.read

    async def counted(**options: Any) -> Any:
        reads.append(options["after"])
        return await read(bytes_max=1, **options)

    monkeypatch.setattr(log, "read", counted)
    for n in range(50):
        await log.append([row("shop", n)])
    assert rows(await found(log, tmp_path)) == {"shop": ("behind", None)}
    assert len(reads) == 2
    await log.close()


async def test_rows_of_another_log_count_for_nothing(tmp_path: Path) -> None:
    old = MemoryLog()
    await old.append(copied_whole("shop"))
    await kept_up(old, tmp_path)
    log = MemoryLog()
    await log.append([row("shop", 1), row("shop", 2), row("shop", 3)])
    await log.trim(1)
    stands = await found(log, tmp_path)
    assert (stands.sequence, stands.lag_events) == (0, 3)
    assert stands.sources["shop"].lag_events == 2
    await old.close()
    await log.close()


async def test_a_source_that_is_called_current_can_be_read_and_no_other(tmp_path: Path) -> None:
    """The word and the answer to Snapshot never differ."""
    log = MemoryLog()
    await log.append([*copied_whole("shop"), row("late", 1)])
    keeper = StateKeeper(log, tmp_path, StateConfig(free_bytes_min=0, interval=0))
    while keeper.step():
        pass
    for name, one in (await found(log, tmp_path)).sources.items():
        criteria = Criteria(sources=frozenset([name]))
        if one.rows == "current":
            keeper.open(criteria).close()
        else:
            with pytest.raises(Exception, match="penstock snapshot late"):
                keeper.open(criteria)
    keeper.close()
    await log.close()
