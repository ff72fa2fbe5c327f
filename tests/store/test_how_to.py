"""docs/how-to/store.md and docs/reference/store-protocol.md say what is."""

import re
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import pytest

from penstock import store
from penstock.store import StoreError
from penstock.store.remote.config import ServerConfig
from penstock.store.remote.requests import AnyRequest
from tests.cli.service import penstock
from tests.store.faces import served
from tests.store.test_wire import kinds

PAGE = Path("docs/how-to/store.md")
PROTOCOL = Path("docs/reference/store-protocol.md")


@pytest.mark.slow
def test_every_example_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```(python|console)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = dict[str, Any]()
    said = list[str]()
    printed = ""
    with ExitStack() as stack:
        for language, block in blocks:
            if language == "python":
                exec(compile(block, str(PAGE), "exec"), names)
                printed += capsys.readouterr().out
                continue
            for line in block.splitlines():
                words = shlex.split(line.removeprefix("$ penstock "))
                if words[:2] == ["store", "serve"]:
                    db = stack.enter_context(store.open(words[2]))
                    stack.enter_context(served(db, Path(words[words.index("--socket") + 1])))
                    continue
                # Its server is the writer now.
                if words[1] != "backup":
                    words = ["shop.sock" if word == "shop" else word for word in words]
                done = penstock(capsys, *words)
                assert done.code == 0, done.err
                said.append(done.out)
    assert "Remove {'customer': 'ada', 'number': 2}" in printed
    assert said[3] == said[4] == '{"count":7,"id":"tea"}\n'
    assert (tmp_path / "shop-monday" / "data.mdb").exists()


def test_the_page_of_the_protocol_names_every_operation_and_error() -> None:
    page = PROTOCOL.read_text()
    operations = [kind.__struct_config__.tag for kind in get_args(AnyRequest)]
    assert [name for name in operations if f"`{name}`" not in page] == []
    names = {kind.name for kind in kinds(StoreError)}
    assert [name for name in sorted(names) if name not in page] == []
    options = [f"--{name.replace('_', '-')}" for name in ServerConfig.model_fields]
    assert [option for option in options if f"`{option}`" not in page] == []
