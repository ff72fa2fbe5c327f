"""Changes that cannot be decoded, kept in the log beside those that can (P6). Pure.

With `on_undecodable = "dead_letter"` such a change becomes two events, in its place and in its
transaction, so that rows and digest of the commit hold:

- a *letter*: an insert into the collection `penstock_dead_letters` of the source, whose document
  holds the change's own bytes, its reason, its place and what it was about;
- a *gap* of the collection that it was of. So nobody misses a row silently: a reader of that
  collection that takes no control events is stopped (DATA_LOSS), and a table is told.

A change by which a document may have become another tenant's is two of each, one for either tenant.

A letter is dealt with by a delete of it, so the current rows of the collection are the letters that
are outstanding. A replay never applies the old change, which newer ones may have overtaken: the
source reads the document as it is now, and says that (a row that was copied, or a delete).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
from msgspec import Raw, Struct, field

from penstock.event import (
    AnyEvent,
    ChangeEvent,
    ClusterTime,
    Json,
    Operation,
    SystemEvent,
    event_id,
)
from penstock.extjson import binary, encode

COLLECTION: Final = "penstock_dead_letters"
"""Reserved: a source's own collection of this name is undecodable where letters are kept."""


class Poison(Struct, frozen=True, kw_only=True):
    """A change that cannot be decoded, and what is known of it."""

    source: str
    database: str
    collection: str
    """Empty: about no collection that could be told."""
    tenant: str
    left: bool = False
    """Whether the document was the tenant's before the change, and may not be any more."""
    number: int = 0
    """Of the letters of one change, which concerns several tenants."""
    operation: str
    position: str
    """Where the source says it; with the number its letter's identity."""
    cluster_time: ClusterTime
    timestamp: int
    transaction: str | None
    reason: str
    """What cannot be decoded: types and fields, never a value."""
    raw: tuple[bytes, ...]
    """The change as the source sent it, in its parts, without what another tenant's letter of it
    has; none where it could not be sent."""
    is_row: bool = False
    """A document that was being copied, not a change."""
    key: Json | None = None
    """The key of the document, where it can be decoded."""
    key_raw: bytes | None = None
    """The key as the source has it, by which the document can be read again."""
    generation: str = ""
    """Tells the collection from a later one of its name, where the source does."""

    @property
    def letter_id(self) -> str:
        return event_id(self.source, f"dead_letter:{self.position}", self.number)

    def events(self) -> tuple[ChangeEvent, SystemEvent]:
        """The letter, and the gap in the collection."""
        return self._letter(), self._gap()

    def _letter(self) -> ChangeEvent:
        document: dict[str, Any] = {
            "_id": self.letter_id,
            "database": self.database,
            "collection": self.collection,
            "operation": self.operation,
            "isRow": self.is_row,
            "position": self.position,
            "reason": self.reason,
            "tenant": self.tenant,
            "left": self.left,
            "generation": self.generation,
        }
        # The key comes as JSON already, so it is put in as it is.
        head = bytes(encode(document))[:-1]
        key = b"null" if self.key is None else bytes(self.key)
        key_raw = None if self.key_raw is None else binary(self.key_raw)
        rest = msgspec.json.encode({"keyRaw": key_raw, "raw": [binary(part) for part in self.raw]})
        return ChangeEvent(
            event_id=self.letter_id,
            source=self.source,
            database=self.database,
            tenant=self.tenant,
            collection=COLLECTION,
            cluster_time=self.cluster_time,
            timestamp=self.timestamp,
            position=self.position,
            transaction=self.transaction,
            document_id=self.letter_id,
            key=letter_key(self.letter_id),
            operation=Operation.INSERT,
            full_document=Raw(head + b',"key":' + key + b"," + rest[1:]),
            full_document_as_of_event=True,
        )

    def _gap(self) -> SystemEvent:
        return SystemEvent(
            event_id=event_id(self.source, f"gap:dead_letter:{self.position}", self.number),
            source=self.source,
            database=self.database,
            tenant=self.tenant,
            collection=self.collection,
            cluster_time=self.cluster_time,
            timestamp=self.timestamp,
            position=self.position,
            transaction=self.transaction,
            operation="gap",
            description=Raw(
                msgspec.json.encode(
                    {
                        "source": self.source,
                        "from": self.position,
                        "to": self.position,
                        "reason": f"undecodable: {self.reason}",
                        "deadLetter": self.letter_id,
                    }
                )
            ),
        )


def letter_key(letter_id: str) -> Raw:
    """The key of a letter."""
    return Raw(f'{{"_id":"{letter_id}"}}'.encode())


class Letter(Struct, frozen=True, kw_only=True, rename="camel"):
    """An outstanding letter, as its document says it. What a replay needs travels to the source."""

    id: str = field(name="_id")
    database: str
    collection: str
    operation: str
    position: str
    reason: str
    tenant: str
    left: bool = False
    """Whether the document was the tenant's before the change, and may not be any more."""
    is_row: bool = False
    generation: str = ""
    key_raw: dict[str, Any] | None = None
    """The key in the source's own bytes, as `$binary`; None: it cannot be read again."""


class Outstanding:
    """The letters of one source that nobody has dealt with, from the events of its log in order."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._letters: dict[str, Letter] = {}

    def __iter__(self) -> Iterator[Letter]:
        """The oldest first."""
        return iter(self._letters.values())

    def __len__(self) -> int:
        return len(self._letters)

    def __contains__(self, letter_id: object) -> bool:
        return letter_id in self._letters

    def take(self, events: Iterable[AnyEvent]) -> None:
        """Go on with what the log says next. Other events than letters are passed over."""
        for event in events:
            if not isinstance(event, ChangeEvent) or event.collection != COLLECTION:
                continue
            if event.source != self._source:
                continue
            if event.operation is Operation.DELETE:
                self._letters.pop(event.document_id, None)
            elif event.full_document is not None:
                letter = msgspec.json.decode(event.full_document, type=Letter)
                self._letters[letter.id] = letter


class Outcome(Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of a letter that was to be replayed."""

    letter: str
    done: bool
    """It is dealt with: the log has what the document is now."""
    detail: str


@runtime_checkable
class KeepsLetters(Protocol):
    """A source that may keep dead letters; beside ChangeSource, and optional."""

    @property
    def dead_letters(self) -> int:
        """How many are outstanding, by the position that the source stands at; 0 before it does."""
        ...

    async def replay(
        self, letters: Sequence[Letter], *, settle: bool, everything: bool = False
    ) -> list[Outcome]:
        """Deal with letters, in the source's own stream, while it is captured.

        For each letter the document is read as it is now and said, with a delete of the letter, in
        one commit; `settle` deletes the letters alone. What still cannot be decoded or read stays
        outstanding. `everything` says that no others are, for a rewind counts letters twice. The
        answer comes when the commit is on its way: it is done once the log has it.
        Raises RequestError while the source is not captured, and SourceError if its capture fails
        meanwhile.
        """
        ...


def dead_letters_of(source: object) -> int:
    """How many letters of a source are outstanding; none of one that keeps none."""
    return source.dead_letters if isinstance(source, KeepsLetters) else 0


def settled(letter: Letter, *, source: str, position: str, at: ClusterTime) -> ChangeEvent:
    """The delete of a letter, said at a source's `position`."""
    return ChangeEvent(
        event_id=event_id(source, f"dead_letter_settled:{letter.id}:{position}", 0),
        source=source,
        database=letter.database,
        tenant=letter.tenant,
        collection=COLLECTION,
        cluster_time=at,
        timestamp=at.t * 1000,
        position=position,
        document_id=letter.id,
        key=letter_key(letter.id),
        operation=Operation.DELETE,
    )


def replayed(
    letter: Letter, *, operation: str, source: str, position: str, at: ClusterTime
) -> SystemEvent:
    """What the readers of the letter's collection are told: its gap is dealt with."""
    facts = {"source": source, "deadLetter": letter.id, "from": letter.position}
    return SystemEvent(
        event_id=event_id(source, f"{operation}:{letter.id}:{position}", 0),
        source=source,
        database=letter.database,
        tenant=letter.tenant,
        collection=letter.collection,
        cluster_time=at,
        timestamp=at.t * 1000,
        position=position,
        operation=operation,
        description=Raw(msgspec.json.encode(facts)),
    )
