"""Whatever happens to a shard's connection, its replica is the source's rows at each watermark."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct, json, structs
from websockets.asyncio.client import ClientConnection

from penstock.event import ChangeEvent, Operation
from penstock.serve.zero.watermarks import watermark_of
from tests.seeds import cases
from tests.state.histories import change
from tests.waiting import PATIENCE_SECONDS
from tests.zero.endpoint import DESIGN, SHIPPED, Endpoint, Replica, ack, connection, message, served

pytestmark = pytest.mark.slow

TABLES: dict[str, Any] = {
    "item": {
        "source": "shop",
        "collection": "items",
        "columns": {"id": {"from": "_id", "type": "int"}, "name": "text", "kind": "text"},
        "key": ["id"],
        "new_fields": "add",
    },
    "article": {
        "source": "shop",
        "collection": "items",
        "columns": {"id": {"from": "_id", "type": "int"}, "name": "text"},
        "key": ["id"],
        "where": {"kind": "article"},
        "rest": "rest",
    },
    "other": {
        "source": "shop",
        "collection": "others",
        "columns": {"id": {"from": "_id", "type": "int"}},
        "key": ["id"],
    },
}
"""One table of everything, one of what is an article, and one of another collection."""


class Write(Struct, frozen=True):
    """What somebody does with a document."""

    collection: str
    key: int
    what: str
    name: str
    kind: str
    extra: bool
    before: bool


writes = st.builds(
    Write,
    collection=st.sampled_from(["items", "items", "items", "others", "unseen"]),
    key=st.integers(0, 3),
    what=st.sampled_from(["put", "put", "delete"]),
    name=st.sampled_from(["a", "b"]),
    kind=st.sampled_from(["article", "page"]),
    extra=st.booleans(),
    before=st.booleans(),
)
histories = st.lists(st.lists(writes, min_size=1, max_size=4), min_size=1, max_size=8)


class Visit(Struct, frozen=True):
    """What a client does between two connections."""

    commits: int
    """That are made while it is connected."""
    messages: int
    """That it takes before it goes."""
    acks: bool


visits = st.lists(
    st.builds(Visit, commits=st.integers(0, 3), messages=st.integers(0, 12), acks=st.booleans()),
    min_size=1,
    max_size=6,
)


class Source:
    """A dict of dicts, and what the tables should be at each commit."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._documents: dict[tuple[str, int], dict[str, Any]] = {}
        self.tables: dict[int, dict[str, Any]] = {}
        self._position = 10

    async def commit(self, wanted: list[Write]) -> int:
        """One transaction."""
        self._position += 1
        events = [self._event(one, ordinal) for ordinal, one in enumerate(wanted)]
        number = await self._endpoint.append(*events)
        self.tables[number] = self.shown()
        return number

    def _event(self, write: Write, ordinal: int) -> ChangeEvent:
        at = (write.collection, write.key)
        before = self._documents.pop(at, None)
        operation = Operation.DELETE
        document: dict[str, Any] | None = None
        if write.what == "put":
            document = {"_id": write.key, "name": write.name, "kind": write.kind}
            if write.extra:
                document["extra"] = {"n": [write.key]}
            self._documents[at] = document
            operation = Operation.INSERT if before is None else Operation.REPLACE
        event = change(
            "shop",
            write.collection,
            write.key,
            operation,
            document,
            position=self._position,
            ordinal=ordinal,
        )
        if before is None or not write.before:
            return event
        return structs.replace(event, full_document_before_change=Raw(json.encode(before)))

    def shown(self) -> dict[str, Any]:
        """The tables, without columns that are null."""
        found: dict[str, dict[int, Any]] = {"item": {}, "article": {}, "other": {}}
        for (collection, key), document in self._documents.items():
            if collection == "others":
                found["other"][key] = {"id": key}
            if collection != "items":
                continue
            row = {name: value for name, value in document.items() if name != "_id"}
            found["item"][key] = {"id": key, **row}
            if document["kind"] == "article":
                rest = {name: row[name] for name in ("kind", "extra") if name in row}
                article = {"id": key, "name": document["name"]}
                found["article"][key] = {**article, "rest": rest} if rest else article
        return found


def held(replica: Replica) -> dict[str, Any]:
    """The same of a replica."""
    return {
        table: {
            row["id"]: {name: value for name, value in row.items() if value is not None}
            for row in replica.rows[table].values()
        }
        for table in ("item", "article", "other")
    }


async def visit(
    socket: ClientConnection, replica: Replica, source: Source, plan: Visit, until: int | None
) -> None:
    """Take messages, and hold the replica against the source at each commit."""
    taken = 0
    while until is not None or taken < plan.messages:
        before = len(replica.transactions)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS if until is not None else 0.05):
                tag = replica.take(await message(socket))
        except TimeoutError:
            assert until is None
            return
        taken += 1
        assert not replica.resets
        if len(replica.transactions) > before:
            assert held(replica) == source.tables[replica.commit], replica.watermark
            if plan.acks:
                await ack(socket, replica.watermark)
        elif tag == "status" and plan.acks:
            await ack(socket, replica.statuses[-1], of_rows=False)
        told = max([replica.watermark, *replica.statuses[-1:]])
        if until is not None and replica.watermark and told >= watermark_of(until, None):
            return


async def folded(
    history: list[list[Write]], first: int, plans: list[Visit], dialect: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with served(Path(folder), tables=TABLES) as endpoint:
            source = Source(endpoint)
            head = (await endpoint.log.bounds()).head_commit
            source.tables[head] = source.shown()
            rest = list(history)
            for _ in range(min(first, len(rest))):
                await source.commit(rest.pop(0))
            replica = Replica()
            for plan in [*plans, None]:
                last = plan is None
                known = replica.resuming() if replica.watermark else {}
                replica.statuses.clear()
                async with connection(endpoint, **dialect, **known) as socket:
                    number = (await endpoint.log.bounds()).head_commit
                    for _ in range(len(rest) if last or plan is None else plan.commits):
                        if rest:
                            number = await source.commit(rest.pop(0))
                    done = plan or Visit(commits=0, messages=0, acks=True)
                    await visit(socket, replica, source, done, number if last else None)
                replica.abandon()
            assert held(replica) == source.shown()
            numbers = replica.transactions
            assert len({*numbers}) == len(numbers), "no transaction twice"


ends = (histories, st.integers(0, 4), visits, st.sampled_from([SHIPPED, DESIGN]))


@settings(max_examples=cases(15), deadline=None)
@given(*ends)
def test_the_fold_of_what_was_told_is_the_sources_rows_at_each_watermark(
    history: list[list[Write]], first: int, plans: list[Visit], dialect: dict[str, str]
) -> None:
    """Z2, Z4, Z10: over connections that end at any message, and writes at any time: nothing is
    lost, and a transaction is told whole and once."""
    asyncio.run(folded(history, first, plans, dialect))


@pytest.mark.soak
@settings(max_examples=cases(100), deadline=None)
@given(*ends)
def test_so_it_is_in_many_histories(
    history: list[list[Write]], first: int, plans: list[Visit], dialect: dict[str, str]
) -> None:
    """Z2, Z4, Z10."""
    asyncio.run(folded(history, first, plans, dialect))
