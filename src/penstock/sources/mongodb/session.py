"""One reading of the stream from a position on, with the copying of a snapshot woven in."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import structlog
from msgspec import Raw, json, structs
from pymongo.errors import OperationFailure

from penstock.capture.copies import CopyDesk
from penstock.capture.ending import ended
from penstock.capture.tenant import control_tenant
from penstock.errors import SourceUnavailableError, UndecodableError
from penstock.event import (
    AnyEvent,
    ChangeEvent,
    ClusterTime,
    Commit,
    Fragment,
    SchemaEvent,
    SystemEvent,
    event_id,
)
from penstock.sources.mongodb.again import Namespace, begin
from penstock.sources.mongodb.assemble import Assembler
from penstock.sources.mongodb.config import MongoSourceConfig
from penstock.sources.mongodb.cursor import ChangeCursor, Patience, Reply, pipeline_of
from penstock.sources.mongodb.deployment import Client, Deployment
from penstock.sources.mongodb.documents import TOGETHER_MAX, decode, decode_together
from penstock.sources.mongodb.failures import is_too_large
from penstock.sources.mongodb.normalise import Change, Normaliser, raw_token
from penstock.sources.mongodb.oplog import committed_entry
from penstock.sources.mongodb.pace import Pace
from penstock.sources.mongodb.poison import DeadLetters, is_reserved
from penstock.sources.mongodb.positions import Copying, MongoPosition, PositionWriter, Token
from penstock.sources.mongodb.replay import Inbox, Rereader
from penstock.sources.mongodb.snapshot import Chunk, is_converted, read_chunk

BUSY_AWAIT_MS = 2
"""How long the server waits for more while we have something else to do, or to find out."""
_NAMING_TRIES = 100
logger = structlog.get_logger(__name__)
_MAY_BRING_ROWS = frozenset({"create", "rename"})
"""Events after which a collection may have documents that no insert told."""
ENVELOPE = (
    *("operationType", "ns", "documentKey", "clusterTime", "wallTime"),
    *("txnNumber", "lsid", "collectionUUID"),
)
"""What an event says beside its documents."""


class Session:
    """Reads from `position` until it fails. `position` is always that of what was yielded last."""

    def __init__(
        self,
        source: str,
        config: MongoSourceConfig,
        *,
        client: Client,
        deployment: Deployment,
        patience: Patience,
        pace: Pace,
        position: MongoPosition,
        desk: CopyDesk[Namespace],
    ) -> None:
        self._desk = desk
        self._source = source
        self._config = config
        self._client = client
        self._deployment = deployment
        self._patience = patience
        self._pace = pace
        self._token = position.token
        self._seen = position.token
        self._writer = PositionWriter(position)
        self._proven_at = 0.0
        self._one_by_one = 0
        """How many more events to read one by one: one of them was too large for a reply."""
        self._letters = (
            DeadLetters(source, database=config.database, tenant=config.tenant)
            if config.on_undecodable == "dead_letter"
            else None
        )
        self.changes_lettered = 0
        """Changes and rows whose dead letters were yielded, and that nobody has counted."""
        self._asked_since_chunk = True
        self._put_off_told: set[Namespace] = set()
        """Collections of which somebody was told that their copy waits."""
        self.inbox = Inbox()
        """What others ask this session to say."""
        self._begin()

    def _begin(self) -> None:
        config = self._config
        self._normaliser = Normaliser(
            self._source,
            database=config.database,
            tenant=config.tenant,
            post_images=config.full_document in {"whenAvailable", "required"},
            flat=config.flatten == "dot",
        )
        self.assembler = Assembler(self._source, place=self._place)

    @property
    def position(self) -> MongoPosition:
        """Where to go on after what was yielded last."""
        return self._writer.position(self._token)

    async def run(self) -> AsyncGenerator[Commit | Fragment, None]:
        """Yield what comes, forever. Raises what the driver raises, and SourceError."""
        while True:
            cursor = self._cursor()
            reading: asyncio.Task[Reply] | None = None
            copying: asyncio.Task[Commit] | None = None
            try:
                await cursor.open(self._pipeline(), not_before=self._not_before)
                reading = self._read(cursor, BUSY_AWAIT_MS)
                self._asked_since_chunk = True
                while True:
                    while not await self._answered(reading):
                        yield await self._meanwhile()
                    reply = await reading
                    self._one_by_one = max(self._one_by_one - len(reply.events), 0)
                    reading = None if reply.ended else self._read(cursor, self._await_ms(reply))
                    for first in range(0, len(reply.events), TOGETHER_MAX):
                        raws = reply.events[first : first + TOGETHER_MAX]
                        for raw, document in zip(raws, decode_together(raws), strict=True):
                            for item in self._take(raw, document):
                                yield self._told(item)
                        # The event loop gets a turn, about once in two milliseconds.
                        await asyncio.sleep(0)
                    await self._prove(reply)
                    for item in self._reply_ended(reply):
                        yield self._told(item)
                    if reading is None:
                        break
                    if self.inbox and self._settled:
                        yield await self._meanwhile()
                    if self._desk.asked and self._settled:
                        await self._begin_copies()
                    # What is being read while a chunk is, was asked for before it.
                    self._asked_since_chunk = not self._may_copy(reply)
                    if not self._asked_since_chunk:
                        copying = asyncio.create_task(self._copy())
                        while not await self._answered(copying):
                            yield await self._meanwhile()
                        yield self._told(await copying)
            except OperationFailure as error:
                if not is_too_large(error):
                    raise
                for item in await self._approach_or_name(error):
                    yield item
            finally:
                try:
                    for task in (reading, copying):
                        if task is not None:
                            await ended(task)
                finally:
                    await cursor.close()

    def _cursor(self) -> ChangeCursor:
        return ChangeCursor(
            self._client, self._config, source=self._source, patience=self._patience
        )

    def _pipeline(self) -> list[dict[str, Any]]:
        return pipeline_of(self._config, self._deployment, after=self._reached)

    @property
    def _not_before(self) -> ClusterTime | None:
        """What the server must know of: the last chunk, or all of the open transaction.

        Else an empty reply of a new primary would look like that transaction's end.
        """
        if not self._settled:
            return self._seen.time
        copying = self._writer.copying
        return None if copying is None else ClusterTime(*copying.read_at)

    @property
    def _reached(self) -> Token:
        """Where the reading goes on, which within a transaction is not where a restart would."""
        return self._token if self._settled else self._seen

    def _read(self, cursor: ChangeCursor, await_ms: int) -> asyncio.Task[Reply]:
        events_max = 1 if self._one_by_one else None
        return asyncio.create_task(cursor.more(await_ms=await_ms, events_max=events_max))

    def _await_ms(self, reply: Reply) -> int:
        """How long the server may wait for the events after `reply`."""
        # Whether a transaction ends with this reply is known once the next one is here.
        within = b"\x12txnNumber\0" in reply.events[-1] if reply.events else False
        if within or self._writer.copying is not None:
            return BUSY_AWAIT_MS
        return int(self._config.heartbeat_seconds * 1000)

    def _told(self, item: Commit | Fragment) -> Commit | Fragment:
        """What is told of the server's; behind a commit another session goes on."""
        if isinstance(item, Commit):
            self._patience.moved_on()
        return item

    async def _answered(self, asked: "asyncio.Task[Reply] | asyncio.Task[Commit]") -> bool:
        """Wait for an answer; False after a heartbeat without one, or when something is asked of
        us.

        A server that searches is silent, and so is one behind a slow line until all of a large
        answer is here; that is no reason to call the source so.
        """
        timeout = self._config.heartbeat_seconds * 1.5
        awaited: set[asyncio.Future[Any]] = {asked}
        if self._settled:
            awaited.add(self.inbox.arrived)
        await asyncio.wait(awaited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return asked.done()

    async def _meanwhile(self) -> Commit | Fragment:
        """What is said between two answers: what was asked of us, else that we are alive; within a
        transaction, where no position may be said, by none of its events."""
        if not self._settled:
            return Fragment(source=self._source, events=())
        if not self.inbox:
            return self._heartbeat(self._token)
        rereader = Rereader(self._source, self._config, self._client, self._normaliser)
        asked = self.inbox.first
        events, outcomes = await rereader.events(asked, self._token)
        done = sum(outcome.done for outcome in outcomes)
        left = 0 if asked.everything else self._writer.letters - done
        self._writer = self._writer.with_letters(left)
        self.inbox.answer(outcomes)
        position = self._place(self._token)
        return Commit(source=self._source, position=position, events=tuple(events))

    @property
    def letters(self) -> int:
        """How many dead letters are outstanding."""
        return self._writer.letters

    @property
    def _settled(self) -> bool:
        """Whether everything that was read has been yielded: a position may be said."""
        return not self.assembler.open and not self._normaliser.mid_event

    def _take(self, raw: bytes, document: dict[str, Any] | None) -> Sequence[Commit | Fragment]:
        try:
            change = self._normaliser.change(raw, document)
        except UndecodableError as error:
            if self._letters is None:
                raise
            return self._poisoned(self._letters.change(self._normaliser.parts(raw), error))
        if change is None:
            return ()
        event = change.event
        if self._letters is not None and is_reserved(event.collection):
            parts, refusal = self._normaliser.parts(raw), self._letters.reserved(event)
            return self._poisoned(self._letters.change(parts, refusal))
        self._seen = change.token
        if event.operation == "dropDatabase" and not self._config.namespaces.reach(event.database):
            # The server's filter lets it through; with it left out there, it would refuse this
            # event's token to a position that an older Penstock wrote.
            ended = self.assembler.ended_before(change)
            return () if ended is None else (ended,)
        if type(event) is not SchemaEvent or event.operation not in _MAY_BRING_ROWS:
            return self.assembler.add(change)
        # Before the event's commit gets a position, for that must say what is left to copy; and
        # after the open transaction got its own, for that must not tell of what comes later.
        ended = self.assembler.ended_before(change)
        took = self._created if event.operation == "create" else self._renamed
        items = self.assembler.add(took(change))
        return items if ended is None else (ended, *items)

    def _poisoned(self, change: Change) -> Sequence[Commit | Fragment]:
        """Take the letters of a change that cannot be decoded; its commit's position counts all."""
        self._seen = change.token
        ended = self.assembler.ended_before(change)
        self._lettered(sum(isinstance(one, ChangeEvent) for one in (change.event, *change.also)))
        items = self.assembler.add(change)
        return items if ended is None else (ended, *items)

    def _lettered(self, letters: int = 1) -> None:
        self._writer = self._writer.with_letters(self._writer.letters + letters)
        self.changes_lettered += 1

    def _reply_ended(self, reply: Reply) -> Iterator[Commit]:
        """What the end of a reply completes; a heartbeat if it held nothing."""
        commit = self.assembler.reply_ended(token=reply.token, empty=not reply.events)
        if commit is not None:
            yield commit
        if reply.ended:
            if not self._settled or self._seen != self._token:
                raise SourceUnavailableError(
                    f"{self._source}: MongoDB closed the change stream. Nothing was skipped; "
                    f"capture goes on from its durable position."
                )
        elif not reply.events and self._settled:
            if self._may_copy(reply):
                self._token = reply.token  # said with the chunk that follows
            elif self._writer.copying is None or reply.token != self._token:
                yield self._heartbeat(reply.token)

    async def _prove(self, reply: Reply) -> None:
        """Keep an entry of the oplog with a position that is no event's (record 0039): one of now
        behind each event, and else of a heartbeat ago."""
        if reply.events or reply.token.is_of_event:
            return
        now = time.monotonic()
        recent = now - self._proven_at < self._config.heartbeat_seconds
        if reply.token == self._token or (recent and not self._token.is_of_event):
            return
        async with asyncio.timeout(self._patience.seconds):
            self._writer = self._writer.with_entry(await committed_entry(self._client))
        self._proven_at = now

    def _heartbeat(self, token: Token) -> Commit:
        as_of_ms = token.time.t * 1000
        return Commit(source=self._source, position=self._place(token), as_of_ms=as_of_ms)

    def _place(self, token: Token) -> str:
        """The position after the commit that ends at `token`, and ours from now on."""
        self._token = token
        return self._writer.at(token)

    # --- the copying of what is there already ---------------------------------------------------

    def _may_copy(self, reply: Reply) -> bool:
        """Whether the stream was read past the last chunk, and no transaction is under way.

        A token that is no event's sorts before the events of its own time. So at the chunk's own
        time it tells that there are none only if it was asked for after the chunk was read; to
        wait for a later one always could take the ten seconds between an idle server's no-ops.
        """
        copying = self._writer.copying
        if copying is None or not self._settled:
            return False
        read_at = ClusterTime(*copying.read_at)
        return reply.token.time > read_at or (
            reply.token.time == read_at and self._asked_since_chunk
        )

    async def _copy(self) -> Commit:
        """The next step of the snapshot: said to start, a chunk, or said to be complete."""
        copying = self._writer.copying
        assert copying is not None
        if not copying.announced:
            announcements = copying.announcements + 1
            self._copy_on(structs.replace(copying, announced=True, announcements=announcements))
            return self._said("snapshot_started", copying)
        if not copying.pending:
            self._copy_on(None)
            return self._said("snapshot_completed", copying)
        namespace = copying.pending[0]
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._patience.seconds):
                chunk = await read_chunk(
                    self._client,
                    namespace,
                    after=copying.after,
                    limit=self._pace.documents,
                    not_before=self._token.time,
                )
        except TimeoutError:
            self._pace.failed()
            raise
        self._pace.took(len(chunk.documents), seconds=time.monotonic() - began)
        if chunk.put_off:
            return self._put_off(copying, chunk)
        events: list[AnyEvent] = []
        started = Token(copying.snapshot).time
        for number, raw in enumerate(chunk.documents):
            if number % TOGETHER_MAX == TOGETHER_MAX - 1:
                await asyncio.sleep(0)
            copy = f"{copying.snapshot}:{copying.copies}"
            try:
                row = self._normaliser.copied(raw, namespace=namespace, copy=copy, at=started)
                events.append(row)
            except UndecodableError as error:
                if self._letters is None:
                    raise
                poison = self._letters.row(raw, error, namespace=namespace, at=started)
                events += poison.events()
                self._lettered()
        self._copy_on(
            structs.replace(
                copying,
                pending=copying.pending[1:] if chunk.last else copying.pending,
                after=None if chunk.last else chunk.after,
                copies=copying.copies + chunk.last,
                documents=copying.documents + len(chunk.documents),
                read_at=(chunk.at.t, chunk.at.i),
            )
        )
        place = self._place(self._token)
        return Commit(source=self._source, position=place, events=tuple(events))

    def _put_off(self, copying: Copying, chunk: Chunk) -> Commit:
        """Copy the others first; the stream goes on meanwhile."""
        namespace, *others = copying.pending
        if namespace not in self._put_off_told:
            self._put_off_told.add(namespace)
            logger.warning("copy of a collection waits", source=self._source, why=chunk.put_off)
        read_at = (chunk.at.t, chunk.at.i)
        pending = (*others, namespace)
        self._copy_on(structs.replace(copying, pending=pending, read_at=read_at))
        return Commit(source=self._source, position=self._place(self._token), events=())

    def _copy_on(self, copying: Copying | None) -> None:
        self._writer = self._writer.with_copying(copying)

    async def _begin_copies(self) -> None:
        """Copy what is asked for, from here on."""
        copying = self._writer.copying
        self._copy_on(await begin(self._desk, self._client, self._config, copying, self._token))

    def _renamed(self, change: Change) -> Change:
        """Copy a collection that took documents along which we may not have.

        Returns the change, which says so where nobody follows the collection any further.
        """
        facts = json.decode(change.event.description)  # type: ignore[union-attr]
        source = (change.event.database, change.event.collection)
        target = (facts["to"]["db"], facts["to"]["coll"])
        namespaces = self._config.namespaces
        if target not in namespaces:
            return _with(change, facts, targetCaptured=False)
        if source not in namespaces or is_converted(source[1]):
            self._copy_anew(target, change.token)
            return _with(change, facts, rowsFollow=True)
        if self._writer.copying is not None:
            self._copy_anew(target, change.token)
        return change

    def _created(self, change: Change) -> Change:
        """Copy a capped collection: cloneCollectionAsCapped fills it without change events.

        Returns the change, which says so; or that what was made never has any: a view, a time
        series.
        """
        event = change.event
        facts = json.decode(event.description)  # type: ignore[union-attr]
        made = facts.get("operationDescription", {})
        namespace = (event.database, event.collection)
        if "viewOn" in made or "timeseries" in made:
            return _with(change, facts, hasNoEvents=True)
        if made.get("temp") or not made.get("capped") or namespace not in self._config.namespaces:
            return change
        self._copy_anew(namespace, change.token)
        return _with(change, facts, rowsFollow=True)

    def _copy_anew(self, namespace: Namespace, token: Token) -> None:
        """Copy a collection from its beginning, also where the copy under way has had it."""
        copying = self._writer.copying
        if copying is None:
            self._copy_on(Copying(snapshot=token.data, pending=(namespace,), covers=(namespace,)))
            return
        under_way = copying.pending[:1] == (namespace,)
        self._copy_on(
            structs.replace(
                copying,
                pending=(*(left for left in copying.pending if left != namespace), namespace),
                after=None if under_way else copying.after,
                copies=copying.copies + 1,
                covers=(*(one for one in copying.covers if one != namespace), namespace),
            )
        )

    def _said(self, operation: str, copying: Copying) -> Commit:
        ends = operation == "snapshot_completed"
        namespaces = copying.covers if ends else copying.pending
        facts: dict[str, object] = {
            "source": self._source,
            "snapshot": copying.snapshot,
            "collections": [".".join(namespace) for namespace in namespaces],
            "documents": copying.documents,
            "whole": copying.whole,
        }
        place = self._place(self._token)
        again = copying.announcements > 0 and not ends
        if again:
            facts["again"] = True
        identity = f"{copying.snapshot}:{copying.announcements}" if again else copying.snapshot
        event = system_event(self._source, self._config, operation, identity, self._token, facts)
        return Commit(source=self._source, position=place, events=(event,))

    # --- an event that no reply can hold --------------------------------------------------------

    async def _approach_or_name(self, error: OperationFailure) -> Sequence[Commit | Fragment]:
        """Before an event over 16 MiB: read what is before it one by one, then stop with its key.

        Raises UndecodableError at the event itself (S9): a restart would only meet it again. Where
        letters are kept, returns its letter instead, and the reading goes on after it.
        """
        if not self._one_by_one:
            # It is in the reply after those that were read already.
            self._one_by_one = 2 * self._config.batch_events_max
            return ()
        cursor = self._cursor()
        pipeline = self._pipeline()
        for image in ("fullDocument", "fullDocumentBeforeChange"):
            pipeline[0]["$changeStream"].pop(image, None)
        pipeline = [stage for stage in pipeline if "$changeStreamSplitLargeEvent" not in stage]
        pipeline.append({"$project": dict.fromkeys(ENVELOPE, 1)})
        try:
            await cursor.open(pipeline)
            raw = await self._named(cursor, error)
        finally:
            await cursor.close()
        event = decode(raw)
        version = ".".join(map(str, self._deployment.version))
        what = f"{event['operationType']} of {'.'.join(event['ns'].values())}"
        reason = (
            f"its change event is over 16 MiB, and MongoDB {version} cannot split it (6.0.9 and "
            f"later can; without pre- and post-images it may fit)"
        )
        position = event["_id"]["_data"]
        if self._letters is not None:
            said = UndecodableError(
                source=self._source, what=f"{what}: {reason}", position=position
            )
            return self._poisoned(self._letters.change([raw], said, sent=False))
        key = bytes(self._normaliser.encode(event.get("documentKey", {}))).decode()
        raise UndecodableError(
            source=self._source, what=f"{what}, key {key}: {reason}", position=position
        ) from None

    async def _named(self, cursor: ChangeCursor, error: OperationFailure) -> bytes:
        """The event that the server could not send: the next one, which its message names."""
        found = re.search(r'_data: "([0-9A-F]+)"', str((error.details or {}).get("errmsg")))
        for _ in range(_NAMING_TRIES):
            reply = await cursor.more(await_ms=BUSY_AWAIT_MS)
            if reply.events:
                raw = reply.events[0]
                if found is None or raw_token(raw) == found[1]:
                    return raw
                break
        raise error


def _with(change: Change, facts: Mapping[str, object], **more: bool) -> Change:
    """The change whose description says more."""
    description = Raw(json.encode({**facts, **more}))
    return structs.replace(change, event=structs.replace(change.event, description=description))


def system_event(
    source: str,
    config: MongoSourceConfig,
    operation: str,
    identity: str,
    token: Token,
    facts: Mapping[str, object],
) -> SystemEvent:
    """What Penstock says of the source itself, at `token`; `identity` makes its id."""
    database = config.database or ""
    return SystemEvent(
        event_id=event_id(source, f"{operation}:{identity}", 0),
        source=source,
        database=database,
        tenant=control_tenant(config.tenant, database=database, source=source),
        collection="",
        cluster_time=token.time,
        timestamp=token.time.t * 1000,
        position=token.data,
        operation=operation,
        description=Raw(json.encode(facts)),
    )
