"""A MongoDB as a comparison sees it: a snapshot, or else a place that stays."""

# The stubs of bson leave what is decoded from open.
# pyright: reportUnknownMemberType=false

from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.anew_mongodb import MongoAnew
from penstock.spark.replica.beside import Found, Rows
from penstock.spark.replica.connection import checked, connect
from penstock.spark.replica.documents import CODEC
from penstock.spark.replica.looking import Look, MomentLostError
from penstock.spark.replica.mongodb_ledger import gaps_of, known_of, place_of
from penstock.spark.replica.slices import slices_of
from penstock.spark.replica.writes import RAW

_LOST: Final = frozenset({239, 246})
"""SnapshotTooOld, SnapshotUnavailable."""
_ROWS: Final = 1000
_BYTES: Final = 8 << 20


class MongoSide:
    """As `Side`."""

    def __init__(self, pipeline: str, config: ReplicatePipelineConfig, rows: Rows) -> None:
        self.anew = MongoAnew(pipeline, config, rows)
        self._pipeline = pipeline
        self._config = config

    @contextmanager
    def look(self, *, pinned: bool) -> Generator[Look]:
        """As `Side.look`. Not `pinned`, a place that has not moved says that nothing else did."""
        with closing(connect(self._pipeline, self._config)) as client:
            database = checked(client, self._pipeline, self._config)
            with client.start_session(snapshot=True) if pinned else nullcontext() as session:
                try:
                    yield _MongoLook(database, self._pipeline, session)
                except OperationFailure as error:
                    if error.code in _LOST:
                        raise MomentLostError from error
                    raise


class _MongoLook:
    def __init__(self, database: Any, pipeline: str, session: ClientSession | None) -> None:
        self._database = database
        self._pipeline = pipeline
        self._session = session
        self.place = place_of(database, pipeline, session)
        self.known = known_of(database, pipeline, session)
        self.gaps = gaps_of(database, pipeline, session)

    def rows(self, name: str) -> Generator[list[Found]]:
        """As `Look.rows`."""
        if name not in self.known.owned(self._pipeline):
            return
        collection: Any = self._database[name].with_options(codec_options=RAW)
        with closing(collection.find({}, session=self._session)) as cursor:
            yield from slices_of(
                map(_found, cursor),
                lambda one: len(one.held),
                count_max=_ROWS,
                bytes_max=_BYTES,
            )

    def lasted(self) -> bool:
        """As `Look.lasted`."""
        if self._session is not None:
            return True
        return place_of(self._database, self._pipeline, None) == self.place


def _found(document: RawBSONDocument) -> Found:
    # As all that has an _id: through Python's values, as `{"_id": ...}` of its key is.
    own = bson.decode(bson.encode({"_id": document["_id"]}), CODEC)
    return Found(bson.encode(own), bytes(document.raw))
