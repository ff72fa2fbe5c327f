"""Replicate into MongoDB: documents with the source's key, and the place, in one transaction.

Transactions need a replica set (of one member, at least) or a sharded cluster: a standalone server
is refused. One of MongoDB's may last `transactionLifetimeLimitSeconds`, 60 unless it is told
otherwise; a batch that takes longer stops the pipeline, by name.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import bson
import msgspec
import numpy as np
from bson.codec_options import CodecOptions
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, MongoClient, ReplaceOne
from pymongo.client_session import ClientSession
from pymongo.errors import (
    BulkWriteError,
    CollectionInvalid,
    ConfigurationError,
    InvalidURI,
    OperationFailure,
    PyMongoError,
)
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from penstock.audit.outages import passes
from penstock.audit.values import value_of
from penstock.errors import ConfigError, DestinationError, PenstockError
from penstock.progress import parse_progress
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.destination import PLACES, REJECTS, TABLES, Decide, is_applied
from penstock.spark.replica.documents import (
    CODEC,
    DOCUMENT,
    ID,
    REASON,
    InexactBsonError,
    decode_bson,
    exact,
    with_id,
)
from penstock.spark.replica.place import Place, Stream
from penstock.spark.replica.rejecting import Written
from penstock.spark.replica.steps import (
    DatabaseEmptied,
    Done,
    Emptied,
    EntriesAt,
    Known,
    Moved,
    Noted,
    Refused,
    Rows,
    Step,
)
from penstock.spark.table.decode import Cells
from penstock.spark.table.kinds import Kind
from penstock.spark.table.patch import Change, State, fold
from penstock.spark.table.reduce import DELETE, PUT, RELATIVE, codes_of
from penstock.spark.table.rejects import Reject

Document = dict[str, Any]

_OVERDUE: Final = frozenset({251, 290})
"""NoSuchTransaction, TransactionExceededLifetimeLimitSeconds."""
_LIFETIME_SECONDS: Final = 60.0
_WRITES: Final = 10_000
_RAW: Final = CodecOptions(RawBSONDocument)


class MongoDestination:
    """One pipeline's collections in one database."""

    decode = staticmethod(decode_bson)
    errors = PyMongoError

    def __init__(self, pipeline: str, config: ReplicatePipelineConfig) -> None:
        self._pipeline = pipeline
        self._config = config
        self._client: MongoClient[Document] | None = None
        self._streams: dict[str, tuple[str, Stream]] = {}
        self._stale: dict[str, dict[str, int]] = {}
        """By collection and key: the sequence of the change that the document lacks."""
        self._began = 0.0
        self._lifetime_seconds = _LIFETIME_SECONDS

    def judge(self, error: Exception) -> PenstockError | None:
        """As `Destination.judge`."""
        assert isinstance(error, PyMongoError)
        code = getattr(error, "code", None)
        took = time.monotonic() - self._began
        if code in _OVERDUE and self._began and took >= self._lifetime_seconds:
            return DestinationError(
                pipeline=self._pipeline,
                what=f"a batch took {took:.0f} s, and MongoDB ends a transaction after "
                f"{self._lifetime_seconds:g} s",
                remedy="Lower max_events_per_batch; if it is one commit of the source, which is "
                "never cut, raise MongoDB's transactionLifetimeLimitSeconds.",
            )
        if passes(error):
            return None
        details: Document = getattr(error, "details", None) or {}
        named: Any = details.get("codeName") or f"code {code}"
        if isinstance(error, BulkWriteError):
            wrong = error.details.get("writeErrors") or [{}]
            named = f"code {wrong[0].get('code')}"
        return DestinationError(
            pipeline=self._pipeline,
            what=f"the destination refuses ({type(error).__name__}, {named})",
            remedy="Correct the pipeline's uri, or what its user may do: it needs readWrite on "
            "the database.",
        )

    def reset(self) -> None:
        """As `Destination.reset`."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def claim(self, decide: Decide) -> Place:
        """As `Destination.claim`."""
        self.reset()
        while True:
            database = self._database()
            there = set(database.list_collection_names())
            stored = self._stored(None)
            mine = [name for name, (owner, _) in self._streams.items() if owner == self._pipeline]
            place = decide(stored, mine, [name for name in mine if name not in there])
            if stored is None:
                database[PLACES].insert_one({"_id": self._pipeline, **_document(place)})
                return place
            # The progress too: a write waits for an older driver's transaction, which may move it.
            known = {
                "_id": self._pipeline,
                "epoch": Int64(stored.epoch),
                "progress": str(stored.progress),
            }
            claimed = database[PLACES].update_one(known, {"$set": _document(place)})
            if claimed.matched_count:
                self._learn(database)
                return place

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
        streams = self._ensured(steps)
        written = Written(self._stale, streams)
        self._began = time.monotonic()
        assert self._client is not None
        with self._client.start_session() as session:
            session.start_transaction(
                read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority", j=True)
            )
            if is_applied(self._stored(session), before=before, until=until):
                self._learn(database)  # it went through after this connection was opened
                return Done()
            database[PLACES].update_one(
                {"_id": self._pipeline}, {"$set": _document(until)}, session=session
            )
            for step in steps:
                self._do(step, session, written)
            rejected = self._reject(written, entries_at, until.progress.sequence, session)
            session.commit_transaction()
        self._stale, self._streams = written.stale, written.streams
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
                for owner, stream in list(written.streams.values()):
                    if owner == self._pipeline and stream.database == step.database:
                        self._empty(stream, step.sequence, session, written)
            case Moved():
                self._move(step, session, written)
            case Noted():
                written.rejects.append(("", step.reject))
            case Refused():
                written.refused = step.rows
            case Known():
                written.known = step.sequences

    def _write(self, step: Rows, session: ClientSession, written: Written) -> None:
        name = self._name(step.stream)
        collection = self._database()[name]
        stale = written.stale.setdefault(name, {})
        rows = self._rows(step, stale, session)
        for kind in (DELETE, PUT):
            # Deletes first: a key that the source writes in two ways is one here.
            writes = [row.write for row in rows if row.operation == kind and row.write is not None]
            for start in range(0, len(writes), _WRITES):
                collection.bulk_write(
                    writes[start : start + _WRITES], ordered=False, session=session
                )
            written.rows += len(writes)
        for row in rows:
            written.rejects += [(name, reject) for reject in row.rejects]
            if row.operation in {PUT, DELETE}:
                if stale.pop(row.key, None) is not None:
                    self._heal(name, row.key, step.chunk.last_sequence, session)
            elif row.rejects:
                stale[row.key] = row.rejects[-1].sequence

    def _rows(self, step: Rows, stale: dict[str, int], session: ClientSession) -> list["_Row"]:
        chunk = step.chunk
        codes = codes_of(chunk.rows)
        folding = np.isin(codes, np.unique(codes[chunk.roles == RELATIVE]))
        simple = chunk.take(np.flatnonzero(~folding))
        count = simple.rows.num_rows
        ids = _cell(simple.cells, ID, Kind.BINARY, count)
        documents = _cell(simple.cells, DOCUMENT, Kind.BINARY, count)
        reasons = _cell(simple.cells, REASON, Kind.STRING, count)
        rows: list[_Row] = []
        keys: list[Any] = simple.rows["key"].to_pylist()
        for key, role, sequence, own, document, reason in zip(
            keys, simple.roles.tolist(), simple.sequences.tolist(), ids, documents, reasons,
            strict=True,
        ):  # fmt: skip
            rows.append(_row(key, role, sequence, own, document, reason))
        if folding.any():
            building = chunk.take(np.flatnonzero(folding))
            rows += self._folded(
                building, self._database()[self._name(step.stream)], stale, session
            )
        return rows

    def _folded(
        self, chunk: Any, collection: Any, stale: dict[str, int], session: ClientSession
    ) -> list["_Row"]:
        """Rows whose changes build on one another, and on the document that is there."""
        histories: dict[str, list[int]] = {}
        told = chunk.rows.to_pylist()
        for at, row in enumerate(told):
            histories.setdefault(row["key"], []).append(at)
        ids = _cell(chunk.cells, ID, Kind.BINARY, len(told))
        documents = _cell(chunk.cells, DOCUMENT, Kind.BINARY, len(told))
        rows: list[_Row] = []
        for key, history in histories.items():
            own = ids[history[0]]
            if own is None:
                reason = "its key cannot be one in MongoDB"
                rows.append(_row(key, PUT, told[history[-1]]["sequence"], None, None, reason))
                continue
            found = collection.find_one(
                {"_id": {"$eq": bson.decode(own, CODEC)["_id"]}}, session=session
            )
            before = State(document=found, rejected_sequence=stale.get(key))
            after = fold(before, [_change(told[at], documents[at]) for at in history])
            rejects = [Reject(sequence=at, reason=why) for at, why in after.rejected]
            if after.document is None and after.sequence:
                rows.append(_Row(key, DELETE, DeleteOne(_filter(own)), rejects))
            elif after.rejected_sequence is not None and after.sequence == before.sequence:
                rows.append(_Row(key, RELATIVE, None, rejects))
            else:
                assert after.document is not None
                row = _made(key, after, own)
                last = rejects if after.rejected_sequence is not None else []
                rows.append(row._replace(rejects=[*rejects, *row.rejects]))
                if last:
                    # Whole for a while, and stale behind that.
                    rows.append(_Row(key, RELATIVE, None, last[-1:]))
        return rows

    def _empty(
        self, stream: Stream, sequence: int, session: ClientSession, written: Written
    ) -> None:
        name = self._name(stream)
        if written.streams.get(name) != (self._pipeline, stream):
            return
        gone = self._database()[name].delete_many({}, session=session)
        written.rows += gone.deleted_count
        written.stale.pop(name, None)
        self._heal(name, None, sequence, session)

    def _move(self, step: Moved, session: ClientSession, written: Written) -> None:
        old, new = self._name(step.stream), self._name(step.to)
        if written.streams.get(old) != (self._pipeline, step.stream):
            self._empty(step.to, step.sequence, session, written)
            return
        database = self._database()
        if old == new:
            database[TABLES].update_one(
                {"_id": old}, {"$set": {"database": step.to.database}}, session=session
            )
            written.streams[old] = (self._pipeline, step.to)
            return
        self._empty(step.to, step.sequence, session, written)
        raw: Any = database[old].with_options(codec_options=_RAW)
        there: Any = database[new].with_options(codec_options=_RAW)
        held: list[RawBSONDocument] = []
        for document in raw.find({}, session=session):
            held.append(document)
            if len(held) >= 1000:
                there.insert_many(held, session=session)
                written.rows += len(held)
                held = []
        if held:
            there.insert_many(held, session=session)
            written.rows += len(held)
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
                **row,
                "sequence": Int64(row["sequence"]),
                "healed": None if row["healed"] is None else Int64(row["healed"]),
            }
            for row in rows
        ]
        if documents:
            self._database()[REJECTS].insert_many(documents, session=session)
        return len(rows)

    def _heal(self, name: str, key: str | None, sequence: int, session: ClientSession) -> None:
        """The document with this key, or all, is what it is at the source again."""
        which: Document = {"pipeline": self._pipeline, "table": name, "healed": None}
        if key is not None:
            which["key"] = key
        healed = {"$set": {"healed": Int64(sequence)}}
        self._database()[REJECTS].update_many(which, healed, session=session)

    # --- collections ----------------------------------------------------------------------------

    def _name(self, stream: Stream) -> str:
        return self._config.table_of(stream.database, stream.collection)

    def _ensured(self, steps: Sequence[Step]) -> dict[str, tuple[str, Stream]]:
        """What the collections of these steps are for, after them; each is there, and ours."""
        there = set(self._database().list_collection_names())
        streams = dict(self._streams)
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
        known = {name: own for name, own in streams.items() if name not in self._streams}
        self._streams |= known
        return dict(self._streams)

    def _ensure(
        self, stream: Stream, streams: dict[str, tuple[str, Stream]], there: set[str]
    ) -> None:
        name = self._name(stream)
        database = self._database()
        owner = streams.get(name)
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
                "Give the pipeline another `database`, or a `table` that tells them apart, as "
                "'{database}_{collection}'.",
            )
        if name in {PLACES, TABLES, REJECTS} or name.startswith("system.") or "$" in name:
            raise self._refusal(
                f"no collection for it can be called {name!r}",
                "Give the pipeline a `table` with something before or behind it.",
            )
        if name in there and database[name].find_one({}, {"_id": 1}) is not None:
            raise self._refusal(
                f"the collection {name} has documents, which no pipeline has written",
                "Empty it or move it away, then start the pipeline again.",
            )
        if name not in there:
            database.create_collection(name)
            there.add(name)
        own = {"pipeline": self._pipeline, "database": stream.database}
        database[TABLES].insert_one({"_id": name, **own, "collection": stream.collection})
        streams[name] = (self._pipeline, stream)

    def _refusal(self, what: str, remedy: str) -> DestinationError:
        return DestinationError(pipeline=self._pipeline, what=what, remedy=remedy)

    # --- the connection -------------------------------------------------------------------------

    def _database(self) -> Any:
        if self._client is None:
            client = self._connect()
            try:
                self._open(client)
            except BaseException:
                client.close()
                raise
            self._client = client
        return self._of(self._client)

    def _of(self, client: MongoClient[Document]) -> Any:
        return client.get_database(
            self._config.database or client.get_default_database().name,
            codec_options=CODEC,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern("majority", j=True),
        )

    def _connect(self) -> MongoClient[Document]:
        config = self._config
        tls: Document = {}
        if config.tls is not None:
            tls["tls"] = config.tls != "off"
        if config.tls == "unverified":
            tls["tlsAllowInvalidCertificates"] = True
        if config.ca is not None:
            tls["tlsCAFile"] = str(config.ca)
        if config.certificate is not None:
            tls["tlsCertificateKeyFile"] = str(config.certificate)
        try:
            return MongoClient[Document](
                config.uri.get_secret_value(),
                appname="penstock",
                serverSelectionTimeoutMS=int(min(config.answer_seconds, 5.0) * 1000),
                socketTimeoutMS=int(config.answer_seconds * 1000),
                **tls,
            )
        except (ConfigurationError, InvalidURI, ValueError):
            raise ConfigError(
                f"pipeline {self._pipeline}: its uri, or the files for TLS, cannot be used. "
                f"Nothing was started. Correct them; the message would quote a password."
            ) from None

    def _open(self, client: MongoClient[Document]) -> None:
        try:
            self._of(client)
        except ConfigurationError:
            raise ConfigError(
                f"pipeline {self._pipeline}: neither its uri nor `database` names a database. "
                f"Nothing was started."
            ) from None
        hello = client.admin.command("hello")
        if "setName" not in hello and hello.get("msg") != "isdbgrid":
            raise self._refusal(
                "the destination is a standalone MongoDB, which has no transactions",
                "Make it a replica set, of this one member at least: start mongod with --replSet, "
                "and run rs.initiate() once.",
            )
        self._lifetime_seconds = _lifetime(client)
        database = self._of(client)
        there = set(database.list_collection_names())
        for name in (PLACES, TABLES, REJECTS):
            if name not in there:
                try:
                    database.create_collection(name)
                except CollectionInvalid:
                    continue  # another pipeline has, just now
        if REJECTS not in there:
            database[REJECTS].create_index([("pipeline", 1), ("table", 1), ("healed", 1)])
        self._learn(database)

    def _learn(self, database: Any) -> None:
        """Read what collections are for, and which documents lack a change."""
        self._streams = {
            one["_id"]: (one["pipeline"], Stream(one["database"], one["collection"]))
            for one in database[TABLES].find()
        }
        self._stale = {}
        which = {"pipeline": self._pipeline, "healed": None, "key": {"$ne": None}}
        for one in database[REJECTS].find(which).sort("sequence", 1):
            self._stale.setdefault(one["table"], {})[one["key"]] = int(one["sequence"])

    def _stored(self, session: ClientSession | None) -> Place | None:
        found = self._database()[PLACES].find_one({"_id": self._pipeline}, session=session)
        if found is None:
            return None
        return Place(
            pipeline=self._pipeline,
            source=found["source"],
            collections=tuple(found["collections"]),
            epoch=int(found["epoch"]),
            progress=parse_progress(found["progress"]),
        )


class _Row(NamedTuple):
    """What is done to one document."""

    key: str
    operation: int
    """PUT, DELETE, or RELATIVE: it stays as it is."""
    write: "ReplaceOne[Any] | DeleteOne | None"
    rejects: list[Reject]


def _row(
    key: str,
    role: int,
    sequence: int,
    own: bytes | None,
    document: bytes | None,
    reason: str | None,
) -> _Row:
    if role == DELETE:
        # One without an _id cannot be there.
        return _Row(key, DELETE, None if own is None else DeleteOne(_filter(own)), [])
    if own is None or document is None:
        return _Row(key, RELATIVE, None, [Reject(sequence=sequence, reason=reason or "")])
    replaced: ReplaceOne[Any] = ReplaceOne(
        _filter(own), RawBSONDocument(document, _RAW), upsert=True
    )
    return _Row(key, PUT, replaced, [])


def _made(key: str, after: State, own: bytes) -> _Row:
    assert after.document is not None
    document = reason = None
    try:
        document = with_id(after.document, key)
    except (InexactBsonError, BSONError, OverflowError) as error:
        known = isinstance(error, InexactBsonError)
        reason = str(error) if known else f"BSON does not hold it ({type(error).__name__})"
    return _row(key, PUT, after.sequence, own, document, reason)


def _change(row: Document, document: bytes | None) -> Change:
    """A change of a row's history, with its values as MongoDB has them."""
    made: Document | None = None if document is None else bson.decode(document, CODEC)
    update: Document | None = None
    try:
        if made is None and row["full_document"] is not None:
            made = value_of(msgspec.json.decode(exact(row["full_document"])))
        if row["update_description"] is not None:
            said = msgspec.json.decode(exact(row["update_description"]))
            fields = said.get("updatedFields") or {}
            update = {
                **said,
                "updatedFields": {path: value_of(one) for path, one in fields.items()},
            }
    except InexactBsonError:
        made = update = None  # which `fold` rejects
    return Change(
        sequence=row["sequence"],
        operation=row["operation_type"],
        document=made,
        update=update,
        unchanged=tuple(row["unchanged"] or ()),
    )


def _filter(own: bytes) -> Document:
    return {"_id": {"$eq": bson.decode(own, CODEC)["_id"]}}


def _cell(cells: Cells, name: str, kind: Kind, count: int) -> list[Any]:
    column = cells.get(name, {}).get(kind)
    values: list[Any] = [None] * count if column is None else column.to_pylist()
    return values


def _document(place: Place) -> Document:
    return {
        "source": place.source,
        "collections": list(place.collections),
        "epoch": Int64(place.epoch),
        "progress": str(place.progress),
        "sequence": Int64(place.progress.sequence),
        "written": DatetimeMS(int(time.time() * 1000)),
    }


def _lifetime(client: MongoClient[Document]) -> float:
    try:
        name = "transactionLifetimeLimitSeconds"
        return float(client.admin.command({"getParameter": 1, name: 1})[name])
    except OperationFailure:
        return _LIFETIME_SECONDS  # its user may not ask
