"""The bars of `penstock pipeline run` on a terminal: what the driver does, and where the log ends.

What they say is decided in `pipeline_bars`; this is the edge.
"""

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.text import Text

from penstock.cli import drawing
from penstock.cli.pipeline_ask import reports
from penstock.cli.pipeline_bars import (
    FOLLOWS_SECONDS,
    Course,
    lines_of,
    with_batch,
    with_end,
    with_fact,
    with_look,
)
from penstock.client.credentials import Credentials
from penstock.client.flight import LogClient
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.spark.config import PipelineConfig
    from penstock.spark.progress import PipelineProgress, RunFact

_LOOK_SECONDS: Final = 1.0


class Screen:
    """What is known of the pipelines of this driver. Told from any thread."""

    def __init__(
        self,
        pipelines: "Mapping[str, PipelineConfig]",
        endpoint: str,
        credentials: Credentials,
        *,
        once: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._credentials = credentials
        self._clock = clock
        self._lock = threading.Lock()
        self._away = ""
        self._courses = {name: _begun(name, one, once) for name, one in pipelines.items()}

    def fact(self, fact: "RunFact") -> None:
        """A run says how it stands."""
        with self._lock:
            known = self._courses[fact.pipeline]
            self._courses[fact.pipeline] = with_fact(known, fact, self._clock())

    def batch(self, batch: "PipelineProgress") -> None:
        """A batch is in its destination."""
        with self._lock:
            known = self._courses[batch.pipeline]
            self._courses[batch.pipeline] = with_batch(known, batch, self._clock())

    def ended(self, name: str, error: PenstockError | None) -> None:
        """A pipeline is over."""
        with self._lock:
            self._courses[name] = with_end(self._courses[name], error.code if error else "")

    def look(self) -> None:
        """Ask the service."""
        try:
            with LogClient(
                self._endpoint,
                patience_seconds=0,
                call_seconds=_LOOK_SECONDS,
                credentials=self._credentials,
            ) as client:
                head = client.live_bounds().head
                said = {one.pipeline: one for one in reports({}, client.pipelines())}
        except Exception as error:
            # Drawing ends no run, and goes on itself.
            with self._lock:
                self._away = (
                    error.code if isinstance(error, PenstockError) else type(error).__name__
                )
            return
        with self._lock:
            self._away, now = "", self._clock()
            for name, course in self._courses.items():
                self._courses[name] = with_look(course, head, said.get(name), now)

    def __rich__(self) -> RenderableType:
        with self._lock:
            now = self._clock()
            lines = [one for course in self._courses.values() for one in lines_of(course, now)]
            away = self._away
        bars = drawing.Bars(lines)
        if not away:
            return bars
        said = f"the service does not answer ({away}); pipelines wait for it"
        return Group(bars, Text(said, "yellow"))


def _begun(name: str, config: "PipelineConfig", once: bool) -> Course:
    seconds = config.trigger
    if isinstance(seconds, str):
        return Course(pipeline=name, once=True)
    return Course(pipeline=name, once=once, follows_seconds=FOLLOWS_SECONDS + 2 * seconds)


@contextmanager
def screen(
    pipelines: "Mapping[str, PipelineConfig]",
    endpoint: str,
    credentials: Credentials,
    *,
    once: bool,
    wanted: bool,
) -> Generator[Screen | None]:
    """Draw while the block runs; None where nobody would see it, or it is not `wanted`."""
    console = drawing.terminal() if wanted else None
    if console is None:
        yield None
        return
    shown, over = Screen(pipelines, endpoint, credentials, once=once), threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            shown.look()

    looking = threading.Thread(target=look, name="penstock-screen", daemon=True)
    with drawing.drawn(console, shown, transient=False):
        looking.start()
        try:
            yield shown
        finally:
            over.set()
            looking.join()
            shown.look()
