"""Where progress is kept, and how a client comes back."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from penstock.client import DeadLetter, DeadLetterFile, FileProgress, Retry
from penstock.client.retry import Backoff
from penstock.errors import MalformedProgressError
from penstock.progress import Progress

MARKER = str(Progress(1, 2, 3))


def test_a_file_keeps_the_marker_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "consumer" / "orders.progress"
    assert FileProgress(path).load() == ""
    FileProgress(path).save(MARKER)
    assert FileProgress(path).load() == MARKER
    FileProgress(path).save(str(Progress(1, 9, 9)))
    assert FileProgress(path).load() == str(Progress(1, 9, 9))
    assert [one.name for one in path.parent.iterdir()] == ["orders.progress"]


def test_a_save_that_fails_leaves_the_marker_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileProgress(tmp_path / "progress")
    store.save(MARKER)

    def broken(_descriptor: int) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        store.save(str(Progress(1, 9, 9)))
    assert store.load() == MARKER


LETTER = DeadLetter(reason="no", attempts=1, failed_at=1, progress=MARKER, event=Raw(b"{}"))


def keep(what: str, path: Path) -> None:
    if what == "marker":
        FileProgress(path).save(MARKER)
    else:
        DeadLetterFile(path).add(LETTER)


@pytest.mark.parametrize("what", ["marker", "letter"])
@pytest.mark.parametrize("is_there", [False, True])
def test_the_names_of_what_is_kept_survive_a_power_cut_and_those_of_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, is_there: bool
) -> None:
    """A letter that is lost was a change that was passed; without its marker a consumer starts at
    the head. Whoever made a file that is there may have died before its name was durable."""
    path = tmp_path / "kept" / "here" / "file"
    if is_there:
        path.parent.mkdir(parents=True)
        path.touch()
    held = dict[Path, list[Path]]()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        folder = Path(f"/proc/self/fd/{descriptor}").readlink()
        if folder.is_dir():
            held[folder] = list(folder.iterdir())
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", note)
    keep(what, path)
    made = [path.parent] if is_there else [path.parent, tmp_path / "kept", tmp_path]
    assert held == {folder: list(folder.iterdir()) for folder in made}


@pytest.mark.parametrize("content", ["", "\n", "half a mark", "\xff\xfe"])
def test_a_file_that_holds_no_marker_is_an_error_never_a_start_at_the_head(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "progress"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(MalformedProgressError):
        FileProgress(path).load()


@given(st.floats(0, 1, exclude_max=True))
def test_waits_double_from_1_s_to_30_s_with_jitter_and_without_end(unit: float) -> None:
    backoff = Backoff(Retry(), lambda: unit)
    waits = [backoff.next_wait() for _ in range(2000)]
    full = [1, 2, 4, 8, 16, *[30] * 1995]
    for wait, longest in zip(waits, full, strict=True):
        assert wait is not None
        assert longest / 2 <= wait <= longest


def test_the_client_gives_up_after_max_retries_in_a_row_and_an_answer_starts_the_count_anew() -> (
    None
):
    backoff = Backoff(Retry(max_retries=2), lambda: 0.0)
    assert [backoff.next_wait() for _ in range(3)] == [1, 2, None]
    backoff.reset()
    assert [backoff.next_wait() for _ in range(3)] == [1, 2, None]
