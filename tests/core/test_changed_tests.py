"""`make test-changed` runs the tests that a changed module reaches, and leaves others out."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reached() -> Callable[[str], set[str]]:
    script = runpy.run_path(str(ROOT / "scripts" / "changed_tests.py"))
    find: Callable[[set[str]], list[Path]] = script["reached"]
    return lambda path: {str(file.relative_to(ROOT)) for file in find({path})}


def test_a_module_reaches_the_tests_that_import_it_at_any_distance(
    reached: Callable[[str], set[str]],
) -> None:
    found = reached("src/penstock/sources/mysql/gtid_sets.py")
    assert {"tests/mysql/test_gtid_sets.py", "tests/mysql/test_capture.py"} <= found
    assert "tests/core/test_updates.py" not in found


def test_a_source_is_reached_though_only_its_entry_point_names_it(
    reached: Callable[[str], set[str]],
) -> None:
    assert "tests/cli/test_run.py" in reached("src/penstock/sources/script/__init__.py")


def test_what_every_test_stands_on_reaches_all_and_a_page_none(
    reached: Callable[[str], set[str]],
) -> None:
    everything = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")}
    assert reached("tests/conftest.py") == everything
    assert reached("docs/benchmarks/tests.md") == set()
