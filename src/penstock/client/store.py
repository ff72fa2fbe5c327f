"""Where a consumer keeps its progress."""

import os
from pathlib import Path
from typing import Protocol

from penstock.errors import MalformedProgressError
from penstock.folders import make_folder, sync_folder
from penstock.progress import parse_progress


class ProgressStore(Protocol):
    """Keeps one marker. Called from one thread at a time, never for an unprocessed change.

    What `load` and `save` raise reaches whoever asked for the next change or for `done()`.
    """

    def load(self) -> str:
        """The marker saved last; empty before the first."""
        ...

    def save(self, marker: str) -> None:
        """Keep `marker`: durable when this returns, and the old one until then."""
        ...


class MemoryProgress:
    """Keeps the marker while the process lives; for consumers that start anew each time."""

    def __init__(self, marker: str = "") -> None:
        self.marker = marker

    def load(self) -> str:
        return self.marker

    def save(self, marker: str) -> None:
        self.marker = marker


class FileProgress:
    """Keeps the marker in a file of one consumer, replaced in one step, so it is never torn."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def load(self) -> str:
        """The marker in the file; empty if there is no file.

        Raises MalformedProgressError if the file holds anything else: to start at the head then
        would skip changes in silence.
        """
        try:
            marker = self.path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError as error:
            raise MalformedProgressError(f"(the file {self.path.name})") from error
        parse_progress(marker)
        return marker

    def save(self, marker: str) -> None:
        make_folder(self.path.parent)
        beside = self.path.with_name(f"{self.path.name}.new")
        with beside.open("w", encoding="ascii") as file:
            file.write(f"{marker}\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        sync_folder(self.path.parent)
