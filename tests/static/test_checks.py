"""Lint, format and layers, which take seconds."""

import pytest

from tests.static.running import check

pytestmark = pytest.mark.static


def test_ruff_finds_nothing() -> None:
    check("ruff", "check", ".")


def test_the_format_is_that_of_ruff() -> None:
    check("ruff", "format", "--check", ".")


def test_dependencies_between_layers_point_down() -> None:
    check("lint-imports", "--no-cache", "--no-logo")
