"""Where a trigger stands: no place goes back, whatever is written at once."""

import asyncio
from pathlib import Path

from penstock.trigger.checkpoints import Checkpoints
from penstock.trigger.lineage import Place


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
