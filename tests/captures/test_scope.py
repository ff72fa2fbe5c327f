"""What is not allowed is not there: not matched, not counted, not told."""

from typing import Any

import pytest
from msgspec import structs

from penstock.errors import RenamedError
from penstock.event import AnyEvent
from penstock.extjson import encode
from penstock.log.memory import MemoryLog
from penstock.progress import parse_progress
from penstock.subscribe.captures import Boundary, parse_request
from penstock.subscribe.captures.pages import Pages
from penstock.subscribe.resume import oldest
from penstock.subscribe.scope import EVERYTHING, Grant, Scope, Verb
from penstock.wire import Stream
from tests.captures.support import captures, confirmed, finished, rest, sequences, subscribed
from tests.subscribe.events import change, commit, schema, system

EVERY: dict[str, Any] = {"id": "a", "since": "beginning"}
ORDERS = Scope((Grant(collections=frozenset({"orders"})),))
NOTHING = Scope(())


def mixed() -> list[AnyEvent]:
    return [
        change(1),
        change(2, collection="secrets", ordinal=1),
        change(3, collection="secrets", ordinal=2),
        change(4, ordinal=3),
    ]


async def test_a_transaction_is_counted_as_far_as_it_may_be_seen() -> None:
    log = MemoryLog()
    await log.append([commit(*mixed())])
    await log.append([commit(change(5, collection="secrets"))])
    async with subscribed(log, EVERY, scope=ORDERS) as session:
        found = await rest(session)
    edges = [one for one in found if isinstance(one, Boundary)]
    assert [(edge.version, edge.rows, edge.digest, edge.matched) for edge in edges] == [
        (1, 2, None, {"a": 2}),
        (1, 2, None, {"a": 2}),
    ]
    assert sequences(found) == [1, 4]
    async with subscribed(log, EVERY) as session:
        edges = [one for one in await rest(session) if isinstance(one, Boundary)]
    assert [edge.rows for edge in edges] == [4, 4, 1, 1]
    assert all(edge.digest is not None for edge in edges)


async def test_what_is_denied_answers_like_what_is_absent() -> None:
    log = MemoryLog()
    await log.append([commit(*mixed())])
    answers: list[Any] = []
    for scope, name in ((ORDERS, "secrets"), (EVERYTHING, "absent"), (NOTHING, "orders")):
        asked = {**EVERY, "criteria": [{"area": "data", "site": {"entityType": name}}]}
        async with subscribed(log, asked, scope=scope) as session:
            found = await rest(session)
            answers.append((confirmed(found), captures(found), dict(session.positions())))
    assert answers[0] == answers[1] == answers[2]


async def test_shape_and_state_of_a_source_need_their_verb() -> None:
    log = MemoryLog()
    await log.append([commit(schema(1)), commit(system(2)), commit(change(3))])
    shapes = Scope((Grant(verbs=frozenset({Verb.SCHEMA})),))
    for scope, expected in ((ORDERS, [3]), (shapes, [1, 2]), (EVERYTHING, [1, 2, 3])):
        asked = {**EVERY, "criteria": [{"area": "data"}, {"area": "schema"}, {"area": "system"}]}
        async with subscribed(log, asked, scope=scope) as session:
            assert sequences(await rest(session)) == expected


async def test_a_loss_is_told_to_who_could_not_be_told_of_gaps() -> None:
    """Never a silence, whatever the scope."""
    log = MemoryLog()
    await log.append([commit(change(1)), commit(system(2, "gap")), commit(change(3))])
    asked = {**EVERY, "criteria": [{"area": "data"}, {"area": "system"}]}
    async with subscribed(log, asked, scope=ORDERS) as session:
        found = await rest(session)
    assert sequences(found) == [1]
    assert [type(one).__name__ for one in found if type(one).__name__ == "Finished"] == ["Finished"]


READS = frozenset({Verb.READ})
LINES = Scope((Grant(collections=frozenset({"lines"})),))
BOTH = Scope((Grant(collections=frozenset({"orders", "lines"})),))


@pytest.mark.parametrize(
    ("scope", "name", "told"),
    [
        (ORDERS, "orders", "orders"),
        (ORDERS, "", "orders"),
        (LINES, "lines", "lines"),
        (LINES, "", "lines"),
        (BOTH, "orders", "orders"),
        (BOTH, "lines", "lines"),
        (BOTH, "", ""),
        (LINES, "orders", ""),
        (NOTHING, "orders", ""),
    ],
)
async def test_a_rename_ends_the_stream_of_who_may_read_the_name_and_not_see_shapes(
    scope: Scope, name: str, told: str
) -> None:
    """E12: never a silence; and nothing of what is denied, nor that it was there."""
    log = MemoryLog()
    await log.append(
        [
            *(commit(change(1)), commit(schema(2, "rename", to="lines"))),
            *(commit(change(3)), commit(change(4, collection="lines"))),
        ]
    )
    site = {"entityType": name} if name else {}
    asked = {**EVERY, "criteria": [{"area": "data", "site": site}]}
    async with subscribed(log, asked, scope=scope) as session:
        found = await rest(session)
    errors = [one.error for one in finished(found)]
    if not told:
        assert errors == []
        return
    (error,) = errors
    assert isinstance(error, RenamedError)
    assert parse_progress(error.after).sequence == 2
    assert told in str(error)
    assert {"orders": "lines", "lines": "orders"}[told] not in str(error)
    assert all(sequence < 2 for sequence in sequences(found))
    resumed = {**asked, "since": {"progress": error.after}}
    async with subscribed(log, resumed, scope=scope) as session:
        assert sequences(await rest(session))


async def test_a_rename_out_of_a_catalog_is_told_to_who_follows_it() -> None:
    """E12."""
    moved = schema(2, "rename", to="lines")
    elsewhere = structs.replace(moved, description=encode({"to": {"db": "old", "coll": "orders"}}))
    log = MemoryLog()
    await log.append([commit(change(1)), commit(moved), commit(elsewhere)])
    asked = {**EVERY, "criteria": [{"area": "data", "site": {"catalog": "shop.db"}}]}
    async with subscribed(log, asked) as session:
        assert sequences(await rest(session)) == [1, 3]
    reads = Scope((Grant(verbs=READS),))
    pages = Pages(log, parse_request(asked, new_id=str), scope=reads, limit=9, bytes_max=1 << 20)
    page = await pages.after(oldest(await log.bounds()))
    assert page.until.sequence == 2
    with pytest.raises(RenamedError):
        await pages.after(page.until)


def test_grants_add_up_and_hide_only_what_all_of_them_hide() -> None:
    orders = Stream("shop", "db", "db", "orders")
    lines = Stream("shop", "db", "db", "lines")
    scope = Scope(
        (
            Grant(collections=frozenset({"shop/orders"}), hidden=frozenset({"card", "mail"})),
            Grant(
                sources=frozenset({"shop"}), tenants=frozenset({"db"}), hidden=frozenset({"mail"})
            ),
        )
    )
    assert scope.hidden(orders) == {"mail"}
    assert scope.allows(Verb.READ, lines)
    assert not scope.allows(Verb.READ, lines._replace(tenant="other"))
    assert not scope.allows(Verb.READ, lines._replace(source="erp"))
    assert not scope.allows(Verb.BEFORE_IMAGES, orders)
    assert not scope.is_everything
    assert EVERYTHING.is_everything
