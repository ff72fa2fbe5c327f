"""The log applied anew, as a replica's writer applies it, to a file beside the replica.

It is a destination as the replica is, without a place of its own: whoever compares begins with
nothing and reads the log from its first entry.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.event import Kind
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica import steps as its
from penstock.spark.replica.beside import Judged, Rows, unkept
from penstock.spark.replica.destination import Decide, Standing
from penstock.spark.replica.known import Known
from penstock.spark.replica.place import Place, Stream
from penstock.spark.replica.steps import Done, EntriesAt, Step
from penstock.spark.table.arrow import arrow
from penstock.spark.table.chunk import ROW_SCHEMA, Chunk, Decode
from penstock.spark.table.decode import Cells
from penstock.spark.table.events import Place as Where
from penstock.spark.table.reduce import DELETE, PUT
from penstock.spark.table.unfollowed import Unfollowed


class Anew(ABC):
    """The tables of one pipeline, as the log makes them."""

    errors: type[Exception] = sqlite3.Error

    def __init__(
        self, pipeline: str, config: ReplicatePipelineConfig, rows: Rows, decode: Decode
    ) -> None:
        self.rows = rows
        self._decode = decode
        self.known = Known()
        self.unfollowed = Unfollowed()
        self._pipeline = pipeline
        self._config = config

    @abstractmethod
    def _write(self, name: str, chunk: Chunk) -> None:
        """Apply changes of one table's rows."""

    @abstractmethod
    def _move(self, old: str, new: str) -> None:
        """The rows of one table are those of another, which has none."""

    @abstractmethod
    def own_of(self, name: str, said: str) -> bytes | None:
        """The bytes of a key; None for one that no row of the table has."""

    @abstractmethod
    def said(self, name: str, own: bytes) -> str:
        """As `Saying.said`."""

    @abstractmethod
    def differing(self, wanted: bytes, found: bytes) -> tuple[str, ...]:
        """As `Saying.differing`."""

    @abstractmethod
    def _cells(self, name: str, rows: Sequence[tuple[Judged, bytes | None]]) -> Cells:
        """What these rows hold, as the writer takes it; None: a row that goes."""

    def repair_of(
        self, stream: Stream, rows: Sequence[tuple[Judged, bytes | None]], *, sequence: int
    ) -> its.Rows:
        """The step of a writer that makes these rows right."""
        count = len(rows)
        name = self.name(stream)
        values: dict[str, Any] = {
            "sequence": [sequence] * count,
            "role": [DELETE if held is None else PUT for _, held in rows],
            "kind": [int(Kind.DATA)] * count,
            "operation_type": ["delete" if held is None else "replace" for _, held in rows],
            "source": [self._config.source] * count,
            "database": [stream.database] * count,
            "collection": [stream.collection] * count,
            "key": [one.said for one, _ in rows],
        }
        columns = [
            arrow.array(values[field.name], field.type)
            if field.name in values
            else arrow.nulls(count, field.type)
            for field in ROW_SCHEMA
        ]
        table: pa.Table = arrow.table(columns, schema=ROW_SCHEMA)
        return its.Rows(stream=stream, chunk=Chunk(rows=table, cells=self._cells(name, rows)))

    def name(self, stream: Stream) -> str:
        """The name of a stream's table."""
        return self._config.table_of(stream.database, stream.collection)

    # --- as a destination -------------------------------------------------------------------------

    @property
    def decode(self) -> Decode:
        """As `Destination.decode`."""
        return self._decode

    def judge(self, error: Exception) -> PenstockError | None:
        """As `Destination.judge`."""
        return unkept(self._pipeline, error)

    def cause(self, error: Exception) -> tuple[str, str]:
        """As `Destination.cause`; `judge` says all of it."""
        return str(self.judge(error)), ""

    def claim(self, decide: Decide) -> Place:
        """As `Destination.claim`, of a pipeline that begins."""
        return decide(None, {}, ())

    def standing(self) -> Standing:
        """As `Destination.standing`, of a pipeline that never ran."""
        return Standing()

    def pending(self) -> list[dict[str, Any]]:
        """As `Destination.pending`: nobody asks for rejects that are not the pipeline's."""
        return []

    def reset(self) -> None:  # noqa: B027 # there is nothing to close here
        """As `Destination.reset`: the rows stay, for who compares."""

    def apply(
        self,
        steps: Sequence[Step],
        *,
        before: Place,  # noqa: ARG002
        until: Place,  # noqa: ARG002
        entries_at: EntriesAt,  # noqa: ARG002
    ) -> Done:
        """As `Destination.apply`, but once: after an error the file is of no use."""
        for step in steps:
            match step:
                case its.Rows():
                    name = self.name(step.stream)
                    self.known.streams.setdefault(name, (self._pipeline, step.stream))
                    self._write(name, step.chunk)
                case its.Emptied():
                    self._empty(step.stream)
                    if step.lost:
                        self.unfollowed.came(_where(step.stream), step.sequence)
                    else:
                        self.unfollowed.ended(_where(step.stream))
                case its.DatabaseEmptied():
                    for stream in self.known.owned(self._pipeline).values():
                        if stream.database == step.database:
                            self._empty(stream)
                    self.unfollowed.ended((step.database, ""))
                case its.Moved():
                    self._renamed(step)
                    self.unfollowed.moved(_where(step.stream), _where(step.to))
                case its.Noted() | its.Refused():
                    pass  # of no row
        return Done()

    def _empty(self, stream: Stream) -> None:
        name = self.name(stream)
        if self.known.streams.get(name) != (self._pipeline, stream):
            return
        self.rows.empty(name)
        self.known.stale.pop(name, None)
        self.known.forms.pop(name, None)

    def _renamed(self, step: its.Moved) -> None:
        old, new = self.name(step.stream), self.name(step.to)
        if self.known.streams.get(old) != (self._pipeline, step.stream):
            self._empty(step.to)
            return
        self.known.streams[new] = (self._pipeline, step.to)
        if old == new:
            return
        self._empty(step.to)
        self._move(old, new)
        self.known.stale[new] = self.known.stale.pop(old, {})
        self.known.forms[new] = self.known.forms.pop(old, {})

    def _note(self, name: str, current: Iterable[str], lacking: dict[str, int]) -> None:
        """Some rows lack nothing from now on, and others a change."""
        stale = self.known.stale.setdefault(name, {})
        for key in current:
            stale.pop(key, None)
        stale.update(lacking)


def _where(stream: Stream) -> Where:
    return stream.database, stream.collection
