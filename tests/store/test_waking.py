"""The socket by which a writer wakes readers."""

import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.wake import WakeClient, WakeServer
from tests.waiting import PATIENCE_SECONDS


def test_what_is_written_before_a_reader_is_let_in_wakes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection stands before the writer has accepted it; rings do not reach it until then."""
    monkeypatch.setattr("penstock.wake.POLL_SECONDS", 3600)
    let_in, accept = threading.Event(), WakeServer._accept  # pyright: ignore[reportPrivateUsage]

    def late(server: WakeServer, listener: Any) -> None:
        let_in.wait()
        accept(server, listener)

    monkeypatch.setattr(WakeServer, "_accept", late)
    heard = queue.SimpleQueue[bool]()
    server = WakeServer(tmp_path)
    client = WakeClient(tmp_path, lambda: heard.put(True))
    try:
        assert heard.get(timeout=PATIENCE_SECONDS)  # it is connected
        server.ring()
        let_in.set()
        assert heard.get(timeout=PATIENCE_SECONDS)
    finally:
        client.close()
        server.close()
