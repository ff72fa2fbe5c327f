"""docs/how-to/trigger.md says what is."""

import re
import shlex
from pathlib import Path
from typing import Any

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
    function, _ = functions_of(page)
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


def functions_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_the_function_of_windows_adds_up_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    _, function = functions_of(PAGE.read_text())
    defined: dict[str, Any] = {}
    exec(function, defined)
    event: dict[str, Any] = {
        "Records": [{"dynamodb": {"NewImage": {"total": {"N": text}}}} for text in ("1.5", "2")],
        "window": {"start": "2023-11-14T22:13:00Z", "end": "2023-11-14T22:14:00Z"},
        "state": {"total": 1},
        "isFinalInvokeForWindow": False,
    }
    answer = defined["total"](event, None)
    assert answer == {"state": {"total": 4.5}}
    final: dict[str, Any] = {**event, **answer, "Records": []}
    final["isFinalInvokeForWindow"] = True
    assert defined["total"](final, None) is None
    assert capsys.readouterr().out == "2023-11-14T22:13:00Z {'total': 4.5}\n"


def test_the_page_names_every_option_with_its_default() -> None:
    page = PAGE.read_text()
    called = {"filters": "filter", "function": "name"}
    options = {called.get(name, name).replace("_", "-") for name in TriggerConfig.model_fields}
    options -= {"region"}
    assert [option for option in sorted(options) if f"`--{option}" not in page] == []
