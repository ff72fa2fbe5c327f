"""What a table and its stream are, as the catalog keeps them."""

import math
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from penstock.store.errors import RefusedError
from penstock.store.keys import (
    PARTITION_BYTES_MAX,
    SORT_BYTES_MAX,
    KeyAttribute,
    key_of,
)
from penstock.store.values import Item, number

DAY_SECONDS: Final = 86_400
_SECOND_MAX: Final = (1 << 63) - 1
_PAST_SECONDS_MAX: Final = 5 * 365 * DAY_SECONDS
"""An older second is no time to live: as with DynamoDB, which so spares durations and junk."""


class StreamViewType(StrEnum):
    """What a stream's records hold beside the keys; the words are DynamoDB's."""

    KEYS_ONLY = "KEYS_ONLY"
    NEW_IMAGE = "NEW_IMAGE"
    OLD_IMAGE = "OLD_IMAGE"
    NEW_AND_OLD_IMAGES = "NEW_AND_OLD_IMAGES"

    @property
    def has_old(self) -> bool:
        """Whether records hold the item before the change."""
        return self in (StreamViewType.OLD_IMAGE, StreamViewType.NEW_AND_OLD_IMAGES)

    @property
    def has_new(self) -> bool:
        """Whether records hold the item after the change."""
        return self in (StreamViewType.NEW_IMAGE, StreamViewType.NEW_AND_OLD_IMAGES)


class Retention(Struct, frozen=True, kw_only=True):
    """How much of a stream is kept: what is beyond any limit goes, oldest first.

    With `manual`, nothing goes but by `prune_stream`, and a write that would take the stream over
    `bytes_max` raises StreamFullError (F12).
    """

    age_seconds: int | None = 7 * DAY_SECONDS
    records_max: int | None = 1_000_000
    bytes_max: int | None = None
    manual: bool = False

    def __post_init__(self) -> None:
        for name in ("age_seconds", "records_max", "bytes_max"):
            limit = getattr(self, name)
            if limit is not None and (type(limit) is not int or limit <= 0):
                raise RefusedError(
                    f"retention: {name} must be a whole number of more than 0, and is {limit!r}"
                )
        if self.manual and (self.bytes_max is None or self.age_seconds or self.records_max):
            raise RefusedError(
                "retention: what only prune_stream shortens needs bytes_max, and no other limit; "
                "write Retention.by_hand(bytes_max=...)"
            )
        if not (self.age_seconds or self.records_max or self.bytes_max):
            raise RefusedError(
                "retention: a stream without any limit would fill the disk. Give it one, bytes_max "
                "at the least."
            )

    @classmethod
    def by_hand(cls, *, bytes_max: int) -> "Retention":
        """Only `prune_stream` removes records; at `bytes_max` the table refuses writes."""
        return cls(age_seconds=None, records_max=None, bytes_max=bytes_max, manual=True)


class Index(Struct, frozen=True, kw_only=True):
    """A secondary index of a table (`penstock.store.indexes`)."""

    id: int
    name: str
    partition_key: KeyAttribute
    sort_key: KeyAttribute | None = None
    scope: str | None = None
    """Only items whose partition key begins with it and "#"; None: all items."""
    ready: bool = False
    """Whether every item is in it that belongs there: until then nobody may query it."""
    created_ms: int = 0
    kept: bytes = b""
    """What a server keeps with the index; it means nothing to the store. An index with it that is
    not ready is kept when its store is opened: the server goes on filling it."""

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the index's own key attributes, the partition key's first."""
        if self.sort_key is None:
            return (self.partition_key.name,)
        return (self.partition_key.name, self.sort_key.name)

    @property
    def prefix(self) -> bytes:
        """With what all of its entries begin: no table's items and no other index's entries do."""
        return self.id.to_bytes(4, "big")


class Table(Struct, frozen=True, kw_only=True):
    """A table's schema. Of the attributes of an item it names those of the key, and the TTL's."""

    id: int
    name: str
    partition_key: KeyAttribute
    sort_key: KeyAttribute | None = None
    ttl_attribute: str | None = None
    stream: int | None = None
    """The stream that takes its changes, if it is enabled."""
    streams: int = 0
    """How many streams it has had, that one too."""
    created_ms: int = 0
    indexes: tuple[Index, ...] = ()
    """Its secondary indexes, oldest first, those too that are being made."""

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key attributes, the partition key's first."""
        if self.sort_key is None:
            return (self.partition_key.name,)
        return (self.partition_key.name, self.sort_key.name)

    @property
    def prefix(self) -> bytes:
        """With what the keys of all of its items begin."""
        return self.id.to_bytes(4, "big")

    def partition(self, attributes: dict[str, Any]) -> bytes:
        """With what the keys of all items of a partition begin.

        Raises MissingKeyAttributeError, KeyTypeMismatchError and KeyTooLargeError.
        """
        key = key_of(attributes, self.partition_key, bytes_max=PARTITION_BYTES_MAX)
        return self.prefix + key

    def key(self, attributes: dict[str, Any]) -> bytes:
        """The key under which an item is kept, from the item or from its key alone."""
        key = self.partition(attributes)
        if self.sort_key is not None:
            key += key_of(attributes, self.sort_key, bytes_max=SORT_BYTES_MAX)
        return key

    def keys_of(self, item: Item) -> Item:
        """The key attributes of an item."""
        return {name: item[name] for name in self.key_names}

    def expires_at(self, item: Item, *, now_ms: int) -> int | None:
        """The second from which an item that is written now is no longer there; None: never (0 or
        less, absent, no number, more than five years ago).

        The item is one that can be kept (`encode_item`).
        """
        if self.ttl_attribute is None:
            return None
        value = item.get(self.ttl_attribute)
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            return None
        # A part of a second is over when the second is: what expires at 10.5 is gone from 11 on.
        second = math.ceil(number(value))
        if second < max(1, now_ms // 1000 - _PAST_SECONDS_MAX):
            return None
        return min(second, _SECOND_MAX)


class Hold(Struct, frozen=True, kw_only=True):
    """What a stream keeps for a consumer: what is behind `sequence`, while it has no more bytes."""

    consumer: str
    sequence: int
    bytes_max: int
    overrun: bool = False
    """Whether retention went on all the same, over `bytes_max`."""


class Consumer(Struct, frozen=True, kw_only=True):
    """A named consumer of a table's stream (`penstock.store.consumers`)."""

    name: str
    table: str
    position: str
    stream: int
    sequence: int
    read: int
    """How many records its stream has had up to there."""
    hold_bytes_max: int | None = None
    saved_ms: int
    restored: bool = False


class Stream(Struct, frozen=True, kw_only=True):
    """A stream, from its enabling on; a disabled one stays readable until retention empties it."""

    id: int
    table_id: int
    table: str
    view: StreamViewType
    unchanged: bool = False
    """Whether writes that change nothing are recorded too."""
    retention: Retention
    label: str
    """When it was enabled, as text; no two streams of a table share one."""
    drawn: str = ""
    """A part of its name, drawn when it was enabled: a restored store gives its number again."""
    partition_key: KeyAttribute
    sort_key: KeyAttribute | None = None
    created_ms: int
    closed_ms: int | None = None
    first: int
    """The sequence before the stream's first: what the store had counted when it was enabled."""
    trimmed: int = 0
    """The newest sequence that retention has removed; 0 when it has removed none."""
    trimmed_check: int | None = None
    """The check of the record that is `trimmed`; None when none was ever removed."""
    latest: int | None = None
    """The newest sequence that it ever held; pruning does not change it (F3)."""
    latest_check: int | None = None
    """The check of the record that is `latest`."""
    newest_ms: int = 0
    """The time of its newest record. Never falls, whatever the clock does (F11)."""
    records: int = 0
    bytes: int = 0
    removed: int = 0
    """How many records retention has removed, or `prune_stream`."""
    held: tuple[Hold, ...] = ()
    """What consumers ask to be kept."""
    shard: int = 1
    """The number of the open shard (`penstock.store.shards`)."""
    shard_first: int = 0
    """Where it begins; 0: where the stream does."""
    shard_ms: int = 0
    """When it began; 0: when the stream did."""
    shard_bytes: int = 0
    """What was written into it."""
    shard_life: str = ""
    """As `Shard.life`."""
