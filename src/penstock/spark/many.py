"""Many pipelines in one driver: one Spark session, a query for each, and fair shares of it.

Each is restarted and waited for by itself. One that stops for good stops no other: it is named with
its error when it does, and again at the end.
"""

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import structlog

from penstock.client.credentials import NOBODY, Credentials
from penstock.errors import PenstockError
from penstock.spark.config import PipelineConfig
from penstock.spark.progress import PipelineProgress, RunFact
from penstock.spark.raised import own_error
from penstock.spark.run import import_target, run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.loading.reading import OpenSource

log = structlog.get_logger()

_LOOK_SECONDS: Final = 0.2


def run_pipelines(
    pipelines: Mapping[str, PipelineConfig],
    endpoint: str,
    *,
    spark: "SparkSession",
    stop: threading.Event,
    once: bool = False,
    on_progress: Callable[[PipelineProgress], None] | None = None,
    on_fact: Callable[[RunFact], None] | None = None,
    on_end: Callable[[str, PenstockError | None], None] | None = None,
    credentials: Credentials = NOBODY,
    archive: str = "",
    open_sources: "Mapping[str, OpenSource] | None" = None,
) -> dict[str, PenstockError]:
    """Run all of `pipelines` until each has ended; the errors of those that failed, by name.

    `stop` has all of them finish their batches, and end. `on_progress` and `on_fact` are called as
    by `run_pipeline`, from threads for each pipeline; `on_end` once for each, when it ends.

    How they share Spark: `penstock.spark.sharing`. `archive` is where the service's [archive] is;
    `open_sources` make the sources, by name, for first loads.
    """
    for config in pipelines.values():
        import_target(config)
    runs = [
        _Run(
            name,
            config,
            endpoint,
            spark=spark,
            once=once,
            on_progress=on_progress,
            on_fact=on_fact,
            on_end=on_end,
            credentials=credentials,
            archive=archive,
            open_source=(open_sources or {}).get(config.source),
        )
        for name, config in pipelines.items()
    ]
    for one in runs:
        one.start()
    told = False
    while any(one.is_alive() for one in runs):
        if stop.wait(_LOOK_SECONDS) and not told:
            told = True
            for one in runs:
                one.stopping.set()
        if told:
            for one in runs:
                one.join()
    return {one.pipeline: one.error for one in runs if one.error is not None}


class _Run(threading.Thread):
    """One pipeline. Its own event: the service may stop it, and not the others."""

    def __init__(
        self,
        name: str,
        config: PipelineConfig,
        endpoint: str,
        *,
        spark: "SparkSession",
        once: bool,
        on_progress: Callable[[PipelineProgress], None] | None,
        on_fact: Callable[[RunFact], None] | None,
        on_end: Callable[[str, PenstockError | None], None] | None,
        credentials: Credentials,
        archive: str,
        open_source: "OpenSource | None",
    ) -> None:
        super().__init__(name=f"penstock-pipeline-{name}")
        self.pipeline = name
        self.stopping = threading.Event()
        self.error: PenstockError | None = None
        self._config = config
        self._endpoint = endpoint
        self._spark = spark
        self._once = once
        self._on_progress = on_progress
        self._on_fact = on_fact
        self._on_end = on_end
        self._credentials = credentials
        self._archive = archive
        self._open_source = open_source

    def run(self) -> None:
        try:
            run_pipeline(
                self.pipeline,
                self._config,
                self._endpoint,
                spark=self._spark,
                once=self._once,
                on_progress=self._on_progress,
                on_fact=self._on_fact,
                stop=self.stopping,
                credentials=self._credentials,
                archive=self._archive,
                open_source=self._open_source,
            )
        except BaseException as error:  # whatever it is, it is this pipeline's alone
            self.error = own_error(error, pipeline=self.pipeline)
            log.error(  # noqa: TRY400 - a text of Spark's may quote a document
                "pipeline failed",
                pipeline=self.pipeline,
                code=self.error.code,
                error=type(error).__name__,
            )
        if self._on_end is not None:
            self._on_end(self.pipeline, self.error)
