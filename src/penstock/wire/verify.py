"""Whether a stored block says what it must: every byte checked, nothing trusted."""

from typing import Final, NoReturn

import numpy as np
import xxhash
from google.protobuf.message import DecodeError

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.errors import LogCorruptError
from penstock.event import AnyEvent
from penstock.wire.block import Block
from penstock.wire.build import CommitSummary
from penstock.wire.encode import encode
from penstock.wire.layout import COMMIT_PACK, INDEX, U64
from penstock.wire.messages import event_of

_OTHER_BYTES: Final = "its bytes are not those that its check was taken over"


def verify_block(block: Block) -> None:
    """Raise LogCorruptError unless the whole block, whatever its view, says what it must.

    Every entry has the bytes that its check was taken over; places are dense, and commits follow
    each other; a commit that begins and ends here has the rows and digest of its summary; the
    index points at the very fields that the messages hold. (Opening a block has already checked
    its header and tables.)
    """
    _verify_places(block)
    _verify_commits(block)
    _verify_index(block, [_event(block, i) for i in range(len(block.places))])


def verify_checks(block: Block) -> None:
    """Raise LogCorruptError unless each entry in view has the bytes that its check was taken over;
    the quick part of `verify`."""
    for i in range(block.start, block.stop):
        if xxhash.xxh3_64_intdigest(block.stored(i)) != block.check(i):
            _refuse(block, i, _OTHER_BYTES)


def _refuse(block: Block, i: int, what: str) -> NoReturn:
    raise LogCorruptError(
        f"entry {block.first_sequence + i} is damaged: {what}. Nothing was changed, and what lies "
        f"before it is safe. Restore the log from a backup, or set it aside and capture again."
    )


def _verify_places(block: Block) -> None:
    places, lengths = block.places, block.index["length"].astype(np.int64)
    if not len(places):
        _refuse(block, 0, "its block is empty")
    ends = np.cumsum(lengths)
    if places["start"][0] != 0 or (places["start"][1:] != ends[:-1]).any():
        _refuse(block, 0, "the entries of its block overlap or leave holes")
    if int(ends[-1]) != block.nbytes - block.payload:
        _refuse(block, 0, "its block ends elsewhere than its entries")
    if int(places["stream"].max()) >= len(block.streams):
        _refuse(block, 0, "its block names a stream that it does not list")


def _verify_commits(block: Block) -> None:
    places = block.places
    summaries = [CommitSummary(*row) for row in COMMIT_PACK.iter_unpack(block.summary_table)]
    numbers: list[int] = places["commit"].tolist()
    ordinals: list[int] = places["ordinal"].tolist()
    ends: list[int] = places["ends"].tolist()
    checks: list[int] = block.index["check"].tolist()
    expected = 0
    began, digest = ordinals[0] == 0, 0
    for i, number in enumerate(numbers):
        if number != expected or number >= len(summaries):
            _refuse(block, i, "the commits of its block do not follow each other")
        if i and ordinals[i] != (0 if ends[i - 1] else ordinals[i - 1] + 1):
            _refuse(block, i, "its place in its commit does not follow the entry before")
        summary = summaries[number]
        if ends[i] != (ordinals[i] + 1 == summary.rows):
            _refuse(block, i, f"its commit ends at another entry than row {summary.rows}")
        digest = (digest + checks[i]) & U64
        if ends[i]:
            if began and digest != summary.digest:
                _refuse(block, i, "its commit's digest is not that of its entries")
            expected, began, digest = expected + 1, True, 0
    if len(summaries) != numbers[-1] + 1:
        _refuse(block, len(places) - 1, "its block lists commits that it does not hold")


def _event(block: Block, i: int) -> AnyEvent:
    message = block.stored(i)
    if xxhash.xxh3_64_intdigest(message) != block.check(i):
        _refuse(block, i, _OTHER_BYTES)
    try:
        return event_of(pb.Event.FromString(message))
    except (DecodeError, ValueError):
        _refuse(block, i, "its bytes are no event")


def _verify_index(block: Block, events: list[AnyEvent]) -> None:
    encoded = encode(events)
    ours, theirs, size = encoded.index.tobytes(), block.index.tobytes(), INDEX.itemsize
    start = 0
    for i, (stream, end) in enumerate(zip(encoded.streams, encoded.ends.tolist(), strict=True)):
        if stream != block.stream(i):
            _refuse(block, i, "its block files it under another collection")
        row = slice(i * size, (i + 1) * size)
        # A later Penstock may have written the message otherwise; its index is then its own.
        if ours[row] != theirs[row] and encoded.payload[start:end] == block.stored(i):
            _refuse(block, i, "its index does not point at its fields")
        start = end
