"""One change stream on the server, read reply by reply, as raw BSON.

The stream is opened and read by the commands themselves, not by the driver's `watch()`: each reply
then comes as a whole with its postBatchResumeToken, which tells where a transaction ends and moves
an idle position (P21), the next reply is under way while one is decoded, and resuming stays with
the one place that keeps positions.
"""

import asyncio
from typing import Any

from bson import Int64, Timestamp
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from msgspec import Struct
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from penstock.errors import SourceUnavailableError
from penstock.event import ClusterTime
from penstock.sources.mongodb.config import MongoSourceConfig
from penstock.sources.mongodb.deployment import Client, Deployment
from penstock.sources.mongodb.positions import Token

RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
_PATIENCE_MAX = 64


class Patience:
    """How long to wait for an answer (S15).

    The server may search a long oplog for a rare event and be silent meanwhile, or a slow line may
    need long for a large answer; a reconnect would make both start over. So each silence in a row
    is allowed to last twice as long, up to 64 times the deadline, until a commit was told, behind
    which the next try goes on. That the stream is open again, or has brought a part of a
    transaction, helps none: that part comes again.
    """

    def __init__(self, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        self._factor = 1

    @property
    def seconds(self) -> float:
        """How long the next answer may take."""
        return self._deadline_seconds * self._factor

    def moved_on(self) -> None:
        """A commit was told; the next silence is the first one."""
        self._factor = 1

    def exhausted(self, source: str) -> SourceUnavailableError:
        """The error of a server that did not answer in time."""
        waited = self.seconds
        self._factor = min(2 * self._factor, _PATIENCE_MAX)
        return SourceUnavailableError(
            f"{source}: MongoDB sent nothing for {waited:g} seconds. Nothing was skipped; capture "
            f"reconnects, goes on from its durable position, and then waits up to "
            f"{self.seconds:g} seconds."
        )


class Reply(Struct, frozen=True):
    """What the server had."""

    events: list[bytes]
    """Raw change events, in order."""
    token: Token
    """Nothing that comes later is before it."""
    ended: bool
    """The server closed the stream, as it does after an invalidate event."""


class ChangeCursor:
    """An open change stream. Not safe for two readers at once."""

    def __init__(
        self, client: Client, config: MongoSourceConfig, *, source: str, patience: Patience
    ) -> None:
        self._source = source
        self._patience = patience
        self._batch_size = config.batch_events_max
        self._database = client[config.database or "admin"]
        self._session: AsyncClientSession = client.start_session(causal_consistency=False)
        self._id = 0

    async def open(
        self, pipeline: list[dict[str, Any]], *, not_before: ClusterTime | None = None
    ) -> Token:
        """Open the stream; nothing is read yet. Returns where it stands.

        Waits until the server has all that a majority committed up to `not_before`, a time that
        a server of the deployment gave: a new primary may take a moment to know it.
        """
        concern: dict[str, Any] = {"level": "majority"}
        if not_before is not None and not_before.t:
            concern["afterClusterTime"] = Timestamp(not_before.t, not_before.i)
        cursor = await self._command(
            {
                "aggregate": 1,
                "pipeline": pipeline,
                "cursor": {"batchSize": 0},
                "readConcern": concern,
            }
        )
        return Token.of(cursor["postBatchResumeToken"])

    async def more(self, *, await_ms: int, events_max: int | None = None) -> Reply:
        """The next events; waits up to `await_ms` for one, then returns none.

        Raises SourceUnavailableError when no answer comes, and what the driver raises.
        """
        cursor = await self._command(
            {
                "getMore": Int64(self._id),
                "collection": "$cmd.aggregate",
                "batchSize": events_max or self._batch_size,
                "maxTimeMS": max(await_ms, 1),
            }
        )
        return Reply(
            # The driver gives a view of a document of 4 KiB or more.
            [bytes(event.raw) for event in cursor["nextBatch"]],
            Token.of(cursor["postBatchResumeToken"]),
            self._id == 0,
        )

    async def close(self) -> None:
        """Let the server forget the stream, if it can be told."""
        try:
            if self._id:
                async with asyncio.timeout(1):
                    await self._database.command(
                        {"killCursors": "$cmd.aggregate", "cursors": [Int64(self._id)]},
                        session=self._session,
                    )
            await self._session.end_session()
        except (PyMongoError, TimeoutError):
            return  # gone with its connection, or dropped by the server when it is unused

    async def _command(self, command: dict[str, Any]) -> Any:
        try:
            async with asyncio.timeout(self._patience.seconds):
                reply = await self._database.command(
                    command, codec_options=RAW, session=self._session
                )
        except TimeoutError:
            self._id = 0
            raise self._patience.exhausted(self._source) from None
        cursor = reply["cursor"]
        self._id = int(cursor["id"])
        return cursor


def pipeline_of(
    config: MongoSourceConfig,
    deployment: Deployment,
    *,
    after: Token | None = None,
    at: Timestamp | None = None,
) -> list[dict[str, Any]]:
    """The stages of the stream that starts `after` a token, `at` a time, or now."""
    stage: dict[str, Any] = {}
    if config.full_document != "default":
        stage["fullDocument"] = config.full_document
    if deployment.has_images:
        stage["showExpandedEvents"] = True
        if not deployment.states_paths:
            stage["showRawUpdateDescription"] = True
        if config.full_document_before_change != "off":
            stage["fullDocumentBeforeChange"] = config.full_document_before_change
    if config.database is None:
        stage["allChangesForCluster"] = True
    if after is not None:
        stage["startAfter"] = after.document()
    elif at is not None:
        stage["startAtOperationTime"] = at
    stages: list[dict[str, Any]] = [{"$changeStream": stage}]
    wanted = config.namespaces.match()
    if wanted is not None:
        stages.append({"$match": wanted})
    if deployment.splits_large_events:
        stages.append({"$changeStreamSplitLargeEvent": {}})
    return stages
