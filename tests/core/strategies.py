"""Events, commits and blocks of every shape that a source may produce, for hypothesis."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import numpy as np
from hypothesis import strategies as st
from msgspec import Raw

from penstock.event import (
    AnyEvent,
    ChangeEvent,
    ClusterTime,
    Entry,
    Operation,
    SchemaEvent,
    SystemEvent,
)
from penstock.progress import Progress
from penstock.wire import (
    COMMIT,
    PLACE,
    Block,
    CommitSummary,
    Encoded,
    EncodedEvent,
    build_block,
    encode_event,
)
from penstock.wire.layout import INDEX

U32, I64, U64 = (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.sampled_from(["", "shop", "orders", "a/b", "ü\0", "\U0001f6d2" * 9])
int64s = st.integers(-I64 - 1, I64)


def _document(**fields: Any) -> Raw:
    return Raw(msgspec.json.encode(fields))


def _long(value: int) -> dict[str, str]:
    return {"$numberLong": str(value)}


# Around the lengths at which a varint grows, and where the encoder stops using its tables.
_SIZES = (0, 1, 100, 119, 120, 121, 128, 2034, 2035, 2036, 2048, 16_370, 16_384, 70_000)
_PADDED = [_document(padding="x" * size) for size in _SIZES]

documents = st.one_of(
    st.sampled_from(_PADDED),
    st.builds(
        _document,
        text=texts,
        number=int64s,
        long=st.builds(_long, st.integers(-9, 9)),
    ),
)
"""JSON objects, some of them huge."""


def _common() -> dict[str, st.SearchStrategy[Any]]:
    return {
        "event_id": texts,
        "source": names,
        "database": names,
        "tenant": names,
        "collection": names,
        "cluster_time": st.builds(
            ClusterTime,
            t=st.one_of(st.integers(0, 3), st.integers(0, U32)),
            i=st.one_of(st.integers(0, 3), st.integers(0, U32)),
        ),
        "timestamp": int64s,
        "position": texts,
        "schema_version": st.one_of(st.just(0), st.integers(0, I64)),
        "transaction": st.one_of(st.none(), st.text("abc:", min_size=1, max_size=30)),
        "origin": st.one_of(st.none(), documents),
    }


@st.composite
def change_events(draw: st.DrawFn) -> ChangeEvent:
    operation = draw(st.sampled_from(Operation))
    optional = st.one_of(st.none(), documents)
    deleted = operation is Operation.DELETE
    return ChangeEvent(
        **{name: draw(strategy) for name, strategy in _common().items()},
        document_id=draw(texts),
        key=draw(documents),
        operation=operation,
        full_document=None if deleted else draw(optional),
        full_document_before_change=draw(optional),
        update_description=draw(optional) if operation is Operation.UPDATE else None,
        disambiguated_paths=draw(optional),
        txn_number=draw(st.one_of(st.none(), st.sampled_from([0, -1, 1]), int64s)),
        snapshot=operation is Operation.INSERT and draw(st.booleans()),
        unchanged=tuple(draw(st.lists(texts, max_size=3))),
        full_document_as_of_event=draw(st.booleans()),
    )


def control_events() -> st.SearchStrategy[SchemaEvent | SystemEvent]:
    fields = {**_common(), "description": documents}
    words = st.one_of(st.sampled_from(["create", "insert", "rename"]), texts)
    return st.one_of(
        st.builds(SchemaEvent, operation=words, **fields),
        st.builds(SystemEvent, operation=st.one_of(st.just("gap"), words), **fields),
    )


events: st.SearchStrategy[AnyEvent] = st.one_of(change_events(), change_events(), control_events())


class Placed(NamedTuple):
    """An encoded event, and where it says that it stands, right or wrong."""

    event: EncodedEvent
    commit: int
    ordinal: int
    ends_commit: bool


def block_of(
    placed: Sequence[Placed],
    summaries: Sequence[CommitSummary],
    *,
    ingested_at: int,
    before: int | None = 0,
) -> bytes:
    """A block of exactly these entries, one by one."""
    first = placed[0].commit
    encoded = Encoded(
        b"".join(one.event.message for one in placed),
        np.frombuffer(b"".join(one.event.index for one in placed), INDEX),
        [one.event.stream for one in placed],
    )
    places = [(0, one.commit - first, one.ordinal, 0, one.ends_commit) for one in placed]
    return build_block(
        encoded,
        np.array(places, PLACE),
        np.array(summaries, COMMIT),
        first_commit=first,
        ingested_at=ingested_at,
        before=before,
    )


class StoredBlock(NamedTuple):
    """A block, and what reading it must give."""

    data: bytes
    log_id: int
    first_sequence: int
    entries: list[Entry]

    def open(self) -> Block:
        return Block(self.data, log_id=self.log_id, first_sequence=self.first_sequence)


def weight_of(commit: int) -> int:
    """What a check of this commit counts in the sum that markers have; said once more, since
    markers outlive the Penstock that made them."""
    mixed = commit * 0x9E3779B97F4A7C15 & U64
    mixed = (mixed ^ mixed >> 32) * 0xBF58476D1CE4E5B9 & U64
    return mixed >> 32 | 1


def stored_block(
    commits: list[list[AnyEvent]],
    *,
    skip: int = 0,
    drop: int = 0,
    log_id: int = 5,
    first_sequence: int = 1,
    first_commit: int = 1,
    ingested_at: int = 1_700_000_000_123,
    before: int | None = 0,
) -> StoredBlock:
    """A block of `commits` without the first `skip` and the last `drop` entries.

    At least one entry stays. `before` is the sum of what is before it; None: of layout UNCHAINED.
    """
    placed: list[tuple[Placed, CommitSummary, AnyEvent]] = []
    for number, commit in enumerate(commits):
        encoded: list[EncodedEvent] = [encode_event(event) for event in commit]
        summary = CommitSummary(len(commit), sum(one.check for one in encoded) & U64)
        for ordinal, (one, event) in enumerate(zip(encoded, commit, strict=True)):
            last = ordinal == len(commit) - 1
            placed.append((Placed(one, first_commit + number, ordinal, last), summary, event))
    skip = min(skip, len(placed) - 1)
    chosen = placed[skip : max(skip + 1, len(placed) - drop)]
    summaries = {place.commit: summary for place, summary, _ in chosen}
    data = block_of(
        [place for place, _, _ in chosen],
        list(summaries.values()),
        ingested_at=ingested_at,
        before=before,
    )
    checks = [place.event.check & U32 for place, _, _ in chosen]
    if before is not None:
        counted = (place.event.check * weight_of(place.commit) for place, _, _ in chosen)
        checks = [total & U32 for total in accumulate(counted, initial=before)][1:]
    entries = [
        Entry(
            sequence=first_sequence + i,
            commit=place.commit,
            ordinal=place.ordinal,
            commit_rows=summary.rows,
            commit_digest=summary.digest,
            ends_commit=place.ends_commit,
            ingested_at=ingested_at,
            progress=str(Progress(log_id, first_sequence + i, checks[i])),
            event=event,
        )
        for i, (place, summary, event) in enumerate(chosen)
    ]
    return StoredBlock(data, log_id, first_sequence, entries)


@st.composite
def blocks(draw: st.DrawFn) -> StoredBlock:
    """Blocks of one to four entries of a few commits, the first and last perhaps in part."""
    return stored_block(
        draw(st.lists(st.lists(events, min_size=1, max_size=2), min_size=1, max_size=2)),
        skip=draw(st.integers(0, 1)),
        drop=draw(st.integers(0, 1)),
        log_id=draw(st.integers(0, U64)),
        first_sequence=draw(st.one_of(st.integers(1, 40_000), st.integers(1, I64 - 100))),
        first_commit=draw(st.one_of(st.integers(1, 300), st.integers(1, I64 - 100))),
        ingested_at=draw(st.integers(0, 1 << 45)),
        before=draw(st.one_of(st.none(), st.integers(0, U32))),
    )
