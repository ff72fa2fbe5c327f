"""Tools that check the code without running it, as tests: they run beside the others."""

import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
CHANGED_SINCE: Final = os.environ.get("PENSTOCK_CHANGED_SINCE")
"""Limit the slowest check to files changed since this commit; None checks everything."""


def check(tool: str, *arguments: str) -> None:
    """Run a tool of this environment in the root of the clone. Fails with its output."""
    command = (str(Path(sysconfig.get_path("scripts"), tool)), *arguments)
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join((tool, *arguments))}\n{done.stdout}", pytrace=False)


def changed_since(commit: str) -> list[str]:
    """Python files that differ from a commit, and new ones that Git does not ignore."""
    names: list[str] = []
    for command in (
        ("diff", "--name-only", "--diff-filter=d", "--relative", commit),
        ("ls-files", "--others", "--exclude-standard"),
    ):
        done = subprocess.run(("git", *command), cwd=ROOT, capture_output=True, check=True)
        names += done.stdout.decode().splitlines()
    return [name for name in names if name.endswith(".py")]
