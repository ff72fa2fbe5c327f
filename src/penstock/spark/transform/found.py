"""What the log has of rows of which changes were rejected, for a replay."""

# The stubs of pyarrow leave element types open.
# mypy: disable-error-code="no-any-return"
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from bisect import bisect_right
from collections.abc import Iterable, Sequence, Set
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock.event import Kind
from penstock.spark.config import SteppedPipelineConfig
from penstock.spark.table.arrow import arrow, compute
from penstock.spark.table.reduce import RELATIVE, roles_of
from penstock.spark.table.writing import steps_of

Identity = tuple[str, str, str]
"""(key, database, source) of a row."""

Place = tuple[str, str]
"""(collection, database): where a row is."""


class Event(Struct, frozen=True, kw_only=True):
    """An event that takes rows away from where they were."""

    sequence: int
    operation: str
    """drop, dropDatabase or rename."""
    place: Place
    to: Place | None = None
    """Of a rename: the new name."""
    hands_over: bool = False
    """Whether the pipeline has the rows under the new name."""
    may_hand_over: bool = False
    """Whether it had them there if it was configured otherwise then."""

    def behind(self, place: Place) -> Place | None:
        """Where the rows are that were at `place`; None where they are gone."""
        if self.operation == "dropDatabase":
            return None if place[1] == self.place[1] else place
        if place == self.place:
            return self.to if self.hands_over else None
        return None if place == self.to else place


def event_of(entry: dict[str, Any], config: SteppedPipelineConfig) -> Event | None:
    """The event of an entry; None for one that leaves all rows where they were."""
    operation = entry["operation_type"]
    if entry["kind"] != Kind.SCHEMA or operation not in {"drop", "dropDatabase", "rename"}:
        return None
    place = (entry["collection"] or "", entry["database"] or "")
    said: dict[str, Any] = {}
    if operation == "rename" and entry["full_document"]:
        said = msgspec.json.decode(entry["full_document"])
    named = said.get("to") or {}
    to = (str(named.get("coll", "")), str(named.get("db", ""))) if named else None
    # Rows that are copied next are none that went from the old name to the new one.
    captured = said.get("targetCaptured") is not False and not said.get("rowsFollow")
    may_hand_over = to is not None and captured and _follows(config, to[0])
    return Event(
        sequence=entry["sequence"],
        operation=operation,
        place=place,
        to=to,
        hands_over=to is not None
        and may_hand_over
        and _follows(config, place[0])
        and steps_of(config, place[0]) == steps_of(config, to[0]),
        may_hand_over=may_hand_over,
    )


def _follows(config: SteppedPipelineConfig, collection: str) -> bool:
    return bool(collection) and (not config.collections or collection in config.collections)


class Found:
    """Of rows with these keys, in some collections: all changes that the log has, and the events
    that take them away or elsewhere."""

    def __init__(
        self, collections: Set[str], keys: Set[str], config: SteppedPipelineConfig
    ) -> None:
        self._collections = collections
        self._names = arrow.array(sorted(collections), pa.string())
        self._keys = arrow.array(sorted(keys), pa.string())
        self._config = config
        self._entries: list[pa.RecordBatch] = []
        self._events: list[Event] = []
        self._applied: list[Event] = []
        self._lives: dict[tuple[Place, Identity], list[int]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in a part of the log, behind those before."""
        data = compute.equal(batch["kind"], int(Kind.DATA))
        own = compute.and_(compute.is_in(batch["collection"], self._names), data)
        self._entries.append(
            batch.filter(compute.and_(compute.is_in(batch["key"], self._keys), own))
        )
        for entry in batch.filter(compute.invert(data)).to_pylist():
            event = event_of(entry, self._config)
            if event is not None and self._concerns(event):
                self._events.append(event)

    def _concerns(self, event: Event) -> bool:
        names = {event.place[0], *(event.to or ())[:1]}
        return event.operation == "dropDatabase" or not names.isdisjoint(self._collections)

    @property
    def joined(self) -> Set[str]:
        """The collections that these had rows from, or gave rows to."""
        pairs = [(one.place[0], one.to[0]) for one in self._events if one.to and one.hands_over]
        return {name for pair in pairs for name in pair}

    def follow(self, applied: int) -> None:
        """Follow each change's row to where it is behind all events up to `applied`."""
        self._applied = [event for event in self._events if event.sequence <= applied]
        self._lives = {}
        columns = ("sequence", "collection", "key", "database", "source")
        for batch in self._entries:
            for row in batch.select(columns).to_pylist():
                place = self.place((row["collection"], row["database"]), since=row["sequence"])
                if place is not None and not isinstance(place, Event):
                    own = (row["key"], place[1], row["source"])
                    self._lives.setdefault((place, own), []).append(row["sequence"])

    def place(self, place: Place, *, since: int) -> Place | Event | None:
        """Where a row is that was at `place` right behind the entry `since`; None if it is gone.

        The event, if it was renamed to where the pipeline does not have it but may have had it.
        """
        first = bisect_right(self._applied, since, key=lambda event: event.sequence)
        for event in self._applied[first:]:
            behind = event.behind(place)
            if behind is None:
                return event if event.may_hand_over and event.place == place else None
            place = behind
        return place

    def came(self, place: Place) -> Sequence[int]:
        """The renames to `place`: they brought its rows from elsewhere."""
        return [event.sequence for event in self._applied if event.to == place]

    def life(self, collection: str, own: Identity) -> Sequence[int]:
        """All changes of the row that is there now, under whatever names; ascending."""
        return self._lives.get(((collection, own[1]), own), [])

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
