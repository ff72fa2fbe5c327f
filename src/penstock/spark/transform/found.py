"""What the log has of rows of which changes were rejected, for a replay."""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

import msgspec
import pyarrow as pa

from penstock.event import Kind
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.reduce import RELATIVE, roles_of

Identity = tuple[str, str, str]
"""(key, database, source) of a row."""


class Found:
    """Entries of the log: those of rows of which some were rejected, whole; of the others, what
    they concern."""

    def __init__(self, collection: str, keys: Set[str]) -> None:
        self._collection = collection
        self._keys = arrow.array(sorted(keys), pa.string())
        self._entries: list[pa.RecordBatch] = []
        self._others: dict[Identity, list[int]] = {}
        self._ends: list[tuple[int, str]] = []

    def add(self, batch: pa.RecordBatch, wanted: pa.Int64Array) -> None:
        """Take in a part of the log."""
        data = compute.equal(batch["kind"], int(Kind.DATA))
        chosen = compute.and_(compute.is_in(batch["sequence"], wanted), data)
        own = compute.and_(compute.equal(batch["collection"], self._collection), data)
        concerned = compute.and_(compute.is_in(batch["key"], self._keys), own)
        self._entries.append(batch.filter(compute.or_(chosen, concerned)))
        told = compute.or_kleene(concerned, compute.invert(data))
        for row in batch.filter(compute.and_(told, compute.invert(chosen))).to_pylist():
            self._ends += [(row["sequence"], database) for database in ended(row, self._collection)]
            if row["kind"] == Kind.DATA:
                own = (row["key"], row["database"], row["source"])
                self._others.setdefault(own, []).append(row["sequence"])

    def others(self, own: Identity) -> list[int]:
        """Changes of a row that are not wanted, and events that end it."""
        _, database, _ = own
        return [*self._others.get(own, ()), *(at for at, of in self._ends if of == database)]

    def whole(self, own: Identity) -> list[int]:
        """Changes of a row that are not wanted, since an event last ended it."""
        _, database, _ = own
        end = max((at for at, of in self._ends if of == database), default=0)
        return [at for at in self._others.get(own, ()) if at > end]

    def entries(self, sequences: Sequence[int]) -> pa.Table:
        """The entries of these sequences."""
        if not self._entries:
            return arrow.table({"sequence": arrow.array([], pa.int64())})
        whole = arrow.Table.from_batches(self._entries)
        return whole.filter(compute.is_in(whole["sequence"], arrow.array(sequences, pa.int64())))

    def building(self, sequences: Sequence[int]) -> Set[int]:
        """Those of these changes that do not say their whole row."""
        entries = self.entries(sequences)
        if not entries.num_rows:
            return frozenset()
        relative = entries.filter(arrow.array(roles_of(entries) == RELATIVE))
        found: list[Any] = relative["sequence"].to_pylist()
        return frozenset(found)

    def has(self, sequences: Iterable[int]) -> bool:
        """Whether each of these is the change of a row."""
        known = {at for batch in self._entries for at in batch["sequence"].to_pylist()}
        return known.issuperset(sequences)


def ended(event: dict[str, Any], collection: str) -> Iterator[str]:
    """The databases in which no row of the collection is the one that it was before `event`."""
    operation = event["operation_type"]
    if event["kind"] != Kind.SCHEMA or operation not in {"drop", "dropDatabase", "rename"}:
        return
    if operation == "dropDatabase" or event["collection"] == collection:
        yield event["database"]
    if operation == "rename" and event["full_document"]:
        to = msgspec.json.decode(event["full_document"]).get("to") or {}
        if to.get("coll") == collection:
            yield to.get("db", "")
