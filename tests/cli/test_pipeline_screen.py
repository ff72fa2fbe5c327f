"""The bars of a driver say what it did, what the service knows, and what ended here."""

import contextlib
import io
import os
import pty
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from rich.console import Console

from penstock.cli import drawing, logs
from penstock.cli.bars import line
from penstock.cli.pipeline_screen import Screen, screen
from penstock.client.credentials import NOBODY
from penstock.client.pipelines import PipelineTold
from penstock.errors import PipelineError
from penstock.serve.flight import FlightServer
from penstock.serve.pipelines import PipelineBook
from penstock.spark.progress import PipelineProgress, RunBegan
from penstock.subscribe.scope import EVERYTHING
from tests.audit.terminal import terminal
from tests.cli.service import SHOP, Service, configure, spawn
from tests.flight.blocks import BlockLog, insert
from tests.spark.tables import pipeline
from tests.waiting import wait_until


@pytest.fixture
def log() -> BlockLog:
    log = BlockLog()
    log.append([insert(number)] for number in range(20))
    return log


@pytest.fixture
def book(tmp_path: Path, log: BlockLog) -> Iterator[PipelineBook]:
    book = PipelineBook(tmp_path / "consumers", log, hold_seconds=60, hold_bytes=0)
    yield book
    book.close()


def shown(screen: Screen) -> list[str]:
    console = Console(width=160, force_terminal=True, color_system=None, file=io.StringIO())
    with console.capture() as captured:
        console.print(screen)
    return captured.get().splitlines()


def test_a_bar_for_each_pipeline_of_the_driver(
    tmp_path: Path, log: BlockLog, book: PipelineBook
) -> None:
    configs = {name: pipeline(tmp_path / name) for name in ("a", "b")}
    told = PipelineTold(
        pipeline="a", run="1", source="shop", to="table", place=log.marker(5), differences=2
    )
    book.tell(told, EVERYTHING)
    server = FlightServer(log, book=book)
    server.start()
    found = Screen(configs, server.address, NOBODY)
    try:
        for name in configs:
            found.fact(RunBegan(pipeline=name, sequence=0, head=10))
        found.batch(
            PipelineProgress(
                pipeline="a",
                batch_id=0,
                entries=5,
                rows=5,
                rejected=7,
                sequence=5,
                seconds=1,
                until=5,
            )
        )
        found.ended("b", PipelineError("cannot go on"))
        found.look()
        first, second = shown(found)
    finally:
        server.stop()
    for word in ("25%", "15 behind", "running", "7 rejected", "2 DIFFER"):
        assert word in first
    assert "failed (pipeline)" in second
    assert "20 behind" in second
    found.look()
    assert shown(found)[:2] == [first, second]  # what is known stays
    assert "does not answer" in shown(found)[2]


def test_a_look_that_fails_in_whatever_way_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Screen({}, "127.0.0.1:1", NOBODY)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("of a library")

    monkeypatch.setattr("penstock.cli.pipeline_screen.LogClient", broken)
    found.look()
    out = io.StringIO()
    Console(file=out, width=80).print(found)
    assert "RuntimeError" in out.getvalue()


def test_nothing_is_drawn_where_nobody_looks() -> None:
    with screen({}, "127.0.0.1:1", NOBODY, once=False, wanted=True) as found:
        assert found is None


class Tty:
    """The other side of a terminal."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        self.file = os.fdopen(theirs, "w")

    def read(self) -> str:
        """All that was written; no more can be."""
        self.file.close()
        said = b""
        with contextlib.suppress(OSError):  # it ended
            while part := os.read(self._ours, 1 << 16):
                said += part
        return said.decode()

    def close(self) -> None:
        self.file.close()
        os.close(self._ours)


@pytest.fixture
def tty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tty]:
    """A terminal. To stand for stderr it is set in the test itself: pytest has one of its own."""
    made = Tty()
    monkeypatch.setenv("TERM", "xterm-256color")
    yield made
    made.close()


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_nothing_is_drawn_on_a_terminal_that_cannot(
    tty: Tty, monkeypatch: pytest.MonkeyPatch, term: str
) -> None:
    monkeypatch.setattr(sys, "stderr", tty.file)
    assert drawing.terminal() is not None
    monkeypatch.setenv("TERM", term)
    assert drawing.terminal() is None


def test_what_is_no_terminal_is_none_whatever_rich_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    del capfd
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Console(stderr=True).is_terminal
    assert drawing.terminal() is None


def test_log_lines_come_above_the_bar_and_piped_results_do_not_meet_it(
    tty: Tty, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", tty.file)
    before = structlog.get_config()
    try:
        logs.configure(as_json=False, process="pipeline")
        console = drawing.terminal()
        assert console is not None
        picture = drawing.Bars([line("orders", done=5, total=10)])
        with drawing.drawn(console, picture, transient=False):
            structlog.get_logger().warning("something happened", what=7)
            sys.stdout.write("a result\n")
    finally:
        structlog.configure(**before)
        structlog.contextvars.clear_contextvars()
    said = tty.read()
    assert capsys.readouterr().out == "a result\n"
    assert "a result" not in said
    # The line of the bar is taken back before the log's line is written in its place.
    assert "\x1b[2K" in said.split("something happened")[0]
    assert said.rindex("orders") > said.index("something happened")
    assert said.count("\x1b[?25l") == said.count("\x1b[?25h") == 1  # the cursor


def end_by(which: signal.Signals) -> None:
    assert signal.getsignal(which) is not signal.SIG_DFL  # it would end the tests
    signal.raise_signal(which)


@pytest.mark.parametrize(
    ("which", "handler", "raised"),
    [
        # What runs in the background may have been told to ignore it.
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGTERM, signal.SIG_DFL, SystemExit),
    ],
)
def test_a_signal_leaves_the_terminal_whole(
    tty: Tty,
    monkeypatch: pytest.MonkeyPatch,
    which: signal.Signals,
    handler: Any,
    raised: type[BaseException],
) -> None:
    monkeypatch.setattr(sys, "stderr", tty.file)
    console = drawing.terminal()
    assert console is not None
    before = signal.signal(which, handler)
    try:
        streams = sys.stdout, sys.stderr
        bars = drawing.Bars([line("p", done=1, total=2)])
        with pytest.raises(raised), drawing.drawn(console, bars, transient=True):
            end_by(which)
        assert (sys.stdout, sys.stderr) == streams
        assert signal.getsignal(which) == handler
    finally:
        signal.signal(which, before)
    said = tty.read()
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")


PIPELINE = """
[pipelines.orders]
source = "shop"
path = "lake/orders"
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_run_on_a_terminal_has_a_bar_and_one_in_a_pipe_has_lines(tmp_path: Path) -> None:
    config = configure(tmp_path, SHOP.format(rate=300) + PIPELINE)
    with Service(config) as service:
        at = ("--config", str(config), "--endpoint", service.ready["flight"])
        run = ("pipeline", "run", "orders", "--once", *at)
        with terminal(*run, width=120) as tty:
            assert tty.ended() == 0
            last = tty.screen[-1] or tty.screen[-2]
            for word in ("orders", "━━━", "100%", "0 behind", "ended"):
                assert word in last, tty.written
            assert "starting" in tty.written
            assert "batch 0" not in tty.written
            assert tty.restored()
            assert tty.written.count("\x1b[?25l") == tty.written.count("\x1b[?25h") == 1
        config.write_text(config.read_text() + 'collections = ["orders", "ordrs"]\n')
        done = spawn(*run)
        assert done.code == 0
        assert done.out.startswith("orders: batch 0: ")
        assert not {"━", "\x1b"} & {*done.out, *done.err}
        assert "collections 'ordrs' matches nothing that the log has told of" in done.err


@pytest.mark.slow
@pytest.mark.spark
def test_ctrl_c_ends_a_run_in_order_and_the_terminal_is_whole(tmp_path: Path) -> None:
    config = configure(tmp_path, SHOP.format(rate=300) + PIPELINE)
    with Service(config) as service:
        at = ("--config", str(config), "--endpoint", service.ready["flight"])
        with terminal("pipeline", "run", *at, width=120) as tty:

            def follows() -> bool:
                tty.read()
                return "following" in tty.written

            wait_until(
                follows,
                unless=lambda: tty.process.poll() is not None,
                diagnose=lambda: tty.written,
            )
            os.killpg(tty.process.pid, signal.SIGINT)  # as a terminal does
            assert tty.ended() == 0, tty.written
            assert "ended" in (tty.screen[-1] or tty.screen[-2])
            assert tty.restored()
            assert tty.written.rindex("\x1b[?25h") > tty.written.rindex("\x1b[?25l")
