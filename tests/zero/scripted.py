"""A change source that says what a test has it say, by the messages of `penstock.zero`.

It is no part of Penstock: what it proves is that the messages are what zero-cache takes, and that
zero-cache, as we start it, does what the tests of the endpoint hold it to.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Raw, json
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from penstock.zero.messages import (
    PATH,
    Begin,
    Change,
    ColumnSpec,
    Committed,
    CreateIndex,
    CreateTable,
    Data,
    Downstream,
    IndexSpec,
    Insert,
    Relation,
    ResetRequired,
    RowKey,
    TableSpec,
    downstream_text,
)


def row(**values: Any) -> dict[str, Raw]:
    """The columns of a row."""
    return {name: Raw(json.encode(value)) for name, value in values.items()}


def relation(name: str, *key: str, schema: str = "public") -> Relation:
    """A table whose rows are known by some columns."""
    return Relation(schema=schema, name=name, row_key=RowKey(columns=key))


def table(
    name: str, columns: dict[str, str], *, key: Sequence[str], schema: str = "public"
) -> list[Change]:
    """A table and the index that makes its rows known. A type that ends with `!` is never null."""
    specs = {
        column: ColumnSpec(
            pos=pos,
            data_type=kind.removesuffix("!"),
            not_null=kind.endswith("!"),
            elem_pg_type_class="b" if "[]" in kind else None,
        )
        for pos, (column, kind) in enumerate(columns.items(), 1)
    }
    index = IndexSpec(
        schema=schema,
        table_name=name,
        name=f"{name}_key",
        unique=True,
        columns=dict.fromkeys(key, "ASC"),
    )
    return [
        CreateTable(
            spec=TableSpec(schema=schema, name=name, columns=specs, primary_key=tuple(key))
        ),
        CreateIndex(spec=index),
    ]


def system_tables(*readable: str, app: str = "zero", shard: int = 0) -> list[Change]:
    """The three tables that zero-cache must have (Z6), and the row that lets anybody read."""
    schema = f"{app}_{shard}"
    anyone: Any = ["allow", {"type": "and", "conditions": []}]
    rules: Any = {"row": {"select": [anyone]}}
    permissions: Any = {"tables": dict.fromkeys(readable, rules)}
    return [
        *table(
            "clients",
            {
                **dict.fromkeys(("clientGroupID", "clientID"), "text!"),
                "lastMutationID": "int8!",
                "userID": "text",
            },
            key=("clientGroupID", "clientID"),
            schema=schema,
        ),
        *table(
            "mutations",
            {
                **dict.fromkeys(("clientGroupID", "clientID"), "text!"),
                "mutationID": "int8!",
                "mutation": "json!",
            },
            key=("clientGroupID", "clientID", "mutationID"),
            schema=schema,
        ),
        *table(
            "permissions",
            {"lock": "bool!", "permissions": "json", "hash": "text"},
            key=("lock",),
            schema=app,
        ),
        Insert(
            relation=relation("permissions", "lock", schema=app),
            new=row(lock=True, permissions=permissions, hash="1"),
        ),
    ]


def transaction(watermark: str, *changes: Change, skip_ack: bool = False) -> list[Downstream]:
    """The messages of one transaction."""
    return [
        Begin(watermark=watermark, skip_ack=skip_ack),
        *map(Data, changes),
        Committed(watermark=watermark),
    ]


@dataclass
class ScriptedEndpoint:
    """What it says, and what it was told. A client that begins anew gets `snapshot`, another one
    what `script` has behind its watermark, and then what is added."""

    snapshot: list[Downstream]
    script: list[Downstream] = field(default_factory=list[Downstream])
    requests: list[list[tuple[str, str]]] = field(default_factory=list[list[tuple[str, str]]])
    """The parameters of each connection."""
    upstream: list[Any] = field(default_factory=list[Any])
    closed: list[tuple[int | None, str]] = field(default_factory=list[tuple[int | None, str]])
    """How each connection ended: code and reason."""
    resets: str | None = None
    """What a client that comes back is told: that it must begin anew, and why."""
    refuses: bool = False
    """Whether nobody may connect."""
    filters: bool = True
    """Whether a client that comes back is spared what it has."""
    port: int = 0
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"ws://127.0.0.1:{self.port}{PATH}"

    async def say(self, *messages: Downstream) -> None:
        """Add to the script."""
        async with self.news:
            self.script.extend(messages)
            self.news.notify_all()

    async def until_told(self, message: Any) -> None:
        """Return once a client has said this."""
        async with self.news:
            await self.news.wait_for(lambda: message in self.upstream)

    async def until_asked(self, times: int) -> None:
        """Return once so many connections were made."""
        async with self.news:
            await self.news.wait_for(lambda: len(self.requests) >= times)

    async def until_closed(self, times: int) -> None:
        """Return once so many connections have ended."""
        async with self.news:
            await self.news.wait_for(lambda: len(self.closed) >= times)

    async def connected(self, connection: ServerConnection) -> None:
        """One client, until it goes."""
        assert connection.request is not None
        query = parse_qsl(urlsplit(connection.request.path).query)
        async with self.news:
            self.requests.append(query)
            self.news.notify_all()
        speaking = asyncio.ensure_future(self._speak(connection, dict(query).get("lastWatermark")))
        try:
            await self._listen(connection)
        finally:
            speaking.cancel()
            with suppress(ConnectionClosed, asyncio.CancelledError):
                await speaking

    async def _speak(self, connection: ServerConnection, after: str | None) -> None:
        if after is None:
            for message in self.snapshot:
                await connection.send(downstream_text(message).decode())
            last = self.snapshot[-1]
            assert isinstance(last, Committed)
            after = last.watermark
        elif self.resets is not None:
            await connection.send(downstream_text(ResetRequired(message=self.resets)).decode())
            await connection.wait_closed()
            return
        told, skips = 0, False
        while True:
            async with self.news:
                await self.news.wait_for(lambda at=told: len(self.script) > at)  # type: ignore[misc]
            message, told = self.script[told], told + 1
            if isinstance(message, Begin):
                skips = self.filters and message.watermark <= after
            if not skips:
                await connection.send(downstream_text(message).decode())
            if isinstance(message, Committed):
                skips = False

    async def _listen(self, connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            async for text in connection:
                heard = msgspec.json.decode(text)
                async with self.news:
                    self.upstream.append(heard)
                    self.news.notify_all()
        ended = (connection.close_code, connection.close_reason or "")
        async with self.news:
            self.closed.append(ended)
            self.news.notify_all()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["ScriptedEndpoint"]:
        """While it listens. It keeps its port when it is run again."""

        def look(connection: ServerConnection, request: Request) -> Response | None:
            if self.refuses:
                return connection.respond(HTTPStatus.FORBIDDEN, "nobody\n")
            if urlsplit(request.path).path == PATH:
                return None
            return connection.respond(HTTPStatus.NOT_FOUND, "no such path\n")

        async with serve(
            self.connected, "127.0.0.1", self.port, process_request=look, max_size=None
        ) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            yield self
            server.close()
