"""Readers of a log that stands still: everything that goes out to them, and what it comes to."""

import contextlib
import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import structs

from penstock.event import ChangeEvent, Entry, Json, Operation, SchemaEvent
from penstock.ports import Bounds
from penstock.progress import Progress, parse_progress
from penstock.subscribe import Coalescing, Criteria, Delivery, Subscription, Window, follow
from penstock.wire import Block, decode_message
from tests.subscribe.deltas import applied
from tests.subscribe.events import LOG_ID, PartialLog, change

START = Progress(LOG_ID, 0, 0)
ALWAYS = Coalescing(threshold=0, window_events=1000, window_bytes=1 << 20)
"""Behind is whoever is not at the head."""

State = dict[tuple[str, str, str, str], Any]


class TheEndError(Exception):
    """A reader of a log that stands still waits for more."""


class StillLog(PartialLog):
    """The blocks of a log that nobody appends to."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks

    async def bounds(self) -> Bounds:
        head = self.blocks[-1].last_sequence
        return Bounds(
            log_id=LOG_ID, trimmed=0, trimmed_check=0, head=head, head_commit=0, head_check=0
        )

    async def read(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        found: list[Block] = []
        for block in self.blocks:
            if block.last_sequence > after and sum(one.nbytes for one in found) < bytes_max:
                found.append(block.narrow(after=after, until=until))
        return found

    async def wait(self, *, after: int, timeout_seconds: float | None = None) -> bool:
        raise TheEndError


def messages_of(delivery: Delivery) -> Iterator[bytes]:
    """What a server sends of a delivery."""
    make = delivery.made(Block.messages, Window.messages)
    for block, entries in delivery.slices:
        yield from make(block, entries)


async def deliveries(
    blocks: Sequence[Block],
    coalescing: Coalescing | None = ALWAYS,
    *,
    after: Progress = START,
    criteria: Criteria | None = None,
) -> list[Delivery]:
    """All that goes out to a reader, up to the head."""
    following = follow(
        StillLog(blocks),
        Subscription(criteria=criteria or Criteria(), progress=after),
        bytes_max=1 << 20,
        heartbeat_seconds=0,
        clock=lambda: 0.0,
        coalescing=coalescing,
    )
    found: list[Delivery] = []
    with contextlib.suppress(TheEndError, StopAsyncIteration):
        while True:
            found.append(await anext(following))
    return found


async def entries_sent(
    blocks: Sequence[Block],
    coalescing: Coalescing | None = ALWAYS,
    *,
    after: Progress = START,
    criteria: Criteria | None = None,
) -> list[Entry]:
    """The same, decoded."""
    found = await deliveries(blocks, coalescing, after=after, criteria=criteria)
    return [decode_message(message) for one in found for message in messages_of(one)]


def marker(entry: Entry) -> Progress:
    return parse_progress(entry.progress)


def folded(state: State, entries: Iterable[Entry]) -> State:
    """The state of a consumer after `entries`: it takes the document, else it applies the delta."""
    state = dict(state)
    for entry in entries:
        event = entry.event
        if isinstance(event, SchemaEvent) and event.operation == "rename":
            _rename(state, event)
        if not isinstance(event, ChangeEvent):
            continue
        identity = (event.source, event.tenant, event.collection, bytes(event.key).decode())
        before = state.get(identity)
        if event.operation is Operation.DELETE:
            state.pop(identity, None)
        elif event.full_document is not None:
            document = msgspec.json.decode(event.full_document)
            kept = {name: before[name] for name in event.unchanged if before and name in before}
            state[identity] = {**document, **kept}
        elif before is not None and event.update_description is not None:
            try:
                state[identity] = applied(before, msgspec.json.decode(event.update_description))
            except (AssertionError, LookupError, TypeError, ValueError):
                # A delta for another state than this: a real consumer waits for the delete.
                state[identity] = copy.deepcopy(before)
    return state


def _rename(state: State, event: SchemaEvent) -> None:
    """Move the documents; what the new name had is gone."""
    old = (event.source, event.tenant, event.collection)
    new = (event.source, event.tenant, msgspec.json.decode(event.description)["to"]["coll"])
    moved = {(*new, identity[3]): state[identity] for identity in state if identity[:3] == old}
    for identity in [one for one in state if one[:3] in (old, new)]:
        del state[identity]
    state.update(moved)


def event(position: int, operation: str, /, key: int = 1, **fields: Any) -> ChangeEvent:
    """A change of a document; `document`, `before` and `update` as Extended JSON reads."""
    document, before = fields.pop("document", None), fields.pop("before", None)
    update = fields.pop("update", None)
    # As a source that states its paths, where the test says nothing of them.
    paths = fields.pop("disambiguated_paths", None if update is None else Json(b"{}"))
    made = change(position, key=key, ordinal=fields.pop("ordinal", 0))
    return structs.replace(
        made,
        operation=Operation(operation),
        full_document=_encoded(document),
        full_document_before_change=_encoded(before),
        update_description=_encoded(update),
        disambiguated_paths=paths,
        **fields,
    )


def _encoded(value: Any) -> Json | None:
    return None if value is None else Json(msgspec.json.encode(value))
