"""The encoder writes what protobuf's own classes would, and what it has written ever since."""

from base64 import b64decode
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, structs

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.event import (
    AnyEvent,
    ChangeEvent,
    ClusterTime,
    Operation,
    SchemaEvent,
    kind_of,
)
from penstock.wire import Block, encode, encode_event, joined, verify_block
from penstock.wire.layout import CELLS, HEADER, HEADER_CHECKED, LAYOUT_VERSION
from tests.core.strategies import StoredBlock, blocks, events, stored_block


def protobuf_of(event: AnyEvent) -> pb.Event:
    """The same event in protobuf's own class."""
    message = pb.Event(
        id=event.event_id,
        source=event.source,
        database=event.database,
        tenant=event.tenant,
        collection=event.collection,
        operation_type=event.operation,
        cluster_time=pb.ClusterTime(t=event.cluster_time.t, i=event.cluster_time.i),
        timestamp=event.timestamp,
        position=event.position,
        schema_version=event.schema_version,
        transaction=event.transaction or "",
        origin=bytes(event.origin or b""),
        kind=pb.Kind.Name(kind_of(event)),
    )
    if not isinstance(event, ChangeEvent):
        message.full_document = bytes(event.description)
        return message
    message.document_id = event.document_id
    message.key = bytes(event.key)
    message.full_document = bytes(event.full_document or b"")
    message.full_document_before_change = bytes(event.full_document_before_change or b"")
    message.update_description = bytes(event.update_description or b"")
    message.disambiguated_paths = bytes(event.disambiguated_paths or b"")
    message.snapshot = event.snapshot
    message.unchanged.extend(event.unchanged)
    message.full_document_as_of_event = event.full_document_as_of_event
    if event.txn_number is not None:
        message.txn_number = event.txn_number
    return message


@given(st.lists(events, max_size=5))
def test_every_field_is_what_protobufs_own_classes_read_and_write(several: list[AnyEvent]) -> None:
    encoded = encode(several)
    start = 0
    for event, end in zip(several, encoded.ends.tolist(), strict=True):
        read = pb.Event.FromString(bytes(encoded.payload[start:end]))
        expected = protobuf_of(event)
        assert read == expected
        assert read.SerializeToString(deterministic=True) == expected.SerializeToString(
            deterministic=True
        )
        start = end


@given(st.lists(events, max_size=5), st.data())
def test_events_are_encoded_alike_however_they_are_gathered(
    several: list[AnyEvent], data: Any
) -> None:
    cut = data.draw(st.integers(0, len(several)))
    whole, parts = encode(several), joined([encode(several[:cut]), encode(several[cut:])])
    alone = [encode_event(event) for event in several]
    for one in (whole, parts):
        assert bytes(one.payload) == b"".join(event.message for event in alone)
        assert one.index.tobytes() == b"".join(event.index for event in alone)
        assert list(one.streams) == [event.stream for event in alone]


@given(st.lists(events, min_size=1, max_size=4), st.data())
def test_a_cut_is_what_encoding_only_those_gives(several: list[AnyEvent], data: Any) -> None:
    start = data.draw(st.integers(0, len(several)))
    stop = data.draw(st.integers(start, len(several)))
    cut, alone = encode(several).cut(start, stop).owned(), encode(several[start:stop])
    assert cut.payload == alone.payload
    assert cut.index.tobytes() == alone.index.tobytes()
    assert cut.ends.tolist() == alone.ends.tolist()


@given(blocks())
def test_the_index_points_at_the_bytes_of_every_cell(stored: StoredBlock) -> None:
    block = stored.open()
    for i, entry in enumerate(stored.entries):
        fields = structs.asdict(entry.event)
        fields.setdefault("full_document", fields.get("description"))
        for name in CELLS:
            value = fields.get(name) or b""
            expected = value.encode() if isinstance(value, str) else bytes(value)
            assert block.cell(i, name) == expected, name


@given(st.lists(events, min_size=1, max_size=3))
def test_what_a_subclass_of_an_event_adds_is_not_stored(several: list[AnyEvent]) -> None:
    rows = [
        _Row(**structs.asdict(event), more=5) if isinstance(event, ChangeEvent) else event
        for event in several
    ]
    stored, expected = encode(rows), encode(several)
    assert stored.payload == expected.payload
    assert stored.index.tobytes() == expected.index.tobytes()


class _Row(ChangeEvent, frozen=True, kw_only=True, rename="camel"):
    more: int


# --- what is stored already -------------------------------------------------------------------

_COMMON: dict[str, Any] = {
    "source": "shop",
    "database": "db",
    "tenant": "t",
    "collection": "orders",
    "cluster_time": ClusterTime(1_700_000_000, 3),
    "timestamp": 1_700_000_000_123,
    "position": "p1",
}
_STORED_EVENTS: list[AnyEvent] = [
    ChangeEvent(
        **_COMMON,
        event_id="e1",
        document_id="1",
        key=Raw(b'{"_id":1}'),
        operation=Operation.UPDATE,
        full_document=Raw(b'{"_id":1,"n":{"$numberLong":"5"}}'),
        full_document_before_change=Raw(b'{"_id":1}'),
        update_description=Raw(b'{"updatedFields":{"n":5}}'),
        disambiguated_paths=Raw(b'{"a.0":["a","0"]}'),
        txn_number=0,
        unchanged=("big", ""),
        full_document_as_of_event=True,
        schema_version=300,
        transaction="t:1",
        origin=Raw(b'{"thread":7}'),
    ),
    ChangeEvent(
        **_COMMON,
        event_id="e2",
        document_id="x" * 130,
        key=Raw(b'{"_id":"y"}'),
        operation=Operation.INSERT,
        full_document=Raw(b'{"_id":"y"}'),
        snapshot=True,
    ),
    SchemaEvent(**_COMMON, event_id="e3", operation="create", description=Raw(b'{"idIndex":{}}')),
]
_STORED = b64decode(
    """
AgAAAAMAAAACAAAAHAAAAPIBAAAJAAAAAAAAAOdr5c+LAQAAY4zpOaL+JX8CAAAAAAAAAOgVtfodYDwxAQAAAAAAAABcQQ
LCEDa7FQAAAAAAAAAAAAAAAAAAAADMAAAAAAAAAAEAAAAAAAEApwEAAAEAAAAAAAAAAAABAFI51BLBa6cEzAAAAAIADgAa
D7m/XqL7W3to5c+LAQAAAAAAAAAAAAAA8VNlAwAAACwBAAAAAAAAIQAAAAkAAAAjAAAAAgAAACcAAAABAAAAKwAAAAkAAA
A2AAAAIQAAAFoAAAAJAAAAZQAAABkAAACBAAAAAgAAAIYAAAADAAAAjAAAABEAAACgAAAADAAAAJbc4Odc9JQs2wAAAAEA
AQBOjScxWvKf1nto5c+LAQAAAAAAAAAAAAAA8VNlAwAAAAAAAAAAAAAAIQAAAAAAAAAjAAAAAgAAACgAAACCAAAArQAAAA
sAAAC6AAAACwAAAMUAAAAAAAAAxQAAAAAAAADIAAAAAgAAAMoAAAAAAAAAygAAAAAAAADKAAAAAAAAAFxBAsIQNrsVSwAA
AAADAAAAAAAAAAAAAHto5c+LAQAAAAAAAAAAAAAA8VNlAwAAAAAAAAAAAAAAIQAAAAAAAAAjAAAAAgAAACUAAAAAAAAAJQ
AAAAAAAAAnAAAADgAAADUAAAAAAAAANQAAAAAAAAA4AAAAAgAAADoAAAAAAAAAOgAAAAAAAAA6AAAAAAAAAFtbInNob3Ai
LCJkYiIsInQiLCJvcmRlcnMiXV1iBHNob3DKAQJkYhIBdBoGb3JkZXJzKgZ1cGRhdGW4AQEKAmUxIgEx0gEJeyJfaWQiOj
F9MiF7Il9pZCI6MSwibiI6eyIkbnVtYmVyTG9uZyI6IjUifX2CAQl7Il9pZCI6MX06GXsidXBkYXRlZEZpZWxkcyI6eyJu
Ijo1fX2iAQJwMdoBA3Q6McIBEXsiYS4wIjpbImEiLCIwIl19ggIMeyJ0aHJlYWQiOjd9mgEDYmlnmgEAQggIgOLPqgYQA0
j70JX/vDFYAIgBrAJiBHNob3DKAQJkYhIBdBoGb3JkZXJzKgZpbnNlcnSQAQEKAmUyIoIBeHh4eHh4eHh4eHh4eHh4eHh4
eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eH
h4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eNIBC3siX2lkIjoieSJ9Mgt7Il9pZCI6InkifaIB
AnAxQggIgOLPqgYQA0j70JX/vDFiBHNob3DKAQJkYhIBdBoGb3JkZXJzKgZjcmVhdGWwAQMKAmUzMg57ImlkSW5kZXgiOn
t9faIBAnAxQggIgOLPqgYQA0j70JX/vDE=
    """
)
"""A block of layout UNCHAINED as it was first written: commit 9 of two events, commit 10 of one."""


def test_a_block_that_an_earlier_penstock_wrote_is_read() -> None:
    block = Block(_STORED, log_id=5, first_sequence=1)
    verify_block(block)
    assert [entry.event for entry in block.entries()] == _STORED_EVENTS
    assert [entry.commit for entry in block.entries()] == [9, 9, 10]


def test_the_same_events_are_still_stored_as_the_same_bytes() -> None:
    commits = [_STORED_EVENTS[:2], _STORED_EVENTS[2:]]
    taken = 1_700_000_000_999
    again = stored_block(commits, first_commit=9, ingested_at=taken, before=None)
    assert again.data == _STORED
    chained = stored_block(commits, first_commit=9, ingested_at=taken, before=7)
    head, rest = _STORED[:HEADER_CHECKED], _STORED[HEADER.size :]
    assert chained.data[:HEADER_CHECKED] == bytes([LAYOUT_VERSION]) + head[1:]
    assert chained.data[HEADER.size :] == (7).to_bytes(8, "little") + rest
    histories = [chained.open().history(i) for i in range(3)]
    assert histories == [708_673_681, 920_459_343, 3_752_610_395]
