"""Run a pipeline: from the service's log to its target, until it is told to stop.

One Spark query per pipeline. Where it goes on the target keeps with what it writes
(`penstock.spark.target`), and it ignores what it has already. Spark's own checkpoint lasts for one
run only: kept, it would be a second word on where the pipeline stands.

A service that is away is waited for: the query is started again, with growing pauses. Whatever
cannot heal by itself is raised as the error of penstock.errors that it is.
"""

import json
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog
from msgspec import structs

from penstock.archive.opening import log_client
from penstock.client.credentials import NOBODY, Credentials
from penstock.client.flight import LogClient
from penstock.client.retry import Backoff, Retry
from penstock.errors import ConfigError, PartialViewError, PenstockError, TrimmedError
from penstock.holds import SEEN_SECONDS
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark import register
from penstock.spark.causes import LOST
from penstock.spark.config import (
    LakePipelineConfig,
    PipelineConfig,
    SteppedPipelineConfig,
    TablePipelineConfig,
)
from penstock.spark.destinations import destination_named, function
from penstock.spark.options import credential_options, place_of
from penstock.spark.overtaken import overtaken
from penstock.spark.pipeline_run import PipelineRun
from penstock.spark.progress import (
    PipelineProgress,
    ProgressTeller,
    RunBegan,
    RunFact,
    RunWaits,
)
from penstock.spark.raised import TO_END, own_error
from penstock.spark.rejected import too_many
from penstock.spark.scheduled import Verification, VerifySchedule
from penstock.spark.scratch import scratch_folder, sweep_scratch
from penstock.spark.session import local_session, on_this_machine, require_driver
from penstock.spark.sharing import enter_pool, in_turn
from penstock.spark.table.standing import has_loaded
from penstock.spark.target import Applied, Target, TargetStoppedError
from penstock.spark.telling import ServiceTeller
from penstock.spark.transform.stage import Stage
from penstock.spark.unknown import without_entries
from penstock.spark.verifying import Verified
from penstock.subscribe.current import Declared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.spark.loading.load import FirstLoad
    from penstock.spark.loading.reading import OpenSource

log = structlog.get_logger()

_Result = TypeVar("_Result")
_LOOK_SECONDS: Final = 0.2
_RETRY: Final = Retry(max_seconds=10.0)
_ATTEMPTS_ONCE: Final = 3
_STOPPED_SECONDS: Final = 0.01
"""How often a batch that is left out looks whether its query is stopped."""
_DECLARED_SECONDS_MAX: Final = 60.0
"""So long the current rows are waited for that know what a source declares of columns."""
_SETTLE_SECONDS: Final = 10.0
"""How often a target stores how far it has come while nothing is applied."""


def run_pipeline(
    name: str,
    config: PipelineConfig,
    endpoint: str,
    *,
    spark: "SparkSession | None" = None,
    once: bool = False,
    on_progress: Callable[[PipelineProgress], None] | None = None,
    on_fact: Callable[[RunFact], None] | None = None,
    stop: threading.Event | None = None,
    credentials: Credentials = NOBODY,
    archive: str = "",
    open_source: "OpenSource | None" = None,
) -> None:
    """Apply the log's changes to the pipeline's target until `stop` is set, or SIGTERM or SIGINT.

    `name` is the identity under which the target keeps its place. `endpoint` is the service's
    Flight address. `once` (as trigger = "availableNow") applies what is there now and returns.
    `on_progress` is called after each batch, in a thread of its own: what it raises is logged once
    and no more, and one that is slow delays nothing; it misses what comes while a thousand wait,
    and what is left a few seconds after the end. So is `on_fact`, with where the run begins, what
    it waits for and how far a first load is. A session that is not given is made, and stopped at
    the end. A batch that is being written is finished first. `credentials` go to the service,
    and must show everything of the source: PartialViewError else. `archive` is where the service's
    [archive] is: a new pipeline begins with the first entry of that. `open_source` makes the
    pipeline's source, for a first load from there; workers call it too. With `once`, that is done
    when this returns; and if it has read the log from its first entry, collections that `config`
    names and the log does not are a warning.

    The service is told how far the target has durably come, so that the log holds what follows; if
    it was asked to (`penstock pipeline stop`), it sets `stop`.

    Raises PenstockError: what cannot heal by itself, and with `once` a service that stays away;
    ConfigError for a session of Spark Connect, whose driver is elsewhere.
    HistoryTrimmedError and PipelineChangedError, before anything is written, where going on would
    leave out changes.
    """
    if spark is not None:
        require_driver(spark)
    # The session first: PySpark takes SIGINT for itself when it makes one.
    with _session(name, spark) as session, _told_to_stop(stop) as stopping:
        sweep_scratch()
        teller, facts = ProgressTeller(on_progress), ProgressTeller(on_fact)
        load = None
        if isinstance(config, TablePipelineConfig) and config.first_load != "off":
            from penstock.spark.loading.load import first_load

            load = first_load(name, config, endpoint, session, open_source, credentials, facts.tell)
        target = destination_named(config.to).open(
            PipelineRun(
                name=name,
                config=config,
                endpoint=endpoint,
                spark=session,
                stopping=stopping,
                credentials=credentials,
                archive=archive,
                load=load,
            )
        )
        service = ServiceTeller(
            name,
            source=config.source,
            to=config.to,
            endpoint=endpoint,
            credentials=credentials,
            on_stop=stopping.set,
        )
        runner = _Runner(
            *(name, config, endpoint, session, stopping, teller, facts, target, credentials),
            *(service, archive, load, open_source),
        )
        once = once or config.trigger == "availableNow"
        schedule = None
        try:
            schedule = runner.schedule()
            if schedule is not None and not once:
                schedule.start()
            runner.run(once=once)
            if schedule is not None and once:
                schedule.compare_if_due(stopping)
            service.close("stopped" if service.stopped else "ended")
        except PenstockError as error:
            service.close("failed", error.code)
            raise
        except TO_END:
            raise
        except BaseException as error:
            own = own_error(error, pipeline=name)
            service.close("failed", own.code)
            raise own from error
        finally:
            if schedule is not None:
                schedule.close()
            service.close("ended")
            if load is not None:
                load.close()
            target.close()
            teller.close()
            facts.close()


def import_target(config: PipelineConfig) -> None:
    """Import what a pipeline runs with, as far as that is installed.

    For whoever starts several in threads of their own: two imports that meet in modules which
    import each other, each from its end, are refused by Python (_DeadlockError).
    """
    with suppress(Exception):  # its own run tells it, to which it happens again
        import_module("penstock.spark.rows")
        destination_named(config.to).import_all(config)


class _Runner:
    """One pipeline in one session."""

    def __init__(
        self,
        name: str,
        config: PipelineConfig,
        endpoint: str,
        spark: "SparkSession",
        stopping: threading.Event,
        teller: ProgressTeller[PipelineProgress],
        facts: ProgressTeller[RunFact],
        target: Target,
        credentials: Credentials,
        service: ServiceTeller,
        archive: str,
        load: "FirstLoad | None",
        open_source: "OpenSource | None" = None,
    ) -> None:
        self._load = load
        self._open_source = open_source
        self._credentials = credentials
        self._service = service
        self._archive = archive
        self._settled_at = time.monotonic()
        self._name = name
        self._config = config
        self._endpoint = endpoint
        self._spark = spark
        self._stopping = stopping
        self._teller = teller
        self._facts = facts
        self._target = target
        self._stage = (
            Stage(name, config, target.columns, stopping=stopping)
            if isinstance(config, SteppedPipelineConfig)
            else None
        )
        """What happens before the target."""
        self._writing = threading.Lock()
        self._raised: PenstockError | None = None
        self._batches = 0
        self._rejected = 0
        self._at_oldest = False
        """Whether it begins with the log's oldest entry, which retention may remove."""
        self._from_first = False
        """Whether the log is read from its first entry on, and not from where a run stood."""

    def schedule(self) -> VerifySchedule | None:
        """Who compares what is kept with log or source, if the pipeline has that done."""
        config = self._config
        if not isinstance(config, LakePipelineConfig) or not config.verify_every:
            return None
        source = isinstance(config, TablePipelineConfig) and config.verify_against == "source"
        if not on_this_machine(str(self._spark.sparkContext.master)):
            raise ConfigError(
                f"pipeline {self._name}: verify_every writes down what it compares with, and "
                f"Spark's workers are on other machines. Nothing was started. Leave it out, and "
                f"compare on a schedule of your own: penstock pipeline verify {self._name} "
                f"{'--against source ' if source else ''}--scratch PATH."
            )
        verify: Callable[..., Verified]
        if source:
            from penstock.spark.against.source import verify_with_source

            verify = partial(verify_with_source, open_source=self._open_source)
        elif has_loaded(config):
            log.warning(
                "tables are not compared with the log: a first load brought rows that it does not "
                "tell; set verify_against = 'source', or leave verify_every out",
                pipeline=self._name,
            )
            self._service.verified(Verification(code=ConfigError.code))
            return None
        else:
            named = destination_named(config.to).verify
            if not named:
                raise ConfigError(
                    f"pipeline {self._name} goes to {config.to!r}, which is not compared with the "
                    f"log. Nothing was started. Leave verify_every out."
                )
            verify = function(named)
        compare = partial(
            verify,
            self._name,
            config,
            self._endpoint,
            spark=self._spark,
            credentials=self._credentials,
            archive=self._archive,
            between=self._writing,
        )
        return VerifySchedule(
            self._name, config, self._spark, verify=compare, tell=self._service.verified
        )

    def run(self, *, once: bool) -> None:
        """Start the query, and again after errors that pass."""
        if self._stage is not None:
            self._stage.check(self._spark)
        backoff, late = Backoff(_RETRY), 0
        while not self._stopping.is_set():
            before = self._batches
            try:
                self._in_our_words(lambda: self._query(once=once))
                if not once or self._load is None or self._load.complete:
                    return
            except TrimmedError as error:
                # Retention may have been in the midst of removing what it would have begun with.
                late += 1
                if self._batches > before or not self._at_oldest or late == _ATTEMPTS_ONCE:
                    raise overtaken(self._name, self._config, error) from error
            except PenstockError as error:
                if self._batches > before:
                    backoff.reset()
                pause = backoff.next_wait()
                if pause is None or not error.transient:
                    raise
                if once and backoff.failures >= _ATTEMPTS_ONCE:
                    raise
                self._service.waits(error.code)
                self._facts.tell(RunWaits(pipeline=self._name, code=error.code))
                log.warning(
                    "pipeline waits for its service",
                    pipeline=self._name,
                    code=error.code,
                    attempt=backoff.failures,
                    pause_seconds=round(pause, 1),
                )
                self._stopping.wait(pause)

    def _query(self, *, once: bool) -> None:
        """One run of the query. Returns when it is done or told to stop."""
        with log_client(
            self._endpoint, archive=self._archive, credentials=self._credentials
        ) as client:
            # A place in the log goes on though the archive is away, or behind.
            bounds = client.live_bounds()
            source = self._config.source
            if self._credentials.are_shown and not client.seen().shows_all_of(source):
                raise PartialViewError(source=source)
            try:
                seen = [bounds]

                def whole() -> Bounds:
                    seen.append(client.bounds())
                    return seen[-1]

                after = self._target.start(bounds, whole)
                # What is in an archive, too, stays there.
                at_risk = after.sequence >= max(1, bounds.trimmed)
                self._at_oldest = at_risk and any(after.sequence == one.trimmed for one in seen)
                if self._at_oldest:
                    after = self._held(client, after)
                self._from_first = self._from_first or after.sequence <= bounds.trimmed
                # The log holds what follows while it is waited for.
                self._service.began(after)
                self._target.declare(self._declared(client, after))
            except TargetStoppedError:
                return
        self._facts.tell(RunBegan(pipeline=self._name, sequence=after.sequence, head=bounds.head))
        self._raised = None
        with scratch_folder() as checkpoint:
            started = Future["StreamingQuery"]()
            apply = self._apply(Path(checkpoint), started)

            def start() -> "StreamingQuery":
                started.set_result(self._start(after, Path(checkpoint), apply, once=once))
                return started.result()

            try:
                query = in_turn(start, self._stopping)
                while query.isActive and not self._stopping.is_set():
                    query.awaitTermination(_LOOK_SECONDS)  # type: ignore[arg-type]
                    self._load_on(once=once)
                self._stop(query)
            except TO_END:
                raise
            except BaseException as error:
                own = self._own(error)
                if own is None:
                    return
                raise own from error
            finally:
                if started.done():
                    with suppress(*LOST):  # it has stopped with its JVM
                        started.result().stop()
        if self._raised is not None:
            raise self._raised
        try:
            self._target.save(self._batches)
        except TargetStoppedError:
            return  # the service is told of no more than is stored
        self._service.settled()
        if once and self._from_first:
            self._name_unknown()

    def _held(self, client: LogClient, after: Progress) -> Progress:
        """Where to begin behind `after`, where the log begins: once that is held. It may have moved
        on until then, and would again until Spark reads."""
        self._service.begins_with_oldest(after)
        self._stopping.wait(SEEN_SECONDS)
        bounds = client.live_bounds()
        if bounds.trimmed <= after.sequence:
            return after
        return self._target.start(bounds, client.bounds)

    def _declared(self, client: LogClient, after: Progress) -> Sequence[Declared]:
        """What the source declared up to there. Rows that are behind are waited for a while; then
        a column is what its first value is."""
        if not after.sequence:  # the log tells all
            return ()
        until = time.monotonic() + _DECLARED_SECONDS_MAX
        while not self._stopping.is_set():
            found = client.declared(self._config.source, at=after.sequence)
            if found is not None:
                return found
            if time.monotonic() >= until:
                log.warning(
                    "the service's current rows are behind; columns of which the log has lost what "
                    "the source declares are made as their first values are",
                    pipeline=self._name,
                )
                break
        return ()

    def _name_unknown(self) -> None:
        """Warn of collections that the log knows nothing of, where all of it was read."""
        if self._stopping.is_set():
            return
        names: list[str] = []
        with suppress(PenstockError):  # all is applied, whether this is known or not
            names = self._in_our_words(self._unknown)
        if names:
            log.warning(
                "the log has no entry of collections that the pipeline names; see that their names "
                "are right",
                pipeline=self._name,
                collections=names,
            )

    def _unknown(self) -> list[str]:
        with log_client(
            self._endpoint, archive=self._archive, credentials=self._credentials
        ) as client:
            collections = self._config.collections
            return without_entries(client, self._config, collections, until=client.head())

    def _in_our_words(self, act: Callable[[], _Result]) -> _Result:
        """What `act` returns; what it raises, as the error of the tree that it is."""
        try:
            return act()
        except (PenstockError, TargetStoppedError, *TO_END):
            raise
        except BaseException as error:
            raise own_error(error, pipeline=self._name) from error

    def _load_on(self, *, once: bool) -> None:
        """Write what was read of a first load, between two batches."""
        if self._load is None or not self._load.is_due:
            return
        with self._writing:
            if not self._stopping.is_set():
                self._load.step(once=once)

    def _start(
        self,
        after: Progress,
        checkpoint: Path,
        apply: Callable[["DataFrame", int], None],
        *,
        once: bool,
    ) -> "StreamingQuery":
        config = self._config
        register(self._spark)
        from penstock.spark.rows import ENTRY_SCHEMA

        names = self._stage.columns if self._stage else self._target.columns
        columns = ENTRY_SCHEMA.__class__([ENTRY_SCHEMA[name] for name in names])
        options = {
            "endpoint": self._endpoint,
            "source": config.source,
            "collections": ",".join(config.names),
            "startingOffsets": str(after),
            "maxOffsetsPerTrigger": str(config.max_events_per_batch),
            "failOnDataLoss": "false" if config.outlives_retention else "true",
            "pipeline": self._name,
            **credential_options(self._credentials),
        }
        if self._archive:
            options["archive"] = self._archive
        stream = self._spark.readStream.format("penstock").schema(columns).options(**options)
        writer = (
            stream.load()
            .writeStream.foreachBatch(apply)
            .option("checkpointLocation", checkpoint.as_uri())
        )
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{config.trigger} seconds").start()

    def _apply(
        self, checkpoint: Path, query: "Future[StreamingQuery]"
    ) -> Callable[["DataFrame", int], None]:
        """What Spark calls with each batch of the query.

        A batch that is left out, for we are to stop, is no error, which Spark would tell at length.
        It lasts until the query is stopped, so that nothing passes it.
        """

        def apply(batch: "DataFrame", batch_id: int) -> None:
            try:
                write(batch, batch_id)
            except TargetStoppedError:
                started = query.result()
                while started.isActive:
                    time.sleep(_STOPPED_SECONDS)

        def write(batch: "DataFrame", batch_id: int) -> None:
            with self._writing:
                if self._stopping.is_set():
                    raise TargetStoppedError
                started = time.monotonic()
                enter_pool(self._spark)
                try:
                    until = _end_of(checkpoint, batch_id)
                    result, unmet = self._applied(batch, batch_id, until)
                    self._service.passed(until)
                    self._settle(result, batch_id)
                except TargetStoppedError:
                    raise
                except Exception as error:
                    self._raised = own_error(error, pipeline=self._name)
                    raise
                except BaseException as error:
                    # A panic of delta-rs. py4j answers for an Exception only, and Spark would wait
                    # for its answer for ever.
                    self._raised = own_error(error, pipeline=self._name)
                    raise self._raised from error
                self._batches += 1
            for after, last in result.lost:
                log.error(
                    "retention removed entries before the pipeline read them; a gap stands for "
                    "them",
                    pipeline=self._name,
                    first=after + 1,
                    last=last,
                )
            seconds = time.monotonic() - started
            self._service.applied(result, seconds=seconds)
            done = PipelineProgress.of(
                self._name, batch_id, result, seconds, unmet, until=until.sequence
            )
            self._teller.tell(done)
            beyond = too_many(
                self._name,
                self._config,
                rejected=result.rejected,
                rows=result.rows,
                before=self._rejected,
            )
            self._rejected += result.rejected
            if beyond is not None:
                self._raised = beyond
                raise beyond

        return apply

    def _applied(
        self, batch: "DataFrame", batch_id: int, until: Progress
    ) -> tuple[Applied, dict[str, int]]:
        """The batch is in the target, and its rejects are where they belong."""
        if self._stage is None:
            return self._target.apply(batch, batch_id, until=until), {}
        with self._stage.staged(batch, batch_id, log_id=until.log_id) as staged:
            result = self._target.apply(staged.frame, batch_id, until=until, refused=staged.refused)
            rejected = result.rejected + staged.rejected
            return structs.replace(result, rejected=rejected), staged.unmet

    def _settle(self, result: Applied, batch_id: int) -> None:
        """Tell the service where the target stands, once that is stored with it."""
        now = time.monotonic()
        if result.entries or now - self._settled_at >= _SETTLE_SECONDS:
            self._target.save(batch_id)
            self._settled_at = now
            self._service.settled()

    def _stop(self, query: "StreamingQuery") -> None:
        """Stop between batches: no write is torn off, though one that were would do no harm."""
        with self._writing:
            failed = query.exception()
        # Without the lock: Spark's stop waits for a batch that has just begun, and that batch for
        # the lock. It finds that we stop, and writes nothing.
        query.stop()
        if failed is not None and not self._stopping.is_set():
            raise failed

    def _own(self, error: BaseException) -> PenstockError | None:
        """The error of the tree that `error` is, or comes from.

        None once the pipeline was told to stop, unless a batch of ours failed: a query that is
        stopped ends with whatever error that makes.
        """
        if self._raised is not None:
            return self._raised
        if self._stopping.is_set():
            return None
        return own_error(error, pipeline=self._name)


def _end_of(checkpoint: Path, batch_id: int) -> Progress:
    """Where a batch ends: its rows do not say, for those that the filter drops are not among them.

    Spark writes the offsets of a batch before it runs it: a version, the batch's settings, and a
    line per source.
    """
    *_, offset = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()
    return place_of(json.loads(offset))


@contextmanager
def _session(name: str, given: "SparkSession | None") -> Generator["SparkSession"]:
    """The session that was given; or one of our own, stopped at the end, however it comes."""
    session = given or local_session(app_name=f"penstock {name}")
    try:
        yield session
    finally:
        if given is None:
            with suppress(*LOST):
                session.stop()


@contextmanager
def _told_to_stop(stop: threading.Event | None) -> Generator[threading.Event]:
    """The event that stops the pipeline; without one, signals do, where they can be caught."""
    stopping = stop or threading.Event()
    if stop is not None or threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def handle(_signal: int, _frame: Any) -> None:
        stopping.set()

    before = {which: signal.signal(which, handle) for which in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
