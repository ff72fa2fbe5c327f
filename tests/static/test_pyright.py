"""Types, by pyright, which keeps no cache."""

import pytest

from tests.static.running import QUICK, changed, check


@pytest.mark.static
@pytest.mark.timeout(1800)
def test_pyright_finds_nothing() -> None:
    """The fast loop checks changed files only: all of them take as long as it may."""
    files = changed() if QUICK else []
    if files or not QUICK:
        check("pyright", *files)
