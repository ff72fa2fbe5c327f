"""A program that a test starts is read, ended and explained in one way."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import children
from tests.children import Child, lines_of
from tests.waiting import wait_until
from tests_support.leftovers import marked_processes


def shell(script: str, **given: Any) -> Child:
    return Child("sh", "-c", script, **given)


def test_lines_come_one_by_one_and_the_rest_once_all_is_said() -> None:
    with shell("echo a; echo b; echo c; echo d") as child:
        assert child.line() == "a"
        assert child.line() == "b"
        assert child.rest() == "c\nd"
        assert child.line() == ""
        assert child.wait() == 0


def test_it_is_gone_after_the_block() -> None:
    with shell("echo up; exec sleep 900") as child:
        assert child.line() == "up"
    assert child.code == -9


def test_a_group_is_killed_as_a_whole(tmp_path: Path) -> None:
    """What it had started is gone too, at that moment."""
    env = {**os.environ, "PENSTOCK_TEST_GROUP": str(tmp_path)}
    with shell("sleep 900 & echo up; exec sleep 900", env=env, whole=True) as child:
        assert child.line() == "up"
        assert len(marked_processes("PENSTOCK_TEST_GROUP", str(tmp_path))) == 2
        child.kill()
        wait_until(lambda: not marked_processes("PENSTOCK_TEST_GROUP", str(tmp_path)))


def test_who_has_ended_too_early_is_shown_with_what_it_wrote_last(tmp_path: Path) -> None:
    def failed(child: Child) -> str:
        with child, pytest.raises(AssertionError) as caught:
            child.wait_until(lambda: False)
        return str(caught.value)

    for given in ({}, {"errors": tmp_path / "log"}):
        said = failed(shell("echo told; echo why >&2; exit 7", **given))
        for word in ("ended with 7", "told", "why"):
            assert word in said
    with shell("echo told") as child, pytest.raises(AssertionError, match="ended by itself"):
        child.says(2)


def test_who_does_not_end_is_shown_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with shell("trap '' TERM; echo up; while :; do sleep 900; done", whole=True) as child:
        assert child.line() == "up"
        with monkeypatch.context() as patch:
            patch.setattr(children, "PATIENCE_SECONDS", 0.01)
            with pytest.raises(AssertionError, match="it does not end"):
                child.stop()
    assert child.code == -9


def test_its_output_is_closed_after_as_many_lines_as_are_asked_for() -> None:
    with shell("echo a; read _; echo b; echo c", stdin=subprocess.PIPE, lines_max=1) as child:
        assert child.line() == "a"
        child.write("")
        assert child.rest() == ""
        assert "I/O error" in child.errors() or child.wait() != 0


async def test_what_ends_badly_has_no_lines() -> None:
    assert await lines_of("echo", "a") == ["a"]
    with pytest.raises(AssertionError, match="why"):
        await lines_of(sys.executable, "-c", "raise SystemExit('why')")
