"""What each kind of consumer may be given of one log, by what one that got everything was given."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import xxhash

from penstock.subscribe.shards import Shards
from tests.e2e.comparison import Fold

Document = dict[str, Any]
DocumentKey = tuple[str, str, str]
"""Source, collection and key, as JSON."""


def document_of(change: Document) -> DocumentKey:
    """Which document a change is of."""
    return change["source"], change["collection"], msgspec.json.encode(change["key"]).decode()


def is_data(change: Document) -> bool:
    return bool(change["kind"] == "data")


def control_sequences(fold: Fold) -> list[int]:
    """Where the control events stand, ascending."""
    return sorted(s for s, change in fold.by_sequence.items() if not is_data(change))


def shard_of(value: bytes, count: int) -> int:
    """The shard of one value as `penstock.subscribe.shards` defines it, reckoned again.

    XXH3-64 of its length (32 bits, little-endian) and its bytes, modulo `count`; the value is the
    key, or a top-level field of the document, as JSON, and nothing where there is no such field.
    """
    return int(xxhash.xxh3_64_intdigest(len(value).to_bytes(4, "little") + value)) % count


def check_repeats(fold: Fold, *, kills_max: int) -> None:
    """Repeats come only after a crash: then from a marker on, each change again, in order.

    So, as it came, the log's order steps back at most once for each of `kills_max` crashes; between
    two steps no sequence comes twice, nor any document's changes out of order.
    """
    sequences = [change["sequence"] for change in fold.arrived]
    steps_back = sum(after <= before for before, after in pairwise(sequences))
    assert steps_back <= kills_max, f"{steps_back} repeats for {kills_max} crashes"
    ids = {change["eventId"] for change in fold.by_sequence.values()}
    assert len(ids) == len(fold.by_sequence), "an event came under two sequences"


def check_source_order(raw: Fold, source: str) -> None:
    """The changes that a stream told of one source are in the source's own order, by its tokens.

    So are then those of each of its documents.
    """
    positions = [
        change["position"]
        for _, change in sorted(raw.by_sequence.items())
        if change["source"] == source and is_data(change) and not change.get("snapshot")
    ]
    assert positions, f"nothing was streamed from {source}"
    assert positions == sorted(positions), source


def gaps(fold: Fold, source: str) -> list[int]:
    """Where `source` lost changes to its server, as the consumer was told."""
    return [
        sequence
        for sequence, change in sorted(fold.by_sequence.items())
        if change["operationType"] == "gap"
        and change["source"] == source
        and "ChangeStreamHistoryLost" in change["fullDocument"]["reason"]
    ]


def open_gaps(lines: Iterable[bytes]) -> set[str]:
    """The sources that lost changes which nothing has made good yet, as a consumer was told."""
    found: set[str] = set()
    for line in lines:
        if b'"operationType":"gap' in line:  # a second look at the few that may be
            change = msgspec.json.decode(line, type=dict[str, Any])
            if change["operationType"] == "gap":
                found.add(change["source"])
            elif change["operationType"] == "gap_closed":
                found.discard(change["source"])
    return found


def check_shard(raw: Fold, fold: Fold, shards: Shards) -> None:
    """A consumer of shards by key got exactly their changes, deletes too, and every control event,
    each as it was captured."""
    assert shards.by == ("documentId",)
    expected = {
        sequence
        for sequence, change in raw.by_sequence.items()
        if not is_data(change)
        or shard_of(document_of(change)[2].encode(), shards.count) in shards.ids
    }
    got = set(fold.by_sequence)
    assert got == expected, (sorted(got - expected)[:5], sorted(expected - got)[:5])
    for sequence, change in fold.by_sequence.items():
        assert _without_marker(change) == _without_marker(raw.by_sequence[sequence])


def _without_marker(change: Document) -> Document:
    return {name: value for name, value in change.items() if name != "progress"}


def check_merged(raw: Fold, fold: Fold) -> int:
    """Whoever asks for coalescing misses nothing but what a later change of the same document
    stands for, with no control event between the two; returns how many that were.

    What it is given says what the last of the changes said.
    """
    controls = control_sequences(raw)
    assert control_sequences(fold) == controls
    merged: dict[DocumentKey, list[int]] = defaultdict(list)
    for sequence, change in sorted(fold.by_sequence.items()):
        said = raw.by_sequence[sequence]
        assert change["eventId"] == said["eventId"]
        if not is_data(change):
            continue
        assert document_of(change) == document_of(said)
        assert (change["operationType"] == "delete") == (said["operationType"] == "delete")
        assert change.get("fullDocument") == said.get("fullDocument"), sequence
        if change.get("coalesced", 0) > 1:
            merged[document_of(change)].append(sequence)
    missed = 0
    for sequence, change in raw.by_sequence.items():
        if is_data(change) and sequence not in fold.by_sequence:
            missed += 1
            later = merged[document_of(change)]
            place = bisect_left(later, sequence)
            assert place < len(later), f"nothing stands for {sequence}"
            between = bisect_left(controls, sequence), bisect_left(controls, later[place])
            assert between[0] == between[1], f"{sequence} was merged across a control event"
    return missed


def union(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The documents of all shards; none may have a document that another has."""
    whole: dict[str, str] = {}
    for part in parts:
        assert not whole.keys() & part.keys(), "a document in two shards"
        whole |= part
    return whole
