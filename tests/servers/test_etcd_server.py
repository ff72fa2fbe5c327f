"""The etcd that tests start is a real one, and answers for what it lost."""

import shutil
from collections.abc import Callable

import pytest
from etcd3gw import Etcd3Client

from tests_support.servers import EtcdServer, ServerUnavailableError


def client(server: EtcdServer) -> Etcd3Client:
    port = int(server.endpoint.rsplit(":", 1)[1])
    return Etcd3Client(port=port, timeout=5, api_path="/v3/")


def test_what_was_put_survives_kill_9(start_etcd: Callable[[], EtcdServer]) -> None:
    server = start_etcd()
    client(server).put("key", "value")
    server.kill()
    assert not server.process.running
    server.restart()
    assert client(server).get("key") == [b"value"]


def test_a_missing_etcd_is_a_sentence_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(_: str) -> None:
        return None

    monkeypatch.setattr(shutil, "which", nothing)
    with pytest.raises(ServerUnavailableError, match="apt-get install etcd-server"):
        EtcdServer().start()
