"""Types, by mypy. Its cache (.mypy_cache) makes every run but the first one short."""

import pytest

from tests.static.running import check


@pytest.mark.static
def test_mypy_finds_nothing() -> None:
    check("mypy")
