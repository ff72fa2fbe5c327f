"""Rows of a first load, written to the table of their collection in one commit."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import structlog
from msgspec import Struct, structs

from penstock.errors import PipelineChangedError
from penstock.ports import InexactRow
from penstock.spark.config import TablePipelineConfig
from penstock.spark.loading.window import Window
from penstock.spark.table.apply import prepare
from penstock.spark.table.arrow import arrow
from penstock.spark.table.chunk import Chunk, join
from penstock.spark.table.decode import documents_of
from penstock.spark.table.delta import Table, secrets, text
from penstock.spark.table.lake import Folders
from penstock.spark.table.plan import (
    DATABASE,
    KEY,
    OPERATION,
    OWN_COLUMNS,
    SEQUENCE,
    SOURCE,
    STALE,
)
from penstock.spark.table.reduce import RELATIVE
from penstock.spark.table.rejects import LOADED, REJECTS_SCHEMA, Reject
from penstock.spark.table.stamp import Stamp
from penstock.spark.table.standing import StandingTable
from penstock.spark.table.upkeep import keep_up

log = structlog.get_logger()


class Written(Struct, frozen=True, kw_only=True):
    """How far a table is."""

    sequence: int = -1
    version: int = -1
    """Of Delta."""


class LoadWriter:
    """Writes rows that were read, as of where the tables are."""

    def __init__(self, pipeline: str, config: TablePipelineConfig) -> None:
        self._pipeline = pipeline
        self._config = config
        self._storage = secrets(config.storage_options)

    def written(self, collection: str, *, log_id: int) -> Written:
        """How far the collection's table is; with -1 for both where there is none."""
        table = self._open(collection)
        if table.version < 0:
            return Written()
        return Written(sequence=table.applied(self._pipeline, log_id=log_id), version=table.version)

    def lacks(self, collection: str, chunks: Sequence[Chunk], window: Window) -> bool:
        """Whether changes in `window` build on one of the rows, and the table does not have it.

        Such a change was passed over, and the row may have been read before it or after: only a
        row that is read anew, with a window of its own, is surely not behind.
        """
        loaded = join(chunks)
        building = loaded.take(window.building(loaded.rows)).rows
        if not building.num_rows:
            return False
        keys: list[Any] = building["key"].to_pylist()
        has = self._open(collection).rows(keys)
        there = set(zip(*(has[name].to_pylist() for name in (KEY, DATABASE, SOURCE)), strict=True))
        rows = building.select(["key", "database", "source"]).to_pylist()
        return any(tuple(row.values()) not in there for row in rows)

    def write(
        self,
        collection: str,
        chunks: Sequence[Chunk],
        window: Window,
        standing: StandingTable,
        *,
        inexact: Sequence[InexactRow] = (),
    ) -> Written:
        """Put the rows that `window` did not see change into the table, in one commit.

        How far the table is then; without a sequence if there was nothing to put. Rows that fit no
        column are in the rejects first, whole; so are, by their keys, those of the chunks that are
        `inexact`. Where the table has such a row from before, it says that it is stale.
        """
        loaded = join(chunks)
        loaded = loaded.take(window.untouched(loaded.rows))
        # Those of which nothing is told come last, as `prepare` has them.
        loaded = loaded.take(np.argsort(loaded.roles == RELATIVE, kind="stable"))
        table, until = self._open(collection), standing.progress
        if not loaded.rows.num_rows:
            # The stream may have put them there: gone with the table, they are to be read.
            return Written(version=table.version)
        applied = table.applied(self._pipeline, log_id=until.log_id)
        if applied < standing.tables.get(collection, 0):
            raise PipelineChangedError(
                pipeline=self._pipeline,
                change=f"the table of {collection} is gone or older than it was",
                remedy="or put the table back",
            )
        # A table that was ahead when the driver was killed stays so.
        place = max(applied, until.sequence)
        stamp = Stamp(
            pipeline=self._pipeline, log_id=until.log_id, after=place, until=place, batch=0
        )
        chunk = _placed(loaded, place)
        write = prepare(chunk, schema=table.schema, base=OWN_COLUMNS.empty_table())
        misfits = np.flatnonzero(write.changes[OPERATION].to_numpy() == STALE)
        rejects = _with_reasons(write.rejects, chunk, inexact)
        self._reject(chunk.take(misfits), rejects, stamp, table)
        if write.widened:
            table.rewrite(write.changes, stamp)
        else:
            table.merge(write.changes, stamp)
        version = table.version
        standing.advance(until, {collection: place}, batch_id=0)
        keep_up(self._pipeline, self._config, [table])
        return Written(sequence=place, version=version)

    def _reject(self, rows: Chunk, rejects: Sequence[Reject], stamp: Stamp, target: Table) -> None:
        """Note rows that `target` does not get, each once, however often they are read."""
        if not rejects:
            return
        table = Table(self._config.rejects_path, storage_options=self._storage)
        table.applied(self._pipeline, log_id=stamp.log_id)
        said: list[dict[str, Any]] = rows.rows.to_pylist()
        has: list[dict[str, Any]] = target.rows([row["key"] for row in said]).to_pylist()
        stands = {(row[DATABASE], row[KEY]): row[SEQUENCE] for row in has}
        here = f"pipeline = {text(self._pipeline)} AND operation_type = {text(LOADED)}"
        identity = ("database", "collection", "key")
        # A reject whose row came since is superseded, though no replay has said so yet.
        known = {
            tuple(row[name] for name in identity)
            for batch in table.scan(here)
            for row in batch.to_pylist()
            if row.get("state") is None
            and row["sequence"] >= stands.get((row["database"], row["key"]), 0)
        }
        documents = documents_of(rows.cells, range(len(said)))
        fresh = [
            {
                **{name: row[name] for name in ("source", *identity)},
                "pipeline": self._pipeline,
                "sequence": stamp.until,
                "operation_type": LOADED,
                "field": reject.field,
                "reason": reject.reason,
                "full_document": None
                if row["role"] == RELATIVE
                else msgspec.json.encode(document).decode(),
                "captured": row["role"] != RELATIVE,
            }
            for row, document, reject in zip(said, documents, rejects, strict=True)
            if tuple(row[name] for name in identity) not in known
        ]
        if fresh:
            log.warning(
                "first load leaves rows out: the rejects name them, and why",
                pipeline=self._pipeline,
                rows=len(fresh),
            )
            table.append(arrow.Table.from_pylist(fresh, schema=REJECTS_SCHEMA), stamp)

    def _open(self, collection: str) -> Table:
        return Folders(self._config, self._pipeline).table(collection)


def _with_reasons(
    rejects: Sequence[Reject], chunk: Chunk, inexact: Sequence[InexactRow]
) -> list[Reject]:
    """The rejects in the order of the chunk's rows; those of which nothing is told, its last and
    the first of `rejects`, with the reasons of `inexact`."""
    why = {(row.database, row.key): row.reason for row in inexact}
    untold = int((chunk.roles == RELATIVE).sum())
    rows = chunk.rows.slice(chunk.rows.num_rows - untold).select(["database", "key"]).to_pylist()
    return [
        *rejects[untold:],
        *(
            structs.replace(reject, reason=why[row["database"], row["key"]])
            for row, reject in zip(rows, rejects[:untold], strict=True)
        ),
    ]


def _placed(chunk: Chunk, sequence: int) -> Chunk:
    """The same rows, as of `sequence`."""
    at = chunk.rows.schema.get_field_index("sequence")
    column = arrow.array([sequence] * chunk.rows.num_rows)
    return structs.replace(chunk, rows=chunk.rows.set_column(at, "sequence", column))
