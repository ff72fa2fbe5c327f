"""Dealing with dead letters, in the stream of the source that kept them.

A letter's change is old: newer ones of its document may be in the log already, and applied after
them it would bring an old state back. So the document is read as it is now and said at the place p
where the stream stands, as a chunk of a snapshot is, and for the same reason that is right: it is
read at or after p, and whatever happened to it after p comes later in the log. A document that is
gone is said as a delete. The collection must be the one that the letter was of: if it was dropped
or renamed since, its rows went with it, and only a copy of the new one brings them.
"""

import asyncio
from base64 import b64decode
from collections import deque
from collections.abc import Sequence

from bson import Timestamp
from bson.raw_bson import RawBSONDocument
from msgspec import Struct

from penstock.capture.deadletter import Letter, Outcome, replayed, settled
from penstock.errors import SourceUnavailableError, UndecodableError
from penstock.event import AnyEvent, ChangeEvent
from penstock.sources.mongodb.config import MongoSourceConfig
from penstock.sources.mongodb.cursor import RAW
from penstock.sources.mongodb.deployment import Client
from penstock.sources.mongodb.normalise import Normaliser
from penstock.sources.mongodb.positions import Token
from penstock.sources.mongodb.snapshot import key_of


class Asked(Struct, frozen=True):
    """Letters to deal with, and who waits for it."""

    letters: Sequence[Letter]
    settle: bool
    everything: bool
    """None are left then."""
    answer: asyncio.Future[list[Outcome]]


class Inbox:
    """What a session is asked to do between two replies of its stream; in order."""

    def __init__(self) -> None:
        self._waiting: deque[Asked] = deque()
        self.arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done while somebody waits."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def ask(
        self, letters: Sequence[Letter], *, settle: bool, everything: bool
    ) -> list[Outcome]:
        """Wait for the session's answer."""
        answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._waiting.append(Asked(letters, settle, everything, answer))
        if not self.arrived.done():
            self.arrived.set_result(None)
        return await answer

    @property
    def first(self) -> Asked:
        """What is asked next; there must be something."""
        return self._waiting[0]

    def answer(self, outcomes: list[Outcome]) -> None:
        """Answer the first, who no longer waits then."""
        answer = self._waiting.popleft().answer
        if not answer.done():
            answer.set_result(outcomes)
        if not self._waiting:
            self.arrived = asyncio.get_running_loop().create_future()

    def refuse(self, source: str) -> None:
        """Answer everyone who waits that the session has ended."""
        while self._waiting:
            answer = self._waiting.popleft().answer
            if not answer.done():
                answer.set_exception(
                    SourceUnavailableError(
                        f"{source}: capture broke off before it came to this. Nothing was "
                        f"changed. Ask again when `penstock status` shows it running."
                    )
                )


class Rereader:
    """Says what the documents of letters are now, at one place of the stream."""

    def __init__(
        self, source: str, config: MongoSourceConfig, client: Client, normaliser: Normaliser
    ) -> None:
        self._source = source
        self._config = config
        self._client = client
        self._normaliser = normaliser

    async def events(self, asked: Asked, token: Token) -> tuple[list[AnyEvent], list[Outcome]]:
        """The events of all letters that can be dealt with, and what became of each letter.

        Raises what the driver raises.
        """
        events: list[AnyEvent] = []
        outcomes: list[Outcome] = []
        for letter in asked.letters:
            said: list[AnyEvent] | str = []
            if not asked.settle:
                said = await self._document(letter, token)
            if isinstance(said, str):
                outcomes.append(Outcome(letter=letter.id, done=False, detail=said))
                continue
            word = "settled" if asked.settle else "replayed"
            where, at = token.data, token.time
            events += said
            events.append(settled(letter, source=self._source, position=where, at=at))
            events.append(
                replayed(
                    letter,
                    operation=f"dead_letter_{word}",
                    source=self._source,
                    position=where,
                    at=at,
                )
            )
            outcomes.append(Outcome(letter=letter.id, done=True, detail=word))
        return events, outcomes

    async def _document(self, letter: Letter, token: Token) -> list[AnyEvent] | str:
        """The letter's document as it is now; a sentence where that cannot be said."""
        namespace = (letter.database, letter.collection)
        copy = (
            f"copy it again with `penstock snapshot {self._source} "
            f"{letter.database}.{letter.collection}`, then settle the letter"
        )
        if letter.key_raw is None or not letter.collection:
            return f"it names no document that could be read again; {copy}"
        if namespace not in self._config.namespaces:
            return "its collection is not captured any more; settle it if that is meant"
        key = b64decode(letter.key_raw["$binary"]["base64"])
        found = await self._read(namespace, key, token)
        if not await self._is_same(letter):
            return f"its collection was dropped or renamed since; {copy}"
        where = f"{letter.id}:{token.data}"
        said: list[AnyEvent] = []
        try:
            row: ChangeEvent | None = None
            if found is not None:
                row = self._normaliser.copied(
                    found, namespace=namespace, copy=f"replay:{where}", at=token.time
                )
            # To the server 5 and 5.0 are one key. To us they are two, and this one is gone. One
            # that became another tenant's is gone for the tenant before.
            is_gone = found is None or key_of(found) != key
            if is_gone or (letter.left and row is not None and row.tenant != letter.tenant):
                said.append(
                    self._normaliser.gone(
                        key, namespace=namespace, where=where, at=token.time, tenant=letter.tenant
                    )
                )
            if row is not None:
                said.append(row)
        except UndecodableError as error:
            return f"still undecodable: {error.what}"
        return said

    async def _read(self, namespace: tuple[str, str], key: bytes, token: Token) -> bytes | None:
        """The document, as of the token's time or later, committed by a majority."""
        database, collection = namespace
        # A stream that was opened "now" stands at a time that no write may have yet.
        now = (await self._client.admin.command("ping"))["$clusterTime"]["clusterTime"]
        at = min(Timestamp(token.time.t, token.time.i), now)
        reply = await self._client[database].command(
            {
                "find": collection,
                "filter": RawBSONDocument(key),
                "limit": 1,
                "singleBatch": True,
                "readConcern": {"level": "majority", "afterClusterTime": at},
            },
            codec_options=RAW,
        )
        return next((bytes(found.raw) for found in reply["cursor"]["firstBatch"]), None)

    async def _is_same(self, letter: Letter) -> bool:
        """Whether the collection is there, and the one that the letter was of as far as is known.

        Asked after the document was read: a rename in between would leave it out of both names.
        """
        listed = await self._client[letter.database].list_collections(
            filter={"name": letter.collection, "type": "collection"}
        )
        async for entry in listed:
            uuid = entry["info"].get("uuid")
            return not letter.generation or uuid is None or uuid.hex() == letter.generation
        return False
