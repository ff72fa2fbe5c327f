"""Files that appear whole."""

import asyncio
import resource
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import folders
from penstock.cli.paused import PausedSources
from penstock.errors import LogError
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


def test_what_a_disk_refuses_leaves_the_file_as_it_was_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    folders.write_whole(path, b"1")
    with limited(), pytest.raises(OSError, match="File too large"):
        folders.write_whole(path, bytes(100_000))
    assert path.read_bytes() == b"1"
    assert list(tmp_path.iterdir()) == [path]


def test_whether_a_source_is_paused_is_kept_or_told_not_to_be(tmp_path: Path) -> None:
    paused = PausedSources(tmp_path)
    paused.change("shop", paused=True)
    with (
        limited(),
        pytest.raises(LogError, match=r"written \(File too large\), .*shop.* is paused"),
    ):
        paused.change("shop", paused=False)
    assert paused.read() == {"shop"}


@contextmanager
def limited() -> Generator[None]:
    """No file of this process may grow beyond a byte."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
