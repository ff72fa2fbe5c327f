"""docs/how-to/extend.md says what is: the page's package, built and installed."""

import os
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from penstock.client.flight import LogClient
from tests.cli.service import COMMAND, Service
from tests.waiting import wait_until

PAGE = Path("docs/how-to/extend.md")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's package is installed, for PYTHONPATH."""
    project = tmp_path_factory.mktemp("acme-penstock")
    blocks = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for name, text in blocks:
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    (project / "acme_penstock" / "__init__.py").touch()
    installed = tmp_path_factory.mktemp("installed")
    uv = Path(sys.executable).with_name("uv")
    options = ("--no-deps", "--no-build-isolation", "--offline", "--python", sys.executable)
    subprocess.run(
        [uv, "pip", "install", "--quiet", *options, "--target", installed, project],
        check=True,
        cwd=project,
        env={**os.environ, "VIRTUAL_ENV": sys.prefix},
    )
    # The page's own configuration, beside nothing else.
    (installed / "penstock.toml").write_text((project / "penstock.toml").read_text())
    return installed


def environment(installed: Path) -> dict[str, str]:
    paths = (str(installed), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def has(client: LogClient, head: int) -> bool:
    return client.bounds().head >= head


def ran(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment(installed),
    )


@pytest.mark.spark
@pytest.mark.slow
def test_a_source_a_destination_and_a_command_of_a_package_work_as_ours_do(
    package: Path, tmp_path: Path
) -> None:
    lines = "".join(re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)).splitlines()
    begun = "$ penstock "
    commands = [shlex.split(one.removeprefix(begun)) for one in lines if one.startswith(begun)]
    check, run, pipeline, batches = commands
    assert run == ["run"]
    sales = tmp_path / "shop" / "sales.jsonl"
    sales.parent.mkdir()
    sales.write_text('{"id": 1}\n{"id": 2}\n{"id":')
    serve = '[serve]\ngrpc = "127.0.0.1:0"\nflight = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n'
    config = tmp_path / "penstock.toml"
    config.write_text((package / "penstock.toml").read_text() + serve)
    done = ran(package, tmp_path, *check)
    assert done.returncode == 0, done.stderr
    with Service(config, cwd=tmp_path, env=environment(package)) as service:
        endpoint = ("--endpoint", service.ready["flight"])
        with LogClient(service.ready["flight"]) as client:
            for written, head in (("", 3), (" 3}\n", 4)):
                with sales.open("a") as file:
                    file.write(written)
                wait_until(partial(has, client, head))
                once = ran(package, tmp_path, *pipeline, *endpoint)
                assert once.returncode == 0, once.stderr
        listed = ran(package, tmp_path, "pipeline", "list", *endpoint)
        assert "acme-files" in listed.stdout, listed.stderr
    counted = ran(package, tmp_path, *batches).stdout.splitlines()
    assert [line.split()[1] for line in counted] == ["2", "1"]


def entry_points(folder: Path, package: str, text: str) -> None:
    """A package that is installed in a folder, and brings these."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("module", [None, "raise RuntimeError", "command = 5"])
def test_a_command_that_cannot_be_loaded_stops_no_other(tmp_path: Path, module: str | None) -> None:
    entry_points(tmp_path, "acme", "[penstock.commands]\nacme = acme_module:command\n")
    if module is not None:
        (tmp_path / "acme_module.py").write_text(module)
    helped = ran(tmp_path, tmp_path, "--help")
    assert (helped.returncode, "acme" in helped.stdout) == (0, True), helped.stderr
    done = ran(tmp_path, tmp_path, "acme", "folder", "--option")
    assert done.returncode == 2
    assert "'acme' of the package acme (penstock.commands) cannot be loaded" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", [None, "raise RuntimeError", "FILES = 5"])
def test_a_destination_that_cannot_be_loaded_is_told_with_its_setting(
    tmp_path: Path, module: str | None
) -> None:
    entry_points(tmp_path, "acme", "[penstock.destinations]\nacme = acme_module:FILES\n")
    if module is not None:
        (tmp_path / "acme_module.py").write_text(module)
    (tmp_path / "penstock.toml").write_text(
        '[log]\npath = "log"\n[sources.shop]\ntype = "script"\n'
        '[pipelines.p]\nsource = "shop"\nto = "acme"\n'
    )
    done = ran(tmp_path, tmp_path, "config", "check")
    assert done.returncode == 2
    assert "pipelines.p.to" in done.stderr
    assert "'acme' of the package acme (penstock.destinations) cannot be loaded" in done.stderr


@pytest.mark.slow
def test_two_packages_with_one_name_are_told_apart(tmp_path: Path) -> None:
    for package in ("acme", "emca"):
        entry_points(tmp_path, package, f"[penstock.commands]\nthing = {package}:command\n")
    done = ran(tmp_path, tmp_path, "thing")
    assert done.returncode == 2
    assert "the installed packages acme and emca bring 'thing'" in done.stderr
    others = ran(tmp_path, tmp_path, "pipeline", "--help")
    assert others.returncode == 0, others.stderr
    meant = ran(tmp_path, tmp_path, "pipelin")
    assert "Did you mean 'pipeline'" in meant.stderr
