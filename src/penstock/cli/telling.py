"""What a running pipeline says of its batches."""

import threading
from typing import TYPE_CHECKING

import structlog
import typer
from msgspec import to_builtins

from penstock.cli import output
from penstock.client.credentials import Credentials
from penstock.client.flight import LogClient, PipelineReport
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.spark.run import PipelineProgress

logger = structlog.get_logger(__name__)


class Teller:
    """Says what a batch did: to the service, for `penstock status`, and on stdout.

    Neither may fail the pipeline: its tables are what counts. A service that does not listen costs
    a second at most. A reader of stdout that went away has seen enough, so `stop` is set.
    """

    def __init__(self, name: str, endpoint: str, *, as_json: bool, stop: threading.Event) -> None:
        self._name = name
        self._endpoint = endpoint
        self._shown = Credentials.from_environment()
        self._as_json = as_json
        self._stop = stop
        self._heard = True

    def __call__(self, progress: "PipelineProgress") -> None:
        try:
            self._say(progress)
        except BrokenPipeError:
            output.silence()
            self._stop.set()
        if progress.sequence:
            self._tell_service(progress.sequence)

    def _say(self, progress: "PipelineProgress") -> None:
        if self._as_json:
            output.emit(to_builtins(progress))
        elif progress.entries:
            # Not through rich, which ends the program at a broken pipe.
            typer.echo(
                f"batch {progress.batch_id}: {progress.entries:,} entries, {progress.rows:,} rows, "
                f"{progress.rejected:,} rejected, up to {progress.sequence:,} "
                f"({progress.entries_per_second:,.0f}/s)"
            )

    def _tell_service(self, sequence: int) -> None:
        """Spark itself would tell only when the next batch begins."""
        try:
            with LogClient(
                self._endpoint, patience_seconds=0, call_seconds=0.5, credentials=self._shown
            ) as client:
                log_id = client.bounds().log_id
                client.report(PipelineReport(pipeline=self._name, log_id=log_id, sequence=sequence))
        except Exception as error:
            # Whatever it is: the next report, or the next read of the log, meets it again.
            if self._heard:
                code = error.code if isinstance(error, PenstockError) else type(error).__name__
                logger.warning("service not told of a batch", pipeline=self._name, code=code)
            self._heard = False
        else:
            self._heard = True
