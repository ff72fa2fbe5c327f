"""A service manager learns when the service is ready; the recipes for deploying it are sound."""

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from penstock.cli.config import load
from tests.cli.service import Service, configure

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.slow
@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_is_told_that_every_port_is_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = f"@penstock-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        with Service(configure(tmp_path)) as service:
            ready, _, status = manager.recv(4096).decode().partition("\n")
            assert ready == "READY=1"
            assert status.startswith(f"STATUS=gRPC {service.ready['grpc']}, ")


@pytest.mark.slow
def test_a_manager_that_is_gone_does_not_keep_the_service_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    with Service(configure(tmp_path)) as service:
        assert service.ready["grpc"]


def test_the_unit_is_understood_by_systemd(tmp_path: Path) -> None:
    """But for the program, which is not installed where the unit says."""
    analyze = shutil.which("systemd-analyze")
    unit = (DEPLOY / "penstock.service").read_text()
    assert "Type=notify" in unit
    if analyze is None:
        assert unit.count("ExecStart=") == 1
        return
    here = tmp_path / "penstock.service"
    here.write_text(unit.replace("/opt/penstock/bin/penstock", "/bin/true"))
    done = subprocess.run(
        [analyze, "verify", str(here)], capture_output=True, text=True, check=False
    )
    assert "penstock.service" not in done.stderr


def test_the_container_asks_for_health_where_it_is_by_default(tmp_path: Path) -> None:
    serve = load(configure(tmp_path, "[sources.shop]\ntype = 'script'")).serve
    assert f"http://{serve.http}{serve.health_path}" in (DEPLOY / "Dockerfile").read_text()
