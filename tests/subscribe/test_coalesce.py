"""What the changes of a document in one window come to, and what no merging may lose."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from penstock.event import AnyEvent, ChangeEvent, Entry, Json, SystemEvent
from penstock.subscribe import Coalescing, Criteria
from penstock.subscribe.coalesce import window_of
from penstock.subscribe.shards import Shards
from penstock.telemetry import SERVE_REGISTRY
from penstock.wire import Block
from penstock.wire.layout import BEFORE, HEADER, HEADER_CHECKED, INDEX, PLACE, tables_check
from tests.subscribe.deltas import delta
from tests.subscribe.events import blocks_of, commit, one_each, schema, system
from tests.subscribe.windows import (
    ALWAYS,
    START,
    State,
    deliveries,
    entries_sent,
    event,
    folded,
    marker,
)

SKIP = structs.replace(ALWAYS, insert_delete="skip")

PLAIN: dict[str, dict[str, Any]] = {
    "insert": {"document": {"n": 1}},
    "update": {"document": {"n": 2}, "update": delta({"n": 2})},
    "replace": {"document": {"n": 3}},
    "delete": {},
}


def change_of(entry: Entry) -> ChangeEvent:
    assert isinstance(entry.event, ChangeEvent)
    return entry.event


def text(encoded: Json | None) -> bytes | None:
    return None if encoded is None else bytes(encoded)


def sample(name: str, **labels: str) -> float:
    return SERVE_REGISTRY.get_sample_value(name, labels) or 0.0


def plain(*operations: str) -> list[AnyEvent]:
    """Changes of one document, each with all that its operation has."""
    return [event(n, word, **PLAIN[word]) for n, word in enumerate(operations, start=1)]


async def merged(
    *events: AnyEvent, coalescing: Coalescing = ALWAYS, criteria: Criteria | None = None
) -> list[Entry]:
    blocks = blocks_of([[commit(one) for one in events]])
    return await entries_sent(blocks, coalescing, criteria=criteria)


# --- the matrix ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operations", "becomes"),
    [
        ("insert update", "insert"),
        ("insert replace", "insert"),
        ("insert delete", "delete"),
        ("insert insert", "insert"),
        ("update update", "update"),
        ("update replace", "replace"),
        ("update delete", "delete"),
        ("update insert", "replace"),
        ("replace update", "replace"),
        ("replace replace", "replace"),
        ("replace delete", "delete"),
        ("replace insert", "replace"),
        ("delete insert", "replace"),
        ("delete update", "update"),
        ("delete replace", "replace"),
        ("delete delete", "delete"),
        ("insert delete insert", "insert"),
        ("delete insert delete", "delete"),
        ("delete insert update", "replace"),
        ("update delete insert", "replace"),
    ],
)
async def test_the_matrix_p9_p10(operations: str, becomes: str) -> None:
    words = operations.split()
    (entry,) = await merged(*plain(*words))
    found, last = change_of(entry), plain(*words)[-1]
    assert isinstance(last, ChangeEvent)
    assert found.operation == becomes
    assert text(found.full_document) == text(last.full_document)
    assert entry.coalesced == len(words)
    # An id that is stable, and every coordinate, are those of the last change.
    assert entry.sequence == len(words)
    assert (found.event_id, found.position, found.cluster_time, found.timestamp) == (
        last.event_id,
        last.position,
        last.cluster_time,
        last.timestamp,
    )
    described_as = None if becomes != "update" or "delete" in words else PLAIN["update"]["update"]
    update = found.update_description
    assert (None if update is None else msgspec.json.decode(update)) == described_as


def documented() -> list[tuple[str, str]]:
    """The rows of the page's table: the operations, and the word of what becomes of them."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "coalescing.md"
    table = page.read_text().split("| first, then | becomes |")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return [(first, re.split("[ ,:;]", becomes)[0]) for first, becomes in rows]


@pytest.mark.parametrize(("operations", "becomes"), documented())
async def test_the_matrix_is_that_of_the_reference_page(operations: str, becomes: str) -> None:
    (entry,) = await merged(*plain(*operations.split(", ")))
    assert change_of(entry).operation == becomes


@pytest.mark.parametrize(
    "operations", ["insert delete", "insert update delete", "insert insert delete"]
)
async def test_what_came_and_went_is_nothing_where_skip_is_asked_for_p9(operations: str) -> None:
    assert await merged(*plain(*operations.split()), coalescing=SKIP) == []


@pytest.mark.parametrize("operations", ["update delete", "delete insert delete", "replace delete"])
async def test_skip_keeps_the_delete_of_a_document_that_was_there_before_p9(
    operations: str,
) -> None:
    (entry,) = await merged(*plain(*operations.split()), coalescing=SKIP)
    assert change_of(entry).operation == "delete"


async def test_skip_keeps_the_delete_of_a_row_that_a_snapshot_copied_p9() -> None:
    """It was there before the copy, and so perhaps with the reader."""
    copied = event(1, "insert", document={"n": 1}, snapshot=True)
    (entry,) = await merged(copied, event(2, "delete"), coalescing=SKIP)
    assert change_of(entry).operation == "delete"


async def test_two_deltas_become_one_that_says_both_p10() -> None:
    (entry,) = await merged(
        event(1, "update", document={"a": 1}, update=delta({"a": 1})),
        event(2, "update", document={"a": 1, "b": 2}, update=delta({"b": 2}, ["c"])),
    )
    found = change_of(entry)
    assert found.update_description is not None
    assert msgspec.json.decode(found.update_description) == delta({"a": 1, "b": 2}, ["c"])
    assert text(found.disambiguated_paths) == b"{}"
    assert text(found.full_document) == b'{"a":1,"b":2}'


@pytest.mark.parametrize(
    "second",
    [
        {"update": delta({"a.2": 1})},
        {"update": delta({"b": 1}), "disambiguated_paths": Json(b'{"b":["b"]}')},
        {},
    ],
    ids=["no composition", "ambiguous paths", "no description"],
)
async def test_without_a_composition_the_document_alone_says_what_happened(
    second: dict[str, Any],
) -> None:
    (entry,) = await merged(
        event(1, "update", document={"n": 1}, update=delta(cuts={"a": 2})),
        event(2, "update", document={"n": 2}, **second),
    )
    found = change_of(entry)
    assert (found.update_description, found.disambiguated_paths) == (None, None)
    assert text(found.full_document) == b'{"n":2}'


async def test_deltas_without_documents_compose_or_stay_apart_in_their_order() -> None:
    """Where the document is missing too, to merge would lose what happened."""
    cut, grown = delta(cuts={"a": 2}), delta({"a.2": 1})
    entries = await merged(
        event(1, "update", update=delta({"x": 1})),
        event(2, "update", update=cut),
        event(3, "update", update=grown),
        event(4, "update", update=delta({"y": 1})),
    )
    assert [(one.sequence, one.coalesced) for one in entries] == [(2, 2), (4, 2)]
    said = [change_of(one).update_description for one in entries]
    assert [None if one is None else msgspec.json.decode(one) for one in said] == [
        delta({"x": 1}, cuts={"a": 2}),
        delta({"a.2": 1, "y": 1}),
    ]


async def test_a_delta_never_takes_the_document_of_an_earlier_change_for_its_own() -> None:
    entries = await merged(
        event(1, "insert", document={"n": 1}), event(2, "update", update=delta({"n": 2}))
    )
    assert [text(change_of(one).full_document) for one in entries] == [b'{"n":1}', None]


async def test_what_could_not_be_merged_goes_with_the_delete_that_follows() -> None:
    (entry,) = await merged(
        event(1, "insert", document={"n": 1}),
        event(2, "update", update=delta({"n": 2})),
        event(3, "delete"),
    )
    assert (change_of(entry).operation, entry.coalesced) == ("delete", 3)


async def test_an_unchanged_field_is_taken_from_the_change_that_has_it() -> None:
    (entry,) = await merged(
        event(1, "update", document={"id": 1, "big": "x", "n": 1}),
        event(2, "update", document={"id": 1, "n": 2}, unchanged=("big", "far")),
        event(3, "update", document={"id": 1, "n": 3}, unchanged=("big",)),
    )
    found = change_of(entry)
    assert (text(found.full_document), found.unchanged) == (b'{"id":1,"big":"x","n":3}', ())


async def test_a_field_that_no_change_of_the_window_sent_stays_unchanged() -> None:
    (entry,) = await merged(
        event(1, "update", document={"id": 1, "n": 1}, unchanged=("big",)),
        event(2, "update", document={"id": 1, "n": 2}, unchanged=("big",)),
    )
    assert (text(change_of(entry).full_document), change_of(entry).unchanged) == (
        b'{"id":1,"n":2}',
        ("big",),
    )


@pytest.mark.parametrize("first", ["delete", "update"])
async def test_an_unchanged_field_that_nothing_says_keeps_both_changes(first: str) -> None:
    fields: dict[str, Any] = {"update": delta({"big": 5})} if first == "update" else {}
    before = event(1, first, **fields)
    after = event(2, "update", document={"id": 1}, unchanged=("big",))
    assert [one.sequence for one in await merged(before, after)] == [1, 2]


async def test_the_image_before_is_that_of_the_first_and_the_document_that_of_the_last() -> None:
    (entry,) = await merged(
        event(1, "update", document={"n": 1}, before={"n": 0}),
        event(2, "update", document={"n": 2}, before={"n": 1}, full_document_as_of_event=True),
    )
    found = change_of(entry)
    assert text(found.full_document_before_change) == b'{"n":0}'
    assert text(found.full_document) == b'{"n":2}'
    assert found.full_document_as_of_event


async def test_what_was_inserted_in_the_window_has_no_image_before() -> None:
    (entry,) = await merged(*plain("insert"), event(2, "delete", before={"n": 1}))
    assert change_of(entry).full_document_before_change is None


async def test_a_copied_row_that_changed_is_no_copy_any_more() -> None:
    """A reader that leaves copies out would lose the change."""
    copied = event(1, "insert", document={"n": 1}, snapshot=True)
    (entry,) = await merged(copied, *plain("insert", "update")[1:])
    assert (change_of(entry).operation, change_of(entry).snapshot) == ("insert", False)
    (entry,) = await merged(event(1, "update", document={"n": 0}), structs.replace(copied))
    assert (change_of(entry).operation, change_of(entry).snapshot) == ("replace", False)


async def test_an_insert_of_what_is_there_is_counted_but_a_copied_row_is_not() -> None:
    def count() -> float:
        return sample("penstock_inserts_repeated_total", source="shop")

    before, gone = count(), sample("penstock_changes_coalesced_total")
    await merged(*plain("insert", "insert"))
    assert count() - before == 1
    assert sample("penstock_changes_coalesced_total") - gone == 1
    await merged(*plain("insert"), event(2, "insert", document={"n": 1}, snapshot=True))
    await merged(*plain("insert", "delete", "insert"))
    assert count() - before == 1


# --- what is one document -----------------------------------------------------------------------


async def test_equal_ids_of_other_sources_tenants_and_collections_never_merge_p11() -> None:
    one = event(1, "insert", document={"n": 1})
    others = [
        structs.replace(one, **{name: "other"})
        for name in ("source", "database", "tenant", "collection")
    ]
    assert [entry.sequence for entry in await merged(one, *others)] == [1, 2, 3, 4, 5]


async def test_a_slash_in_a_name_or_an_id_makes_no_two_documents_one_p11() -> None:
    made = event(1, "insert", document={"n": 1})
    pairs = [("a/b", '"c"'), ("a", '"b/c"'), ("a", '"b"'), ("a/b/c", '""')]
    events = [
        structs.replace(made, collection=collection, key=Json(b'{"_id":%b}' % key.encode()))
        for collection, key in pairs
    ]
    entries = await merged(*events, *events)
    assert [(entry.sequence, entry.coalesced) for entry in entries] == [
        (5, 2),
        (6, 2),
        (7, 2),
        (8, 2),
    ]


async def test_the_key_decides_with_its_types_and_not_the_documents_id_as_text() -> None:
    number = event(1, "insert", document={"n": 1})
    text = structs.replace(number, key=Json(b'{"_id":"1"}'))
    assert number.document_id == text.document_id
    assert len(await merged(number, text)) == 2


async def test_rows_without_a_key_are_not_one_row() -> None:
    row = structs.replace(event(1, "insert", document={"n": 1}), key=Json(b"{}"))
    assert len(await merged(row, row, *plain("insert", "update"))) == 3


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("barrier", [system(5), schema(5, "rename")])
async def test_nothing_merges_across_a_control_event_whoever_gets_it(
    asked: bool, barrier: AnyEvent
) -> None:
    entries = await merged(
        *plain("update", "update"),
        barrier,
        *plain("update", "update"),
        criteria=Criteria(control_events=asked),
    )
    assert [(one.sequence, one.coalesced) for one in entries] == [
        (2, 2),
        # No window has a schema event: it comes as captured.
        *([(3, int(isinstance(barrier, SystemEvent)))] if asked else []),
        (5, 2),
    ]


async def test_a_gap_still_ends_the_stream_after_all_before_it() -> None:
    blocks = blocks_of(
        [[commit(one) for one in (*plain("update", "update"), system(3, "gap"), *plain("update"))]]
    )
    (delivery,) = await deliveries(blocks)
    assert delivery.gap is not None
    assert delivery.progress.sequence == 2
    (entry,) = await entries_sent(blocks)
    assert (marker(entry), entry.ends_commit) == (delivery.progress, True)


# --- windows and markers ------------------------------------------------------------------------


def busy(count: int, *, per_commit: int = 1) -> list[Any]:
    """Commits of changes that alternate between two documents."""
    events = [event(n, "update", key=n % 2, document={"n": n}) for n in range(1, count + 1)]
    return [commit(*events[at : at + per_commit]) for at in range(0, count, per_commit)]


async def test_behind_by_the_threshold_is_as_captured_and_by_one_more_coalesced_p12() -> None:
    blocks = blocks_of([busy(10)])
    at = structs.replace(ALWAYS, threshold=10)
    assert await entries_sent(blocks, at) == await entries_sent(blocks, None)
    beyond = structs.replace(ALWAYS, threshold=9)
    assert [one.coalesced for one in await entries_sent(blocks, beyond)] == [5, 5]


async def test_a_reader_that_caught_up_to_the_threshold_gets_every_change_again_p12() -> None:
    coalescing = structs.replace(ALWAYS, threshold=6, window_events=4)
    entries = await entries_sent(blocks_of([busy(12)]), coalescing)
    assert [one.coalesced for one in entries] == [2, 2, 2, 2, 0, 0, 0, 0]


async def test_every_marker_of_a_window_but_the_last_is_that_of_its_start_p8() -> None:
    blocks = blocks_of([busy(8)])
    entries = await entries_sent(blocks, structs.replace(ALWAYS, window_events=4))
    assert [marker(one).sequence for one in entries] == [0, 4, 4, 8]
    for delivery in await deliveries(blocks, structs.replace(ALWAYS, window_events=4)):
        assert delivery.window is not None
        assert str(delivery.window.end) == str(delivery.progress)


async def test_a_window_ends_with_a_whole_commit_where_it_can_and_says_so() -> None:
    entries = await entries_sent(
        blocks_of([busy(12, per_commit=3)]), structs.replace(ALWAYS, window_events=8)
    )
    assert [(marker(one).sequence, one.ends_commit) for one in entries] == [
        (0, False),
        (6, True),
        (6, False),
        (12, True),
    ]


async def test_a_commit_larger_than_a_window_is_cut_and_no_window_of_it_says_its_end() -> None:
    entries = await entries_sent(
        blocks_of([busy(10, per_commit=10)]), structs.replace(ALWAYS, window_events=4)
    )
    ends = [(marker(one).sequence, one.ends_commit) for one in entries]
    assert ends == [(0, False), (4, False), (4, False), (8, False), (9, False), (10, True)]
    assert [one.coalesced for one in entries] == [2, 2, 2, 2, 0, 0]


async def test_a_window_of_bytes_ends_it_too() -> None:
    blocks = blocks_of([busy(2) for _ in range(4)])
    coalescing = structs.replace(ALWAYS, window_bytes=blocks[0].nbytes * 2)
    entries = await entries_sent(blocks, coalescing)
    assert [one.coalesced for one in entries] == [2, 2, 2, 2]
    assert [marker(one).sequence for one in entries] == [0, 4, 4, 8]


async def test_a_window_in_which_nothing_merges_is_as_captured_with_its_own_markers() -> None:
    blocks = blocks_of([one_each(1, 5)])
    assert await entries_sent(blocks) == await entries_sent(blocks, None)


async def test_an_event_of_a_window_does_not_claim_to_prove_its_commit() -> None:
    entries = await merged(*plain("update", "update"), event(3, "insert", key=9, document={}))
    assert [one.coalesced for one in entries] == [2, 1]
    assert {(one.commit_rows, one.commit_digest) for one in entries} == {(0, 0)}
    assert [(one.commit, one.ordinal) for one in entries] == [(2, 0), (3, 0)]


async def test_a_window_of_which_the_filter_leaves_nothing_still_moves_the_reader() -> None:
    blocks = blocks_of([busy(8)])
    nothing = Criteria(collections=frozenset({"nothing"}))
    assert await deliveries(blocks, criteria=nothing) == []
    some = blocks_of([[*busy(8), *one_each(9, 9, collection="lines")]])
    lines = Criteria(collections=frozenset({"lines"}))
    (delivery,) = await deliveries(some, criteria=lines)
    assert delivery.progress.sequence == 9


def test_a_window_takes_whole_blocks_and_parts_of_them_from_where_the_reader_stands() -> None:
    blocks = blocks_of([busy(4), busy(4)])
    narrowed = [blocks[0].narrow(after=1), blocks[1]]
    for count, last in ((1, 2), (3, 4), (4, 5), (7, 8), (99, 8)):
        found = window_of(narrowed, events_max=count)
        assert found[0].first_sequence + found[0].start == 2
        assert found[-1].last_sequence == last
    assert window_of([], events_max=5) == []


@pytest.mark.parametrize("append", [1, 3, 9])
def test_schema_events_have_windows_of_their_own_and_may_cut_a_commit(append: int) -> None:
    changes = plain("update", "update", "update", "update")
    commits = [
        commit(changes[0]),
        commit(changes[1], schema(2), schema(3), changes[2]),
        commit(schema(4)),
        commit(changes[3]),
    ]
    blocks = blocks_of([commits[at : at + append] for at in range(0, len(commits), append)])
    ends, after = list[int](), 0
    while left := [one.narrow(after=after) for one in blocks if one.last_sequence > after]:
        after = window_of(left, events_max=9)[-1].last_sequence
        ends.append(after)
    assert ends == [1, 2, 4, 5, 6, 7]


async def test_a_marker_of_a_window_resumes_where_its_window_began() -> None:
    blocks = blocks_of([busy(8)])
    first, last = await entries_sent(blocks)
    assert marker(first) == START
    assert await entries_sent(blocks, after=marker(first)) == [first, last]
    assert await entries_sent(blocks, after=marker(last)) == []
    assert marker(last) == blocks[-1].place(7)


def colliding(block: Block) -> Block:
    """`block`, but with one hash for the keys of all entries, as 64 bits allow."""
    assert INDEX.fields is not None
    count = len(block)
    data, hash_at = bytearray(block.data), INDEX.fields["key_hash"][1]
    index_at = HEADER.size + BEFORE.size + len(block.summary_table) + PLACE.itemsize * count
    for i in range(count):
        at = index_at + INDEX.itemsize * i + hash_at
        data[at : at + 8] = (7).to_bytes(8, "little")
    check = tables_check(bytes(data[:HEADER_CHECKED]), bytes(data[HEADER.size : block.payload]))
    data[HEADER_CHECKED : HEADER.size] = check.to_bytes(8, "little")
    return Block(bytes(data), log_id=block.log_id, first_sequence=block.first_sequence)


async def test_keys_whose_hashes_meet_are_still_two_documents_p11() -> None:
    one, two = event(1, "insert", 1, document={}), event(2, "insert", 2, document={})
    tenant = structs.replace(one, tenant="other")
    (block,) = blocks_of([[commit(each) for each in (one, two, tenant, one, two, tenant)]])
    entries = await entries_sent([colliding(block)])
    assert [(entry.sequence, entry.coalesced) for entry in entries] == [(4, 2), (5, 2), (6, 2)]


# --- shards -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_shards_get_windows_of_their_own_and_together_the_same_state(count: int) -> None:
    """By a field, so that documents move: what leaves a shard is deleted there, merged or not."""
    moves = [
        event(n, "insert" if n <= 3 else "update", n % 3, document={"_id": n % 3, "at": n * n % 7})
        for n in range(1, 40)
    ]
    blocks = blocks_of([[commit(one) for one in moves]])
    state = folded({}, await entries_sent(blocks, None))
    for coalescing in (ALWAYS, structs.replace(ALWAYS, window_events=7), SKIP):
        together: State = {}
        for number in range(count):
            shards = Shards(by=("at",), count=count, ids=frozenset({number}))
            wished = Criteria(shards=shards)
            found = await entries_sent(blocks, coalescing, criteria=wished)
            raw = await entries_sent(blocks, None, criteria=wished)
            assert folded({}, found) == folded({}, raw)
            together |= folded({}, found)
        assert together == state


async def test_a_document_that_left_a_shard_and_came_back_has_no_delta_to_apply() -> None:
    """The reader was told that it is gone: what changed since is not all of it."""
    shards = Shards(by=("at",), count=2, ids=frozenset({0}))

    def moves(*values: int) -> list[Block]:
        updates = [
            event(n, "update", document={"at": value}, update=delta({"at": value}))
            for n, value in enumerate(values, start=1)
        ]
        return blocks_of([[commit(one) for one in updates]])

    wished = Criteria(shards=shards)
    raw = {n: (await entries_sent(moves(n), None, criteria=wished))[0] for n in range(20)}
    inside = next(n for n, one in raw.items() if change_of(one).operation == "update")
    outside = next(n for n, one in raw.items() if change_of(one).operation == "delete")
    (entry,) = await entries_sent(moves(inside, outside, inside), criteria=wished)
    assert (change_of(entry).operation, entry.coalesced) == ("update", 3)
    assert change_of(entry).update_description is None
    (entry,) = await entries_sent(moves(inside, outside), criteria=wished)
    assert (change_of(entry).operation, change_of(entry).full_document) == ("delete", None)
