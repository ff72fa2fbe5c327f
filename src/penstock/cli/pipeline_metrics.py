"""What a running pipeline shows of itself: `/metrics` of its own process."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from prometheus_client import start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from penstock.client.credentials import Credentials
from penstock.client.flight import LogClient
from penstock.errors import ConfigError, PenstockError
from penstock.telemetry import (
    PIPELINE_BATCH_SECONDS,
    PIPELINE_ENTRIES,
    PIPELINE_LOST,
    PIPELINE_REGISTRY,
    PIPELINE_REJECTED,
    PIPELINE_ROWS,
    PIPELINE_UNMET,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from prometheus_client import Metric

    from penstock.spark.progress import PipelineProgress, RunBegan


BEHIND: Final = (
    "penstock_pipeline_behind_entries",
    "Entries of the log that a pipeline has not applied.",
)
STALLED: Final = (
    "penstock_pipeline_stalled_seconds",
    "How long a pipeline that is behind, or has not begun, has applied no batch.",
)
LAG: Final = (
    "penstock_pipeline_lag_seconds",
    "How old the changes are up to which a pipeline that is behind has all.",
)


class _Moved:
    """How far a pipeline is."""

    def __init__(self) -> None:
        self.place: int | None = None
        """Everything up to here is applied; None until its run has begun."""
        self.timestamp = 0
        """When the last change that it applied was committed, in Unix milliseconds; 0 where no
        batch has said."""
        self.at = time.monotonic()
        """When it last applied a batch, or was seen to have everything."""
        self._head: tuple[int, float] | None = None
        """Where the log once ended, and when: once it has come there, it had everything then."""
        self._whole_at: float | None = None
        """The last such time that is known; with `_head`, it is told in steps of two questions."""

    def came_to(self, place: int) -> None:
        """Everything up to `place` is applied."""
        self.place = place if self.place is None else max(self.place, place)

    def behind(self, head: int) -> int | None:
        """How many entries are missing, of a log that ends at `head` now; None if nobody knows."""
        if self.place is None:
            return None
        now = time.monotonic()
        if self.place >= head:
            self.at = self._whole_at = now
            self._head = head, now
        elif self._head is None or self.place >= self._head[0]:
            self._whole_at = None if self._head is None else self._head[1]
            self._head = head, now
        return max(0, head - self.place)

    def lag_seconds(self) -> float | None:
        """How old what it has is, while it is behind; None if nobody knows.

        By the source's clock, of the last change applied; but changes of others may have come since
        and none of its own, so no more than since it had all that the log had.
        """
        ages: list[float] = []
        if self.timestamp:
            ages.append(max(0.0, time.time() - self.timestamp / 1000))
        if self._whole_at is not None:
            ages.append(time.monotonic() - self._whole_at)
        return min(ages, default=None)


class Meter(Collector):
    """Counts batches of pipelines; when it is asked, it asks the service how far the log is.

    A pipeline that has everything is 0 in all three, and none is there while the service does not
    answer; what nobody knows of a pipeline is not there either.
    """

    def __init__(
        self,
        pipelines: Sequence[str],
        endpoint: str,
        *,
        expected: Iterable[tuple[str, str]] = (),
    ) -> None:
        """`expected` has each expectation's name behind its pipeline's: all are there from the
        start, with 0."""
        self._pipelines = {name: _Moved() for name in pipelines}
        for name in pipelines:
            for metric in (
                PIPELINE_ENTRIES,
                PIPELINE_ROWS,
                PIPELINE_REJECTED,
                PIPELINE_LOST,
                PIPELINE_BATCH_SECONDS,
            ):
                metric.labels(name)
        for labels in expected:
            PIPELINE_UNMET.labels(*labels)
        self._endpoint = endpoint
        self._shown = Credentials.from_environment()

    def began(self, told: "RunBegan") -> None:
        """A run goes on from its place."""
        self._pipelines[told.pipeline].came_to(told.sequence)

    def count(self, progress: "PipelineProgress") -> None:
        """A batch was applied."""
        name = progress.pipeline
        PIPELINE_ENTRIES.labels(name).inc(progress.entries)
        PIPELINE_ROWS.labels(name).inc(progress.rows)
        PIPELINE_REJECTED.labels(name).inc(progress.rejected)
        PIPELINE_LOST.labels(name).inc(progress.lost)
        for expectation, changes in progress.unmet.items():
            PIPELINE_UNMET.labels(name, expectation).inc(changes)
        PIPELINE_BATCH_SECONDS.labels(name).observe(progress.seconds)
        moved = self._pipelines[name]
        moved.came_to(progress.until)
        moved.timestamp = progress.timestamp or moved.timestamp
        moved.at = time.monotonic()

    def collect(self) -> "Iterator[Metric]":
        """As Prometheus asks for them."""
        try:
            with LogClient(
                self._endpoint, patience_seconds=0, call_seconds=1.0, credentials=self._shown
            ) as client:
                head = client.bounds().head
        except PenstockError:
            return
        metrics = (BEHIND, STALLED, LAG)
        families = [GaugeMetricFamily(*one, labels=["pipeline"]) for one in metrics]
        for name, moved in self._pipelines.items():
            behind = moved.behind(head)
            values = (
                behind,
                0.0 if behind == 0 else time.monotonic() - moved.at,
                0.0 if behind == 0 else moved.lag_seconds(),
            )
            for family, value in zip(families, values, strict=True):
                if value is not None:
                    family.add_metric([name], value)
        yield from families


@contextmanager
def shown(addresses: Iterable[str], meter: Meter) -> "Generator[None]":
    """Show the metrics at each of `addresses` while the block runs; "off" shows none."""
    chosen = sorted({*addresses} - {"off"})
    if not chosen:
        yield
        return
    PIPELINE_REGISTRY.register(meter)
    with ExitStack() as stack:
        stack.callback(PIPELINE_REGISTRY.unregister, meter)
        for address in chosen:
            host, _, port = address.rpartition(":")
            try:
                server, thread = start_http_server(int(port), host.strip("[]"), PIPELINE_REGISTRY)
            except OSError as error:
                raise ConfigError(
                    f"cannot show metrics on {address}: it is in use, or not of this machine "
                    f"({error.strerror}). Nothing was started. Set metrics of the pipeline to "
                    f"another, or to 'off'."
                ) from error
            stack.callback(thread.join)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        yield
