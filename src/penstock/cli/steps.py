"""One bar for work in the foreground that takes steps: each has a name, and an end if one is known.

What it says is decided by plain functions; `steps` is the edge.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from msgspec import Struct, structs
from rich.console import RenderableType
from rich.text import Text

from penstock.cli import drawing, output
from penstock.cli.bars import Line, Step, left_words, line, seconds_left, stepped


class Doing(Struct, frozen=True, kw_only=True):
    """What is being done, and how much of it is."""

    what: str
    unit: str = ""
    """What is counted; nothing is, without."""
    done: int = 0
    total: int | None = None
    """None: nobody knows."""
    of: str = ""
    """To what it is done."""

    @property
    def behind(self) -> int:
        """How much is left, where that is known."""
        return 0 if self.total is None else max(0, self.total - self.done)


class Work(Struct, frozen=True, kw_only=True):
    """A step, and how it came on."""

    doing: Doing
    began: float
    seen: tuple[Step, ...]


def with_doing(work: Work | None, doing: Doing, at: float) -> Work:
    """A step began, or came on; it never goes back, though its end may move."""
    if work is None or work.doing.what != doing.what:
        return Work(doing=doing, began=at, seen=(_seen(doing, at),))
    before = work.doing.done
    doing = structs.replace(doing, done=max(doing.done, before))
    seen = stepped(work.seen, _seen(doing, at)) if doing.done > before else work.seen
    return Work(doing=doing, began=work.began, seen=seen)


def _seen(doing: Doing, at: float) -> Step:
    return Step(at=at, done=doing.done, behind=doing.behind)


def line_of(work: Work, now: float) -> Line:
    """How far it is; without an end, for how long it has been done."""
    doing, left = work.doing, None
    count = f"{doing.done:,} {doing.unit}" if doing.unit else ""
    if doing.total is not None:
        count = f"{doing.done:,} of {max(doing.done, doing.total):,} {doing.unit}"
        left = seconds_left(work.seen, now, behind=doing.behind)
    took = f"for {output.duration(max(0.0, now - work.began))}"
    return line(
        doing.what,
        done=doing.done,
        total=doing.total,
        count=count,
        left=left_words(left),
        said=tuple((text, style) for text, style in ((doing.of, ""), (took, "dim")) if text),
    )


class Steps:
    """The bar. Told from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._work: Work | None = None

    def tell(self, doing: Doing) -> None:
        """That is done now."""
        with self._lock:
            self._work = with_doing(self._work, doing, self._clock())

    def __rich__(self) -> RenderableType:
        with self._lock:
            work = self._work
        return Text("") if work is None else drawing.Bars([line_of(work, self._clock())])


@contextmanager
def steps(*, wanted: bool) -> Generator[Steps | None]:
    """A bar while the block runs, gone at its end; None where nobody would see it, or it is not
    `wanted`."""
    console = drawing.terminal() if wanted else None
    if console is None:
        yield None
        return
    shown = Steps()
    with drawing.drawn(console, shown, transient=True):
        yield shown


def entries_told(shown: Steps | None, what: str) -> Callable[[int, int], None] | None:
    """What is told of entries that are done, and of how many; None where nobody looks."""
    if shown is None:
        return None
    return lambda done, total: shown.tell(Doing(what=what, unit="entries", done=done, total=total))
