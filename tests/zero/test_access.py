"""Who may be a shard, and what it sees."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from websockets.exceptions import InvalidStatus

from penstock.event import ChangeEvent, Operation
from penstock.serve.access import Access, AccessConfig
from penstock.subscribe.scope import Verb
from tests.access.support import issue, revoke
from tests.state.histories import change, schema
from tests.zero.endpoint import (
    DESIGN,
    SHIPPED,
    Endpoint,
    Replica,
    connection,
    fold,
    served,
)

TABLES: dict[str, Any] = {
    "item": {
        "source": "shop",
        "collection": "items",
        "columns": {
            "id": {"from": "_id", "type": "int"},
            "name": "text",
            "secret": "text",
        },
        "key": ["id"],
        "rest": "rest",
    },
    "other": {
        "source": "shop",
        "collection": "others",
        "columns": {"id": {"from": "_id", "type": "int"}},
        "key": ["id"],
    },
}


class Ticking:
    """Seconds that pass when somebody looks: files are read again every time."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 5.0
        return self.now


@asynccontextmanager
async def guarded(folder: Path, **access: Any) -> AsyncGenerator[tuple[Endpoint, Path]]:
    tokens = folder / "access.json"
    issue(tokens, "nobody", verbs=("schema",))
    clock = Ticking()
    door = Access(AccessConfig.model_validate({"tokens": tokens, **access}), clock=clock)
    try:
        async with served(folder / "log", access=door, tables=TABLES) as endpoint:
            yield endpoint, tokens
    finally:
        door.close()


def of_tenant(tenant: str, document: dict[str, Any], *, position: int = 2) -> ChangeEvent:
    """A row of a tenant that its document names."""
    key = document["_id"]
    found = change("shop", "items", key, Operation.REPLACE, document, position=position)
    return structs.replace(found, tenant=tenant)


async def refused(endpoint: Endpoint, **parameters: Any) -> tuple[int, str]:
    """The answer before the handshake."""
    with pytest.raises(InvalidStatus) as refusal:
        async with connection(endpoint, **parameters):
            pass
    response = refusal.value.response
    return response.status_code, (response.body or b"").decode()


@pytest.mark.slow
async def test_a_token_in_the_url_opens_and_nothing_else_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Z9: zero-cache has nothing but its URL; and what is in that is written nowhere."""
    record = tmp_path / "access.log"
    with caplog.at_level(logging.DEBUG):
        async with guarded(tmp_path, log=record) as (endpoint, tokens):
            await endpoint.put(1, name="one", secret="s")
            await endpoint.applied()
            token = issue(tokens, "cache", verbs=tuple(Verb))
            assert (await refused(endpoint, **SHIPPED))[0] == 401
            assert (await refused(endpoint, **SHIPPED, apiKey="wrong"))[0] == 401
            assert (await refused(endpoint, **SHIPPED, apiKey=token, token=token))[0] == 401
            replica = Replica()
            for name in ("apiKey", "token"):
                async with connection(endpoint, **SHIPPED, **{name: token}) as socket:
                    await fold(socket, Replica() if replica.watermark else replica)
            assert replica.rows["item"].keys() == {(1,)}
            (status,) = endpoint.service.shards()
            assert status.who == "token:cache"
            revoke(tokens, "cache")
            assert (await refused(endpoint, **SHIPPED, apiKey=token))[0] == 401
    written = "".join(str(entry.__dict__) for entry in caplog.records if "penstock" in entry.name)
    told = capsys.readouterr()
    for text in (written, told.out, told.err, record.read_text()):
        assert token not in text
    assert "/changes/v0/stream" in record.read_text()


@pytest.mark.slow
async def test_a_shard_has_only_what_its_token_may_see(tmp_path: Path) -> None:
    """Hidden fields are in no row, no image and no rest column; other collections are no tables."""
    async with guarded(tmp_path) as (endpoint, tokens):
        await endpoint.put(1, name="one", secret="s1", more=1)
        await endpoint.put(2, "others")
        await endpoint.applied()
        token = issue(tokens, "few", collections=("items",), hidden=("secret",))
        replica = Replica()
        async with connection(endpoint, **SHIPPED, apiKey=token) as socket:
            await fold(socket, replica)
            assert "other" not in replica.tables
            assert "secret" not in replica.tables["item"]["columns"]
        document = {"_id": 1, "name": "two", "secret": "s2", "more": 2}
        commit = await endpoint.append(
            change("shop", "items", 1, Operation.REPLACE, document, position=9)
        )
        async with connection(endpoint, **SHIPPED, apiKey=token, **replica.resuming()) as socket:
            await fold(socket, replica, commit)
        assert replica.rows["item"] == {(1,): {"id": 1, "name": "two", "rest": {"more": 2}}}


@pytest.mark.slow
async def test_a_row_that_is_another_tenants_meanwhile_is_not_shown(tmp_path: Path) -> None:
    """An update without its document is told with the current one, which is somebody else's."""
    async with guarded(tmp_path) as (endpoint, tokens):
        await endpoint.append(of_tenant("acme", {"_id": 1, "name": "one"}))
        await endpoint.append(of_tenant("acme", {"_id": 2, "name": "two"}))
        await endpoint.applied()
        token = issue(tokens, "acme", tenants=("acme",))
        replica = Replica()
        async with connection(endpoint, **SHIPPED, apiKey=token) as socket:
            await fold(socket, replica)
        update: dict[str, Any] = {"updatedFields": {"more": 1}, "removedFields": []}
        bare = change("shop", "items", 1, Operation.UPDATE, update=update, position=20)
        await endpoint.append(structs.replace(bare, tenant="acme"))
        await endpoint.append(of_tenant("other", {"_id": 1, "name": "theirs"}, position=21))
        commit = await endpoint.append(of_tenant("acme", {"_id": 2, "name": "new"}, position=22))
        await endpoint.applied()
        async with connection(endpoint, **SHIPPED, apiKey=token, **replica.resuming()) as socket:
            await fold(socket, replica, commit)
        names = [row["name"] for row in replica.rows["item"].values()]
        assert sorted(names) == ["new", "one"]


@pytest.mark.slow
async def test_a_collection_that_is_dropped_is_gone_for_a_reader_of_one_tenant(
    tmp_path: Path,
) -> None:
    """Its rows are of many tenants, and that it was dropped is of its database."""
    async with guarded(tmp_path) as (endpoint, tokens):
        await endpoint.append(of_tenant("acme", {"_id": 1, "name": "one"}))
        await endpoint.applied()
        token = issue(tokens, "acme", tenants=("acme",))
        replica = Replica()
        async with connection(endpoint, **SHIPPED, apiKey=token) as socket:
            await fold(socket, replica)
            assert len(replica.rows["item"]) == 1
        dropped = schema("shop", "drop", "items", position=20)
        elsewhere = structs.replace(dropped, database="db2", tenant="db2")
        await endpoint.append(elsewhere)
        second = await endpoint.append(of_tenant("acme", {"_id": 2, "name": "two"}, position=21))
        async with connection(endpoint, **SHIPPED, apiKey=token, **replica.resuming()) as socket:
            await fold(socket, replica, second)
            assert len(replica.rows["item"]) == 2
            await endpoint.append(dropped)
            again = of_tenant("acme", {"_id": 3, "name": "three"}, position=23)
            await fold(socket, replica, await endpoint.append(again))
        assert [row["id"] for row in replica.rows["item"].values()] == [3]


@pytest.mark.slow
async def test_who_may_read_nothing_is_no_shard(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (endpoint, tokens):
        token = issue(tokens, "schema", verbs=("schema",))
        code, said = await refused(endpoint, **SHIPPED, apiKey=token)
        assert (code, "access.forbidden" in said) == (403, True)


@pytest.mark.slow
async def test_two_principals_of_one_name_are_two_shards(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (endpoint, tokens):
        await endpoint.put(1, name="one", secret="s")
        await endpoint.applied()
        for name in ("a", "b"):
            token = issue(tokens, name, verbs=tuple(Verb))
            async with connection(endpoint, **DESIGN, token=token) as socket:
                await fold(socket, Replica())
        assert [one.who for one in endpoint.service.shards()] == ["token:a", "token:b"]


@pytest.mark.slow
async def test_a_new_token_of_the_same_name_goes_on_where_the_old_one_was(tmp_path: Path) -> None:
    """Z9: so a token may be short-lived, and its next does not cost a copy."""
    async with guarded(tmp_path) as (endpoint, tokens):
        await endpoint.put(1, name="one", secret="s")
        await endpoint.applied()
        replica = Replica()
        async with connection(endpoint, **SHIPPED, apiKey=issue(tokens, "cache")) as socket:
            await fold(socket, replica)
        revoke(tokens, "cache")
        token = issue(tokens, "cache")
        commit = await endpoint.put(2, name="two", secret="s")
        async with connection(endpoint, **SHIPPED, apiKey=token, **replica.resuming()) as socket:
            await fold(socket, replica, commit)
        assert replica.rows["item"].keys() == {(1,), (2,)}


@pytest.mark.slow
async def test_what_is_wrong_with_a_url_is_told_before_the_handshake(tmp_path: Path) -> None:
    async with served(tmp_path) as endpoint:
        code, said = await refused(endpoint, appID="zero")
        assert (code, "shardNum" in said) == (400, True)
        code, said = await refused(endpoint, **SHIPPED, publications="nothing")
        assert (code, "publications" in said) == (400, True)
        endpoint.address += "/changes/v1/stream?"
        code, said = await refused(endpoint, **SHIPPED)
        assert (code, "v0" in said) == (404, True)
