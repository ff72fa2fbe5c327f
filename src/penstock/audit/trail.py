"""The collections of a trail, and its head."""

import time
from datetime import datetime
from typing import Any, Final

import pymongo
from bson.binary import Binary
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from msgspec import Struct
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from penstock.audit.chain import NO_BATCH
from penstock.audit.config import TrailConfig
from penstock.errors import ConfigError, TrailHeadError
from penstock.mongo_causes import Address, cause, granting

Document = dict[str, Any]
RAW: Final = CodecOptions(
    document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_MS
)
"""Documents as the bytes that they are: for whatever is hashed."""
TOLERANT: Final[CodecOptions[Document]] = CodecOptions(
    tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
"""Documents for people: times with a zone, and those beyond Python's as milliseconds."""
VERSION: Final = 2
UNKEYED: Final = 1
"""Of a trail whose records have their events' own ids."""
CLOSE_SECONDS: Final = 1.0
_INDEX_OPTIONS_CONFLICT: Final = 85


class Staged(Struct, frozen=True, kw_only=True):
    """Batches that are committed, and on their way from their parts into the trail."""

    first: int
    """The first of their batches,"""
    last: int
    """and the last."""
    at: int
    """The last place that they fill."""
    hash: bytes
    progress: str
    epoch: int
    """Of the writer whose parts they are."""
    written_ms: int = 0
    """When the last of them was written."""


class Head(Struct, frozen=True, kw_only=True):
    """How far a trail has come."""

    source: str
    pipeline: str
    at: int = 0
    """The last place that is filled; readers look at none beyond it."""
    batch: int = 0
    """The last batch's number."""
    hash: bytes = NO_BATCH
    """The chain's hash behind it."""
    written_ms: int = 0
    """When it was written, by the clock of who wrote it, and not before the one before it: clocks
    go back, and the times of batches never do. 0 if an older Penstock wrote it."""
    progress: str = ""
    """The marker of the log behind it; empty before anything was read."""
    collections: tuple[str, ...] = ()
    """Those whose changes it keeps; empty for all of the source."""
    staged: Staged | None = None
    epoch: int = 0
    """Which writer this is; a newer one has a higher number, and the older one stops."""
    sealed: bool = False
    """Whether the chain's hashes are made with a key."""
    recalled: int = 0
    """How often the parts of commits that had not ended were taken back (audit.recalling)."""
    id_key: bytes = b""
    """The secret by which records are named (records.id_of); empty where an older Penstock began
    the trail."""


class Trail:
    """A trail's collections, through one client."""

    def __init__(self, source: str, config: TrailConfig) -> None:
        """Connects when first used. Raises ConfigError for a uri that is none."""
        self.source = source
        self.config = config
        options: Document = {}
        if config.compression != "off":
            options["compressors"] = config.compression
        try:
            self.client: MongoClient[Document] = MongoClient(
                config.uri.get_secret_value(),
                appname="penstock",
                readPreference="primary",  # whatever the uri says: others may be behind
                tz_aware=True,
                datetime_conversion="DATETIME_AUTO",
                timeoutMS=int(config.answer_seconds * 1000),
                **options,
            )
        except (PyMongoError, ValueError) as error:
            raise ConfigError(
                f"the uri of the audit trail of {source} is not a MongoDB connection string "
                f"({type(error).__name__}). Nothing was written. Correct it; a special character "
                f"in the password is written as %XX."
            ) from None
        self.database: Database[Document] = self.client.get_database(
            config.database,
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern("majority", j=True),
        )
        self.records = self._collection("")
        self.staging = self._collection("_staging")
        self.batches = self._collection("_batches")
        self.spilled = self._collection("_spilled")
        self.retired = self._collection("_retired")
        self.heads: Collection[Document] = self.database[config.offsets]

    def cause(self, error: PyMongoError, *, role: str = "readWrite") -> tuple[str, str]:
        """What happened, and the next step; `role` is what the user needs on the database."""
        return cause(
            error,
            self.client.topology_description,
            self._address,
            granting=self.grant(role),
        )

    def grant(self, role: str = "readWrite") -> str:
        """The mongosh command that gives the user of `uri` a role on the database."""
        return granting(self._address, [(role, self.config.database)])

    @property
    def _address(self) -> Address:
        return Address.of(self.config.uri.get_secret_value())

    def _collection(self, ending: str) -> Collection[Document]:
        return self.database[self.config.records + ending]

    @property
    def key(self) -> bytes | None:
        """What the chain is sealed with."""
        key = self.config.seal_key
        return None if key is None else key.get_secret_value().encode()

    @property
    def raw_records(self) -> Collection[RawBSONDocument]:
        """The records as bytes."""
        return self.records.with_options(codec_options=RAW)

    def close(self) -> None:
        """Close the connections.

        MongoDB is told that its sessions end; one that is away is not waited for.
        """
        with pymongo.timeout(CLOSE_SECONDS):
            self.client.close()

    def head(self) -> Head | None:
        """The head as it is; None for a trail without one. Raises PyMongoError, TrailHeadError."""
        found = self.heads.find_one({"_id": self.source})
        return None if found is None else head_of(found)

    def now_ms(self) -> int:
        """The time that decides what is old: this machine's or MongoDB's, whichever is earlier, so
        that neither clock alone, set forward, has anything removed. Raises PyMongoError."""
        return min(
            time.time_ns() // 1_000_000, _ms(self.client.admin.command("hello")["localTime"])
        )

    def has_transactions(self) -> bool:
        """Whether this server takes transactions: a replica set or a sharded cluster does (A21)."""
        hello = self.client.admin.command("hello")
        return "setName" in hello or hello.get("msg") == "isdbgrid"

    def create_indexes(self) -> None:
        """Make every index that is not there."""
        for keys in RECORD_INDEXES:
            self.records.create_index(list(keys.items()))
        self.records.create_index([("at", 1)], unique=True)
        self.retired.create_index([("at", 1)])
        self.staging.create_index([("status", 1)])
        # Only what is in the trail has the field, so nothing that is pending expires (A8).
        seconds = self.config.staged_days * 86_400
        try:
            self.staging.create_index([("committedAt", 1)], expireAfterSeconds=seconds)
        except OperationFailure as error:
            if error.code != _INDEX_OPTIONS_CONFLICT:
                raise
            index = {"keyPattern": {"committedAt": 1}, "expireAfterSeconds": seconds}
            self.database.command("collMod", self.staging.name, index=index)


RECORD_INDEXES: Final[tuple[dict[str, int], ...]] = (
    {"ts": -1, "at": -1},
    {"meta.db": 1, "meta.tbl": 1, "at": -1},
    {"meta.db": 1, "meta.tbl": 1, "ts": -1},
    {"meta.pk_text": 1, "meta.db": 1, "meta.tbl": 1, "at": -1},
    {"op": 1, "at": -1},
    {"txn.id": 1, "at": 1},
)


def head_of(found: Document) -> Head:
    """The head that a document says. Raises TrailHeadError for one that is not ours."""
    try:
        if found["version"] not in {VERSION, UNKEYED}:
            raise TrailHeadError(
                f"the audit trail of {found['_id']} is of version {found['version']}; this "
                f"Penstock writes {VERSION}. Nothing was changed; use the version that wrote it."
            )
        staged = found.get("staged")
        is_keyed = found["version"] == VERSION
        if not isinstance(found["sealed"], bool) or is_keyed is not ("idKey" in found):
            raise TypeError
        return Head(
            source=found["_id"],
            pipeline=found["pipeline"],
            at=int(found["at"]),
            batch=int(found["batch"]),
            hash=bytes(found["hash"]),
            written_ms=_ms(found.get("writtenAt")),
            progress=found["progress"],
            collections=tuple(found["collections"]),
            epoch=int(found["epoch"]),
            sealed=found["sealed"],
            recalled=int(found.get("recalled", 0)),
            id_key=bytes(found["idKey"]) if is_keyed else b"",
            staged=None
            if staged is None
            else Staged(
                first=int(staged["first"]),
                last=int(staged["last"]),
                at=int(staged["at"]),
                hash=bytes(staged["hash"]),
                progress=staged["progress"],
                epoch=int(staged["epoch"]),
                written_ms=_ms(staged.get("writtenAt")),
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TrailHeadError(
            f"the audit trail's head of {found.get('_id')!r} is not what Penstock writes "
            f"({type(error).__name__}). Nothing was changed. If another program keeps its "
            f"offsets in this collection, give `offsets` another name."
        ) from None


def _ms(time: Any) -> int:
    if isinstance(time, datetime):
        time = DatetimeMS(time)
    return int(time) if isinstance(time, DatetimeMS) else 0


def document_of_head(head: Head, *, now_ms: int, told: Document) -> Document:
    """A head as it is stored; `told` are its last record's gtid, file and pos, for people."""
    staged = head.staged
    return {
        "_id": head.source,
        "version": VERSION if head.id_key else UNKEYED,
        "source": head.source,
        "pipeline": head.pipeline,
        "at": Int64(head.at),
        "batch": Int64(head.batch),
        "hash": Binary(head.hash),
        "writtenAt": DatetimeMS(head.written_ms),
        "progress": head.progress,
        "collections": list(head.collections),
        "epoch": Int64(head.epoch),
        "sealed": head.sealed,
        "recalled": Int64(head.recalled),
        **({"idKey": Binary(head.id_key)} if head.id_key else {}),
        **told,
        "updatedAt": DatetimeMS(now_ms),
        **(
            {}
            if staged is None
            else {
                "staged": {
                    "first": Int64(staged.first),
                    "last": Int64(staged.last),
                    "at": Int64(staged.at),
                    "hash": Binary(staged.hash),
                    "progress": staged.progress,
                    "epoch": Int64(staged.epoch),
                    "writtenAt": DatetimeMS(staged.written_ms),
                }
            }
        ),
    }
