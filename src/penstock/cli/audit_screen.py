"""The full screen of `penstock audit view`: keys in, lines out, and MongoDB in a thread beside.

What is on the screen (`audit_state`) and how it looks (`audit_drawing`) are decided there; this is
the edge. A refresh reads what is new, and never all again.
"""

import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from bson.raw_bson import RawBSONDocument
from rich.live import Live

from penstock.audit.activity import Counts, counts_of
from penstock.audit.filters import Filters, filters_of
from penstock.audit.querying import Querier, decoded
from penstock.audit.trail import Trail
from penstock.cli import output
from penstock.cli.audit_drawing import draw
from penstock.cli.audit_keys import Keys, each_key, read_keys
from penstock.cli.audit_state import ROWS_MAX, Effect, Mode, State
from penstock.cli.audit_writing import write_csv, write_jsonl
from penstock.errors import ConfigError, PenstockError, TrailMissingError

REFRESH_SECONDS: Final = 1.0
_KEY_SECONDS: Final = 0.1
_WINDOW_MINUTES: Final = 60
_QUERY_SECONDS: Final = 10.0
_SUFFIXES: Final = (".csv", ".jsonl")


def run_screen(name: str, trail: Trail, written: dict[str, str]) -> None:
    """Show the trail on the whole terminal until somebody quits; ConfigError without one."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("--full needs a terminal. Leave it out to have lines.")
    _Screen(name, trail, written).run()


class _Stopped(Exception):  # noqa: N818 - no error: somebody stopped an export
    pass


@contextmanager
def interrupts() -> Generator[threading.Event]:
    """SIGINT sets the event, for the time of the block.

    As an exception it may come while Python collects garbage, which ignores it, or in the middle
    of a picture.
    """
    interrupted = threading.Event()

    def say(_number: int, _frame: FrameType | None) -> None:
        interrupted.set()

    before = signal.signal(signal.SIGINT, say)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


class _Worker:
    """One thread that does what may take long; what comes of it is taken by the screen's loop."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], Callable[[], None]]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting = 0
        # A daemon: who quits does not wait for a query.
        threading.Thread(target=self._run, name="penstock-audit-screen", daemon=True).start()

    @property
    def busy(self) -> bool:
        return self._waiting > 0

    def submit(self, task: Callable[[], Callable[[], None]]) -> None:
        """Run `task` in the thread, and what it returns in the loop."""
        self._waiting += 1
        self._tasks.put(task)

    def finish(self) -> bool:
        """Do what is ready to be done in the loop; whether there was anything."""
        any_ = False
        while not self._done.empty():
            done = self._done.get()
            self._waiting -= 1
            done()
            any_ = True
        return any_

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                done = task()
            except Exception as error:  # a defect: it ends the screen, which would wait for ever
                done = partial(_raise, error)
            self._done.put(done)


def _raise(error: Exception) -> None:
    raise error


class _Screen:
    def __init__(self, name: str, trail: Trail, written: dict[str, str]) -> None:
        self._tz = trail.config.tz
        self._state = State(name=name, tz=self._tz, written=written)
        self._filters = self._parsed(written)
        self._querier = Querier(trail, query_seconds=_QUERY_SECONDS)
        self._worker = _Worker()
        self._stop_export = threading.Event()
        self._due = 0.0
        self._away = False

    def _parsed(self, written: dict[str, str]) -> Filters:
        return filters_of(tz=self._tz, **{key: text for key, text in written.items() if text})

    def run(self) -> None:
        """Until somebody quits."""
        console, keys, fd = output.stdout(), Keys(), sys.stdin.fileno()
        drawn: tuple[Any, ...] = ()
        with (
            interrupts() as interrupted,
            each_key(fd),
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            self._load()
            while True:
                if interrupted.is_set():
                    raise KeyboardInterrupt
                changed = self._worker.finish()
                self._refresh_if_due()
                now_minute = int(time.time() // 60)
                self._state.forget_before(now_minute - _WINDOW_MINUTES + 1)
                now = (console.size, now_minute)
                if changed or now != drawn:
                    width, height = console.size
                    picture = draw(self._state, width=width, height=height, now_minute=now_minute)
                    live.update(picture, refresh=True)
                    drawn = now
                pressed = read_keys(fd, keys, seconds=_KEY_SECONDS)
                if pressed is None:
                    return
                for key in pressed:
                    if self._do(self._state.press(key)):
                        return
                    drawn = ()

    def _do(self, effect: Effect | None) -> bool:
        """Do what a key asked for; True to quit."""
        if effect is Effect.RELOAD:
            self._load()
        elif effect is Effect.APPLY:
            self._apply()
        elif effect is Effect.DETAIL:
            self._detail()
        elif effect is Effect.EXPORT:
            self._export()
        elif effect is Effect.STOP_EXPORT:
            self._stop_export.set()
        return effect is Effect.QUIT

    # --- reading ---------------------------------------------------------------------------------

    def _refresh_if_due(self) -> None:
        if self._worker.busy or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + REFRESH_SECONDS
        if not self._state.loaded:
            self._load()
        elif self._state.auto:
            filters, after = self._filters, self._state.head
            self._submit(lambda: self._read_new(filters, after))

    def _load(self) -> None:
        filters = self._filters
        self._submit(lambda: self._read_all(filters))

    def _submit(self, read: Callable[[], Callable[[], None]]) -> None:
        """Read in the thread; what goes wrong is said, and what is on the screen stays."""

        def task() -> Callable[[], None]:
            try:
                return read()
            except TrailMissingError:
                return lambda: self._state.say("nothing was written to this trail yet")
            except PenstockError as error:
                said = str(error)
                return lambda: self._failed(said)

        self._worker.submit(task)

    def _failed(self, said: str) -> None:
        self._away = True
        self._state.say(said, wrong=True)

    def _answered(self) -> None:
        if self._away:
            self._away = False
            self._state.say("")

    def _read_all(self, filters: Filters) -> Callable[[], None]:
        head = self._querier.head().at
        rows = self._newest(filters, after=0, until=head)
        counts = self._counts(filters, after=0, until=head)

        def done() -> None:
            if filters == self._filters:
                self._answered()
                self._state.load(rows, head=head, counts=counts)

        return done

    def _read_new(self, filters: Filters, after: int) -> Callable[[], None]:
        head = self._querier.head().at
        rows = self._newest(filters, after=after, until=head) if head > after else []
        counts = self._counts(filters, after=after, until=head) if head > after else {}

        def done() -> None:
            if filters != self._filters or after != self._state.head:
                return
            if not self._state.auto:
                return  # it was switched off meanwhile: what came since is not to come by itself
            self._answered()
            if head < after:
                self._state.loaded = False  # begun anew, or restored
            else:
                self._state.add(rows, head=head, counts=counts)

        return done

    def _newest(self, filters: Filters, *, after: int, until: int) -> list[dict[str, Any]]:
        found = self._querier.records(
            filters, order="desc", until=until, limit=ROWS_MAX, page=ROWS_MAX, behind=after
        )
        return [decoded(record) for record in found]

    def _counts(self, filters: Filters, *, after: int, until: int) -> Counts | None:
        since_ms = (int(time.time() // 60) - _WINDOW_MINUTES + 1) * 60_000
        return counts_of(self._querier, filters, since_ms=since_ms, after=after, until=until)

    # --- what keys ask for -----------------------------------------------------------------------

    def _apply(self) -> None:
        written = {name: text for name, text in self._state.form.items() if text}
        try:
            filters = self._parsed(written)
        except ConfigError as error:
            self._state.say(str(error), wrong=True)
            return
        self._filters = filters
        self._state.written, self._state.mode = written, Mode.TABLE
        self._state.rows, self._state.loaded = [], False
        self._state.say("")
        self._load()

    def _detail(self) -> None:
        chosen = self._state.chosen
        if chosen is None:
            return

        def read() -> Callable[[], None]:
            whole = self._querier.at(chosen["at"])

            def done() -> None:
                if self._state.mode is Mode.DETAIL:
                    self._state.detail = whole

            return done

        self._submit(read)

    def _export(self) -> None:
        path = Path(self._state.path).expanduser()
        if path.suffix not in _SUFFIXES:
            self._state.say("the file's name must end with .csv or .jsonl", wrong=True)
            return
        if path.exists():
            self._state.say(f"{path} is there already, and is not written over", wrong=True)
            return
        if self._state.exporting:
            self._state.say("an export is under way; Escape stops it", wrong=True)
            return
        self._stop_export.clear()
        self._state.exporting = True
        filters = self._filters
        self._worker.submit(lambda: self._write(filters, path))

    def _write(self, filters: Filters, path: Path) -> Callable[[], None]:
        beside = path.with_name(f"{path.name}.part")
        count = 0
        try:
            until = self._querier.head().at

            def again() -> Iterator[RawBSONDocument]:
                nonlocal count
                count = 0
                for record in self._querier.records(filters, order="asc", until=until):
                    if self._stop_export.is_set():
                        raise _Stopped
                    count += 1
                    yield record

            with beside.open("xb") as out:
                if path.suffix == ".csv":
                    write_csv(out, self._querier, again, tz=self._tz)
                else:
                    write_jsonl(out, self._querier, again())
            beside.rename(path)
            said, wrong = f"{count:,} records are in {path}", False
        except _Stopped:
            beside.unlink(missing_ok=True)
            said, wrong = "the export was stopped, and nothing is left of it", False
        except (OSError, PenstockError) as error:
            if not isinstance(error, FileExistsError):
                beside.unlink(missing_ok=True)
            said, wrong = f"nothing was exported: {error}", True

        def done() -> None:
            self._state.exporting = False
            self._state.say(said, wrong=wrong)

        return done
