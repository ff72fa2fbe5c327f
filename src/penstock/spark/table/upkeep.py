"""Small files are joined and replaced ones deleted, between two batches.

It promises: nothing is done while a batch is written; the rows of a table stay what they are; a
file that a version of the last `history` uses stays; and what fails is logged and tried again when
it is due again, for a table that is not tidied is still right, and a pipeline that stops is not.

What is due is told by the table's own version, so runs that end after each batch get to it too. But
a checkpoint of the log forgets a replaced file after some days, and then nothing that reads the log
deletes it: a table with few commits is vacuumed by time as well.
"""

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Final

import structlog
from deltalake.exceptions import CommitFailedError
from msgspec import Struct

from penstock.errors import PenstockError
from penstock.spark.config import LakePipelineConfig
from penstock.spark.raised import is_overtaken, kind_of
from penstock.spark.table.lake import KeptTable

log = structlog.get_logger()

_REPLACED_COMMITS: Final = 100
_VACUUM_SECONDS: Final = 86_400.0
"""Delta's own setting, delta.deletedFileRetentionDuration, is a week."""
_VACUUMED: Final[dict[tuple[str, str], float]] = {}
"""By pipeline and table: when this process did so, if it was within that time."""
_FAILED: Final[set[tuple[str, str, str]]] = set()
"""Pipelines, tables and steps that failed in this process, and were not done since."""


class Tidied(Struct, frozen=True, kw_only=True):
    """What was done for one table."""

    path: str
    joined: int = 0
    """Small files that were joined."""
    into: int = 0
    """Files that they became."""
    deleted: int = 0
    """Files that went: replaced ones older than `history`, and what torn batches left."""
    seconds: float = 0.0
    failed: str = ""
    """Each step that failed, and the kind of what went wrong; empty if all were done."""


def keep_up(
    pipeline: str,
    config: LakePipelineConfig,
    tables: Iterable[KeptTable],
    *,
    leftovers: Callable[[], int] | None = None,
) -> None:
    """Tidy those of `tables` for which their commits since they were opened made it due.

    `leftovers` as of `tidy`, where a table is vacuumed.
    """
    for table in tables:
        tidy_if_due(pipeline, config, table, table.commits, leftovers=leftovers)


def tidy_if_due(
    pipeline: str,
    config: LakePipelineConfig,
    table: KeptTable,
    commits: range,
    *,
    leftovers: Callable[[], int] | None = None,
) -> None:
    """Tidy `table` if these versions of it made it due, or, of vacuum, the day since the last.

    With the first commit of a process to a table that was there, it is: nobody knows of the one
    before. `leftovers`, which are looked for in the whole folder, are due by versions only.
    """
    compact = due(commits, config.compact_every)
    looks = due(commits, config.vacuum_every)
    there = bool(commits) and commits.start > 0
    vacuum = looks or (there and bool(config.vacuum_every) and _is_long_ago(pipeline, table))
    if vacuum:
        _VACUUMED[pipeline, table.path] = time.monotonic()
    if compact or vacuum:
        tidy(
            pipeline,
            config,
            table,
            compact=compact,
            vacuum=vacuum,
            leftovers=leftovers if looks else None,
        )


def untidied(pipeline: str) -> int:
    """The tables of which not all was tidied in this process, when that was due last."""
    return len({path for name, path, _ in _FAILED if name == pipeline})


def tidy_now_and_then(pipeline: str, config: LakePipelineConfig, table: KeptTable) -> None:
    """Tidy a table that is replaced whole with each commit, where its last one made it due. What
    `config` never does with tables is not done with it."""
    if table.version % _REPLACED_COMMITS == 0:
        compact, vacuum = bool(config.compact_every), bool(config.vacuum_every)
        tidy(pipeline, config, table, compact=compact, vacuum=vacuum)


def _is_long_ago(pipeline: str, table: KeptTable) -> bool:
    """Whether it was last vacuumed a day ago, or never was, as far as this process knows."""
    now = time.monotonic()
    for other, at in list(_VACUUMED.items()):
        if now - at >= _VACUUM_SECONDS:
            _VACUUMED.pop(other, None)
    return (pipeline, table.path) not in _VACUUMED


def due(versions: range, every: int) -> bool:
    """Whether one of `versions` is a multiple of `every`, which is 0 for never. Pure."""
    if not every or not versions:
        return False
    return versions.stop - 1 - (versions.stop - 1) % every >= max(versions.start, 1)


def tidy(
    pipeline: str,
    config: LakePipelineConfig,
    table: KeptTable,
    *,
    compact: bool = True,
    vacuum: bool = True,
    leftovers: Callable[[], int] | None = None,
) -> Tidied:
    """Do it now. Raises nothing: what went wrong is logged, and said in `failed`.

    `leftovers` deletes what torn batches left, and says how many files that were.
    """
    started = time.monotonic()
    joined = into = deleted = 0
    failed: list[str] = []

    @contextmanager
    def step(name: str) -> Generator[None]:
        # One that fails must not keep the others from being done: what it left would only grow.
        try:
            yield
        except Exception as error:
            # The text may quote a path with credentials.
            failed.append(f"{name}: {_kind(error)}")
            _FAILED.add((pipeline, table.path, name))
            log.warning(
                "table not tidied; its rows are as they were",
                pipeline=pipeline,
                step=name,
                error=_kind(error),
            )
        else:
            _FAILED.discard((pipeline, table.path, name))

    if compact:
        with step("joining files"):
            joined, into = table.compact()
    if vacuum:
        with step("deleting replaced files"):
            deleted = table.vacuum(history_seconds=config.history)
    if leftovers is not None:
        with step("deleting leftovers"):
            deleted += leftovers()
    return Tidied(
        path=table.path,
        joined=joined,
        into=into,
        deleted=deleted,
        seconds=time.monotonic() - started,
        failed="; ".join(failed),
    )


def _kind(error: Exception) -> str:
    if isinstance(error, CommitFailedError) or is_overtaken(error):
        return "another process committed to it at the same time"
    return error.code if isinstance(error, PenstockError) else kind_of(error)
