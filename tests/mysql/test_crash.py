"""MariaDB, its writers and capture in processes of their own, killed with -9 at any moment."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mysql.killing import adds_up
from tests.seeds import seed_of
from tests_support.servers import MariaDbServer


@pytest.mark.slow
async def test_killed_at_random_all_leave_a_log_that_adds_up_to_the_tables(
    start_mariadb: Callable[..., MariaDbServer], tmp_path: Path
) -> None:
    """S1, S5, S6, invariants 2 and 3: tables of all kinds, interleaved domains, large and XA
    transactions and changed tables; writers, capture and the server itself are killed."""
    server = start_mariadb(options=["--innodb-log-file-size=64M"])
    named = await adds_up(server, tmp_path, seed=seed_of("mysql-source-crash"))
    assert {name.split("-")[0] for name in named} == {"0", "1", "2"}
