"""What the areas `system` and `infrastructure` have, from capture to whoever follows them."""

import json
from typing import Any

import pytest
from msgspec import structs

from penstock.capture import Supervised
from penstock.capture.status import State
from penstock.errors import PositionLostError
from penstock.log import MemoryLog
from penstock.subscribe.captures import Boundary, Captured
from penstock.subscribe.captures.rendering import boundary_json, capture_json
from penstock.subscribe.scope import Grant, Scope, Verb
from tests.capture.doubles import ManualClock
from tests.capture.doubles import commit as committed_by
from tests.capture.test_operate import Live, in_state, running
from tests.captures.support import captures, filled, rest, subscribed
from tests.subscribe.events import change, commit, schema, system

SYSTEM: dict[str, Any] = {
    "id": "a",
    "since": "beginning",
    "content": "body",
    "criteria": [{"area": "system"}],
}


async def told(log: MemoryLog) -> list[tuple[str, str, dict[str, Any]]]:
    """Source, word and facts of what the area `system` has."""
    async with subscribed(log, SYSTEM) as session:
        found = [one for one in await rest(session) if isinstance(one, Captured)]
    said = [json.loads(capture_json(one)) for one in found]
    assert all(one["area"] in {"system", "schema"} for one in said)
    return [(one["source"], one["operation"], one["body"]) for one in said]


async def test_sources_that_come_go_pause_and_stop_are_told() -> None:
    """Added is `started` with `first`; a source under another name is removed, and another added.
    A lost position is the code by which it stopped."""
    is_lost = False

    def before(index: int) -> None:
        if is_lost and index == 1:
            raise PositionLostError(source="shop", position="1", detail="the oplog was cut")

    clock, log = ManualClock(), MemoryLog()
    shop = Live([committed_by(1)], before=before)
    async with running(log, shop, clock=clock) as supervisor:
        await clock.until(lambda: shop.acknowledged == ["1"])
        await supervisor.pause("shop")
        await supervisor.resume("shop")
        is_lost = True
        shop.tell(committed_by(2))
        await clock.until(in_state(supervisor, State.STOPPED))
        other = Live([committed_by(1, source="other")], name="other")
        await supervisor.add(Supervised(source=other, silence_seconds_max=1e9))
        await clock.until(lambda: other.acknowledged == ["1"])
        await supervisor.remove("other")
        again = Live(
            [committed_by(1, source="other"), committed_by(2, source="other")], name="other"
        )
        await supervisor.add(Supervised(source=again, silence_seconds_max=1e9))
        await clock.until(lambda: again.acknowledged == ["2"])
    found = await told(log)
    ours = [(word, facts) for source, word, facts in found if source == "shop"]
    assert [word for word, _ in ours] == ["started", "paused", "stopped"]
    assert ours[0][1]["first"] is True
    assert ours[-1][1]["code"] == "source.position_lost"
    others = [(word, facts.get("first")) for source, word, facts in found if source == "other"]
    assert others == [("started", True), ("removed", None), ("started", False)]


@pytest.mark.parametrize("word", ["dropDatabase", "createDatabase"])
async def test_catalogs_that_come_and_go_are_told(word: str) -> None:
    """They are changes of shape too, and say so."""
    of_catalog = structs.replace(schema(2, word), collection="")
    log = await filled(commit(change(1)), commit(of_catalog), commit(schema(3, "create")))
    assert [(source, said) for source, said, _ in await told(log)] == [("shop", word)]


async def test_gaps_and_copies_are_told() -> None:
    """With what is known of them; of one collection too."""
    words = ["gap", "gap_closed", "snapshot_started", "snapshot_completed", "rewound"]
    of_one = structs.replace(system(9, "gap"), database="db", collection="orders")
    log = await filled(
        *(commit(system(at, one)) for at, one in enumerate(words, 1)), commit(of_one)
    )
    found = await told(log)
    assert [word for _, word, _ in found] == [*words, "gap"]
    assert found[0][2]["reason"] == "the oplog was cut"


async def test_a_transaction_is_told_with_its_name_count_and_digest() -> None:
    """E11: the digest is the sum of what each of its entries is, so it proves them."""
    events = [
        structs.replace(change(1, ordinal=at, key=at), transaction="gtid:7") for at in range(3)
    ]
    log = await filled(commit(*events), commit(schema(2)))
    asked = {"id": "a", "since": "beginning", "criteria": [{"area": "infrastructure"}]}
    async with subscribed(log, asked) as session:
        found = [one for one in await rest(session) if isinstance(one, Boundary)]
    assert [kind for _, _, kind in captures(found)] == ["begin", "commit"] * 2
    (block, *_) = await log.read(after=0)
    digest = sum(block.check(i) for i in range(3)) % (1 << 64)
    for edge in found[:2]:
        said = json.loads(boundary_json(edge))
        assert (said["transaction"], said["mutationCount"]) == ("gtid:7", 3)
        assert int(said["digest"], 16) == digest
        assert (said["version"], said["area"]) == (1, "infrastructure")


async def test_what_is_told_of_a_source_is_not_told_to_who_may_not_see_it() -> None:
    log = await filled(commit(system(1)), commit(system(2, source="erp")))
    scope = Scope((Grant(verbs=frozenset({Verb.SCHEMA}), sources=frozenset({"erp"})),))
    async with subscribed(log, SYSTEM, scope=scope) as session:
        found = [one for one in await rest(session) if isinstance(one, Captured)]
    assert [one.block.stream(one.i).source for one in found] == ["erp"]
