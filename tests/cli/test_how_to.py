"""docs/how-to/access.md, log.md and tables.md say what the commands do."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from penstock.cli.config import load
from penstock.errors import UnauthenticatedError
from penstock.serve.access import Access, Presented
from tests.cli.service import configure, penstock
from tests.cli.test_log import fill

HOW_TO = Path("docs/how-to")
PAGES = ("access.md", "log.md", "tables.md")


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


def test_the_commands_that_let_others_in_run_as_they_stand(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = configure(tmp_path)
    config.write_text(f'{config.read_text()}\n[access]\ntokens = "access.json"\n')
    tokens: list[str] = []
    for words in commands("access.md"):
        done = penstock(capsys, *words, "--config", str(config))
        assert done.code == 0, done.err
        if words[1] == "create" and "--certificate" not in words:
            tokens.append(done.out.strip())
        if words[1] == "list":
            assert all(name in done.out for name in ("orders-app", "warehouse", "prometheus"))
            assert not any(token in done.out for token in tokens)
    written = (tmp_path / "access.json").read_text()
    assert len(tokens) == 3
    assert not any(token.split("_", 2)[2] in written for token in tokens)
    access = Access(load(config).access)
    presented = [Presented(authorization=f"Bearer {token}") for token in tokens]
    with pytest.raises(UnauthenticatedError):
        access.authenticate(presented[0], "test")
    names = [access.authenticate(one, "test").name for one in presented[1:]]
    assert names == ["warehouse", "prometheus"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["create", "x", "--verb", "write"], "'write' is not a valid Verb"),
        (["create", "x", "--hide", "a.0"], "cannot be hidden"),
        (["create", "x", "--expires", "soon"], "--expires"),
        (["create", " "], "a name has"),
        (["create", "x", "--collection", ""], "empty name"),
        (["revoke", "nobody"], "there is nobody called"),
    ],
)
def test_a_token_that_cannot_be_meant_is_refused_and_nothing_is_changed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], said: str
) -> None:
    config = configure(tmp_path)
    missing = penstock(capsys, "access", *words, "--config", str(config))
    assert (missing.code, missing.out) == (2, "")
    config.write_text(f'{config.read_text()}\n[access]\ntokens = "access.json"\n')
    done = penstock(capsys, "access", *words, "--config", str(config))
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Nothing was changed" in done.err
    assert not (tmp_path / "access.json").exists()


def test_a_name_is_taken_until_it_is_revoked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = configure(tmp_path)
    config.write_text(f'{config.read_text()}\n[access]\ntokens = "access.json"\n')

    def code(*words: str) -> int:
        return penstock(capsys, "access", *words, "--config", str(config)).code

    assert [code("create", "app"), code("create", "app")] == [0, 2]
    assert [code("revoke", "app"), code("create", "app"), code("revoke", "app")] == [0, 0, 0]
    (tmp_path / "access.json").chmod(0o644)
    assert code("list") == 2


def test_the_commands_of_tables_know_their_pipeline_and_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without Spark: a name that is not configured is all that may be wrong."""
    config = configure(tmp_path)
    for words in commands("tables.md"):
        done = penstock(capsys, *words, "--config", str(config))
        assert "there is no [pipelines.shop]" in done.err, done.err
