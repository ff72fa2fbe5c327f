"""The images of deploy/ have what their programs need, and are made from nothing else."""

import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import ZipFile

import pytest

from penstock.spark.config.replicate import DESTINATIONS

ROOT = Path(__file__).parents[2]
FILES = {file.name: file.read_text() for file in sorted((ROOT / "deploy").glob("Dockerfile*"))}
RULES = [
    line
    for line in (ROOT / ".dockerignore").read_text().splitlines()
    if line and not line.startswith("#")
]
PROJECT: Any = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def is_copied(path: str) -> bool:
    """Whether a path of the worktree is part of `COPY . /src`: the last rule that is about it, or
    about a folder that it is in, decides."""
    copied = True
    steps = [PurePosixPath(path), *PurePosixPath(path).parents]
    for rule in RULES:
        pattern = rule.removeprefix("!")
        if any(_matches(str(step), pattern) for step in steps):
            copied = rule.startswith("!")
    return copied


def _matches(path: str, pattern: str) -> bool:
    anywhere = pattern.startswith("**/")
    wanted, parts = pattern.removeprefix("**/"), path.split("/")
    if anywhere:
        return fnmatchcase(parts[-1], wanted)
    return len(parts) == wanted.count("/") + 1 and fnmatchcase(path, wanted)


def extras(name: str) -> set[str]:
    """What an image installs of Penstock."""
    (named,) = re.findall(r'"/src\[([\w,]+)\]"', FILES[name])
    return set(named.split(","))


def test_the_image_of_a_pipeline_has_the_drivers_of_all_sources_and_destinations() -> None:
    drivers = {"mariadb": "mysql", "mongodb+srv": "mongodb", "postgres": "postgresql"}
    written_to = {drivers.get(scheme, scheme) for scheme in DESTINATIONS}
    read_from = set(PROJECT["entry-points"]["penstock.sources"]) & set(
        PROJECT["optional-dependencies"]
    )
    assert extras("Dockerfile.spark") == {"spark"} | written_to | read_from
    page = (ROOT / "docs/how-to/cluster.md").read_text()
    (row,) = (line for line in page.splitlines() if "the extras of its sources" in line)
    assert set(re.findall(r"`(\w+)`", row)) >= written_to | read_from


def test_an_image_asks_for_extras_that_there_are() -> None:
    for name in FILES:
        assert extras(name) <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(
    "path",
    [
        *(".git/config", ".venv/bin/python", ".servers/mongo/mongod", ".hypothesis/examples/1"),
        *("penstock.toml", "data/log/data.mdb", "lake/orders/1.parquet", "access.json", ".env"),
        *("tests/conftest.py", "docs/how-to/deploy.md", "deploy/penstock.toml", "bench/run.py"),
        *("src/penstock/__pycache__/event.cpython-311.pyc", "src/.mypy_cache/1.json"),
        *("src/penstock/event.pyc", "src/.hypothesis/examples/1", ".coverage", "dist/penstock.whl"),
    ],
)
def test_what_no_image_needs_is_not_copied(path: str) -> None:
    assert not is_copied(path)


def test_what_the_images_name_is_copied() -> None:
    named = [
        path
        for text in FILES.values()
        for path in re.findall(r"(?:^COPY (?!--from)|/src/)([\w./-]+)", text, re.MULTILINE)
        if path != "."
    ]
    assert {"requirements.lock", "deploy/penstock_pipeline.py"} <= set(named)
    for path in named:
        assert (ROOT / path).is_file(), path
        assert is_copied(path), path


@pytest.mark.slow
def test_what_is_copied_is_all_that_the_package_is_built_from(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for path in filter(is_copied, listed):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    built = set(ZipFile(wheel).namelist())
    assert {path.removeprefix("src/") for path in listed if path.startswith("src/")} <= built
