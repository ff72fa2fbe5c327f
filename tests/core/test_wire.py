"""The block keeps what was put into it, and every reader takes the same from it."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, structs

from penstock._generated import puller_pb2
from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.event import ChangeEvent, ClusterTime, Entry, Kind, Operation, kind_of
from penstock.extjson import relaxed
from penstock.progress import Progress, parse_progress
from penstock.wire import (
    ARROW_SCHEMA,
    Block,
    CommitSummary,
    Extent,
    Stream,
    batch_message,
    decode_message,
    encode_commit,
    encode_event,
    heartbeat_message,
    to_arrow,
    to_json,
    verify_block,
)
from tests.core.strategies import (
    Placed,
    StoredBlock,
    block_of,
    blocks,
    change_events,
    events,
    stored_block,
    weight_of,
)
from tests.seeds import cases


def change(**changes: Any) -> ChangeEvent:
    event = ChangeEvent(
        event_id="e1",
        source="shop",
        database="db",
        tenant="db",
        collection="orders",
        cluster_time=ClusterTime(1_700_000_000, 3),
        timestamp=1_700_000_000_123,
        position="p1",
        document_id="1",
        key=Raw(b'{"_id":1}'),
        operation=Operation.INSERT,
        full_document=Raw(b'{"_id":1}'),
    )
    return structs.replace(event, **changes)


# --- what goes in comes out -------------------------------------------------------------------


@given(blocks())
def test_an_entry_comes_out_of_a_block_as_it_went_in(stored: StoredBlock) -> None:
    block = stored.open()
    assert list(block.entries()) == stored.entries
    assert [decode_message(block.message(i)) for i in range(len(block))] == stored.entries


@given(blocks())
def test_a_block_says_where_each_entry_stands(stored: StoredBlock) -> None:
    block = stored.open()
    verify_block(block)
    assert len(block) == block.stop == len(stored.entries)
    assert block.last_sequence == stored.entries[-1].sequence
    assert block.last_commit == stored.entries[-1].commit
    assert block.nbytes == len(stored.data)
    for i, entry in enumerate(stored.entries):
        event = entry.event
        stream = Stream(event.source, event.database, event.tenant, event.collection)
        assert block.stream(i) == block.streams[block.stream_numbers()[i]] == stream
        assert block.kind(i) == block.kinds()[i] == kind_of(event)
        assert block.timestamp(i) == event.timestamp
        assert block.commit(i) == entry.commit
        assert block.ordinal(i) == entry.ordinal
        assert block.ends_commit(i) == entry.ends_commit
        assert block.progress(i) == entry.progress
        assert parse_progress(entry.progress) == Progress(
            block.log_id, entry.sequence, block.history(i)
        )


@given(blocks(), st.integers(-3, 9), st.one_of(st.none(), st.integers(-3, 9)))
def test_a_narrowed_block_holds_exactly_the_entries_asked_for(
    stored: StoredBlock, after: int, until: int | None
) -> None:
    after += stored.first_sequence
    until = None if until is None else until + stored.first_sequence
    narrowed = stored.open().narrow(after=after, until=until)
    expected = [
        entry
        for entry in stored.entries
        if entry.sequence > after and (until is None or entry.sequence <= until)
    ]
    assert len(narrowed) == len(expected)
    assert list(narrowed.entries()) == expected
    assert to_arrow((narrowed,)).column("sequence").to_pylist() == [e.sequence for e in expected]
    again = narrowed.narrow(after=after + 1)
    assert list(again.entries()) == [e for e in expected if e.sequence > after + 1]


@given(blocks())
def test_a_staged_block_takes_its_commit_from_its_pointer(stored: StoredBlock) -> None:
    """Invariant 3: what a staged block cannot know is told by what publishes it."""
    events_of_one = [entry.event for entry in stored.entries]
    encoded = encode_commit("shop", events_of_one, position=None)
    data = block_of(
        [Placed(encode_event(event), 0, 7 + i, False) for i, event in enumerate(events_of_one)],
        [CommitSummary(0, 0)],
        ingested_at=0,
        before=77,
    )
    summary = CommitSummary(1 << 40, encoded.digest)
    extent = Extent(1 << 41, summary, 1_700_000_000_000, before=9)
    block = Block(data, log_id=1, first_sequence=8, extent=extent)
    verify_block(block)
    entries = list(block.entries())
    assert [entry.event for entry in entries] == events_of_one
    assert {(e.commit, e.commit_rows, e.commit_digest, e.ingested_at) for e in entries} == {
        (1 << 41, summary.rows, summary.digest, 1_700_000_000_000)
    }
    digest = (77 + block.check(0)) * weight_of(1 << 41)
    assert block.history(0) == (9 + digest) % 2**32, "what is staged before it counts too"
    columns = to_arrow((block,))
    assert columns.column("commit").to_pylist() == [1 << 41] * len(entries)
    assert columns.column("commit_rows").to_pylist() == [1 << 40] * len(entries)


@given(st.lists(events, max_size=4))
def test_a_commit_is_encoded_with_its_digest(commit: list[Any]) -> None:
    encoded = encode_commit("shop", commit, position="p")
    alone = [encode_event(event) for event in commit]
    assert encoded.events.payload == b"".join(one.message for one in alone)
    assert encoded.events.index.tobytes() == b"".join(one.index for one in alone)
    assert list(encoded.events.streams) == [one.stream for one in alone]
    assert encoded.rows == ([len(commit)] if commit else [])
    assert encoded.digest == sum(one.check for one in alone) % 2**64
    assert encoded.last_timestamp == (commit[-1].timestamp if commit else 0)


@given(change_events())
def test_equal_keys_of_a_stream_hash_alike_and_other_streams_keys_do_not(
    event: ChangeEvent,
) -> None:
    """P11: two sources, tenants or collections with equal ids never meet."""
    other = structs.replace(event, source=event.tenant + "/", tenant=event.source)
    elsewhere = structs.replace(event, document_id="", full_document=None, position="later")
    block = stored_block([[event, elsewhere, other]]).open()
    assert block.key_hash(0) == block.key_hash(1)
    assert block.key_hash(0) != block.key_hash(2)


# --- protobuf ---------------------------------------------------------------------------------


@given(blocks())
def test_the_bytes_are_the_protobuf_message_they_claim_to_be(stored: StoredBlock) -> None:
    """No unknown field, nothing lost: protobuf writes the same fields back."""
    for message, entry in zip(
        stored.open().messages(range(len(stored.entries))), stored.entries, strict=True
    ):
        parsed = pb.Event.FromString(message)
        event = entry.event
        assert parsed.sequence == entry.sequence
        assert parsed.id == event.event_id
        assert int(parsed.kind) == kind_of(event)
        assert (parsed.cluster_time.t, parsed.cluster_time.i) == (
            event.cluster_time.t,
            event.cluster_time.i,
        )
        canonical = parsed.SerializeToString()
        assert pb.Event.FromString(canonical) == parsed
        known = pb.Event.FromString(canonical)
        known.DiscardUnknownFields()
        assert known == parsed


@given(blocks())
def test_a_seed_stub_reads_the_fields_it_knows_with_plain_numbers(stored: StoredBlock) -> None:
    block = stored.open()
    several = list(block.seed_messages(range(len(block))))
    for i, entry in enumerate(stored.entries):
        assert several[i] == block.seed_message(i)
        seed = puller_pb2.Event.FromString(several[i])
        ours = pb.Event.FromString(block.message(i))
        for name in ("id", "tenant", "collection", "document_id", "operation_type", "progress"):
            assert getattr(seed, name) == getattr(ours, name)
        assert seed.timestamp == entry.event.timestamp
        assert seed.cluster_time.SerializeToString() == ours.cluster_time.SerializeToString()
        assert seed.full_document == relaxed(ours.full_document)
        assert seed.update_description == relaxed(ours.update_description)
        assert b'{"$numberLong"' not in seed.full_document


def test_a_seed_stub_sees_a_small_int64_as_a_number() -> None:
    document = Raw(b'{"_id":1,"n":{"$numberLong":"5"}}')
    update = Raw(b'{"updatedFields":{"n":{"$numberLong":"-5"}},"removedFields":[]}')
    event = change(operation=Operation.UPDATE, full_document=document, update_description=update)
    block = stored_block([[event]]).open()
    seed = puller_pb2.Event.FromString(block.seed_message(0))
    assert json.loads(seed.full_document) == {"_id": 1, "n": 5}
    assert json.loads(seed.update_description)["updatedFields"] == {"n": -5}
    assert b"$numberLong" in block.message(0)


@given(change_events())
def test_no_transaction_number_is_not_number_zero(event: ChangeEvent) -> None:
    """P28."""
    block = stored_block(
        [[structs.replace(event, txn_number=None), structs.replace(event, txn_number=0)]]
    ).open()
    none, zero = (pb.Event.FromString(block.message(i)) for i in (0, 1))
    assert not none.HasField("txn_number")
    assert zero.HasField("txn_number")
    assert to_arrow((block,)).column("txn_number").to_pylist() == [None, 0]
    assert json.loads(to_json(decode_message(block.message(0))))["txnNumber"] is None


@given(blocks())
def test_a_batch_message_holds_the_same_messages(stored: StoredBlock) -> None:
    messages = list(stored.open().messages(range(len(stored.entries))))
    batch = pb.EventBatch.FromString(batch_message(messages, "marker"))
    assert [event.SerializeToString() for event in batch.events] == [
        pb.Event.FromString(message).SerializeToString() for message in messages
    ]
    assert batch.progress == "marker"
    assert pb.EventBatch.FromString(batch_message([], "marker")) == pb.EventBatch(progress="marker")


def test_a_heartbeat_is_an_event_with_nothing_but_progress() -> None:
    assert pb.Event.FromString(heartbeat_message("marker")) == pb.Event(progress="marker")
    assert puller_pb2.Event.FromString(heartbeat_message("m")) == puller_pb2.Event(progress="m")


@pytest.mark.parametrize("field", ["event_id", "source", "document_id", "position"])
def test_text_that_has_no_encoding_is_refused(field: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        encode_event(change(**{field: "\ud800"}))


# --- Arrow ------------------------------------------------------------------------------------


def expected_row(block: Block, i: int, entry: Entry) -> dict[str, Any]:
    """What the Arrow columns must say of an entry, taken from its decoded form."""
    event = entry.event
    changed = event if isinstance(event, ChangeEvent) else None
    document = event.full_document if isinstance(event, ChangeEvent) else event.description

    def text(document: Raw | None) -> str | None:
        return None if document is None else bytes(document).decode()

    return {
        "sequence": entry.sequence,
        "commit": entry.commit,
        "ordinal": entry.ordinal,
        "commit_rows": entry.commit_rows,
        "commit_digest": entry.commit_digest,
        "check": block.check(i),
        "ends_commit": entry.ends_commit,
        "kind": kind_of(event).value,
        "operation_type": str(event.operation),
        "source": event.source,
        "database": event.database,
        "tenant": event.tenant,
        "collection": event.collection,
        "event_id": event.event_id,
        "document_id": changed.document_id if changed else None,
        "key": text(changed.key) if changed else None,
        "key_hash": block.key_hash(i),
        "full_document": text(document),
        "full_document_before_change": (
            text(changed.full_document_before_change) if changed else None
        ),
        "update_description": text(changed.update_description) if changed else None,
        "position": event.position,
        "transaction": event.transaction,
        "timestamp": event.timestamp,
        "cluster_time_t": event.cluster_time.t,
        "cluster_time_i": event.cluster_time.i,
        "txn_number": changed.txn_number if changed else None,
        "schema_version": event.schema_version,
        "snapshot": bool(changed and changed.snapshot),
        "full_document_as_of_event": bool(changed and changed.full_document_as_of_event),
        "unchanged": list(changed.unchanged) if changed else [],
        "ingested_at": entry.ingested_at,
        "disambiguated_paths": text(changed.disambiguated_paths) if changed else None,
        "origin": text(event.origin),
    }


@settings(max_examples=cases(60))
@given(st.lists(blocks(), min_size=1, max_size=3), st.data())
def test_arrow_columns_say_what_the_entries_say(stored: list[StoredBlock], data: Any) -> None:
    """Of several blocks, all or selected entries, all or some columns in any order."""
    opened = [one.open() for one in stored]
    expected = [
        [expected_row(block, i, entry) for i, entry in enumerate(one.entries)]
        for block, one in zip(opened, stored, strict=True)
    ]
    whole = to_arrow(opened)
    whole.validate(full=True)
    assert whole.schema == ARROW_SCHEMA
    assert whole.to_pylist() == [row for rows in expected for row in rows]

    columns = data.draw(st.lists(st.sampled_from(ARROW_SCHEMA.names), unique=True, min_size=1))
    chosen = [sorted(data.draw(st.sets(st.integers(0, len(b) - 1)))) for b in opened]
    selected = to_arrow(opened, columns, [np.array(rows, np.intp) for rows in chosen])
    selected.validate(full=True)
    assert selected.schema.names == columns
    assert selected.to_pylist() == [
        {name: rows[i][name] for name in columns}
        for rows, wanted in zip(expected, chosen, strict=True)
        for i in wanted
    ]


@given(blocks(), st.data())
def test_one_block_gives_the_arrow_rows_selected(stored: StoredBlock, data: Any) -> None:
    block = stored.open()
    rows: list[int] = sorted(data.draw(st.sets(st.integers(0, len(block) - 1))))
    table = to_arrow((block,), selected=(np.array(rows, np.intp),)).to_pydict()
    assert table["sequence"] == [stored.entries[i].sequence for i in rows]


def test_an_unknown_arrow_column_is_refused() -> None:
    with pytest.raises(KeyError):
        to_arrow([stored_block([[change()]]).open()], ["colour"])


def test_blocks_beyond_what_arrow_can_address_are_refused() -> None:
    block = stored_block([[change(full_document=Raw(b'"' + b"x" * (1 << 20) + b'"'))]]).open()
    with pytest.raises(ValueError, match="fewer"):
        to_arrow([block] * 2048)


def test_arrow_batches_can_leave_the_process() -> None:
    """The buffers are of this batch alone: writing one does not write the blocks."""
    block = stored_block([[change(full_document=Raw(b'"' + b"x" * 100_000 + b'"'))]]).open()
    assert to_arrow([block], ["key"]).serialize().size < 10_000


# --- JSON -------------------------------------------------------------------------------------


@given(blocks())
def test_json_has_the_documents_as_documents(stored: StoredBlock) -> None:
    for entry in stored.entries:
        event = entry.event
        written = json.loads(to_json(entry, plain_numbers=False))
        assert written["sequence"] == entry.sequence
        assert written["progress"] == entry.progress
        assert written["kind"] == kind_of(event).name.lower()
        assert written["operationType"] == event.operation
        assert written["clusterTime"] == {"T": event.cluster_time.t, "I": event.cluster_time.i}
        document = event.full_document if isinstance(event, ChangeEvent) else event.description
        if document is None:
            assert "fullDocument" not in written
        else:
            assert written["fullDocument"] == json.loads(bytes(document))
        if isinstance(event, ChangeEvent):
            assert written["key"] == json.loads(bytes(event.key))
            assert written["txnNumber"] == event.txn_number
        assert json.loads(to_json(entry)) == json.loads(
            relaxed(to_json(entry, plain_numbers=False))
        )


def test_kinds_have_the_numbers_of_the_protocol() -> None:
    assert {kind.name: kind.value for kind in Kind} == dict(pb.Kind.items())
