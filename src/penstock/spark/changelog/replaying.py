"""Rejected changes of a changelog, tried again with the steps of today.

Every entry is in a changelog, whatever became of its document: one that was refused is an update of
which nothing is told. Nothing that is there is ever altered. So an entry that fits now is added as
it should have been, under the sequence that it has, in the folder where it belongs; of the two
that have one sequence, it is the one that tells something.

All that fit are added in one commit, and that they are there is what says that they were replayed:
then the rejects say so too, and a crash in between repeats nothing. The commit carries the
changelog's own place, unmoved, so of it and a running pipeline's Delta refuses whichever comes
last.
"""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.client.flight import LogClient, ReadRequest
from penstock.spark.changelog.entries import ENTRY_SCHEMA
from penstock.spark.changelog.formats import REPLAYS, Format, format_of, writing_of
from penstock.spark.changelog.writing import read_reports, write_entries
from penstock.spark.config import ChangelogPipelineConfig
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.lake import KeptTable, lake_of
from penstock.spark.table.rejects import REPLAYED
from penstock.spark.transform.fate import LEFT, Replayed
from penstock.spark.transform.replay import through
from penstock.spark.transform.settled import mark, outcome, pending_in, unmoved
from penstock.spark.transform.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNKNOWN: Final = "the log no longer has it"


class ChangelogReplay:
    """One replay of one pipeline."""

    def __init__(
        self,
        name: str,
        config: ChangelogPipelineConfig,
        client: LogClient,
        spark: "SparkSession | None",
    ) -> None:
        self._name = name
        self._config = config
        self._client = client
        self._spark = spark
        self._bounds = client.bounds()
        self._stage = Stage(name, config, ENTRY_SCHEMA.names)

    def run(self) -> list[Replayed]:
        """As `replay_rejects`."""
        rejects = lake_of(self._config, self._name).rejects()
        rejects.applied(self._name, log_id=self._bounds.log_id)
        pending = pending_in(self._name, rejects)
        if not pending:
            return []
        kept = format_of(self._name, self._config)
        kept.check()
        applied = kept.table.applied(self._name, log_id=self._bounds.log_id)
        for until in (applied, REPLAYS):
            kept.finish(until)
        left, there = self._settled([one["sequence"] for one in pending], kept, applied)
        tried = [at for one in pending if (at := one["sequence"]) not in left and at not in there]
        if tried:
            left |= self._add(kept, applied, tried, {one["collection"] for one in pending})
        settled = [_outcome(one, left) for one in pending]
        self._mark(rejects, settled)
        return settled

    def _settled(
        self, sequences: Sequence[int], kept: Format, applied: int
    ) -> tuple[dict[int, str], set[int]]:
        """Why some need not be tried; and those that are there."""
        left: dict[int, str] = {}
        for at in sequences:
            if at > applied:
                left[at] = "its batch is not in the changelog yet"
        there = kept.says([at for at in sequences if at not in left])
        for at in sequences:
            if at not in there and at <= self._bounds.trimmed:
                left[at] = _UNKNOWN
        return left, there

    def _add(
        self, kept: Format, applied: int, tried: Sequence[int], collections: Collection[str]
    ) -> dict[int, str]:
        """Add the entries that fit now, in one commit; of the others, why they do not."""
        entries = self._read(tried, collections)
        found: list[Any] = entries["sequence"].to_pylist()
        left = dict.fromkeys(set(tried).difference(found), _UNKNOWN)
        done, refused = through(self._stage, entries, pipeline=self._name, spark=self._spark)
        fit = compute.invert(compute.is_in(done["sequence"], arrow.array([*refused], pa.int64())))
        done = done.filter(fit)
        if done.num_rows:
            self._write(kept, applied, done.sort_by("sequence"))
        return left | refused

    def _write(self, kept: Format, applied: int, entries: pa.Table) -> None:
        writing = writing_of(self._config, kept, after=0)
        made = arrow.Table.from_batches(write_entries(entries.to_batches(), writing=writing))
        files = [file for one in read_reports(made)[0] for file in one.files]
        kept.add(files, unmoved(self._name, log_id=self._bounds.log_id, at=applied))

    def _read(self, sequences: Sequence[int], collections: Collection[str]) -> pa.Table:
        """What the log has of these."""
        request = ReadRequest(
            log_id=self._bounds.log_id,
            after=min(sequences) - 1,
            until=max(sequences),
            source=self._config.source,
            collections=tuple(f"{self._config.source}/{name}" for name in sorted(collections)),
            columns=self._stage.columns,
        )
        wanted = arrow.array(sequences, pa.int64())
        found = [
            batch.filter(compute.is_in(batch["sequence"], wanted))
            for batch in self._client.read(request)
        ]
        return arrow.Table.from_batches(found)

    def _mark(self, rejects: KeptTable, settled: Sequence[Replayed]) -> None:
        mark(rejects, settled, pipeline=self._name, log_id=self._bounds.log_id)


def _outcome(one: Mapping[str, Any], left: Mapping[int, str]) -> Replayed:
    why = left.get(one["sequence"])
    return outcome(one, LEFT, why) if why else outcome(one, REPLAYED)
