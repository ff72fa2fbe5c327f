"""What the block costs, each step beside the plain way of doing the same.

    PYTHONPATH=. .venv/bin/python bench/wire/run.py

Events are of about 1 KB, in commits of three. A figure is the best of several rounds, because a
busy machine only ever adds time; a ratio is that of two figures of the same run.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute
from msgspec import structs

from bench.events import change
from penstock import wire
from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.event import ChangeEvent

ROUNDS = 15
BLOCK_ENTRIES = 60
BLOCKS = 13  # about 1 MiB
LOG_ID = 1 << 63 | 5


def shop_event(k: int) -> ChangeEvent:
    document = b'{"_id":%d,"name":"%s","stock":{"$numberLong":"5"}}' % (k, b"a" * 900)
    return structs.replace(
        change(k, document=document),
        position="8263F0000000012B022C0100296E5A1004" * 4,
        txn_number=None if k % 2 else k,
    )


def protobuf_event(event: ChangeEvent) -> bytes:
    """The same message, by protobuf's own objects."""
    return pb.Event(
        id=event.event_id,
        tenant=event.tenant,
        collection=event.collection,
        document_id=event.document_id,
        operation_type=event.operation,
        full_document=bytes(event.full_document or b""),
        cluster_time=pb.ClusterTime(t=event.cluster_time.t, i=event.cluster_time.i),
        timestamp=event.timestamp,
        txn_number=event.txn_number,
        source=event.source,
        position=event.position,
        database=event.database,
        key=bytes(event.key),
    ).SerializeToString()


def stored_block(events: wire.Encoded) -> bytes:
    rows = [min(3, len(events) - first) for first in range(0, len(events), 3)]
    return wire.build_block(
        events,
        wire.places_of(rows),
        wire.summaries_of(events, rows),
        first_commit=1,
        ingested_at=1_700_000_000_123,
        before=0,
    )


def opened(data: bytes, count: int, entries: int) -> list[wire.Block]:
    return [wire.Block(data, log_id=LOG_ID, first_sequence=1 + entries * k) for k in range(count)]


def protobuf_suffix(block: wire.Block) -> list[bytes]:
    """The block's messages, by parsing, setting what the place says, and serialising again."""
    messages: list[bytes] = []
    for i in range(block.stop):
        event = pb.Event.FromString(block.stored(i))
        event.sequence = block.first_sequence + i
        event.commit = block.commit(i)
        event.ordinal = block.ordinal(i)
        event.progress = block.progress(i)
        messages.append(event.SerializeToString())
    return messages


def protobuf_columns(messages: list[bytes], columns: list[str]) -> pa.RecordBatch:
    """Arrow columns, by parsing every message."""
    events = [pb.Event.FromString(message) for message in messages]
    arrays: list[Any] = []
    for name in columns:
        values = [getattr(event, name) for event in events]
        kind = wire.ARROW_SCHEMA.field(name).type
        if kind == pa.string():
            values = [one.decode() if isinstance(one, bytes) else one for one in values]
        arrays.append(pa.array(values, kind))
    return pa.RecordBatch.from_arrays(arrays, columns)


def microseconds(work: Callable[[], object], entries: int) -> float:
    """Per entry, the best of ROUNDS."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = perf_counter()
        work()
        best = min(best, perf_counter() - start)
    return best / entries * 1e6


def show(name: str, ours: float, plain: tuple[str, float] | None = None) -> None:
    line = f"{name:46} {ours:7.2f} us  {1e6 / ours:11,.0f}/s"
    if plain is not None:
        line += f"   {plain[1] / ours:5.1f}x as fast as {plain[0]} ({plain[1]:.2f} us)"
    print(line)


def main() -> None:
    events = [shop_event(k) for k in range(1, 1001)]
    encoded = wire.encode(events)
    block_events = encoded.cut(0, BLOCK_ENTRIES)
    data, single = stored_block(block_events), stored_block(encoded.cut(0, 1))
    (block,) = opened(data, 1, BLOCK_ENTRIES)
    entries = range(BLOCK_ENTRIES)
    messages = list(block.messages(entries))
    total = BLOCKS * BLOCK_ENTRIES
    few = ["sequence", "operation_type", "key", "full_document"]
    parsed = [name for name in wire.ARROW_SCHEMA.names if hasattr(pb.Event(), name)]

    print(f"per entry, {len(data) // BLOCK_ENTRIES} bytes stored each")
    show(
        f"encode of {len(events)} events",
        microseconds(lambda: wire.encode(events), len(events)),
        (
            "protobuf's objects",
            microseconds(lambda: [protobuf_event(event) for event in events], len(events)),
        ),
    )
    show(
        "encode_event, one by one",
        microseconds(lambda: [wire.encode_event(event) for event in events], len(events)),
    )
    show("build_block", microseconds(lambda: stored_block(block_events), BLOCK_ENTRIES))
    show(
        f"messages of a block of {BLOCK_ENTRIES}, opened",
        microseconds(
            lambda: [list(b.messages(entries)) for b in opened(data, BLOCKS, BLOCK_ENTRIES)], total
        ),
        ("serialising again", microseconds(lambda: protobuf_suffix(block), BLOCK_ENTRIES)),
    )
    show(
        "the same for puller.proto's stubs, all rewritten",
        microseconds(lambda: list(block.seed_messages(entries)), BLOCK_ENTRIES),
    )
    show(
        "message of a block of 1, opened",
        microseconds(lambda: [b.message(0) for b in opened(single, total, 1)], total),
    )
    show(
        f"to_arrow of {BLOCKS} blocks, all columns",
        microseconds(lambda: wire.to_arrow(opened(data, BLOCKS, BLOCK_ENTRIES)), total),
        (
            "parsing protobuf",
            microseconds(lambda: protobuf_columns(messages, parsed), BLOCK_ENTRIES),
        ),
    )
    show(
        f"to_arrow of {BLOCKS} blocks, {len(few)} columns",
        microseconds(lambda: wire.to_arrow(opened(data, BLOCKS, BLOCK_ENTRIES), few), total),
        ("parsing protobuf", microseconds(lambda: protobuf_columns(messages, few), BLOCK_ENTRIES)),
    )
    show(
        "to_arrow of one block, all columns",
        microseconds(lambda: wire.to_arrow(opened(data, 1, BLOCK_ENTRIES)), BLOCK_ENTRIES),
    )
    show(
        "decode (entries)",
        microseconds(lambda: list(block.entries()), BLOCK_ENTRIES),
    )
    show("verify", microseconds(lambda: wire.verify_block(block), BLOCK_ENTRIES))


if __name__ == "__main__":
    main()
