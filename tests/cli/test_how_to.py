"""docs/how-to/log.md and tables.md say what the commands do."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from penstock.cli.config import load
from tests.cli.service import configure, penstock
from tests.cli.test_log import fill

HOW_TO = Path("docs/how-to")
PAGES = ("log.md", "tables.md")


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", (HOW_TO / page).read_text(), re.DOTALL)
    assert found, f"{page} has no example in {language}"
    return found


def commands(page: str) -> list[list[str]]:
    """The arguments of each `penstock` on the page."""
    lines = "".join(blocks(page, "console")).splitlines()
    return [shlex.split(line.removeprefix("$ penstock ")) for line in lines if line]


@pytest.mark.parametrize("page", PAGES)
def test_every_toml_on_a_page_is_a_configuration(page: str, tmp_path: Path) -> None:
    for number, example in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(f'[sources.shop]\ntype = "script"\n{example}')
        load(file)


def test_the_commands_that_look_after_the_log_run_as_they_stand(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = configure(tmp_path)
    asyncio.run(fill(config))
    said = commands("log.md")
    assert [words[1] for words in said] == ["check", "backup", "compact"]
    for words in said:
        here = [word.replace("/backups", str(tmp_path / "backups")) for word in words]
        done = penstock(capsys, *here, "--config", str(config))
        assert done.code == 0, done.err
    assert load(config).log.path.is_dir()
    assert (tmp_path / "backups" / "monday" / "data.mdb").exists()


def test_the_commands_of_tables_know_their_pipeline_and_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without Spark: a name that is not configured is all that may be wrong."""
    config = configure(tmp_path)
    for words in commands("tables.md"):
        done = penstock(capsys, *words, "--config", str(config))
        assert "there is no [pipelines.shop]" in done.err, done.err
