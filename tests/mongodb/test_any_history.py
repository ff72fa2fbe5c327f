"""Whatever becomes of a set's history: it is told whole, or with a gap (record 0039)."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.histories import Histories
from tests.mongodb.histories import OPTIONS, MongoDeployment
from tests.seeds import seed_of
from tests_support.servers import MongoReplicaSet


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [8, pytest.param(200, marks=pytest.mark.soak)])
async def test_any_history_of_a_set_is_told_whole_or_with_a_gap(
    start_mongo: Callable[..., MongoReplicaSet], tmp_path: Path, rounds: int
) -> None:
    """Older disks, elections, members that were behind, other sets and oplogs that roll over, while
    capture reads or not, at random."""
    random = Random(seed_of("any_history"))
    await Histories(MongoDeployment(start_mongo(**OPTIONS), tmp_path), random).run(rounds)
