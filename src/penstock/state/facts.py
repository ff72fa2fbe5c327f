"""What is known of sources and collections, and what each control event makes of it. No IO.

Complete means: every row that the collection had at this place of the log is in the state. It
begins where that is certain (a collection is created or dropped, or its copy is complete), and it
ends where changes were lost. What was here before a copy and is not newer than its beginning is
gone at the source; a collection whose copy met such rows is complete once they were told as
deleted (`snapshot_reconciled`).

A change that could not be decoded, and that does not say of which row it was, is a doubt of its
collection: whatever else makes it complete, it is called so only once the letter was replayed or a
copy that began behind the letter is complete.

Why a row that is older than its copy's beginning is gone: since then the log has every change, and
the copy read every row that there was. A row that neither copied nor changed was not there.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import msgspec
from msgspec import Struct, structs

from penstock.capture.deadletter import COLLECTION as DEAD_LETTERS
from penstock.errors import HistoryUnknownError
from penstock.event import SchemaEvent, SystemEvent
from penstock.state.layout import CollectionFacts, Copy, Doubt, Gap, Name, Renamed, SourceFacts

_DOUBTS_MAX: Final = 32
"""More of a collection are told by one, which only a copy dispels."""
_RENAMES_MAX: Final = 1_000
"""Of a source; whoever asks for a name from before those is told that it is not known."""


class _Target(Struct, frozen=True):
    db: str
    coll: str


class _Rename(Struct, frozen=True, rename="camel"):
    """What a rename says: MongoDB's words, and whether its source captures the new name."""

    to: _Target
    target_captured: bool = True


class Facts:
    """Everything that is known, and what of it changed since `taken` was called."""

    def __init__(
        self,
        sources: dict[str, SourceFacts],
        collections: dict[Name, CollectionFacts],
        *,
        next_number: int,
        renames_since: int = 0,
    ) -> None:
        self.sources = sources
        self.collections = collections
        self.next_number = next_number
        self.renames_since = renames_since
        """All renames behind this sequence came here."""
        self.changed_sources: set[str] = set()
        self.changed: set[Name] = set()
        self.forgotten: list[int] = []
        """Numbers whose rows are to be removed."""

    def taken(self) -> None:
        """What changed is written."""
        self.changed_sources, self.changed, self.forgotten = set(), set(), []

    def source(self, source: str) -> SourceFacts:
        return self.sources.get(source) or SourceFacts()

    def of(self, source: str) -> list[Name]:
        """The collections of a source that are known."""
        return [name for name in self.collections if name.source == source]

    def called_now(self, name: Name, *, at: int) -> Name | None:
        """The name now of what was called `name` at the sequence `at`; None where a rename has
        ended it since, by taking its name or by one that is not captured.

        Raises HistoryUnknownError where not every rename since is remembered.
        """
        renames = self.source(name.source).renames
        forgotten = len(renames) >= _RENAMES_MAX and at < renames[0].sequence
        if forgotten or at < self.renames_since:
            raise HistoryUnknownError(
                why="collections of its source were renamed since, or may have been, and which "
                "ones is not remembered",
                what="what a collection was called there",
            )
        now = name
        for one in renames:
            if one.sequence <= at:
                continue
            if now == one.new:
                return None
            if now == one.old:
                if one.new is None:
                    return None
                now = one.new
        return now

    def heard(self, name: Name, sequence: int) -> CollectionFacts:
        """The collection of a change at `sequence`."""
        known = self.collections.get(name)
        if known is None:
            whole = name.collection == DEAD_LETTERS or self.source(name.source).whole_since > 0
            known = self._new(name, sequence, complete=whole)
        return known

    def control(
        self,
        event: SchemaEvent | SystemEvent,
        sequence: int,
        *,
        is_empty: Callable[[int], bool],
    ) -> None:
        """Take a control event of any kind. `is_empty` tells whether a number has no rows now."""
        if isinstance(event, SchemaEvent):
            self._schema(event, sequence, is_empty)
        else:
            self._system(event, sequence)

    def doubted(self, name: Name, sequence: int, letter: str) -> None:
        """A change of the collection is not known, nor of which row: only its `letter` came."""
        if not name.collection:
            self.interrupted(name.source)
            return
        known = self.heard(name, sequence)
        doubts = (*known.doubts, Doubt(letter, sequence))
        if len(doubts) > _DOUBTS_MAX:
            doubts = (*doubts[: _DOUBTS_MAX - 1], Doubt("", sequence))
        self._put(name, structs.replace(known, doubts=doubts))

    def interrupted(self, source: str, *, by_us: bool = False) -> None:
        """Changes of the source are not in the state: nothing of it is complete any more.

        But its letters, which the source does not write, are missing only if it happened `by_us`.
        """
        facts = self.source(source)
        self._put_source(source, structs.replace(facts, whole_since=0, copy=None))
        for name in self.of(source):
            known = self.collections[name]
            if by_us or name.collection != DEAD_LETTERS:
                self._put(name, structs.replace(_undeclared(_uncopied(known)), complete=False))

    # --- what a source says ---------------------------------------------------------------------

    def _schema(self, event: SchemaEvent, sequence: int, is_empty: Callable[[int], bool]) -> None:
        name = Name(event.source, event.database, event.collection)
        match event.operation:
            case "create":
                self._created(name, sequence, is_empty)
                self._rows_follow(name, event)
                self._has_no_events(name, event)
                self._declares(name, msgspec.json.decode(event.description), sequence)
            case "drop":
                before = self.collections.get(name)
                self._emptied(name, sequence)
                if before is not None and msgspec.json.decode(event.description).get("truncated"):
                    self._keeps_declared(name, before, sequence)
            case "dropDatabase":
                for one in self.of(event.source):
                    if one.database == event.database:
                        self._emptied(one, sequence)
            case "rename":
                said = msgspec.json.decode(event.description, type=_Rename)
                self._renamed(name, said, sequence)
                self._rows_follow(Name(name.source, said.to.db, said.to.coll), event)
            case _:
                self._declares(name, msgspec.json.decode(event.description), sequence)

    def _declares(self, name: Name, said: dict[str, Any], sequence: int) -> None:
        """The event may say what its source declares of columns; where it says all of them, those
        whose values differ in shape are all that there are."""
        if "varying" not in said and "columns" not in said:
            return
        told = said.get("varying")
        pairs = cast("dict[str, object]", told).items() if isinstance(told, dict) else ()
        varying = {field: kind for field, kind in pairs if isinstance(kind, str)}
        if name not in self.collections and not varying:
            return
        known = self.heard(name, sequence)
        if varying != known.varying:
            self._put(name, structs.replace(known, varying=varying, varying_since=sequence))

    def _keeps_declared(self, name: Name, before: CollectionFacts, sequence: int) -> None:
        """Only its rows are gone: what was declared before is so still."""
        if before.varying:
            since, known = before.varying_since, self.heard(name, sequence)
            self._put(name, structs.replace(known, varying=before.varying, varying_since=since))

    def _created(self, name: Name, sequence: int, is_empty: Callable[[int], bool]) -> None:
        known = self.collections.get(name)
        if known is None:
            self._new(name, sequence, complete=True)
        elif not known.whole and is_empty(known.number):
            known = structs.replace(known, complete=True, doubts=(), left=False, since=sequence)
            self._put(name, known)
        # Rows of before a gap stay: that they are gone is told once a copy proves it.

    def _rows_follow(self, name: Name, event: SchemaEvent) -> None:
        """The event may say that rows exist without events: incomplete until they are copied."""
        known = self.collections.get(name)
        if known is not None and msgspec.json.decode(event.description).get("rowsFollow"):
            self._put(name, structs.replace(_uncopied(known), complete=False))

    def _has_no_events(self, name: Name, event: SchemaEvent) -> None:
        """The event may say that no row of it is ever told: missing to who asks for it by name."""
        if msgspec.json.decode(event.description).get("hasNoEvents"):
            known = structs.replace(self.collections[name], complete=False, left=True)
            self._put(name, _uncopied(known))

    def _emptied(self, name: Name, sequence: int) -> None:
        """The collection has no rows at this place, whatever was known of it."""
        self._forget(name)
        if not self.source(name.source).whole_since:
            self._new(name, sequence, complete=True)

    def _renamed(self, name: Name, said: "_Rename", sequence: int) -> None:
        moved = self.collections.get(name)
        target = Name(name.source, said.to.db, said.to.coll) if said.target_captured else None
        if target == name:
            return
        source = self.source(name.source)
        renames = (*source.renames, Renamed(sequence, name, target))[-_RENAMES_MAX:]
        self._put_source(name.source, structs.replace(source, renames=renames))
        if target is None:
            # Nobody follows it any further.
            self._emptied(name, sequence)
            return
        self._forget(target)
        if moved is None:
            # It brings rows that were never told; who captures it copies them.
            self._new(target, sequence, complete=False)
            return
        del self.collections[name]
        self.changed.add(name)
        self._put(target, moved)
        self._emptied(name, sequence)

    # --- what Penstock says ---------------------------------------------------------------------

    def _system(self, event: SystemEvent, sequence: int) -> None:
        said: dict[str, Any] = msgspec.json.decode(event.description)
        source = event.source
        match event.operation:
            case "gap" | "gap_ended":
                self._lost(event, said, sequence)
            case "rewound":
                # A rename that comes again finds what came after it, and moves that, too.
                self.interrupted(source)
            case "scope_changed":
                self._scoped(source, said, sequence)
            case "snapshot_started":
                self._started(source, said, sequence)
            case "snapshot_completed":
                self._completed(source, said, sequence, event)
            case "snapshot_reconciled":
                for name in self.of(source):
                    known = self.collections[name]
                    if known.copied and known.snapshot == said["snapshot"]:
                        self._put(name, structs.replace(_uncopied(known), complete=True))
            case "dead_letter_replayed" | "dead_letter_settled":
                name = Name(source, event.database, event.collection)
                self._dealt_with(name, str(said["deadLetter"]), event.operation)
            case "columns":
                self._declares(Name(source, event.database, event.collection), said, sequence)
            case "gap_closed":
                self._put_source(source, structs.replace(self.source(source), gaps=()))
            case _:
                pass

    def _dealt_with(self, name: Name, letter: str, how: str) -> None:
        """A letter is not outstanding any more: what it was of was told, or is left as it is."""
        known = self.collections.get(name)
        if known is None:
            return
        if how == "dead_letter_replayed":
            doubts = tuple(doubt for doubt in known.doubts if doubt.letter != letter)
        else:
            doubts = tuple(
                Doubt("", doubt.sequence) if doubt.letter == letter else doubt
                for doubt in known.doubts
            )
        self._put(name, structs.replace(known, doubts=doubts))

    def _lost(self, event: SystemEvent, said: dict[str, Any], sequence: int) -> None:
        if "deadLetter" in said:
            return  # one row, which its letter named
        source = event.source
        if said.get("reason") == "scope":
            # `scope_changed` said so of those that are there; this is of those that are gone, too.
            # Where we may not look, it names a database only, or nothing: all of them.
            for name in self.of(source):
                if event.database in {"", name.database} and (
                    event.collection in {"", name.collection}
                ):
                    left = structs.replace(self.collections[name], complete=False, left=True)
                    self._put(name, _uncopied(left))
            return
        of = f"{event.database}.{event.collection}" if event.collection else ""
        if of:
            name = Name(source, event.database, event.collection)
            known = _undeclared(_uncopied(self.heard(name, sequence)))
            self._put(name, structs.replace(known, complete=False, lost=sequence))
        else:
            self.interrupted(source)
        gaps = self.source(source).gaps
        begun = [gap for gap in gaps if gap.collection == of]
        if event.operation == "gap_ended" and begun:
            sequence = begun[-1].sequence
            gaps = tuple(gap for gap in gaps if gap is not begun[-1])
        gap = Gap(
            sequence=sequence,
            from_=said.get("from"),
            to=said.get("to"),
            reason=str(said.get("reason", "")),
            timestamp=event.timestamp,
            collection=of,
        )
        self._put_source(source, structs.replace(self.source(source), gaps=(*gaps, gap)))

    def _scoped(self, source: str, said: dict[str, Any], sequence: int) -> None:
        removed = set(_names(source, said.get("removed", ())))
        database = said.get("after", {}).get("database")
        if database is not None:
            removed |= {name for name in self.of(source) if name.database != database}
        for name in removed:
            known = self.heard(name, sequence)
            self._put(name, structs.replace(_uncopied(known), complete=False, left=True))
        for name in _names(source, said.get("added", ())):
            known = self.collections.get(name) or self._new(name, sequence, complete=False)
            self._put(name, structs.replace(_uncopied(known), complete=False, left=False))

    def _started(self, source: str, said: dict[str, Any], sequence: int) -> None:
        facts, snapshot = self.source(source), str(said["snapshot"])
        if facts.copy is None or facts.copy.snapshot != snapshot:
            if said.get("again"):
                return  # something was lost since it began: what it copied before proves nothing
            copy = Copy(snapshot=snapshot, since=sequence)
            self._put_source(source, structs.replace(facts, copy=copy))
        for name in _copied_names(source, said):
            known = self.collections.get(name) or self._new(name, sequence, complete=False)
            if known.snapshot != snapshot:
                self._put(
                    name,
                    structs.replace(
                        known, left=False, snapshot=snapshot, copied_since=sequence, copied=False
                    ),
                )

    def _completed(
        self, source: str, said: dict[str, Any], sequence: int, event: SystemEvent
    ) -> None:
        facts, snapshot = self.source(source), str(said["snapshot"])
        if facts.copy is None or facts.copy.snapshot != snapshot:
            return  # something was lost since it began, so it proves nothing
        whole = bool(said.get("whole"))
        covered = set(_copied_names(source, said))
        if whole:
            covered |= {
                name
                for name in self.of(source)
                if not self.collections[name].left and name.collection != DEAD_LETTERS
            }
        for name in covered:
            known = self.collections.get(name) or self._new(name, sequence, complete=True)
            since = known.copied_since if known.snapshot == snapshot else facts.copy.since
            doubts = tuple(doubt for doubt in known.doubts if doubt.sequence > since)
            known = structs.replace(known, doubts=doubts)
            if known.lost > since:
                self._put(name, known)
                continue
            if known.since >= since:
                self._put(name, structs.replace(_uncopied(known), complete=True))
                continue
            self._put(
                name,
                structs.replace(
                    known,
                    snapshot=snapshot,
                    copied_since=since,
                    copied=True,
                    copied_t=event.cluster_time.t,
                    copied_i=event.cluster_time.i,
                    copied_timestamp=event.timestamp,
                ),
            )
        whole_since = sequence if whole else facts.whole_since
        self._put_source(source, structs.replace(facts, copy=None, whole_since=whole_since))

    # --- bookkeeping ----------------------------------------------------------------------------

    def _new(self, name: Name, sequence: int, *, complete: bool) -> CollectionFacts:
        number, self.next_number = self.next_number, self.next_number + 1
        known = CollectionFacts(number=number, since=sequence, complete=complete)
        self._put(name, known)
        return known

    def _forget(self, name: Name) -> None:
        known = self.collections.pop(name, None)
        if known is not None:
            self.forgotten.append(known.number)
            self.changed.add(name)

    def _put(self, name: Name, known: CollectionFacts) -> None:
        if self.collections.get(name) != known:
            self.collections[name] = known
            self.changed.add(name)

    def _put_source(self, source: str, facts: SourceFacts) -> None:
        if self.sources.get(source) != facts:
            self.sources[source] = facts
            self.changed_sources.add(source)


def _uncopied(known: CollectionFacts) -> CollectionFacts:
    """As `known`, part of no copy."""
    return structs.replace(
        known,
        snapshot=None,
        copied_since=0,
        copied=False,
        copied_t=0,
        copied_i=0,
        copied_timestamp=0,
    )


def _undeclared(known: CollectionFacts) -> CollectionFacts:
    """As `known`, with nothing known of what its source declares."""
    return structs.replace(known, varying={}, varying_since=0)


def _copied_names(source: str, said: dict[str, Any]) -> list[Name]:
    """The collections of a copy. Letters are ours, so a copy tells nothing of them."""
    names = _names(source, said["collections"])
    return [name for name in names if name.collection != DEAD_LETTERS]


def _names(source: str, said: Iterable[str]) -> list[Name]:
    """The collections that a system event lists, as `database.collection`."""
    return [Name(source, *one.split(".", 1)) for one in said]
