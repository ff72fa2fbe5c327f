"""What zero-cache itself does with our messages: what the endpoint builds on, proven."""

import asyncio
from typing import Any

import pytest

from penstock.zero.lexi import lexi_version
from penstock.zero.messages import (
    AckRequested,
    AddColumn,
    Begin,
    Change,
    ColumnSpec,
    Data,
    Delete,
    DropColumn,
    DropTable,
    Insert,
    NamedColumn,
    RenameTable,
    Rollback,
    Status,
    TableId,
    Truncate,
    Update,
    UpdateColumn,
)
from tests.zero.real import reached, real_client, zero_cache
from tests.zero.scripted import (
    ScriptedEndpoint,
    relation,
    row,
    system_tables,
    table,
    transaction,
)
from tests_support.servers import RESET_EXIT_CODE, PostgresServer

pytestmark = pytest.mark.slow

ITEM = relation("item", "id")
COLUMNS = {"id": "text!", "n": "int8", "at": "timestamptz", "j": "json", "tags": "text[]"}


def item(name: str, **values: Any) -> Insert:
    """A row of the table that the tests follow."""
    return Insert(relation=ITEM, new=row(id=name, **values))


def begun(*more: Change) -> ScriptedEndpoint:
    """An endpoint with a table of two rows at watermark 1."""
    first = [item("a", n=1, at=1700000000123.456, j={"x": [1]}, tags=["p"]), item("b", n=1 << 60)]
    changes = [*table("item", COLUMNS, key=["id"]), *first, *system_tables("item"), *more]
    return ScriptedEndpoint(snapshot=transaction(lexi_version(1), *changes))


async def test_a_snapshot_with_the_system_tables_is_replicated_and_followed(
    zero_state: PostgresServer,
) -> None:
    """Z1, Z2, Z6: the parameters that are shipped, the second connection, and the rows."""
    async with begun().running() as endpoint, zero_cache(zero_state, endpoint.url) as cache:
        tables = await reached(cache, lexi_version(1))
        assert tables["item"] == [
            {"id": "a", "n": 1, "at": 1700000000123.456, "j": '{"x":[1]}', "tags": '["p"]'},
            {"id": "b", "n": 1 << 60, "at": None, "j": None, "tags": None},
        ]
        assert tables["zero_0.clients"] == tables["zero_0.mutations"] == []
        assert [one["lock"] for one in tables["zero.permissions"]] == [1]
        await endpoint.until_asked(2)
        first, second = endpoint.requests
        assert {"appID", "shardNum"} <= set(dict(first))
        assert not {"lastWatermark", "shardID"} & set(dict(first))
        assert dict(second)["lastWatermark"] == dict(second)["replicaVersion"] == lexi_version(1)


async def test_transactions_are_applied_and_acknowledged_and_a_client_sees_them(
    zero_state: PostgresServer,
) -> None:
    """Z1, Z3, Z5: with LexiVersions and a unique index a real client gets every row."""
    schema = {"item": {"columns": {"id": "string", "n": "number"}, "key": ["id"]}}
    endpoint = begun(Update(relation=ITEM, key=None, new=row(id="b", n=2)))
    async with endpoint.running(), zero_cache(zero_state, endpoint.url) as cache:
        async with real_client(cache, schema) as client:
            rows = await client.rows("item", lambda rows: len(rows) == 2)
            assert rows == [{"id": "a", "n": 1}, {"id": "b", "n": 2}]
            moved = Update(relation=ITEM, key=row(id="b"), new=row(id="c", n=3))
            gone = Delete(relation=ITEM, key=row(id="a"))
            await endpoint.say(*transaction(lexi_version(36), moved, gone, item("d", n=4)))
            rows = await client.rows("item", lambda rows: len(rows) == 2 and rows[0]["id"] == "c")
            assert rows == [{"id": "c", "n": 3}, {"id": "d", "n": 4}]
        await endpoint.until_told(["status", {"tag": "commit"}, {"watermark": lexi_version(36)}])


async def test_a_status_is_echoed_unless_it_asks_for_nothing(zero_state: PostgresServer) -> None:
    """Z1, Z4: what is echoed does not move where the client comes back from."""
    endpoint = begun()
    async with endpoint.running(), zero_cache(zero_state, endpoint.url) as cache:
        await endpoint.say(
            *transaction(lexi_version(2), item("c"), skip_ack=True),
            Status(watermark=lexi_version(3), ack=False),
            Status(watermark=lexi_version(4)),
        )
        await endpoint.until_told(["status", {"ack": True}, {"watermark": lexi_version(4)}])
        assert [mark["watermark"] for _, _, mark in endpoint.upstream] == [lexi_version(4)]
        await asyncio.to_thread(cache.restart)
        await endpoint.until_asked(3)
        assert dict(endpoint.requests[-1])["lastWatermark"] == lexi_version(2)


async def test_tables_change_while_they_are_followed(zero_state: PostgresServer) -> None:
    ident = TableId(schema="public", name="item")
    added = NamedColumn(name="s", spec=ColumnSpec(pos=9, data_type="text", dflt="'x'::text"))
    renamed = NamedColumn(name="t", spec=ColumnSpec(pos=9, data_type="text"))
    other = relation("other", "id")
    endpoint = begun()
    async with endpoint.running(), zero_cache(zero_state, endpoint.url) as cache:
        await endpoint.say(
            *transaction(lexi_version(2), AddColumn(table=ident, column=added), item("c", s="y")),
            *transaction(lexi_version(3), UpdateColumn(table=ident, old=added, new=renamed)),
            *transaction(lexi_version(4), DropColumn(table=ident, column="tags")),
            *transaction(lexi_version(5), *table("other", {"id": "text!"}, key=["id"])),
            *transaction(lexi_version(6), Insert(relation=other, new=row(id="o"))),
        )
        tables = await reached(cache, lexi_version(6))
        assert [(one["id"], one["t"]) for one in tables["item"]] == [
            ("a", "x"),
            ("b", "x"),
            ("c", "y"),
        ]
        assert "tags" not in tables["item"][0]
        assert tables["other"] == [{"id": "o"}]
        await endpoint.say(
            *transaction(lexi_version(7), Truncate(relations=(ITEM,))),
            *transaction(lexi_version(8), DropTable(id=TableId(schema="public", name="other"))),
            *transaction(lexi_version(9), RenameTable(old=ident, new=TableId("public", "items"))),
        )
        tables = await reached(cache, lexi_version(9))
        assert tables["items"] == []
        assert not {"item", "other"} & set(tables)


async def test_what_is_rolled_back_is_in_no_replica(zero_state: PostgresServer) -> None:
    endpoint = begun()
    async with endpoint.running(), zero_cache(zero_state, endpoint.url) as cache:
        await endpoint.say(
            Begin(watermark=lexi_version(2)),
            Data(item("lost")),
            Rollback(),
            *transaction(lexi_version(2), item("c")),
        )
        tables = await reached(cache, lexi_version(2))
        assert [one["id"] for one in tables["item"]] == ["a", "b", "c"]


async def test_json_may_come_as_its_text(zero_state: PostgresServer) -> None:
    endpoint = begun()
    async with endpoint.running(), zero_cache(zero_state, endpoint.url) as cache:
        _, data, end = transaction(lexi_version(2), item("c", j='{"raw":  1.0}'))
        await endpoint.say(Begin(watermark=lexi_version(2), json="s"), data, end)
        tables = await reached(cache, lexi_version(2))
        assert tables["item"][-1]["j"] == '{"raw":  1.0}'


async def test_told_to_begin_anew_it_ends_and_then_does(zero_state: PostgresServer) -> None:
    """Z4, Z11."""
    endpoint = begun()
    async with endpoint.running(), zero_cache(zero_state, endpoint.url) as cache:
        await reached(cache, lexi_version(1))
        await asyncio.to_thread(cache.kill)
        endpoint.resets = "what follows was removed"
        again = [one.change for one in begun(item("z")).snapshot if isinstance(one, Data)]
        endpoint.snapshot = transaction(lexi_version(7), *again)
        # Its first start follows the old replica for a moment, and may answer before it ends.
        cache.waits = False
        await asyncio.to_thread(cache.restart)
        assert await asyncio.to_thread(cache.exit_code) == RESET_EXIT_CODE
        endpoint.resets, cache.waits = None, True
        await asyncio.to_thread(cache.restart)
        tables = await reached(cache, lexi_version(7))
        assert [one["id"] for one in tables["item"]] == ["a", "b", "z"]


async def test_killed_under_way_it_goes_on_from_the_last_commit(
    zero_state: PostgresServer,
) -> None:
    endpoint = begun()
    async with endpoint.running(), zero_cache(zero_state, endpoint.url) as cache:
        await endpoint.say(
            *transaction(lexi_version(2), item("c")), Begin(watermark=lexi_version(3))
        )
        await endpoint.until_told(["status", {"tag": "commit"}, {"watermark": lexi_version(2)}])
        await asyncio.to_thread(cache.kill)
        endpoint.script.pop()
        await endpoint.say(*transaction(lexi_version(3), item("d")))
        await asyncio.to_thread(cache.restart)
        tables = await reached(cache, lexi_version(3))
        assert [one["id"] for one in tables["item"]] == ["a", "b", "c", "d"]


async def test_a_message_that_is_not_of_the_protocol_ends_the_connection(
    zero_state: PostgresServer,
) -> None:
    """Z1: the first design's word for a keepalive is none of what ships."""
    endpoint = begun()
    async with endpoint.running(), zero_cache(zero_state, endpoint.url):
        await endpoint.until_asked(2)
        ended = len(endpoint.closed)
        await endpoint.say(AckRequested(watermark=lexi_version(2)))
        await endpoint.until_closed(ended + 1)
        endpoint.script.clear()
        assert endpoint.closed[ended][0] == 1011
