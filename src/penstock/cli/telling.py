"""What a running pipeline says of its batches."""

import threading
from typing import TYPE_CHECKING

from msgspec import to_builtins

from penstock.cli import output

if TYPE_CHECKING:
    from penstock.spark.progress import PipelineProgress


class Teller:
    """Says what a batch did, on stdout.

    It may not fail a pipeline: its tables are what counts. A reader of stdout that went away has
    seen enough, so `stop` is set.
    """

    def __init__(self, *, as_json: bool, stop: threading.Event) -> None:
        self._as_json = as_json
        self._stop = stop
        self._lock = threading.Lock()

    def __call__(self, progress: "PipelineProgress") -> None:
        with self._lock:
            try:
                self._say(progress)
            except BrokenPipeError:
                output.silence()
                self._stop.set()

    def _say(self, progress: "PipelineProgress") -> None:
        if self._as_json:
            output.emit(to_builtins(progress))
        elif progress.entries:
            output.say(
                f"{progress.pipeline}: batch {progress.batch_id}: {progress.entries:,} entries, "
                f"{progress.rows:,} rows, {progress.rejected:,} rejected, up to "
                f"{progress.sequence:,} ({progress.entries_per_second:,.0f}/s)"
            )
