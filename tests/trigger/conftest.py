from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.dynamodb.support import Served, served
from tests.trigger.support import Calls


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A served store for the tests that need no clock: each makes tables of its own."""
    with served(tmp_path_factory.mktemp("trigger") / "store") as everything:
        yield everything


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(tmp_path, monkeypatch)
