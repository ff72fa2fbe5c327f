"""Bars on a terminal, while something that takes long runs; nothing where nobody would see them.

They are on stderr, so that what a command says on stdout can be piped. Lines that are written
meanwhile come above them.
"""

import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.cli.bars import Line
from penstock.cli.console import Screen

_BAR_WIDTH_MIN: Final = 8
_BAR_WIDTH_MAX: Final = 40
_WORDS_WIDTH_MIN: Final = 10
_RATE_WIDTH: Final = 80
_LEFT_WIDTH: Final = 70
"""Narrower terminals have no room for that."""
_LOOKS_PER_SECOND: Final = 4


class Bars:
    """Lines below one another; of a narrow terminal the pace is left out first."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        yield _table(self._lines, width=options.max_width)


def _table(lines: Sequence[Line], *, width: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(min_width=_BAR_WIDTH_MIN, max_width=_BAR_WIDTH_MAX)
    paced = [width >= _RATE_WIDTH, width >= _LEFT_WIDTH]
    for _ in range(2 + sum(paced)):
        table.add_column(no_wrap=True, justify="right")
    table.add_column(min_width=_WORDS_WIDTH_MIN, overflow="fold")
    for one in lines:
        pace = [text for text, told in zip((one.rate, one.left), paced, strict=True) if told]
        words = Text(" ").join(Text(text, style) for text, style in one.said)
        table.add_row(Text(one.label), _bar(one), one.percent, one.count, *pace, words)
    return table


def _bar(line: Line) -> ProgressBar:
    if line.total is None and line.moves:
        return ProgressBar(total=None, pulse=True)
    # Nothing to do is done. A bar of rich's has no end of 0.
    done = 1 if line.total == 0 else line.done if line.total else 0
    return ProgressBar(total=line.total or 1, completed=done)


def terminal() -> Console | None:
    """Where bars are drawn; None where nobody would see them."""
    console = Screen(stderr=True, highlight=False)
    # A terminal that rich is told to assume is none: bars would be in whatever reads it.
    drawn = sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal
    return console if drawn else None


@contextmanager
def drawn(console: Console, picture: RenderableType, *, transient: bool) -> Generator[None]:
    """Draw `picture` again and again while the block runs; at the end it stays unless transient.

    However the block ends, the terminal is left whole: SIGTERM ends it as SystemExit where nobody
    else handles it.
    """
    with (
        _terminated(),
        Live(
            picture,
            console=console,
            refresh_per_second=_LOOKS_PER_SECOND,
            transient=transient,
            # Else what is piped would come with the bars, and not in the pipe.
            redirect_stdout=sys.stdout.isatty(),
        ),
    ):
        yield


@contextmanager
def _terminated() -> Generator[None]:
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
