"""Whatever becomes of a server's history: it is told whole, or with a gap (record 0039)."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.histories import Histories
from tests.mysql.histories import SqlDeployment
from tests.seeds import seed_of
from tests_support.servers import SqlServer


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [4, pytest.param(200, marks=pytest.mark.soak)])
async def test_any_history_of_a_server_is_told_whole_or_with_a_gap(
    start: Callable[..., SqlServer], kind: str, tmp_path: Path, rounds: int
) -> None:
    """Resets, older disks, replicas that take over, other servers, rotation and purges, while
    capture reads or not, at random."""
    random = Random(seed_of("any_history"))
    await Histories(SqlDeployment(kind, start, tmp_path), random).run(rounds)
