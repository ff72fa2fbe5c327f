"""What a pipeline's target is opened with."""

import threading
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.client.credentials import Credentials

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.loading.load import FirstLoad


class PipelineRun(Struct, frozen=True, kw_only=True):
    """A run of a pipeline, as its target is opened for it."""

    name: str
    config: Any
    """As `Destination.config` says."""
    endpoint: str
    """The service's Flight address."""
    spark: "SparkSession"
    stopping: threading.Event
    """Set when the run is to end."""
    credentials: Credentials
    archive: str
    """Where the service's [archive] is; empty for none."""
    load: "FirstLoad | None" = None
    """The first load of tables of current rows."""
