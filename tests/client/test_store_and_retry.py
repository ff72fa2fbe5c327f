"""Where progress is kept, and how a client comes back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import FileProgress, Retry
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
