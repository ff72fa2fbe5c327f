"""docs/reference/promises.md has each number that is cited, and a test cites each that it has."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "promises.md"
CITED = re.compile(r"""(?<![\w.\-/\[{])(?<!(?<!["'])["'])([PSFEZA]\d{1,2})(?![\w\-'"/\]}=]|\.\w)""")
"""In prose: neither a part of a name nor a text of its own."""
OTHERS = frozenset({"S3"})
"""What looks like a number of a promise: the object store."""
ROWS = re.findall(
    r"^\| ([A-Z]\d+) \| .+ \| \[[^\]]+\]\(([^)]+)\) \|$", PAGE.read_text(), re.MULTILINE
)


def test_the_page_has_each_number_that_is_cited() -> None:
    known = {number for number, _ in ROWS} | OTHERS
    unknown = [
        f"{file.relative_to(ROOT)} cites {number}"
        for folder in ("src", "tests", "tests_support", "bench")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for number in sorted(set(CITED.findall(file.read_text())) - known)
    ]
    assert not unknown, f"say in {PAGE.name} what it is, or leave it out"


def test_a_number_is_given_once() -> None:
    numbers = [number for number, _ in ROWS]
    assert len(numbers) > 100
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(("number", "test"), ROWS)
def test_a_promise_names_a_test_that_cites_it(number: str, test: str) -> None:
    text = (PAGE.parent / test).read_text()
    named = re.search(rf"_{number.lower()}(?=[_(])", text)
    assert number in CITED.findall(text) or named, f"{test} does not say that it shows {number}"
