"""docs/how-to/audit.md: the commands that look at a trail run as they stand."""

import re
import shlex
from pathlib import Path

import pytest

from penstock.audit.trail import Trail
from tests.audit.commands import configured
from tests.audit.support import commit_of, write
from tests.cli.service import penstock

pytestmark = pytest.mark.server
PAGE = Path("docs/how-to/audit.md")
LOOKING = ("query", "view")


def commands() -> list[list[str]]:
    """The arguments of each command of ours on the page."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    said = [shlex.split(line.removeprefix("$ penstock ")) for line in lines if line[:1] == "$"]
    return [words for words in said if words[0] == "audit" and words[1] in LOOKING]


def test_the_commands_that_look_at_a_trail_run_as_they_stand(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, trail: Trail
) -> None:
    write(trail, commit_of(1, 3, database="shop"))
    config = configured(tmp_path, trail)
    said = commands()
    assert {words[1] for words in said} == set(LOOKING)
    for words in said:
        ends = ("--limit", "1") if words[1] == "view" else ()
        done = penstock(capfd, *words, *ends, "--config", config)
        assert done.code == 0, (words, done.err)
