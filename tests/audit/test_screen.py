"""The full screen of `penstock audit view`, in a real terminal."""

import csv
import json
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.audit.filters import Filters
from penstock.audit.trail import Trail
from penstock.cli.audit_screen import (
    _Screen,  # pyright: ignore[reportPrivateUsage]
    interrupts,
)
from tests.audit.commands import configured
from tests.audit.support import commit_of, row, text, trail_of, write
from tests.audit.terminal import CLEAR, DOWN, ENTER, ESCAPE, F1, F5, F9, F10, UP, terminal
from tests.cli.service import penstock
from tests_support.servers import MongoReplicaSet

pytestmark = pytest.mark.server


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_the_screen_shows_the_newest_records_the_totals_and_the_activity(
    tmp_path: Path, trail: Trail
) -> None:
    now = now_ms()
    write(
        trail,
        [*commit_of(1, 40, timestamp=now), row(41, before={"id": 1, "v": 0}, timestamp=now)],
    )
    options = ("audit", "view", "trail", "--full", "--config", configured(tmp_path, trail))
    with terminal(*options) as screen:
        screen.shows("41 records", "30 minutes: 41 records  i 40  d 1", "TS(IST)")
        lines = screen.until(lambda lines: len(lines) == 30)
        table = lines[next(n for n, line in enumerate(lines) if "TS(IST)" in line) + 1 : -1]
        assert " d " in table[0]
        assert "id:1→" in table[0]
        assert "id:→40" in table[1]
        assert any("█" in line for line in lines)
        assert "F1 filters" in lines[-1]
        screen.press("g")
        screen.shows("60 minutes: 41 records")
        screen.press("?")
        screen.shows("look for new records every second")
        screen.press(ESCAPE)
        screen.shows("TS(IST)")
        screen.press("q")
        assert screen.ended() == 0
        assert screen.restored()
        assert "\x1b[?1049l" in screen.written, "what was there before is there again"


def test_new_records_come_by_themselves_unless_that_is_switched_off(
    tmp_path: Path, any_trail: Trail
) -> None:
    write(any_trail, commit_of(1, 3))
    options = ("audit", "view", "trail", "--full", "--config", configured(tmp_path, any_trail))
    with terminal(*options) as screen:
        screen.shows("3 records", "auto refresh on")
        write(any_trail, commit_of(4, 2))
        screen.shows("5 records", "id:→5")
        screen.press(F10)
        screen.shows("auto refresh off")
        write(any_trail, commit_of(6, 2))
        screen.press("?")
        screen.shows("look for new records")
        screen.press(ESCAPE)
        screen.shows("5 records")
        screen.press(F5)
        screen.shows("7 records", "id:→7")


def test_what_was_asked_for_before_refresh_was_switched_off_does_not_come_behind_it(
    trail: Trail,
) -> None:
    """A slow MongoDB answers when the switch says off, of records that came behind that."""
    write(trail, commit_of(1, 3))
    screen: Any = _Screen("trail", trail, {})
    screen._read_all(Filters())()
    write(trail, commit_of(4, 2))
    answered = screen._read_new(Filters(), 3)
    screen._state.press("f10")
    answered()
    assert [record["at"] for record in screen._state.rows] == [3, 2, 1]
    screen._state.press("f10")
    screen._read_new(Filters(), 3)()
    assert [record["at"] for record in screen._state.rows] == [5, 4, 3, 2, 1]


def test_an_interrupt_is_not_lost_wherever_it_comes() -> None:
    """Python ignores what is raised while it collects garbage."""

    class Collected:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with interrupts() as interrupted:
        Collected()
        assert interrupted.is_set()
    assert signal.getsignal(signal.SIGINT) is before


def test_filters_are_written_checked_and_applied(tmp_path: Path, trail: Trail) -> None:
    write(trail, [*commit_of(1, 3), row(4, before={"id": 2, "v": 1})])
    config = configured(tmp_path, trail)
    with terminal("audit", "view", "trail", "--full", "--config", config, "--op", "i") as screen:
        screen.shows("op=i", "id:→3")
        screen.press(F1)
        screen.shows("transaction", "Enter applies")
        screen.press(DOWN, DOWN, CLEAR, "x", ENTER)
        screen.shows("'x' is no operation")
        screen.press(CLEAR, DOWN, "2", ENTER)
        lines = screen.shows("pk=2", "id:2→", "id:→2")
        assert not any("id:→3" in line for line in lines)
        screen.press(F1, CLEAR, "db.none", ENTER)
        screen.shows("no record matches")
        screen.press(F1, CLEAR, "db.orders", ESCAPE)
        screen.shows("table=db.none")


def test_a_record_is_shown_whole(tmp_path: Path, trail: Trail) -> None:
    said = {"actor": "ann", "statement": "UPDATE t SET v = 'é'", "thread": 7}
    before, after = {"id": 1, "v": None}, {"id": 1, "v": "x" * 50 + "\x1b[31mred"}
    write(
        trail,
        [row(1, before=before, after=after, origin=text(said)), *commit_of(2, 3)],
    )
    with terminal(
        *("audit", "view", "trail", "--full", "--config", configured(tmp_path, trail))
    ) as screen:
        screen.shows("id:→4")
        screen.press(DOWN, DOWN, DOWN, DOWN, UP, DOWN)
        screen.press(ENTER)
        lines = screen.shows("UPDATE t SET v = 'é'", "ann", "0-1-1, 1 of 1", "from  ∅")
        assert any("x" * 50 + "\\u001b[31mred" in line or "\\x1b[31mred" in line for line in lines)
        screen.press(ESCAPE)
        screen.shows("TS(IST)")


def test_what_matches_is_exported_whole_or_not_at_all(tmp_path: Path, trail: Trail) -> None:
    write(trail, [*commit_of(1, 600), row(601, before={"id": 1, "v": 0})], events_max=700)
    config, file = configured(tmp_path, trail), tmp_path / "out.csv"
    with terminal("audit", "view", "trail", "--full", "--config", config, "--op", "i") as screen:
        screen.shows("601 records", "id:→600")
        screen.press(F9, CLEAR, "x.txt", ENTER)
        screen.shows("must end with .csv or .jsonl")
        screen.press(F9, CLEAR, str(file), ENTER)
        screen.shows("600 records are in")
        with file.open(newline="") as lines:
            assert len(list(csv.DictReader(lines))) == 600
        screen.press(F9, CLEAR, str(file), ENTER)
        screen.shows("is there already")
        screen.press(F9, CLEAR, str(file.with_suffix(".jsonl")), ENTER)
        screen.shows("out.jsonl")
        screen.until(lambda lines: "600 records are in" in lines[-1])
        written = file.with_suffix(".jsonl").read_text().splitlines()
        assert [json.loads(line)["at"] for line in written] == list(range(1, 601))
        screen.press(F9, CLEAR, str(tmp_path / "no" / "such.csv"), ENTER)
        screen.shows("nothing was exported")
    assert not list(tmp_path.glob("*.part"))


def test_the_screen_follows_the_size_of_the_terminal(tmp_path: Path, trail: Trail) -> None:
    write(trail, commit_of(1, 60))
    with terminal(
        *("audit", "view", "trail", "--full", "--config", configured(tmp_path, trail))
    ) as screen:
        screen.shows("id:→60")
        screen.resize(70, 14)
        lines = screen.until(
            lambda lines: len(lines) == 14 and all(len(line) <= 70 for line in lines)
        )
        assert "F1 filters" in lines[-1]
        assert any(line.endswith("…") for line in lines)


def test_the_terminal_is_restored_when_it_is_interrupted(tmp_path: Path, trail: Trail) -> None:
    write(trail, commit_of(1, 3))
    with terminal(
        *("audit", "view", "trail", "--full", "--config", configured(tmp_path, trail))
    ) as screen:
        screen.shows("3 records")
        screen.process.send_signal(2)
        assert screen.ended() == 130
        assert screen.restored()


@pytest.mark.slow
def test_an_outage_is_said_and_nothing_on_the_screen_is_lost(
    tmp_path: Path, start_mongo: Callable[..., MongoReplicaSet]
) -> None:
    server = start_mongo()
    with closing(trail_of(server.uri, "audit")) as trail:
        write(trail, commit_of(1, 3))
        config = configured(tmp_path, trail)
        with terminal("audit", "view", "trail", "--full", "--config", config) as screen:
            screen.shows("3 records")
            assert not any("MongoDB" in line for line in screen.screen)
            server.kill(0)
            screen.shows("MongoDB ", "id:→3")
            server.restart(0)
            server.primary_index()
            write(trail, commit_of(4, 2))
            screen.shows("5 records", "id:→5", "id:→3", "F1 filters")


def test_lines_in_a_terminal_are_clipped_and_have_colours_unless_they_are_to_be_wide(
    tmp_path: Path, trail: Trail
) -> None:
    write(trail, [row(1, after={"id": 1, "v": "x" * 200})])
    options = ("trail", "--config", configured(tmp_path, trail), "--limit", "1")
    for command in ("view", "query"):
        with terminal("audit", command, *options, width=100) as screen:
            assert screen.ended() == 0
            header, line = screen.screen[:2]
            assert header.startswith("TS(IST)")
            assert "…" in line
            assert len(line) <= 100
            assert "\x1b[32m" in screen.written
        with terminal("audit", command, *options, "--wide", width=100) as screen:
            assert screen.ended() == 0
            assert "x" * 200 in "".join(screen.screen)


def test_without_a_terminal_the_full_screen_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, trail: Trail
) -> None:
    config = configured(tmp_path, trail)
    done = penstock(capsys, "audit", "view", "trail", "--full", "--config", config)
    assert (done.code, "--full needs a terminal" in done.err) == (2, True)
