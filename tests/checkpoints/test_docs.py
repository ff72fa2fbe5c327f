"""docs/how-to/checkpoints.md says what the code does, and what it tells to type works."""

import re
import shlex
import tomllib
import uuid
from pathlib import Path

import pytest

from penstock.checkpoints import CheckpointConfig
from tests.cli.service import Service, penstock
from tests.mongodb.test_docs import default_of
from tests_support.servers import EtcdServer

PAGE = Path("docs/how-to/checkpoints.md")


def table() -> str:
    """The settings, as the page shows them."""
    rows = ["| setting | default | means |", "|---|---|---|"]
    for name, field in CheckpointConfig.model_fields.items():
        rows.append(f"| `{name}` | {default_of(field)} | {field.description} |")
    return "\n".join(rows)


def test_the_settings_on_the_page_are_those_of_the_code() -> None:
    found = re.search(
        r"<!-- settings: begin -->\n(.*?)\n?<!-- settings: end -->", PAGE.read_text(), re.DOTALL
    )
    assert found is not None
    assert found[1] == table(), f"paste this between the two marks:\n{table()}"


def examples() -> list[str]:
    return re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_every_toml_on_the_page_is_a_configuration() -> None:
    assert len(examples()) == 2
    for example in examples():
        told = example.replace("${CHECKPOINT_URI}", "mongodb://localhost")
        CheckpointConfig.model_validate(tomllib.loads(told)["checkpoint"])


@pytest.mark.slow
def test_what_the_page_tells_to_type_works(
    tmp_path: Path, etcd: EtcdServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """On its first configuration, with the simulated shop, and a disk that is lost in between."""
    section = examples()[0].replace("http://127.0.0.1:2379", etcd.endpoint)
    section = section.replace("shop-capture", f"test-{uuid.uuid4().hex[:12]}")
    rest = (
        '[log]\nfree_bytes_min = 0\n[sources.shop]\ntype = "script"\nevents_per_second = 50\n'
        '[serve]\ngrpc = "127.0.0.1:0"\nflight = "127.0.0.1:0"\nhttp = "off"\n'
    )
    typed = [
        shlex.split(line.removeprefix("$ penstock "))
        for line in re.findall(r"^\$ penstock .*$", PAGE.read_text(), re.MULTILINE)
    ]
    assert [one[0] for one in typed] == ["checkpoint", "pause", "checkpoint", "resume"]
    for disk in ("a", "b"):
        folder = tmp_path / disk
        folder.mkdir()
        config = folder / "penstock.toml"
        config.write_text(section + rest)
        with Service(config):
            for arguments in typed:
                done = penstock(capsys, *arguments, "-c", str(config))
                assert done.code == 0, done.err
    assert "there was no log on this disk" in (tmp_path / "b" / "stderr.txt").read_text()
    assert "there was no log on this disk" not in (tmp_path / "a" / "stderr.txt").read_text()
