"""Published copies in a MongoDB collection.

One document an instance, `_id` its name. A write names the `revision` that it replaces, so that of
two writers one is refused. Written by a majority, and read as a majority has it: what was read may
be outvoted by a newer one, and then the write that follows from it is refused.
"""

import asyncio
from typing import Any

from bson.int64 import Int64
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    ConnectionFailure,
    DuplicateKeyError,
    ExecutionTimeout,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WTimeoutError,
)
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from penstock.checkpoints.config import CheckpointConfig
from penstock.checkpoints.record import pack, unpack
from penstock.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointStoreError,
    CheckpointUnavailableError,
    CheckpointUntrustedError,
    ConfigError,
)
from penstock.mongo_causes import Address, cause, granting, is_unresolved, is_untrusted
from penstock.ports import Checkpoint, Kept

Document = dict[str, Any]

_PASSING = (
    AutoReconnect,
    ConnectionFailure,
    ExecutionTimeout,
    NetworkTimeout,
    WTimeoutError,
)


class MongoCheckpoints:
    """A `CheckpointStore` in MongoDB, a replica set or not. Belongs to one event loop at a time."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._client: AsyncMongoClient[Document] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def read(self, instance: str) -> Kept | None:
        """As `CheckpointStore.read`."""
        try:
            found = await self._collection().find_one({"_id": instance})
        except PyMongoError as error:
            raise self._translated(error) from None
        if found is None:
            return None
        record = found.get("record")
        where = f"MongoDB under _id {instance}"
        checkpoint = unpack(record.encode() if isinstance(record, str) else b"", where=where)
        return Kept(checkpoint, int(found["revision"]))

    async def write(self, checkpoint: Checkpoint, *, replacing: int | None) -> int:
        """As `CheckpointStore.write`."""
        revision = (replacing or 0) + 1
        content = {"revision": Int64(revision), "record": pack(checkpoint).decode()}
        try:
            if replacing is None:
                await self._collection().insert_one({"_id": checkpoint.instance, **content})
                return revision
            replaced = await self._collection().update_one(
                {"_id": checkpoint.instance, "revision": Int64(replacing)}, {"$set": content}
            )
        except DuplicateKeyError:
            raise CheckpointConflictError(instance=checkpoint.instance) from None
        except PyMongoError as error:
            raise self._translated(error) from None
        if replaced.matched_count == 0:
            raise CheckpointConflictError(instance=checkpoint.instance)
        return revision

    async def clear(self, instance: str) -> None:
        """As `CheckpointStore.clear`."""
        try:
            await self._collection().delete_one({"_id": instance})
        except PyMongoError as error:
            raise self._translated(error) from None

    async def close(self) -> None:
        """Close the connections; harmless when there are none."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _collection(self) -> AsyncCollection[Document]:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = self._connect(), loop
        return self._client[self._config.database].get_collection(
            self._config.collection,
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern("majority", j=True),
        )

    def _connect(self) -> AsyncMongoClient[Document]:
        assert self._config.uri is not None, "the configuration asks for it"
        try:
            return AsyncMongoClient(
                self._config.uri.get_secret_value(),
                appname="penstock",
                # For the whole of a call, choosing a server and retrying included.
                timeoutMS=int(self._config.timeout * 1000),
            )
        except (PyMongoError, ValueError) as error:
            raise ConfigError(
                f"checkpoint.uri is not a MongoDB connection string ({type(error).__name__}). "
                f"Nothing was published. Correct it; a special character in the password is "
                f"written as %XX."
            ) from None

    def _translated(self, error: PyMongoError) -> CheckpointError:
        """Without the server's text, which may hold a user."""
        assert self._config.uri is not None
        address = Address.of(self._config.uri.get_secret_value())
        grant = granting(address, [("readWrite", self._config.database)])
        assert self._client is not None
        seen = self._client.topology_description
        what, remedy = cause(error, seen, address, granting=grant)
        if isinstance(error, ServerSelectionTimeoutError) and is_untrusted(seen):
            return CheckpointUntrustedError(what, remedy=f"In [checkpoint]: {remedy}")
        passing = isinstance(error, _PASSING) or error.timeout
        if isinstance(error, ConfigurationError):
            passing = is_unresolved(error, address)
        if passing or not isinstance(error, ConfigurationError | OperationFailure):
            return CheckpointUnavailableError(
                f"{what}. Capture goes on, the positions in the log are safe, and publishing is "
                f"tried again. In [checkpoint]: {remedy}",
                why=what,
                remedy=f"In [checkpoint]: {remedy}",
            )
        return CheckpointStoreError(
            f"{what}. Nothing was published, and the positions in the log are safe. In "
            f"[checkpoint]: {remedy}"
        )
