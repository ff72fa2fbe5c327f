"""Commands run in the process of the tests: what they configure for theirs is undone."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
