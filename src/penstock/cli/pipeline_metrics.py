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
from penstock.errors import PenstockError
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

    from penstock.spark.progress import PipelineProgress


BEHIND: Final = (
    "penstock_pipeline_behind_entries",
    "Entries of the log that a pipeline has not applied.",
)
STALLED: Final = (
    "penstock_pipeline_stalled_seconds",
    "How long a pipeline that is behind has applied no batch.",
)
LAG: Final = (
    "penstock_pipeline_lag_seconds",
    "Age, by the source's clock, of the last change that a pipeline that is behind has applied.",
)


class _Moved:
    """How far a pipeline is."""

    def __init__(self) -> None:
        self.sequence = 0
        self.timestamp = 0
        self.at = time.monotonic()


class Meter(Collector):
    """Counts batches of pipelines; when it is asked, it asks the service how far the log is.

    All three are 0 while a pipeline has everything, and absent while the service does not answer.
    """

    def __init__(self, pipelines: Sequence[str], endpoint: str) -> None:
        self._pipelines = {name: _Moved() for name in pipelines}
        self._endpoint = endpoint
        self._shown = Credentials.from_environment()

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
        moved.sequence = max(moved.sequence, progress.sequence)
        moved.timestamp = progress.timestamp
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
            behind = max(0, head - moved.sequence) if moved.sequence else 0
            values = (
                behind,
                time.monotonic() - moved.at if behind else 0.0,
                max(0.0, time.time() - moved.timestamp / 1000) if behind else 0.0,
            )
            for family, value in zip(families, values, strict=True):
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
            server, thread = start_http_server(int(port), host.strip("[]"), PIPELINE_REGISTRY)
            stack.callback(thread.join)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        yield
