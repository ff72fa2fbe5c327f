"""zero-cache is installed by a lock of ours, and says so when it is not."""

from pathlib import Path

import pytest
from msgspec import json

from tests_support.servers import ZERO, NpmProject, ServerUnavailableError, ZeroCache
from tests_support.servers.process import free_ports


def test_what_is_installed_is_what_the_lock_says() -> None:
    """By hash; and from wherever npm is set up to have it from, so no address is in the lock."""
    lock = json.decode((ZERO.project / "package-lock.json").read_bytes())
    packages = {name: one for name, one in lock["packages"].items() if name}
    assert packages["node_modules/@rocicorp/zero"]["version"] == "1.9.0"
    assert all("integrity" in one for one in packages.values())
    assert not any("resolved" in one for one in packages.values())


def test_a_missing_zero_cache_is_a_sentence_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_SERVERS_DIR", str(tmp_path))
    elsewhere = NpmProject(name="zero-cache", project=ZERO.project, node=ZERO.node)
    monkeypatch.setattr("tests_support.servers.zero_cache.ZERO", elsewhere)
    with pytest.raises(ServerUnavailableError, match=r"servers\s+install"):
        ZeroCache(upstream="ws://127.0.0.1:1", database="postgres://127.0.0.1:1/x").start()


def test_ports_in_a_row_follow_one_another() -> None:
    first, second, third = free_ports(3, in_a_row=True)
    assert (second, third) == (first + 1, first + 2)
