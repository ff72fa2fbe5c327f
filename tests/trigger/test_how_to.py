"""docs/how-to/trigger.md says what is."""

import re
import shlex
from pathlib import Path

import pytest

from penstock.trigger.config import TriggerConfig
from tests.children import Child
from tests.cli.service import COMMAND, penstock
from tests.serve.dynamodb.support import served

PAGE = Path("docs/how-to/trigger.md")


@pytest.mark.slow
def test_the_example_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGE.read_text()
    (function,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    lines = "".join(re.findall(r"```console\n(.*?)```", page, re.DOTALL)).splitlines()
    create, put, serve, trigger = (shlex.split(line.removeprefix("$ penstock ")) for line in lines)
    (tmp_path / "orders.py").write_text(function)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for words in (create, put):
        done = penstock(capsys, *words)
        assert done.code == 0, done.err
    address = serve[-1]
    assert serve[:3] == ["store", "serve", "shop"]
    with served(tmp_path / "shop") as everything:
        words = [word.replace(address, everything.address) for word in trigger]
        mails = tmp_path / "mails.txt"
        with Child(*COMMAND, *words) as process:
            process.wait_until(lambda: mails.exists() and mails.read_text().endswith("\n"))
            assert process.stop() == 0, process.tail()
    assert mails.read_text() == "thank you, ada\n"
    assert (tmp_path / "triggers" / "orders.handle" / "checkpoint.json").exists()


def test_the_page_names_every_option_with_its_default() -> None:
    page = PAGE.read_text()
    called = {"filters": "filter", "function": "name"}
    options = {called.get(name, name).replace("_", "-") for name in TriggerConfig.model_fields}
    options -= {"region"}
    assert [option for option in sorted(options) if f"`--{option}" not in page] == []
