"""A program of another Debian release than the system's, in a folder of its own.

It comes from the mirror that apt is set up with, as every package does, with all the libraries that
it needs, the C library too, and runs by that release's own loader. The system stays what it was.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests_support.servers.packages import (
    ServerUnavailableError,
    locked,
    servers_directory,
)

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LOADER = f"{_LIBRARIES}/ld-linux-x86-64.so.2"


@dataclass(frozen=True, kw_only=True)
class DebianPackage:
    """Packages of a release, and where they are unpacked."""

    packages: Sequence[str]
    """The server's first."""
    suite: str
    folder: str
    executable: str
    version: str
    """How what `--version` says must begin to be what the tests are for: `9.`"""

    @property
    def root(self) -> Path:
        """Where its files are."""
        return servers_directory() / self.folder

    def command(self, program: str) -> Sequence[str]:
        """What runs one of its programs, a path below `root`.

        Raises ServerUnavailableError when it is not installed; nothing is downloaded here.
        """
        root = self.root
        if not (root / program).exists():
            raise ServerUnavailableError(
                f"{self.packages[0]} of Debian's {self.suite} is not installed in {root}. Run "
                f"`python -m tests_support.servers install`; where Debian's {self.suite} has it "
                f"no more, or this is no Debian on x86_64, its tests cannot run."
            )
        return (str(root / _LOADER), "--library-path", str(root / _LIBRARIES), str(root / program))


MYSQL = DebianPackage(
    packages=("mysql-server-core",),
    suite="sid",
    folder="mysql9",
    executable="usr/sbin/mysqld",
    version="9.",
)
MARIADB = DebianPackage(
    packages=("mariadb-server-core", "mariadb-client"),
    suite="trixie",
    folder="mariadb118",
    executable="usr/sbin/mariadbd",
    version="11.8.",
)
"""The client's is for mariadb-binlog."""
PROMETHEUS = DebianPackage(
    packages=("prometheus",),
    suite="trixie",
    folder="prometheus2",
    executable="usr/bin/promtool",
    version="2.",
)
"""Its promtool, which evaluates alert rules."""


def install_debian(package: DebianPackage) -> str:
    """Install a package unless it is there already, and prove that it runs; what it says it is.

    Safe to call from several processes at once. Raises ServerUnavailableError with the reason when
    it cannot be had.
    """
    directory = servers_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / f"{package.folder}.lock"):
        if not (package.root / package.executable).exists():
            # Renamed into place when complete: a half install must never look whole.
            with tempfile.TemporaryDirectory(dir=directory, prefix=f".{package.folder}-") as work:
                target = Path(work) / "install"
                _fetch(package, Path(work) / "apt", target)
                shutil.rmtree(package.root, ignore_errors=True)
                target.rename(package.root)
        return _proven(package)


def _fetch(package: DebianPackage, apt: Path, target: Path) -> None:
    for folder in ("state", "lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()  # nothing is installed: so all that it needs is fetched
    source = f"deb [signed-by={KEYRING}] {_mirror()} {package.suite} main\n"
    (apt / "sources.list").write_text(source)
    options = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State": apt / "state",
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Acquire::Languages": "none",
    }
    if os.geteuid() == 0:
        options["APT::Sandbox::User"] = "root"  # whom its own user's folders would be closed to
    _run(["apt-get", *_as_options(options), "update", "--quiet=2"])
    install = ("install", "--quiet=2", "--yes", "--download-only", "--no-install-recommends")
    _run(["apt-get", *_as_options(options), *install, *package.packages])
    target.mkdir()
    for archive in sorted((apt / "cache" / "archives").glob("*.deb")):
        _run(["dpkg", "--extract", str(archive), str(target)])


def _as_options(options: Mapping[str, object]) -> list[str]:
    return [part for name, value in options.items() for part in ("-o", f"{name}={value}")]


def _mirror() -> str:
    """Where this machine's apt has its Debian packages from."""
    listed = _run(
        [
            *("apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)"),
            "Created-By: Packages",
        ]
    )
    for line in listed.splitlines():
        origin, label, address = line.split("|", 2)
        if (origin, label) == ("Debian", "Debian"):
            return address
    raise ServerUnavailableError(
        "apt knows no mirror of Debian. Run `apt-get update` on a Debian system, then try again."
    )


def _run(command: list[str]) -> str:
    try:
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ServerUnavailableError(
            f"there is no {command[0]}: this is not a Debian system"
        ) from None
    if outcome.returncode != 0:
        said = (outcome.stderr or outcome.stdout).strip()
        raise ServerUnavailableError(
            f"`{command[0]}` ended with {outcome.returncode}; it said: {said[-2000:]}"
        )
    return outcome.stdout


def _proven(package: DebianPackage) -> str:
    said = _run([*package.command(package.executable), "--version"])
    version = re.search(r"(?:Ver|version) (\S+)", said)
    if version is None or not version[1].startswith(package.version):
        raise ServerUnavailableError(
            f"{package.executable} of Debian's {package.suite} is not {package.version}x, for "
            f"which the tests are, but says: {said.strip()}"
        )
    return version[1]
