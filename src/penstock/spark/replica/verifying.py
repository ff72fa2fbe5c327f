"""Whether a replica is what the log says it is, and how to make it so.

The log is applied anew, as the replica's writer applies it, to a file beside it on this machine,
up to where the replica says it has come; commits are verified by their counts and digests on the
way, as for any pipeline. Then the replica's rows are read, and each is compared with the one that
must be there. Values are never told, only keys and the names of columns or fields. Nothing is made
in the replica's database. With steps the log goes through them anew, as they are now: each is about
one document, so what it makes of a change follows from that change.

It may run beside the pipeline: the replica is looked at as it was at one moment, and its place at
that moment is read with its rows.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import structs

from penstock.archive.opening import log_client
from penstock.client.credentials import NOBODY, Credentials
from penstock.client.flight import LogClient
from penstock.errors import (
    ConfigError,
    PartialViewError,
    PipelineChangedError,
    PipelineError,
    SupersededPipelineError,
)
from penstock.progress import Progress
from penstock.spark import register
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.mending import refuse_beside
from penstock.spark.options import credential_options
from penstock.spark.progress import StepTeller, VerifyProgress, step_teller
from penstock.spark.replica.anew import Anew
from penstock.spark.replica.beside import Rows, rows_in
from penstock.spark.replica.destination import Destination, away
from penstock.spark.replica.looking import Look, MomentLostError, Side
from penstock.spark.replica.place import Place, Stream, decide_start
from penstock.spark.replica.replaying import RefusedAnewError, refused_anew
from penstock.spark.replicate import ReplicaTarget, destination_of, dialect_of
from penstock.spark.scratch import scratch_folder
from penstock.spark.table.comparing import Compared, Difference, set_apart
from penstock.spark.transform.stage import Stage
from penstock.spark.verifying import Verified, batch_of, ends_of, session_of
from penstock.spark.within import place_within

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROUNDS: Final = 2
"""So often the log is applied up to where the replica stands before it is looked at for good."""
_TRIES: Final = 3

_Seen = TypeVar("_Seen")


def verify_replica(
    name: str,
    config: ReplicatePipelineConfig,
    endpoint: str,
    *,
    spark: "SparkSession",
    scratch: str | None = None,
    ranges: int = 256,
    listed_max: int = 1000,
    repair: bool = False,
    credentials: Credentials = NOBODY,
    archive: str = "",
    on_progress: Callable[[VerifyProgress], None] | None = None,
) -> Verified:
    """Compare the rows of a pipeline's replica with its log; with `repair`, make them equal.

    The folder for temporary files of this machine takes every row once; `scratch`, of which only
    tables beside have use, is refused. `archive` is where the service's [archive] is. `on_progress`
    is told how far it is, as `run_pipeline` tells it. Repairing needs a pipeline that does not run.

    Raises ConfigError for `scratch`; PipelineError where the pipeline never ran, moves on too fast
    to be looked at, or moved while it was repaired; HistoryTrimmedError where the log's beginning
    is gone, with start = 'oldest' too; PipelineChangedError where the tables are not those of this
    configuration, or one is gone; DestinationError where the database does not answer; as
    `run_pipeline` else.
    """
    if scratch:
        raise ConfigError(
            f"pipeline {name} is compared on this machine, and nothing of it is written to a path "
            f"for workers. Nothing was compared. Leave out --scratch; TMPDIR names the folder."
        )
    register(spark)
    destination = destination_of(name, config)
    with (
        log_client(endpoint, archive=archive, credentials=credentials) as client,
        scratch_folder() as folder,
        rows_in(folder, pipeline=name) as rows,
        step_teller(name, on_progress) as tell,
    ):
        if repair:
            refuse_beside(name, "rows of a replica are mended", client)
        if credentials.are_shown and not client.seen().shows_all_of(config.source):
            raise PartialViewError(source=config.source)
        try:
            _refuse_others(name, config, destination, client)
            side = _side_of(name, config, destination, rows)
            streams = _looked(name, side, lambda look: look.known.owned(name).values())
            shown = {"endpoint": endpoint, **credential_options(credentials)}
            if archive:
                shown["archive"] = archive
            anew = _anew(config, streams)
            target = _Target(name, anew, side.anew, client, spark, shown, tell)
            place, found = _compared(name, config, side, target, tell, ranges, listed_max)
            if repair:
                found = _repaired(name, destination, side.anew, place, found)
        except destination.errors as error:
            raise away(name, destination, error, "Then compare again.") from None
        finally:
            destination.reset()
    return Verified(pipeline=name, progress=str(place.progress), tables=tuple(found.values()))


def _refuse_others(
    name: str, config: ReplicatePipelineConfig, destination: Destination, client: LogClient
) -> None:
    """Raises as a run that would begin, and PipelineError where there was none before."""
    found = destination.standing()
    if found.place is None and not found.tables:
        raise PipelineError(
            f"pipeline {name} has never run: there is no replica. Nothing was compared. Run it "
            f"first: penstock pipeline run {name}."
        )
    decide_start(
        name,
        config,
        place=found.place,
        tables=found.tables,
        gone=found.gone,
        bounds=client.bounds(),
    )


def _side_of(
    name: str, config: ReplicatePipelineConfig, destination: Destination, rows: Rows
) -> Side:
    if config.kind.startswith("mongodb"):
        from penstock.spark.replica.mongodb_looking import MongoSide

        return MongoSide(name, config, rows)
    from penstock.spark.replica.sql_looking import SqlSide

    return SqlSide(name, config, dialect_of(name, config), destination, rows)


def _anew(config: ReplicatePipelineConfig, streams: Iterable[Stream]) -> ReplicatePipelineConfig:
    """What is applied anew: from the log's first entry, whatever the pipeline began with, and with
    collections that it once followed, whose rows a rename may have made those of another."""
    once = {stream.collection for stream in streams}.difference(config.collections)
    collections = (*config.collections, *sorted(once)) if config.collections else ()
    return config.model_copy(
        update={"collections": collections, "start": "beginning", "on_gap": "record"}
    )


def _looked(name: str, side: Side, see: Callable[[Look], _Seen]) -> _Seen:
    """What `see` takes of a look at the replica."""
    for _ in range(_TRIES):
        try:
            with side.look(pinned=True) as look:
                return see(look)
        except MomentLostError:
            continue
    raise _too_fast(name)


def _compared(
    name: str,
    config: ReplicatePipelineConfig,
    side: Side,
    target: "_Target",
    tell: StepTeller,
    ranges: int,
    listed_max: int,
) -> tuple[Place, dict[Stream, Compared]]:
    """Where the replica stood, and what of each of its tables is not as it must be."""
    for _ in range(_ROUNDS):
        target.apply(_looked(name, side, _place).progress)
    for attempt in range(_TRIES):
        try:
            with side.look(pinned=attempt == 0) as look:
                place = _place(look)
                target.apply(place.progress)
                streams = _followed(name, config, side.anew, look)
                found: dict[Stream, Compared] = {}
                for stream in streams:
                    tell(
                        "comparing",
                        done=len(found),
                        total=len(streams),
                        collection=stream.collection,
                    )
                    found[stream] = _judged(side.anew, look, stream, ranges, listed_max, config)
                tell("comparing", done=len(found), total=len(streams))
                if look.lasted():
                    return place, found
        except MomentLostError:
            continue
    raise _too_fast(name)


def _too_fast(name: str) -> PipelineError:
    return PipelineError(
        f"the replica of pipeline {name} moves on faster than it can be looked at. Nothing was "
        f"changed. Stop the pipeline first, then compare again: penstock pipeline stop {name}."
    )


def _place(look: Look) -> Place:
    assert look.place is not None  # it was there, and a place is never taken away
    return look.place


def _followed(name: str, config: ReplicatePipelineConfig, anew: Anew, look: Look) -> list[Stream]:
    """Whose rows are compared: those that the pipeline follows by now, in their tables."""
    known = {**look.known.owned(name), **anew.known.owned(name)}
    held = look.known.owned(name).keys() | anew.rows.names()
    return sorted(
        stream
        for table, stream in known.items()
        if table in held
        and table == anew.name(stream)
        and (not config.collections or stream.collection in config.collections)
    )


def _judged(
    anew: Anew,
    look: Look,
    stream: Stream,
    ranges: int,
    listed_max: int,
    config: ReplicatePipelineConfig,
) -> Compared:
    table = anew.name(stream)
    lost = anew.unfollowed.into(stream.collection, database=stream.database)
    if unknown := lost - look.gaps:
        return set_apart(table, sequence=max(unknown))
    # What a change is refused for follows from the columns, and so from where batches ended: a row
    # that lacks a change on one side alone is as right as the other.
    lacking = look.known.stale.get(table, {}).keys() | anew.known.stale.get(table, {}).keys()
    apart = (anew.own_of(table, said) for said in lacking)
    rows = anew.rows
    rows.begin_judging(table, (own for own in apart if own is not None))
    with closing(look.rows(table)) as found:
        for part in found:
            rows.judge(table, part, anew)
    counted = rows.end_judging(table)
    listed = tuple(
        Difference(
            key=one.said,
            source=config.source,
            database=stream.database,
            what=one.what,
            columns=one.columns,
            sequence=one.sequence,
        )
        for one in rows.differing(table, limit=listed_max)
    )
    return Compared(
        collection=table,
        rows=counted.wanted,
        found=counted.found,
        ranges=ranges,
        ranges_differing=rows.ranges_differing(table, ranges),
        differences=counted.differing,
        listed=listed,
        rejected=len(lacking),
    )


def _repaired(
    name: str,
    destination: Destination,
    anew: Anew,
    place: Place,
    found: Mapping[Stream, Compared],
) -> dict[Stream, Compared]:
    """Make the rows that differ as they should be, a thousand in a transaction, while the replica
    stands where it was compared."""
    moved = PipelineError(
        f"the replica of pipeline {name} has moved on since it was looked at. What was repaired "
        f"before is right, and nothing else was changed. Stop the pipeline, and repair it then."
    )

    def same(stored: Place | None, *_: Collection[str]) -> Place:
        if stored != place:
            raise moved
        return place

    repaired = dict(found)
    if not any(one.differences for one in found.values()):
        return repaired
    try:
        destination.claim(same)
        for stream, one in found.items():
            repaired[stream] = _rewritten(name, destination, anew, place, stream, one)
    except (PipelineChangedError, SupersededPipelineError):
        raise moved from None
    return repaired


def _rewritten(
    name: str,
    destination: Destination,
    anew: Anew,
    place: Place,
    stream: Stream,
    one: Compared,
) -> Compared:
    done = 0
    try:
        for rows in anew.rows.repairs(one.collection):
            step = anew.repair_of(stream, rows, sequence=place.progress.sequence)
            written = destination.apply([step], before=place, until=place, entries_at=refused_anew)
            done += written.rows
    except RefusedAnewError as error:
        raise PipelineError(
            f"the replica of pipeline {name} refuses rows of the table {one.collection} that it "
            f"must have. What was repaired before is right, and nothing else was changed. Begin "
            f"anew, as docs/how-to/replicate.md says."
        ) from error
    return structs.replace(one, repaired=done)


class _Target:
    """What the log is applied to, up to where the replica stands."""

    def __init__(
        self,
        name: str,
        config: ReplicatePipelineConfig,
        anew: Anew,
        client: LogClient,
        spark: "SparkSession",
        shown: Mapping[str, str],
        tell: StepTeller,
    ) -> None:
        """Raises as `decide_start` of a pipeline that begins, and as `Stage.check`."""
        self._config = config
        self._client = client
        self._shown = shown
        self._tell = tell
        self._target = ReplicaTarget(
            *(name, config),
            stopping=threading.Event(),
            within=partial(place_within, client),
            destination=anew,
        )
        # What was not met was told when it came.
        self._stage = Stage(name, config, self._target.columns, tells=False)
        self._stage.check(spark)
        self._spark = session_of(self._stage, spark)
        self._begin = self._after = self._target.start(client.bounds())
        self._batches = 0

    def apply(self, until: Progress) -> None:
        """Apply what is left up to there, batch by batch. Raises as `Stage.staged`, and as
        `ReplicaTarget.apply`."""
        begin, total = self._begin.sequence, until.sequence - self._begin.sequence
        self._tell("applying", done=self._after.sequence - begin, total=total)
        size = self._config.max_events_per_batch
        for end in ends_of(self._client, self._after, until, size):
            batch = batch_of(
                self._spark, self._config, self._shown, self._after, end, self._stage.columns
            )
            with self._stage.staged(batch, self._batches, log_id=end.log_id) as staged:
                self._target.apply(staged.frame, self._batches, until=end, refused=staged.refused)
            self._after, self._batches = end, self._batches + 1
            self._tell("applying", done=end.sequence - begin, total=total)
