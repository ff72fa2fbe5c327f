"""What a running pipeline shows of itself: `/metrics` of its own process."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    PIPELINE_REGISTRY,
    PIPELINE_REJECTED,
    PIPELINE_ROWS,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from prometheus_client import Metric

    from penstock.spark.run import PipelineProgress


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


class Meter(Collector):
    """Counts a pipeline's batches; when it is asked, it asks the service how far the log is.

    All three are 0 while it has everything, and absent while the service does not answer.
    """

    def __init__(self, pipeline: str, endpoint: str) -> None:
        self._pipeline = pipeline
        self._endpoint = endpoint
        self._shown = Credentials.from_environment()
        self._sequence = 0
        self._timestamp = 0
        self._moved_at = time.monotonic()

    def count(self, progress: "PipelineProgress") -> None:
        """A batch was applied."""
        PIPELINE_ENTRIES.labels(self._pipeline).inc(progress.entries)
        PIPELINE_ROWS.labels(self._pipeline).inc(progress.rows)
        PIPELINE_REJECTED.labels(self._pipeline).inc(progress.rejected)
        PIPELINE_BATCH_SECONDS.labels(self._pipeline).observe(progress.seconds)
        self._sequence = max(self._sequence, progress.sequence)
        self._timestamp = progress.timestamp
        self._moved_at = time.monotonic()

    def collect(self) -> "Iterator[Metric]":
        """As Prometheus asks for them."""
        try:
            with LogClient(
                self._endpoint, patience_seconds=0, call_seconds=1.0, credentials=self._shown
            ) as client:
                head = client.bounds().head
        except PenstockError:
            return
        behind = max(0, head - self._sequence) if self._sequence else 0
        said = (
            (BEHIND, behind),
            (STALLED, time.monotonic() - self._moved_at if behind else 0.0),
            (LAG, max(0.0, time.time() - self._timestamp / 1000) if behind else 0.0),
        )
        for (name, documentation), value in said:
            family = GaugeMetricFamily(name, documentation, labels=["pipeline"])
            family.add_metric([self._pipeline], value)
            yield family


@contextmanager
def shown(address: str, meter: Meter) -> "Generator[None]":
    """Show the metrics at `address` while the block runs; "off" shows none."""
    if address == "off":
        yield
        return
    host, _, port = address.rpartition(":")
    PIPELINE_REGISTRY.register(meter)
    server, thread = start_http_server(int(port), host.strip("[]"), PIPELINE_REGISTRY)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        PIPELINE_REGISTRY.unregister(meter)
