"""The block: the one layout in which entries are stored and from which every reader is served.

A block is 1..N entries, about 64 KiB. An event is encoded once, when the log takes it, to the bytes
of the protobuf message `penstock.v1.Event`; each server takes from the block what it needs: gRPC
slices, JSON splices, Flight gathers columns. Nothing stored says sequence, commit or progress: the
log's key and the header say where a block stands, and `Block.messages` appends them when sending.

    layout.py    what lies where, and protobuf's varints
    encode.py    events -> bytes and index
    build.py     encoded events and their places -> block
    block.py     a stored block, read: messages, places, narrowing
    verify.py    whether a stored block says what it must
    arrow.py     blocks -> Arrow columns
    rebuild.py   Arrow columns -> what blocks are made of
    messages.py  complete messages: parse, batch, JSON
    shown.py     what a reader may not see, left out

This package is the only place that knows the layout.
"""

from penstock.wire.arrow import ARROW_SCHEMA, to_arrow
from penstock.wire.block import Block, Extent, Outline
from penstock.wire.build import CommitSummary, build_block, places_of, summaries_of
from penstock.wire.encode import (
    NOTHING,
    Encoded,
    EncodedCommits,
    EncodedEvent,
    encode,
    encode_commit,
    encode_event,
    joined,
    key_hash,
)
from penstock.wire.layout import (
    BLOCK_BYTES,
    COMMIT,
    OPERATION_CODES,
    PLACE,
    Stream,
    histories,
    history_after,
)
from penstock.wire.messages import (
    as_delete,
    batch_message,
    content_check,
    decode_message,
    entry_of,
    heartbeat_message,
    merged,
    plain_numbers,
    split_batch,
    to_json,
    unchanged_of,
)
from penstock.wire.rebuild import events_of_batch, places_of_batch, summaries_of_batch
from penstock.wire.shown import (
    HIDDEN_KEY,
    Mask,
    id_shown,
    key_shown,
    plain_path,
    show,
    shown,
    without,
)
from penstock.wire.verify import verify_block, verify_checks

__all__ = [
    "ARROW_SCHEMA",
    "BLOCK_BYTES",
    "COMMIT",
    "HIDDEN_KEY",
    "NOTHING",
    "OPERATION_CODES",
    "PLACE",
    "Block",
    "CommitSummary",
    "Encoded",
    "EncodedCommits",
    "EncodedEvent",
    "Extent",
    "Mask",
    "Outline",
    "Stream",
    "as_delete",
    "batch_message",
    "build_block",
    "content_check",
    "decode_message",
    "encode",
    "encode_commit",
    "encode_event",
    "entry_of",
    "events_of_batch",
    "heartbeat_message",
    "histories",
    "history_after",
    "id_shown",
    "joined",
    "key_hash",
    "key_shown",
    "merged",
    "places_of",
    "places_of_batch",
    "plain_numbers",
    "plain_path",
    "show",
    "shown",
    "split_batch",
    "summaries_of",
    "summaries_of_batch",
    "to_arrow",
    "to_json",
    "unchanged_of",
    "verify_block",
    "verify_checks",
    "without",
]
