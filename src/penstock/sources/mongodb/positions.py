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
from msgspec import Struct, field

from penstock.errors import ConfigError
from penstock.event import ClusterTime


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


class Copying(Struct, frozen=True, omit_defaults=True):
    """How far a snapshot is."""

    snapshot: str
    """The token that it began at: it tells this snapshot's rows from another's."""
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


class MongoPosition(Struct, frozen=True, omit_defaults=True):
    """Where a source stands."""

    server: Server
    token: Token
    copying: Copying | None = None
    version: int = field(default=1, name="v")

    def text(self) -> str:
        """As it is kept in the log."""
        return PositionWriter(self.server, self.copying).at(self.token)


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


class PositionWriter:
    """Writes positions that differ only in their token, without encoding the rest again."""

    def __init__(self, server: Server, copying: Copying | None) -> None:
        self.server = server
        self.copying = copying
        tail = "" if copying is None else f',"copying":{_ENCODER.encode(copying).decode()}'
        self._head = f'{{"server":{_ENCODER.encode(server).decode()},"token":{{"data":"'
        self._tail = f'{tail},"v":1}}'

    def at(self, token: Token) -> str:
        """The position at `token`, as MongoPosition.text()."""
        bits = token.type_bits
        if bits is None:
            return f'{self._head}{token.data}"}}{self._tail}'
        text = base64.b64encode(bits).decode()
        return f'{self._head}{token.data}","type_bits":"{text}"}}{self._tail}'


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(MongoPosition)
