"""The live table of `penstock pipeline run` on a terminal: a line for each pipeline."""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from penstock.cli import output
from penstock.cli.pipeline_ask import PipelineReport, reports, table_of
from penstock.client.credentials import Credentials
from penstock.client.flight import LogClient
from penstock.errors import PenstockError

_LOOK_SECONDS = 1.0


class Screen:
    """What the service says of these pipelines, and how they ended here."""

    def __init__(self, names: Sequence[str], endpoint: str, credentials: Credentials) -> None:
        self._names = names
        self._endpoint = endpoint
        self._credentials = credentials
        self._lock = threading.Lock()
        self._known: list[PipelineReport] = []
        self._away = ""
        self._errors: dict[str, str] = {}

    def ended(self, name: str, error: PenstockError | None) -> None:
        """A pipeline is over."""
        if error is not None:
            with self._lock:
                self._errors[name] = error.code

    def look(self) -> None:
        """Ask the service."""
        try:
            with LogClient(
                self._endpoint,
                patience_seconds=0,
                call_seconds=_LOOK_SECONDS,
                credentials=self._credentials,
            ) as client:
                known = [one for one in client.pipelines() if one.pipeline in self._names]
        except PenstockError as error:
            with self._lock:
                self._away = error.code
            return
        with self._lock:
            self._known, self._away = reports({}, known), ""

    def __rich__(self) -> RenderableType:
        with self._lock:
            if self._away:
                return Text(f"the service does not answer ({self._away}); pipelines wait for it")
            return table_of(self._known, self._errors)


@contextmanager
def screen(
    names: Sequence[str], endpoint: str, credentials: Credentials, *, wanted: bool
) -> Generator[Screen | None]:
    """Draw while the block runs; None where nobody would see it, or it is not `wanted`."""
    console = output.stdout()
    if not wanted or not console.is_terminal:
        yield None
        return
    drawn, over = Screen(names, endpoint, credentials), threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            drawn.look()

    looking = threading.Thread(target=look, name="penstock-screen", daemon=True)
    with Live(drawn, console=console, refresh_per_second=2):
        looking.start()
        try:
            yield drawn
        finally:
            over.set()
            looking.join()
            drawn.look()
