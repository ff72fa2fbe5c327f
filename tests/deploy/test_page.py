"""docs/how-to/cluster.md says what is; tests/spark/test_cluster.py runs its spark-submit."""

import re
import shlex
from pathlib import Path

import pytest

from penstock.spark.options import OPTION_NAMES
from penstock.spark.session import LOCAL_SETTINGS, SETTINGS, chosen_settings
from tests.cli.service import configure, penstock

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/cluster.md").read_text()


def commands(program: str) -> list[list[str]]:
    """The words of each command on the page that `program` runs."""
    lines = PAGE.replace("\\\n", "").splitlines()
    return [shlex.split(line[2:]) for line in lines if line.startswith(f"$ {program} ")]


def test_the_program_on_the_page_is_the_one_that_is_deployed() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example == (ROOT / "deploy/penstock_pipeline.py").read_text()


def test_the_token_of_a_pipeline_is_made_as_the_page_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = configure(tmp_path)
    config.write_text(f'{config.read_text()}\n[access]\ntokens = "access.json"\n')
    (create,) = (words for words in commands("penstock") if words[1] == "access")
    done = penstock(capsys, *create[1:], "--config", str(config))
    assert done.code == 0, done.err


def test_every_option_of_a_command_exists(capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = (words for words in commands("penstock") if words[1] == "pipeline")
    (submit,) = commands("spark-submit")
    own = submit[submit.index("penstock_pipeline.py") :]
    known = penstock(capsys, "pipeline", "run", "--help").out
    for option in (word for word in [*run, *own] if word.startswith("--")):
        assert option in known


def test_what_the_user_tells_spark_wins_over_ours_without_spark_submit_too() -> None:
    ours = {**SETTINGS, **LOCAL_SETTINGS}
    own = dict.fromkeys(ours, "own")
    # Spark reads the user's by itself.
    assert ours.keys().isdisjoint(chosen_settings("local", {}, own))
    assert chosen_settings("local", dict.fromkeys(ours, "more"), own).items() >= {
        (name, "more") for name in ours
    }
    said = " ".join(PAGE[PAGE.index("## Whose settings win") :].split())
    order = ["`--conf` of `penstock", "`[spark]`", "what spark-submit was told", "ours."]
    assert sorted(order, key=said.index) == order
    assert "`spark-defaults.conf`, too (of `SPARK_CONF_DIR` or `SPARK_HOME`)" in said
    assert "ours win" not in said


def test_the_files_and_options_that_the_page_names_are_there() -> None:
    for path in re.findall(r"deploy/[\w./]*\w", PAGE):
        assert (ROOT / path).exists(), path
    read = re.search(r"\.options\((.*?)\)", PAGE)
    assert read is not None
    assert set(re.findall(r"(\w+)=", read[1])) <= set(OPTION_NAMES)
