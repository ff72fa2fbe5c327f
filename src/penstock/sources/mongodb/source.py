"""MongoDB as a source: where to start, and what to do when a position is lost.

Replica sets only. A sharded cluster is refused: no test here has ever run against mongos.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec
import structlog
from bson import Timestamp
from msgspec import structs
from pymongo.errors import OperationFailure, PyMongoError, ServerSelectionTimeoutError

from penstock.capture.copies import CopyDesk
from penstock.capture.deadletter import Letter, Outcome
from penstock.capture.tenant import control_tenant
from penstock.errors import (
    ConfigError,
    PenstockError,
    RequestError,
    SourceChangedError,
    SourceUnavailableError,
)
from penstock.event import Commit, Fragment, SystemEvent
from penstock.folders import stamp
from penstock.mongo_causes import code_name
from penstock.ports import KeyRange, Listing, RangeRows
from penstock.sources.mongodb.again import Namespace, named, whole_copy, with_collections
from penstock.sources.mongodb.closing import Heartbeats, close
from penstock.sources.mongodb.config import MongoSourceConfig
from penstock.sources.mongodb.cursor import ChangeCursor, Patience, pipeline_of
from penstock.sources.mongodb.deployment import (
    Client,
    Deployment,
    connect,
    describe,
    members_of,
    obstacle,
)
from penstock.sources.mongodb.failures import (
    is_lost,
    is_too_large,
    position_lost,
    translated,
)
from penstock.sources.mongodb.images import require_before_images
from penstock.sources.mongodb.oplog import (
    committed_entry,
    is_of_another_history,
    place_before,
    seconds_to_loss,
)
from penstock.sources.mongodb.pace import Pace
from penstock.sources.mongodb.positions import (
    Copying,
    MongoPosition,
    Scope,
    Token,
    is_copying,
    moved,
    parse_position,
)
from penstock.sources.mongodb.ranges import (
    has_told,
    read,
    require_agreement,
    require_whole_documents,
    split,
)
from penstock.sources.mongodb.session import Session, system_event
from penstock.sources.mongodb.snapshot import Chunk, collections, read_chunk, unmatched
from penstock.telemetry import DEAD_LETTERS, DEAD_LETTERS_OUTSTANDING

logger = structlog.get_logger(__name__)

ANOTHER_HISTORY = "the server was restored from an older copy, or set up anew"
_BEGINNING_TRIES = 5
_UNAUTHORIZED = 13


class MongoSource:
    """One change stream over a replica set or one of its databases: a ChangeSource.

    A commit is a transaction, or a single write outside one. The server keeps its oplog without
    regard to who reads it, so nothing is acknowledged to it. Belongs to one event loop at a time.
    """

    def __init__(self, name: str, config: MongoSourceConfig) -> None:
        self.name = name
        self.config = config
        self._patience = Patience(config.deadline_seconds)
        self._pace = Pace(
            documents_max=config.snapshot_chunk_documents, seconds=config.deadline_seconds / 2
        )
        self._desk = CopyDesk[Namespace]()
        self._session_now: Session | None = None
        self._letters = 0
        self._client: Client | None = None
        self._files: list[tuple[int, int, int] | None] = []
        """Of TLS, as they were when the client read them."""
        self._outdated: tuple[Client, Heartbeats] | None = None
        """The client before, which a call of the session before may still use."""
        self._finds_none = False
        """Whether the client found no server that it could use."""
        self._heartbeats = Heartbeats()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def changes(self, *, position: str | None) -> AsyncIterator[Commit | Fragment]:
        """Commits after `position`; None: where `start` says.

        Empty commits tell newer positions: one at the start, and one every heartbeat while
        nothing changes. Raises SourceError, and ConfigError for what only an operator can mend.
        """
        known = None if position is None else parse_position(position)
        try:
            client = await self._renewed()
            async with asyncio.timeout(3 * self._patience.seconds):
                deployment = await self._identified(client, known)
                await require_before_images(client, self.name, self.config)
                another = known is not None and await is_of_another_history(
                    self.name, client, known
                )
            if known is not None and another:
                stood = known
                said, known = await self._after_loss(client, deployment, stood, ANOTHER_HISTORY)
                if said is not None:
                    yield said
                if known is None:
                    raise position_lost(self.name, stood, ANOTHER_HISTORY)
            if known is None:
                known = await self._start(client, deployment)
                yield Commit(source=self.name, position=known.text())
            elif known.scope is None:
                known = structs.replace(known, scope=self.config.scope)
            elif known.scope != self.config.scope:
                changed, known = await self._rescoped(client, deployment, known, known.scope)
                yield changed
            known = structs.replace(known, full_document=self.config.full_document)
            if known.copying is not None and known.copying.anew:
                copying = await self._anew(client, known.copying, known.token)
                known = structs.replace(known, copying=copying)
            while True:
                session = self._session(client, deployment, known)
                self._session_now, self._letters = session, known.letters
                try:
                    async with aclosing(session.run()) as items:
                        async for item in items:
                            self._desk.saying(item)
                            yield item
                except OperationFailure as error:
                    if not is_lost(error):
                        raise
                    if session.assembler.fragmented:
                        # A gap must not end the transaction that is staged: start over without it.
                        raise SourceUnavailableError(
                            f"{self.name}: the position was lost within a transaction "
                            f"({code_name(error)}). Nothing of it was kept; capture starts over."
                        ) from None
                    lost = session.position
                    reason = code_name(error)
                    said, known = await self._after_loss(client, deployment, lost, reason)
                    if said is not None:
                        yield said
                    if known is None:
                        raise position_lost(self.name, lost, reason) from None
                finally:
                    self._desk.session_ended()
                    self._session_now, self._letters = None, session.letters
                    session.inbox.refuse(self.name)
        except TimeoutError:
            raise self._patience.exhausted(self.name) from None
        except PyMongoError as error:
            self._finds_none = isinstance(error, ServerSelectionTimeoutError)
            # Without its cause: a server's message may hold a key.
            raise self._translated(error) from None

    @property
    def dead_letters(self) -> int:
        """As `KeepsLetters.dead_letters`."""
        session = self._session_now
        return self._letters if session is None else session.letters

    async def replay(
        self, letters: Sequence[Letter], *, settle: bool, everything: bool = False
    ) -> list[Outcome]:
        """As `KeepsLetters.replay`."""
        session = self._session_now
        if session is None:
            raise RequestError(
                f"{self.name} is not being captured now, and letters are dealt with in its stream. "
                f"Nothing was changed. Ask again when `penstock status` shows it running."
            )
        return await session.inbox.ask(letters, settle=settle, everything=everything)

    async def acknowledge(self, position: str) -> None:
        """The oplog's size alone decides what it keeps; who asked for a copy waits for this."""
        self._desk.acknowledged(position)
        self._count_letters()

    async def copy(self, names: Sequence[str], *, known: Collection[tuple[str, str]]) -> list[str]:
        """As `Copies.copy`."""
        if self._session_now is None:
            raise RequestError(
                f"{self.name} is not being captured now, and a copy is made beside its stream. "
                f"Nothing was copied. Ask again when `penstock status` shows it running."
            )
        try:
            there = await collections(await self._connected(), self.config)
        except PyMongoError as error:
            raise self._translated(error) from None
        asked = named(self.name, names, namespaces=self.config.namespaces, there=there, known=known)
        await self._desk.ask(asked)
        return [".".join(namespace) for namespace in asked or there]

    def _count_letters(self) -> None:
        session = self._session_now
        if session is not None and session.changes_lettered:
            DEAD_LETTERS.labels(self.name).inc(session.changes_lettered)
            session.changes_lettered = 0
        DEAD_LETTERS_OUTSTANDING.labels(self.name).set(self.dead_letters)

    async def close(self) -> None:
        """Close the connections; harmless when there are none."""
        client, self._client = self._client, None
        outdated, self._outdated = self._outdated, None
        if outdated is not None:
            await close(*outdated)
        if client is not None:
            await close(client, self._heartbeats)

    async def read_chunk(self, collection: str, *, after_key: bytes | None, limit: int) -> Chunk:
        """Up to `limit` documents of `database.collection` that follow `after_key`, by `_id`.

        `after_key` is `Chunk.after` of the chunk before, None for the first. With a configured
        database, `collection` goes without its name. Committed by a majority; `Chunk.at` is a
        time of the server at or after the read.
        """
        database, name = self.config.database, collection
        if database is None:
            database, _, name = collection.partition(".")
        try:
            client = await self._connected()
            return await read_chunk(client, (database, name), after=after_key, limit=limit)
        except PyMongoError as error:
            raise self._translated(error) from None

    def require_readable(self) -> None:
        """As `ReadsRanges.require_readable`."""
        require_whole_documents(self.name, self.config)

    async def ranges(self, database: str, collection: str, *, rows: int, position: str) -> Listing:
        """As `ReadsRanges.ranges`."""
        known = parse_position(position)
        require_agreement(self.name, self.config, known)
        try:
            client = await self._connected()
            await self._identified(client, known)
            return await split(client, self.config, database, collection, rows=rows)
        except PyMongoError as error:
            raise self._translated(error) from None

    async def read_range(self, part: KeyRange, *, position: str) -> RangeRows:
        """As `ReadsRanges.read_range`."""
        known = parse_position(position)
        require_agreement(self.name, self.config, known)
        try:
            client = await self._connected()
            await self._identified(client, known)
            return await read(
                client,
                self.name,
                self.config,
                part,
                not_before=known.token.time,
                snapshot=known.token.data,
            )
        except PyMongoError as error:
            raise self._translated(error) from None

    def has_told(self, position: str, read_at: str) -> bool:
        """As `ReadsRanges.has_told`."""
        return has_told(parse_position(position), read_at)

    async def seconds_to_loss(self, position: str) -> float | None:
        """As `Retains.seconds_to_loss`: by the server's clock, from its oldest oplog entry."""
        try:
            async with asyncio.timeout(self._patience.seconds):
                return await seconds_to_loss(await self._connected(), position)
        except TimeoutError:
            raise self._patience.exhausted(self.name) from None
        except PyMongoError as error:
            raise self._translated(error) from None

    async def unmatched(self) -> list[str]:
        """As `NamesThings.unmatched`."""
        if self.config.scope == Scope():
            return []
        try:
            async with asyncio.timeout(self._patience.seconds):
                return await unmatched(await self._connected(), self.config)
        except TimeoutError:
            raise self._patience.exhausted(self.name) from None
        except PyMongoError as error:
            raise self._translated(error) from None

    async def rewound(self, position: str, *, to: str | None, by_seconds: float | None) -> str:
        """As `Rewinds.rewound`. What happened at the time of the place comes again, too."""
        known = parse_position(position)
        at = place_before(self.name, known, to=to, by_seconds=by_seconds)
        try:
            client = await self._connected()
            async with asyncio.timeout(3 * self._patience.seconds):
                deployment = await self._identified(client, known)
                token = await self._opened(client, deployment, at)
                entry = await committed_entry(client)
        except TimeoutError:
            raise self._patience.exhausted(self.name) from None
        except OperationFailure as error:
            if not is_lost(error):
                raise self._translated(error) from None
            raise RequestError(
                f"{self.name}: the oplog does not reach back that far ({code_name(error)}). "
                f"Nothing was changed. `penstock doctor` says since when it holds changes."
            ) from None
        except PyMongoError as error:
            raise self._translated(error) from None
        return structs.replace(known, token=token, entry=entry, gap_said=False).text()

    def told_at(self, position: str) -> int:
        """As `Rewinds.told_at`."""
        return parse_position(position).token.time.t * 1000

    def moved(self, position: str, *, before: str | None) -> str:
        """As `Moves.moved`. The letters that are outstanding stay as many as they are."""
        return moved(self.name, position, before=before)

    def is_copying(self, position: str) -> bool:
        """As `Moves.is_copying`."""
        return is_copying(position)

    def _translated(self, error: PyMongoError) -> PenstockError:
        return translated(self.name, self.config, error, self._client)

    async def _connected(self) -> Client:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._files = self._stamps()
            heartbeats = Heartbeats()
            self._client = connect(self.name, self.config, [heartbeats])
            self._heartbeats, self._loop = heartbeats, loop
        return self._client

    async def _renewed(self) -> Client:
        """The client of a new session: another one where files of TLS are others now, which a
        client reads once. Where those cannot be used, the old one stays in force.

        Another one, too, where the client found no server: it takes a primary for a stale one that
        was elected earlier than the last that it knew, as one is of an older disk or another set.
        """
        client, files = await self._connected(), self._stamps()
        if files == self._files and not self._finds_none:
            return client
        self._files, self._finds_none = files, False
        heartbeats = Heartbeats()
        try:
            members = members_of(client)
            renewed = connect(self.name, self.config, [heartbeats], known=members)
        except SourceUnavailableError as error:
            logger.warning("files of TLS are not taken over", source=self.name, why=str(error))
            return client
        outdated, self._outdated = self._outdated, (client, self._heartbeats)
        self._client, self._heartbeats = renewed, heartbeats
        if outdated is not None:
            await close(*outdated)
        return renewed

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [stamp(Path(file)) for file in self.config.address.files]

    def _session(self, client: Client, deployment: Deployment, position: MongoPosition) -> Session:
        return Session(
            self.name,
            self.config,
            client=client,
            deployment=deployment,
            patience=self._patience,
            pace=self._pace,
            position=position,
            desk=self._desk,
        )

    async def _identified(self, client: Client, known: MongoPosition | None) -> Deployment:
        deployment = await describe(client)
        unfit = obstacle(deployment)
        if unfit is not None:
            why, remedy = unfit
            raise ConfigError(f"{self.name}: {why}. Nothing was captured. What to do: {remedy}.")
        if known is not None and known.server.is_other_than(deployment.server):
            raise SourceChangedError(
                source=self.name, expected=str(known.server), found=str(deployment.server)
            )
        return deployment

    async def _start(self, client: Client, deployment: Deployment) -> MongoPosition:
        """The position to begin at when there is none."""
        if self.config.start == "beginning":
            token = await self._beginning(client, deployment)
            return await self._at(client, deployment, token)
        token = await self._opened(client, deployment)
        if self.config.start == "now":
            return await self._at(client, deployment, token)
        return await self._snapshot_at(client, deployment, token)

    async def _at(
        self,
        client: Client,
        deployment: Deployment,
        token: Token,
        copying: Copying | None = None,
    ) -> MongoPosition:
        return MongoPosition(
            server=deployment.server,
            token=token,
            entry=await committed_entry(client),
            copying=copying,
            scope=self.config.scope,
            full_document=self.config.full_document,
        )

    async def _snapshot_at(
        self, client: Client, deployment: Deployment, token: Token
    ) -> MongoPosition:
        pending = await collections(client, self.config)
        copying = Copying(snapshot=token.data, pending=pending, covers=pending, whole=True)
        return await self._at(client, deployment, token, copying)

    async def _rescoped(
        self, client: Client, deployment: Deployment, known: MongoPosition, before: Scope
    ) -> tuple[Commit, MongoPosition]:
        """What is said of a scope that is not that of the position, and the position to go on from.

        The stream goes on where it was, so that the changes of collections that are new to the
        scope are captured from there on. What they held before is copied if `start` says so.
        """
        added = tuple(
            namespace
            for namespace in await collections(client, self.config)
            if namespace not in before.namespaces
        )
        copied = added if self.config.start == "snapshot" else ()
        scope, copying = self.config.scope, known.copying
        token = await self._resumable(client, deployment, known.token)
        left_out = await self._left_out(client, before)
        names = [".".join(namespace) for namespace in added]
        if names and not copied:
            logger.warning(
                "collections are captured that were not; what they held before is not copied",
                source=self.name,
                collections=names,
                since_seconds=token.time.t,
            )
        facts: dict[str, object] = {
            "source": self.name,
            "before": msgspec.to_builtins(before),
            "after": msgspec.to_builtins(scope),
            "added": names,
            "removed": [".".join(namespace) for namespace in left_out if namespace[1]],
            "copied": bool(copied),
            "since": token.data,
        }
        identity = f"{known.token.data}:{msgspec.json.encode((before, scope)).decode()}"
        event = system_event(self.name, self.config, "scope_changed", identity, token, facts)
        if copying is not None:
            left = tuple(one for one in copying.pending if one in self.config.namespaces)
            copying = structs.replace(
                copying,
                pending=(*left, *copied),
                after=copying.after if left[:1] == copying.pending[:1] else None,
                copies=copying.copies + 1,
                covers=(*(one for one in copying.covers if one in self.config.namespaces), *copied),
                whole=copying.whole and copied == added,
                announced=copying.announced and not copied,
            )
        elif copied:
            # A snapshot may have begun at this very token, and nothing happened since.
            snapshot = f"{token.data}:{event.event_id}"
            copying = Copying(snapshot=snapshot, pending=copied, covers=copied)
        entry = known.entry if token == known.token else await committed_entry(client)
        now = structs.replace(known, token=token, copying=copying, scope=scope, entry=entry)
        gaps = (self._left(namespace, identity, known.token, token) for namespace in left_out)
        return Commit(source=self.name, position=now.text(), events=(event, *gaps)), now

    async def _left_out(self, client: Client, before: Scope) -> list[tuple[str, str]]:
        """The (database, collection)s that were captured and are not any more.

        Those that are there, and those that either configuration names; where we may not look, the
        whole of the database, as ("shop", ""), or of all of them.
        """
        scope = {name: getattr(before, name) for name in ("database", "include", "exclude")}
        captured, capturing = before.namespaces, self.config.namespaces
        try:
            there = await collections(client, self.config.model_copy(update=scope), whole=True)
        except OperationFailure as error:
            if error.code != _UNAUTHORIZED:
                raise
            return [(before.database or "", "")]
        known = {*there, *captured.named, *capturing.named}
        return sorted(one for one in known if one in captured and one not in capturing)

    def _left(
        self, namespace: tuple[str, str], identity: str, after: Token, token: Token
    ) -> SystemEvent:
        """The gap of a collection that is captured no more: its followers must not think it quiet.

        Should it be captured again, what happened to it meanwhile is not told.
        """
        database, collection = namespace
        name = ".".join(namespace).strip(".")
        facts: dict[str, object] = {
            "source": self.name,
            "from": after.data,
            "to": None,
            "reason": "scope",
            "collection": name,
        }
        gap = system_event(self.name, self.config, "gap", f"scope:{name}:{identity}", token, facts)
        tenant = control_tenant(self.config.tenant, database=database, source=self.name)
        return structs.replace(gap, database=database, collection=collection, tenant=tenant)

    async def _resumable(self, client: Client, deployment: Deployment, token: Token) -> Token:
        """Where a stream of the new scope goes on after `token`, which an old one has given.

        The token itself where more follows it. The server refuses an event's token where the scope
        leaves that event out, as if the history were lost; then, and where nothing follows, the
        time after it is as good: a time belongs to one write or transaction, and a position never
        lies inside of one.
        """
        cursor = ChangeCursor(client, self.config, source=self.name, patience=self._patience)
        try:
            await cursor.open(pipeline_of(self.config, deployment, after=token))
            reply = await cursor.more(await_ms=1, events_max=1)
        except OperationFailure as error:
            if is_too_large(error):
                return token  # the event that follows
            if not is_lost(error):
                raise
            reply = None
        finally:
            await cursor.close()
        if not token.is_of_event or (reply and reply.events):
            return token
        # The server writes the token of that time: its form differs between versions.
        after = Timestamp(token.time.t, token.time.i + 1)
        return await self._opened(client, deployment, after, proven=False)

    async def _opened(
        self,
        client: Client,
        deployment: Deployment,
        at: Timestamp | None = None,
        *,
        proven: bool = True,
    ) -> Token:
        """Where a stream stands that is opened at a time, or now.

        With `proven`, raises if the oplog no longer reaches back to that time. Without, the next
        read of the stream raises instead.
        """
        cursor = ChangeCursor(client, self.config, source=self.name, patience=self._patience)
        try:
            token = await cursor.open(pipeline_of(self.config, deployment, at=at))
            if at is not None and proven:
                await cursor.more(await_ms=1, events_max=1)
            return token
        finally:
            await cursor.close()

    async def _beginning(self, client: Client, deployment: Deployment) -> Token:
        """The oldest change that the server still holds; it may be discarding meanwhile (P20)."""
        for _ in range(_BEGINNING_TRIES):
            oldest = await client["local"]["oplog.rs"].find_one(
                {}, {"ts": 1}, sort=[("$natural", 1)]
            )
            if oldest is None:
                break
            try:
                return await self._opened(client, deployment, oldest["ts"])
            except OperationFailure as error:
                if not is_lost(error):
                    raise
        raise ConfigError(
            f"{self.name}: the oldest change of the oplog is gone before it can be read: the oplog "
            f"is too small for its load. Nothing was captured. Enlarge it (replSetResizeOplog), or "
            f"use start = 'snapshot'."
        )

    async def _anew(self, client: Client, copying: Copying | None, token: Token) -> Copying | None:
        """The copy that was under way at a loss, from its beginning: another one.

        What it read before the loss is no proof of what is there now.
        """
        if copying is None:
            return None
        if copying.whole:
            return whole_copy(await collections(client, self.config), token)
        return with_collections(None, copying.covers or copying.pending, token)

    async def _after_loss(
        self,
        client: Client,
        deployment: Deployment,
        lost: MongoPosition,
        reason: str,
    ) -> tuple[Commit | None, MongoPosition | None]:
        """What is said of the loss, once, and the position to go on from; None: capture stops.

        One loss is one gap in the log. Where capture stops, the gap's `to` is not known, and the
        position stands, with a note that the gap was said. If capture goes on later, in another
        mode, no second gap is said, but `gap_ended`, which has both ends.
        """
        halts = self.config.on_position_lost == "halt"
        if halts and lost.gap_said:
            return None, None
        if halts:
            copying = await self._anew(client, lost.copying, lost.token)
            token, known = None, structs.replace(lost, copying=copying, gap_said=True)
        else:
            token = await self._opened(client, deployment)
            begun = (
                await self._snapshot_at(client, deployment, token)
                if self.config.on_position_lost == "snapshot"
                else await self._at(
                    client, deployment, token, await self._anew(client, lost.copying, token)
                )
            )
            known = structs.replace(begun, letters=lost.letters)
        event = system_event(
            self.name,
            self.config,
            "gap_ended" if lost.gap_said else "gap",
            lost.token.data,
            known.token,
            {
                "source": self.name,
                "from": lost.token.data,
                "to": None if token is None else token.data,
                "reason": reason,
            },
        )
        said = Commit(source=self.name, position=known.text(), events=(event,))
        return said, None if halts else known
