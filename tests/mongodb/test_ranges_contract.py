"""MongoDB is read by ranges as every source is that can be."""

import itertools

import pytest

from penstock.ports import ChangeSource
from penstock.sources.mongodb import MongoSource
from penstock.testing.contracts.ranges import RangeContract
from tests.mongodb.support import config
from tests.mongodb.test_snapshot import Client
from tests_support.servers import MongoReplicaSet


class TestMongo(RangeContract):
    @pytest.fixture(autouse=True)
    def _upstream(self, mongo: MongoReplicaSet, mongo_client: Client, mongo_database: str) -> None:
        self._uri, self._client, self._database = mongo.uri, mongo_client, mongo_database
        self._keys = itertools.count()

    def open_source(self) -> ChangeSource:
        options = {"database": self._database, "snapshot_chunk_documents": 4}
        return MongoSource("shop", config(self._uri, **options))

    async def write(self, rows: int) -> None:
        with self._client.start_session() as session, session.start_transaction():
            made = [{"_id": key, "n": key / 2} for key in itertools.islice(self._keys, rows)]
            self._client[self._database]["a"].insert_many(made, session=session)
