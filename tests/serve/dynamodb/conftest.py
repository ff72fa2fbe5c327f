"""One server for the tests that need no clock and no restart: each makes tables of its own."""

from collections.abc import Iterator

import pytest

from tests.serve.dynamodb.support import Served, served


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A served store."""
    with served(tmp_path_factory.mktemp("dynamodb") / "store") as everything:
        yield everything
