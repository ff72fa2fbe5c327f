"""Where a trigger stands: no place goes back, whatever is written at once."""

import asyncio
import os
from pathlib import Path

import pytest

from penstock.trigger.batches import Piece
from penstock.trigger.checkpoints import Checkpoints, locked
from penstock.trigger.destinations import to_file
from penstock.trigger.environment import Outcome
from penstock.trigger.letters import write_letter
from penstock.trigger.lineage import Place

LETTER = write_letter(
    Piece(()),
    b"{}",
    condition="RetryAttemptsExhausted",
    outcome=Outcome(),
    shard="shard",
    stream="stream",
    arn="arn",
)


def at(number: int) -> Place:
    return Place("AFTER_SEQUENCE_NUMBER", str(number))


async def test_a_plan_that_waits_takes_no_shard_back_that_moves_meanwhile(tmp_path: Path) -> None:
    """Else what was handled comes again after a clean stop, and a shard that was done is reread."""
    checkpoints = Checkpoints(tmp_path)
    await checkpoints.put_all("arn", {"a": at(1), "b": at(1)})
    plan = {**checkpoints.places, "c": Place("TRIM_HORIZON")}
    done = Place("AFTER_SEQUENCE_NUMBER", "3", done=True)
    await asyncio.gather(
        checkpoints.put("a", at(2)),
        checkpoints.put("b", done),
        checkpoints.put_all("arn", plan, moving={"a", "b"}),
    )
    expected = {"a": at(2), "b": done, "c": Place("TRIM_HORIZON")}
    assert checkpoints.places == expected
    assert Checkpoints(tmp_path).places == expected


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes of what was made durable."""
    found = list[int]()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        found.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return found


async def test_folders_of_letters_and_checkpoints_survive_a_power_cut(
    tmp_path: Path, synced: list[int]
) -> None:
    """Else the letters are gone whose records were passed, and LATEST is asked for anew."""
    deliver = to_file(tmp_path / "kept" / "here" / "letters")
    await deliver(LETTER)
    with locked(tmp_path / "state" / "t", name="t"):
        pass
    for folder in (tmp_path, tmp_path / "kept", tmp_path / "kept" / "here", tmp_path / "state"):
        assert folder.stat().st_ino in synced


async def test_a_letter_in_a_file_that_is_there_has_its_name_made_durable_too(
    tmp_path: Path, synced: list[int]
) -> None:
    """A write that failed may have made it."""
    folder = tmp_path.stat
    (tmp_path / "letters").touch()
    await to_file(tmp_path / "letters")(LETTER)
    assert folder().st_ino in synced
