"""Types, by pyright, which keeps no cache."""

import pytest

from tests.static.running import CHANGED_SINCE, changed_since, check


@pytest.mark.static
@pytest.mark.timeout(1800)
def test_pyright_finds_nothing() -> None:
    """`make check` and `make test-changed` check changed files only: all of them take minutes.
    `make test` leaves the tests to mypy, and `make pyright` checks them, too."""
    if CHANGED_SINCE is None:
        check("pyright", "src")
        return
    # Only these are typed: the configuration names them, but a file given by name is checked.
    files = [name for name in changed_since(CHANGED_SINCE) if name.startswith(("src/", "tests/"))]
    if files:
        check("pyright", *files)
