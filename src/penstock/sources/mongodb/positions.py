"""A MongoDB position: which server, which resume token, and how far a snapshot is.

The token is always that of an event or of a moment between two transactions, so that resuming
after it never cuts one. It is always given back as `startAfter`, which takes every token that
`resumeAfter` takes, and that of an invalidate event too.
Source: MongoDB manual, Change Streams, "Resume a Change Stream".
"""

import base64
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field, structs

from penstock.errors import ConfigError, RequestError
from penstock.event import ClusterTime
from penstock.sources.mongodb.namespaces import Namespaces


class Token(Struct, frozen=True, omit_defaults=True):
    """A resume token. Opaque but for its time, and unique to its event by `data`."""

    data: str
    type_bits: bytes | None = None
    """What tells apart keys that are equal in order (5 and 5.0); the server wants it back."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Token":
        """The token in an event's `_id` or a reply's postBatchResumeToken."""
        return cls(document["_data"], document.get("_typeBits"))

    def document(self) -> dict[str, Any]:
        """As the server wants it back."""
        bits = {} if self.type_bits is None else {"_typeBits": self.type_bits}
        return {"_data": self.data, **bits}

    @property
    def time(self) -> ClusterTime:
        """The cluster time that every token begins with: 0x82, seconds, increment, in hex.

        Source: mongo/src/mongo/db/pipeline/resume_token.h (a KeyString that starts with the
        timestamp).
        """
        return ClusterTime(int(self.data[2:10], 16), int(self.data[10:18], 16))

    @property
    def is_of_event(self) -> bool:
        """Whether it is an event's, and not that of a moment between two.

        Source: resume_token.h; after the time come the token's version (4 digits) and its type,
        0x29 (zero) for no event's.
        """
        return self.data[22:24] != "29"


OplogEntry = tuple[int, int, int]
"""An entry of the oplog: its time, in seconds and their counter, and the term of its primary."""


class Server(Struct, frozen=True, omit_defaults=True):
    """Who a deployment is, over restarts and failovers (S6)."""

    name: str
    """The replica set's name."""
    id: str | None = None
    """The id that the deployment got when it was made; None where we may not read it."""

    def is_other_than(self, found: "Server") -> bool:
        """Whether `found` is surely another deployment."""
        if self.id is not None and found.id is not None:
            return self.id != found.id
        return self.name != found.name

    def __str__(self) -> str:
        return f"{self.name} ({self.id or 'id not readable'})"


class Scope(Struct, frozen=True, omit_defaults=True):
    """Which collections were captured: what the configuration said, so that a change is noticed."""

    database: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @property
    def namespaces(self) -> Namespaces:
        return Namespaces(database=self.database, include=self.include, exclude=self.exclude)


class Copying(Struct, frozen=True, omit_defaults=True):
    """How far a snapshot is."""

    snapshot: str
    """The token that it began at, and more where another may have begun there: it tells this
    snapshot's rows from another's."""
    pending: tuple[tuple[str, str], ...]
    """The (database, collection)s to copy, the one under way first."""
    announced: bool = False
    """Whether snapshot_started was said."""
    after: bytes | None = None
    """The last key copied of the first pending collection, as BSON `{_id: ...}`."""
    copies: int = 0
    """How many collections were finished before: a renamed one may be copied again."""
    documents: int = 0
    read_at: tuple[int, int] = (0, 0)
    """When the last chunk was read; nothing more is copied, nor called complete, before the stream
    was read past it."""
    covers: tuple[tuple[str, str], ...] = ()
    """Every (database, collection) that it copies, those that are finished too. Empty in positions
    of versions that did not keep it."""
    whole: bool = False
    """Whether it is of everything that is captured."""
    announcements: int = 0
    """How often snapshot_started was said: again when collections were added."""
    anew: bool = False
    """Whether it is to begin as another one, for something was lost since it began; what there is
    to copy is looked up by the session that begins it."""


class MongoPosition(Struct, frozen=True, omit_defaults=True):
    """Where a source stands."""

    server: Server
    token: Token
    copying: Copying | None = None
    scope: Scope | None = None
    """None in positions of versions that did not keep it."""
    entry: OplogEntry | None = None
    """One that a majority had then: another history under the same set's name does not have it.
    None in positions of versions that did not keep it."""
    gap_said: bool = False
    """Whether the log has a gap that begins here; capture stopped at it (on_position_lost)."""
    full_document: str | None = None
    """With what setting of that name changes are captured from here on; None in positions of
    versions that did not keep it."""
    letters: int = 0
    """Dead letters that nobody has dealt with; while there are any, the source is degraded."""
    version: int = field(default=1, name="v")

    def text(self) -> str:
        """As it is kept in the log."""
        return _ENCODER.encode(self).decode()


def parse_position(text: str) -> MongoPosition:
    """The place that `text` says. Raises ConfigError for what this version did not write."""
    try:
        position = _DECODER.decode(text)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"not a position of a MongoDB source ({error}). Nothing was captured. If the source's "
            f"name belonged to another kind of source before, give this one a name of its own."
        ) from error
    if position.version != 1:
        raise ConfigError(
            f"this position is of version {position.version}, written by a newer Penstock; "
            f"nothing was captured. Run that version."
        )
    return position


def moved(source: str, position: str, *, before: str | None) -> str:
    """As `penstock.ports.Moves.moved`."""
    try:
        place = parse_position(position)
    except ConfigError as error:
        raise RequestError(
            f"{source}: that is no position of a MongoDB source. Nothing was changed. Take one "
            f"from `penstock checkpoint show --json`."
        ) from error
    stood = None if before is None else _parsed(before)
    now = structs.replace(place, copying=_begun_anew(place.copying), gap_said=False)
    if stood is not None:
        copying = _begun_anew(place.copying, stood.copying)
        now = structs.replace(now, copying=copying, letters=stood.letters)
    return now.text()


def is_copying(position: str) -> bool:
    """Whether `position` is in the middle of a copy; False for what is none of MongoDB's."""
    known = _parsed(position)
    return known is not None and known.copying is not None


def _parsed(position: str) -> MongoPosition | None:
    """None for the position of another kind of source, which had the name before."""
    try:
        return parse_position(position)
    except ConfigError:
        return None


def _begun_anew(*copies: Copying | None) -> Copying | None:
    """A copy, still to begin, of everything that `copies` were to copy; None if there are none."""
    found = [copying for copying in copies if copying is not None]
    if not found:
        return None
    covers = dict.fromkeys(one for copying in found for one in (*copying.covers, *copying.pending))
    whole = any(copying.whole for copying in found)
    return Copying(
        snapshot=found[0].snapshot,
        pending=tuple(covers),
        covers=tuple(covers),
        whole=whole,
        anew=True,
    )


class PositionWriter:
    """Writes positions that differ only in their token, without encoding the rest again."""

    def __init__(self, position: MongoPosition) -> None:
        self._position = position
        # A gap that was said begins at one token, not at those that follow.
        self._gap_at = position.token if position.gap_said else None
        # No other object has a `data`, and within a text the quotes are escaped.
        here = structs.replace(position, token=Token("@"), gap_said=False).text()
        self._head, _, self._tail = here.partition('"data":"@"}')
        self._head += '"data":"'

    @property
    def copying(self) -> Copying | None:
        """How far the snapshot is."""
        return self._position.copying

    def with_copying(self, copying: Copying | None) -> "PositionWriter":
        """As this one, with the snapshot that far."""
        return PositionWriter(structs.replace(self._position, copying=copying))

    @property
    def entry(self) -> OplogEntry | None:
        """As of a position."""
        return self._position.entry

    def with_entry(self, entry: OplogEntry | None) -> "PositionWriter":
        """As this one, with another entry of the oplog."""
        return PositionWriter(structs.replace(self._position, entry=entry))

    @property
    def letters(self) -> int:
        """How many dead letters are outstanding."""
        return self._position.letters

    def with_letters(self, letters: int) -> "PositionWriter":
        """As this one, with so many dead letters outstanding."""
        return PositionWriter(structs.replace(self._position, letters=max(letters, 0)))

    def position(self, token: Token) -> MongoPosition:
        """The position at `token`."""
        return structs.replace(self._position, token=token, gap_said=token == self._gap_at)

    def at(self, token: Token) -> str:
        """Its text."""
        if self._gap_at is not None and token == self._gap_at:
            return self._position.text()
        bits = token.type_bits
        if bits is None:
            return f'{self._head}{token.data}"}}{self._tail}'
        text = base64.b64encode(bits).decode()
        return f'{self._head}{token.data}","type_bits":"{text}"}}{self._tail}'


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(MongoPosition)
