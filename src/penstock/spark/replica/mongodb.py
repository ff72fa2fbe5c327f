"""Replicate into MongoDB: documents with the source's key, and the place, in one transaction.

Transactions need a replica set (of one member, at least) or a sharded cluster: a standalone server
is refused. One of MongoDB's may last `transactionLifetimeLimitSeconds`, 60 unless it is told
otherwise; a batch that takes longer stops the pipeline, by name.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterator, Sequence
from typing import Any, Final

from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from msgspec import structs
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.topology_description import TopologyDescription
from pymongo.write_concern import WriteConcern

from penstock.errors import DestinationError, PenstockError
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.attempts import Attempts
from penstock.spark.replica.connection import (
    cause_of,
    checked,
    connect,
    database_of,
    lasts,
    lifetime_seconds,
    make,
    prepare,
    unhurried,
)
from penstock.spark.replica.destination import (
    PLACES,
    REJECTS,
    TABLES,
    Decide,
    Standing,
    is_applied,
)
from penstock.spark.replica.documents import decode_bson
from penstock.spark.replica.known import Known
from penstock.spark.replica.mongodb_ledger import (
    document_of,
    known_of,
    place_of,
    streams_of,
)
from penstock.spark.replica.place import Place, Stream, remedy_of_taken
from penstock.spark.replica.rejecting import Written, brief
from penstock.spark.replica.slices import key_slices, slices_of
from penstock.spark.replica.steps import (
    DatabaseEmptied,
    Done,
    Emptied,
    EntriesAt,
    Moved,
    Noted,
    Refused,
    Rows,
    Step,
)
from penstock.spark.replica.writes import RAW, writes_of
from penstock.spark.table.reduce import DELETE, PUT

Document = dict[str, Any]

_WRITES: Final = 10_000
_MOVED: Final = 1000
_MOVED_BYTES: Final = 16 << 20
"""To another collection, at a time."""
_REJECT_BYTES: Final = 15 << 20
"""Beside it, in the 16 MiB of a document, are the key and the reason."""


class MongoDestination:
    """One pipeline's collections in one database."""

    decode = staticmethod(decode_bson)
    errors = PyMongoError

    def __init__(self, pipeline: str, config: ReplicatePipelineConfig) -> None:
        self._pipeline = pipeline
        self._config = config
        self._client: MongoClient[Document] | None = None
        self._seen: TopologyDescription | None = None
        """What the last client knew of its servers."""
        self._known = Known()
        self._attempts = Attempts(pipeline)

    def judge(self, error: Exception) -> PenstockError | None:
        """As `Destination.judge`."""
        assert isinstance(error, PyMongoError)
        if (refused := self._attempts.refusal_of(error)) is not None:
            return refused
        if not lasts(error, self._knows()):
            return None
        what, remedy = self.cause(error)
        return DestinationError(
            pipeline=self._pipeline, what=f"the destination refuses: {what}", remedy=remedy
        )

    def cause(self, error: Exception) -> tuple[str, str]:
        """As `Destination.cause`."""
        assert isinstance(error, PyMongoError)
        return cause_of(self._config, error, self._knows())

    def _knows(self) -> TopologyDescription | None:
        return self._seen if self._client is None else self._client.topology_description

    def reset(self) -> None:
        """As `Destination.reset`."""
        client, self._client = self._client, None
        if client is not None:
            self._seen = client.topology_description
            client.close()

    def claim(self, decide: Decide) -> Place:
        """As `Destination.claim`."""
        self.reset()
        while True:
            database = self._database()
            found = self._standing(database, self._known)
            stored = found.place
            place = decide(stored, found.tables, found.gone)
            if stored is None:
                database[PLACES].insert_one({"_id": self._pipeline, **document_of(place)})
                return place
            # The progress too: a write waits for an older driver's transaction, which may move it.
            known = {
                "_id": self._pipeline,
                "epoch": Int64(stored.epoch),
                "progress": str(stored.progress),
            }
            claimed = database[PLACES].update_one(known, {"$set": document_of(place)})
            if claimed.matched_count:
                self._known = known_of(database, self._pipeline, None)
                return place

    def standing(self) -> Standing:
        """As `Destination.standing`."""
        client = connect(self._pipeline, self._config)
        try:
            database = checked(client, self._pipeline, self._config)
            return self._standing(database, Known(streams=streams_of(database, None)))
        finally:
            self._seen = client.topology_description
            client.close()

    def _standing(self, database: Any, known: Known) -> Standing:
        there = set(database.list_collection_names())
        mine = known.owned(self._pipeline)
        return Standing(
            place=place_of(database, self._pipeline, None),
            tables=mine,
            gone=[name for name in mine if name not in there],
        )

    def apply(
        self, steps: Sequence[Step], *, before: Place, until: Place, entries_at: EntriesAt
    ) -> Done:
        """As `Destination.apply`."""
        try:
            return self._apply(steps, before, until, entries_at)
        except BaseException:
            # Nobody knows what became of it; what is known of collections is read again.
            self.reset()
            raise

    def _apply(
        self, steps: Sequence[Step], before: Place, until: Place, entries_at: EntriesAt
    ) -> Done:
        database = self._database()
        self._ensure_all(steps)
        self._attempts.begin()
        assert self._client is not None
        with self._client.start_session() as session:
            session.start_transaction(
                read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority", j=True)
            )
            if is_applied(self._stored(session), before=before, until=until):
                # It went through after this connection was opened.
                self._attempts.succeed()
                self._known = known_of(database, self._pipeline, None)
                return Done()
            database[PLACES].update_one(
                {"_id": self._pipeline}, {"$set": document_of(until)}, session=session
            )
            # As the transaction sees it: a replay makes collections too.
            streams = streams_of(database, session)
            written = Written(structs.replace(self._known.copy(), streams=streams))
            for step in steps:
                self._do(step, session, written)
            rejected = self._reject(written, entries_at, until.progress.sequence, session)
            session.commit_transaction()
        self._attempts.succeed()
        self._known = written.known
        return Done(rows=written.rows, rejected=rejected)

    def pending(self) -> list[Document]:
        """As `Destination.pending`."""
        which = {"pipeline": self._pipeline, "healed": None, "key": {"$ne": None}}
        found = self._database()[REJECTS].find(which, {"_id": 0}).sort("sequence", 1)
        return [{**row, "sequence": int(row["sequence"])} for row in found]

    # --- the transaction ------------------------------------------------------------------------

    def _do(self, step: Step, session: ClientSession, written: Written) -> None:
        match step:
            case Rows():
                self._write(step, session, written)
            case Emptied():
                self._empty(step.stream, step.sequence, session, written)
            case DatabaseEmptied():
                for stream in written.known.owned(self._pipeline).values():
                    if stream.database == step.database:
                        self._empty(stream, step.sequence, session, written)
            case Moved():
                self._move(step, session, written)
            case Noted():
                written.rejects.append(("", step.reject))
            case Refused():
                written.refused = step.rows

    def _write(self, step: Rows, session: ClientSession, written: Written) -> None:
        name = self._name(step.stream)
        collection = self._database()[name]
        stale = written.known.stale.setdefault(name, {})
        rows = writes_of(
            step.chunk, stale, lambda which: collection.find_one(which, session=session)
        )
        for kind in (DELETE, PUT):
            # Deletes first: a key that the source writes in two ways is one here.
            writes = [one for row in rows if row.operation == kind and (one := row.write)]
            for start in range(0, len(writes), _WRITES):
                collection.bulk_write(
                    writes[start : start + _WRITES], ordered=False, session=session
                )
            written.rows += len(writes)
        healed: list[str] = []
        for row in rows:
            written.rejects += [(name, reject) for reject in row.rejects]
            if row.operation in {PUT, DELETE}:
                if stale.pop(row.key, None) is not None:
                    healed.append(row.key)
            elif row.rejects:
                stale[row.key] = row.rejects[-1].sequence
        for keys in key_slices(healed):
            self._heal({"table": name, "key": {"$in": keys}}, step.chunk.last_sequence, session)

    def _empty(
        self, stream: Stream, sequence: int, session: ClientSession, written: Written
    ) -> None:
        name = self._name(stream)
        if written.known.streams.get(name) != (self._pipeline, stream):
            return
        with unhurried():
            gone = self._database()[name].delete_many({}, session=session)
            self._heal({"table": name}, sequence, session)
        written.rows += gone.deleted_count
        written.known.stale.pop(name, None)

    def _move(self, step: Moved, session: ClientSession, written: Written) -> None:
        old, new = self._name(step.stream), self._name(step.to)
        if written.known.streams.get(old) != (self._pipeline, step.stream):
            self._empty(step.to, step.sequence, session, written)
            return
        database = self._database()
        if old == new:
            database[TABLES].update_one(
                {"_id": old}, {"$set": {"database": step.to.database}}, session=session
            )
            written.known.streams[old] = (self._pipeline, step.to)
            return
        self._empty(step.to, step.sequence, session, written)
        raw: Any = database[old].with_options(codec_options=RAW)
        there: Any = database[new].with_options(codec_options=RAW)
        documents: Iterator[RawBSONDocument] = raw.find({}, session=session)
        for part in slices_of(
            documents, lambda one: len(one.raw), count_max=_MOVED, bytes_max=_MOVED_BYTES
        ):
            there.insert_many(part, session=session)
            written.rows += len(part)
        with unhurried():
            database[old].delete_many({}, session=session)
            database[REJECTS].update_many(
                {"pipeline": self._pipeline, "table": old, "healed": None},
                {"$set": {"table": new}},
                session=session,
            )
        written.move(old, new)

    def _reject(
        self, written: Written, entries_at: EntriesAt, until: int, session: ClientSession
    ) -> int:
        rows = written.rejected(
            self._pipeline,
            name_of=self._name,
            entries_at=entries_at,
            until=until,
        )
        documents = [
            {
                **brief(row, bytes_max=_REJECT_BYTES),
                "sequence": Int64(row["sequence"]),
                "healed": None if row["healed"] is None else Int64(row["healed"]),
            }
            for row in rows
        ]
        if documents:
            self._database()[REJECTS].insert_many(documents, session=session)
        return len(rows)

    def _heal(self, which: Document, sequence: int, session: ClientSession) -> None:
        """The documents that these rejects are of are what they are at the source again."""
        which = {"pipeline": self._pipeline, "healed": None, **which}
        healed = {"$set": {"healed": Int64(sequence)}}
        self._database()[REJECTS].update_many(which, healed, session=session)

    # --- collections ----------------------------------------------------------------------------

    def _name(self, stream: Stream) -> str:
        return self._config.table_of(stream.database, stream.collection)

    def _ensure_all(self, steps: Sequence[Step]) -> None:
        """The collections of these steps are there, and ours."""
        # In this order: who makes a collection says whose it is after that.
        streams = streams_of(self._database(), None)
        there = {one["name"]: one for one in self._database().list_collections()}
        for step in steps:
            if isinstance(step, Rows):
                self._ensure(step.stream, streams, there)
            if isinstance(step, Moved):
                old, new = self._name(step.stream), self._name(step.to)
                if streams.get(old) != (self._pipeline, step.stream):
                    continue
                if old == new:
                    streams[old] = (self._pipeline, step.to)
                else:
                    self._ensure(step.to, streams, there)

    def _ensure(
        self, stream: Stream, streams: dict[str, tuple[str, Stream]], there: dict[str, Document]
    ) -> None:
        name = self._name(stream)
        database = self._database()
        if there.get(name, {}).get("options", {}).get("collation"):
            raise self._refusal(
                f"the collection {name} has a collation, by which other keys are the same",
                "Make it anew without one, or move it away, then start the pipeline again.",
            )
        owner, filled = streams.get(name), False
        if owner is None and name in there:
            filled = database[name].find_one({}, {"_id": 1}) is not None
            # A replay may have made it since, which says so before it fills it.
            owner = streams_of(database, None).get(name)
        if owner == (self._pipeline, stream):
            if name in there:
                return
            raise self._refusal(
                f"its collection {name} is gone",
                "Put it back as it was, or begin anew with another name.",
            )
        if owner is not None:
            other, theirs = owner
            raise self._refusal(
                f"the collection {name} has the documents of {theirs.database}."
                f"{theirs.collection}, of pipeline {other}",
                remedy_of_taken(own=other == self._pipeline),
            )
        if name in {PLACES, TABLES, REJECTS} or name.startswith("system.") or "$" in name:
            raise self._refusal(
                f"no collection for it can be called {name!r}",
                "Give the pipeline a `table` with something before or behind it.",
            )
        if filled:
            raise self._refusal(
                f"the collection {name} has documents, which no pipeline has written",
                "Empty it or move it away, then start the pipeline again.",
            )
        if name not in there:
            make(database, name)
            there[name] = {}
        own = {"pipeline": self._pipeline, "database": stream.database}
        database[TABLES].insert_one({"_id": name, **own, "collection": stream.collection})
        streams[name] = (self._pipeline, stream)

    def _refusal(self, what: str, remedy: str) -> DestinationError:
        return DestinationError(pipeline=self._pipeline, what=what, remedy=remedy)

    # --- the connection -------------------------------------------------------------------------

    def _database(self) -> Any:
        if self._client is None:
            client = connect(self._pipeline, self._config)
            try:
                database = prepare(client, self._pipeline, self._config)
                self._attempts.lifetime_seconds = lifetime_seconds(client)
                self._known = known_of(database, self._pipeline, None)
            except BaseException:
                self._seen = client.topology_description
                client.close()
                raise
            self._client = client
        return database_of(self._client, self._config)

    def _stored(self, session: ClientSession) -> Place | None:
        return place_of(self._database(), self._pipeline, session)
