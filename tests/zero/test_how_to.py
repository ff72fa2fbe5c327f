"""docs/how-to/zero.md says what is: every configuration on it is one, every command is known."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from tests.cli.service import penstock
from tests.zero.how_to import PAGE, blocks, configuration

DATABASES = ("mongodb", "mysql")


@pytest.mark.parametrize("database", DATABASES)
def test_what_the_page_configures_is_a_configuration(
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MONGO_URI", "mongodb://127.0.0.1:27017")
    monkeypatch.setenv("SHOP_PASSWORD", "secret")
    config = tmp_path / "penstock.toml"
    for text in (configuration(database, zero=False), configuration(database)):
        config.write_text(text)
        done = penstock(capsys, "config", "check", "--config", str(config))
        assert done.code == 0, done.err
        assert tomllib.loads(text)["sources"]["shop"]["type"] == database


def test_the_commands_of_the_page_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Z9: the one that makes a token makes one that ends."""
    monkeypatch.setenv("MONGO_URI", "mongodb://127.0.0.1:27017")
    config = tmp_path / "penstock.toml"
    config.write_text(f'{configuration("mongodb")}\n[access]\ntokens = "access.json"\n')
    said = [
        shlex.split(line.removeprefix("$ penstock "))
        for line in "".join(blocks("console")).splitlines()
    ]
    known = [["config", "check"], ["doctor"], ["run"], ["zero", "propose", "shop"]]
    create = next(words for words in said if words[:2] == ["access", "create"])
    assert [words for words in said if words != create] == known
    done = penstock(capsys, *create, "--config", str(config))
    assert done.code == 0, done.err
    assert "--expires" in create
    # Nothing has run, and it says what to do.
    done = penstock(capsys, "zero", "propose", "shop", "--config", str(config))
    assert "there are no current rows of shop yet" in done.err
    assert "there are no current rows of shop yet" in PAGE


def test_every_variable_of_zero_cache_that_is_needed_is_on_the_page() -> None:
    (script,) = blocks("sh")
    names = re.findall(r"export (ZERO_\w+)=", script)
    assert {"ZERO_UPSTREAM_TYPE", "ZERO_UPSTREAM_DB", "ZERO_CVR_DB", "ZERO_CHANGE_DB"} < {*names}
