"""Against a plain reading of every entry: no cut of the log and no lane changes a thing."""

import asyncio
import json
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.event import AnyEvent, ChangeEvent, Commit, Operation, SchemaEvent
from penstock.log.memory import MemoryLog
from penstock.subscribe.captures import Captured
from penstock.subscribe.captures.rendering import capture_json
from penstock.wire import decode_message
from tests.captures.support import captures, hubbed, rest, subscribed
from tests.seeds import cases
from tests.subscribe.events import change, commit, schema, system

SOURCES = ["shop", "erp"]
COLLECTIONS = ["orders", "lines"]


@st.composite
def histories(draw: st.DrawFn) -> list[list[Commit]]:
    position = 0
    appends: list[list[Commit]] = []
    for _ in range(draw(st.integers(1, 5))):
        commits: list[Commit] = []
        for _ in range(draw(st.integers(1, 3))):
            source = draw(st.sampled_from(SOURCES))
            events: list[AnyEvent] = []
            for ordinal in range(draw(st.integers(1, 4))):
                position += 1
                collection = draw(st.sampled_from(COLLECTIONS))
                what = draw(st.sampled_from(["change"] * 6 + ["create", "modify", "started"]))
                if what == "change":
                    operation = draw(st.sampled_from(list(Operation)))
                    key = draw(st.integers(1, 3))
                    events.append(
                        change(
                            position,
                            collection=collection,
                            source=source,
                            key=key,
                            operation=operation,
                            ordinal=ordinal,
                        )
                    )
                elif what == "started":
                    events.append(system(position, what, source=source))
                else:
                    events.append(schema(position, what, collection=collection, source=source))
            commits.append(commit(*events))
        appends.append(commits)
    return appends


sites: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "catalog": st.sampled_from(["shop", "shop.db", "erp.other", "any", ["erp", "shop.db"]]),
        "entityType": st.sampled_from(["orders", ["orders", "lines"], "none", None]),
        "operation": st.sampled_from(["insert", ["update", "delete"], "UPSERT", "REMOVE", "cre*"]),
    },
)


@st.composite
def criteria(draw: st.DrawFn) -> dict[str, Any]:
    area = draw(st.sampled_from([None, "any", "data", "data", "schema", "system", "entity_schema"]))
    site = draw(sites)
    if area in {None, "any", "data"} and draw(st.booleans()):
        site["entityPrimaryKey"] = draw(st.sampled_from([1, [1, 2], {"_id": 3}, "1"]))
    return {"area": area, "site": site}


requests = st.lists(st.lists(criteria(), min_size=1, max_size=3), min_size=1, max_size=4)


def meant(event: AnyEvent, asked: list[dict[str, Any]]) -> bool:
    """Whether a request means an event: written from the reference, word by word."""
    return any(_meets(event, one["area"], one["site"]) for one in asked)


def _listed(value: Any) -> list[Any]:
    if value in (None, "any"):
        return []
    return cast("list[Any]", value) if isinstance(value, list) else [value]  # type: ignore[redundant-cast]


def _meets(event: AnyEvent, area: str | None, site: dict[str, Any]) -> bool:
    kind = (
        {"data"}
        if isinstance(event, ChangeEvent)
        else {"schema", "entity_schema"}
        if isinstance(event, SchemaEvent)
        else {"system"}
    )
    if area not in {None, "any"} and area not in kind:
        return False
    names = [event.source, f"{event.source}.{event.database}"]
    catalogs = _listed(site.get("catalog"))
    if catalogs and not any(name in names for name in catalogs):
        whole = not event.database
        if not (whole and any(one.startswith(event.source) for one in catalogs)):
            return False
    types = _listed(site.get("entityType"))
    if types and event.collection and event.collection not in types:
        return False
    keys = _listed(site.get("entityPrimaryKey"))
    if keys:
        if not isinstance(event, ChangeEvent):
            return False
        number = int(event.document_id)
        if number not in keys and {"_id": number} not in keys:
            return False
    words = [word.lower() for word in _listed(site.get("operation"))]
    if not words:
        return True
    operation = str(event.operation)
    said = {operation, "remove" if operation == "delete" else "upsert"}
    return any(word in said for word in words) or ("cre*" in words and operation == "create")


@pytest.mark.slow
@given(histories(), requests, st.integers(0, 5))
@settings(max_examples=cases(60))
def test_every_request_gets_exactly_what_it_means(
    appends: list[list[Commit]], asked: list[list[dict[str, Any]]], early: int
) -> None:
    """E5, E6, E7: `early` appends are history, the others come while it runs."""

    async def run() -> list[tuple[tuple[str, ...], int, str]]:
        log = MemoryLog()
        for append in appends[:early]:
            await log.append(append)
        given = [
            {"id": str(n), "since": "beginning", "criteria": one} for n, one in enumerate(asked)
        ]
        async with hubbed(log) as hub, subscribed(log, *given, hub=hub) as session:
            for append in appends[early:]:
                await asyncio.sleep(0)
                await log.append(append)
            outputs = await rest(session)
        return [one for one in captures(outputs) if one[2] not in {"begin", "commit"}]

    events = [event for append in appends for one in append for event in one.events]
    found = asyncio.run(run())
    expected: list[tuple[tuple[str, ...], int, str]] = []
    for sequence, event in enumerate(events, start=1):
        ids = tuple(str(n) for n, one in enumerate(asked) if meant(event, one))
        if ids:
            expected.append((ids, sequence, str(event.operation)))
    assert found == expected


@given(histories())
@settings(max_examples=cases(20))
def test_a_capture_says_what_the_event_says(appends: list[list[Commit]]) -> None:
    async def run() -> None:
        log = MemoryLog()
        for append in appends:
            await log.append(append)
        asked = {"id": "a", "since": "beginning", "content": "body", "beforeImages": True}
        async with subscribed(log, asked) as session:
            for one in await rest(session):
                if isinstance(one, Captured):
                    said = _decode(capture_json(one))
                    event: Any = decode_message(one.block.message(one.i)).event
                    assert said["requestIds"] == ["a"]
                    assert said["id"] == event.event_id
                    assert said["operation"] == str(event.operation)
                    assert said.get("entityType", "") == event.collection
                    document = getattr(event, "full_document", None)
                    if document is not None:
                        assert said["body"]["fullDocument"] == _decode(bytes(document))

    asyncio.run(run())


def _decode(data: bytes) -> Any:
    return json.loads(data)
