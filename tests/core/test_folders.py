"""Files that appear whole."""

import asyncio
import threading
from pathlib import Path

import pytest

from penstock import folders
from tests.waiting import PATIENCE_SECONDS, turns


async def test_who_is_cancelled_while_a_file_is_written_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the file is written behind its owner's lock, over what the next one wrote."""
    begun, may_go_on = threading.Event(), threading.Event()
    write = folders.write_whole

    def slow(path: Path, content: bytes) -> None:
        begun.set()
        may_go_on.wait(PATIENCE_SECONDS)
        write(path, content)

    monkeypatch.setattr(folders, "write_whole", slow)
    writing = asyncio.create_task(folders.keep_whole(tmp_path / "kept", b"1"))
    await asyncio.to_thread(begun.wait)
    writing.cancel()
    await turns(10)
    held = not writing.done()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert held
    assert (tmp_path / "kept").read_bytes() == b"1"
