"""The decoder takes what a MySQL wrote, and anything else with an error."""

import contextlib
import resource
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError, UndecodableError
from penstock.event import ChangeEvent
from penstock.sources.mysql.binary_json import json_value
from penstock.sources.mysql.binlog import HEADER, Checksums, EventType, MalformedEventError
from penstock.sources.mysql.events import Teller
from penstock.sources.mysql.json_diffs import JsonDiffs
from penstock.sources.mysql.payloads import payload_events
from penstock.sources.mysql.positions import Server, begun_at
from penstock.sources.mysql.rows import CompiledTable, compile_table
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.tables import Table
from penstock.sources.mysql.transactions import Transactions
from tests.conftest import started
from tests.mysql.anything import AnyTable
from tests.mysql.mysql_kinds import MYSQL_KINDS
from tests.mysql.support import run
from tests.mysql.test_decoding import CHARSETS, signed, split
from tests.seeds import cases
from tests_support.servers import MySqlServer

SOME_JSON = '{"a": [1, -2, 3.5, true, null, "text"], "b": {"c": {"d": []}}, "e": 99999999999}'


@pytest.fixture(scope="module")
def real_binlog() -> Iterator[list[bytes]]:
    """The events of a real binlog: all types, JSON changed in part, a compressed transaction, XA,
    tags and DDL."""
    with ExitStack() as stack:
        server = started(stack, MySqlServer())
        with server.connect() as db:
            run(db, "SET sql_mode = ''", "CREATE DATABASE d", "USE d")
            every = [(kind, True) for kind in MYSQL_KINDS]
            AnyTable(every[:60], [[None] * 60], []).make(db, "a")
            run(db, "CREATE TABLE b (id INT PRIMARY KEY, j JSON, t TEXT)")
            run(db, f"INSERT INTO b VALUES (1, '{SOME_JSON}', REPEAT('x', 200))")
            run(db, "SET binlog_row_value_options = 'PARTIAL_JSON'")
            run(db, "UPDATE b SET j = JSON_SET(j, '$.a[1]', 7, '$.f', 1)")
            run(db, "SET binlog_row_value_options = '', binlog_transaction_compression = ON")
            run(db, "INSERT INTO b VALUES (2, '[]', REPEAT('y', 500))")
            run(db, "SET binlog_transaction_compression = OFF, gtid_next = 'AUTOMATIC:tag'")
            run(db, "UPDATE b SET t = 'z'", "SET gtid_next = 'AUTOMATIC'")
            run(db, "XA START 'x'", "DELETE FROM b WHERE id = 2", "XA END 'x'", "XA PREPARE 'x'")
            db.close()
            db.connect()
            run(db, "XA COMMIT 'x'", "CREATE TABLE d.c SELECT 1 AS n", "DROP TABLE d.c")
            run(db, "FLUSH BINARY LOGS")
        yield split((server.data / "mysql-bin.000001").read_bytes())


def reading() -> Transactions:
    def compiled(table: Table) -> CompiledTable:
        return compile_table(table, {**dict.fromkeys(range(1, 2048), "utf8mb4"), **CHARSETS})

    return Transactions(
        *("db", begun_at(Server(1), "", Scope(), "mysql")),
        teller=Teller("db", tenant=None),
        compile_table=compiled,
        charset_of=lambda _: "",
        characters=lambda _, ones: dict.fromkeys(ones, "?"),
        undone={},
    )


def read(events: list[bytes]) -> list[object]:
    """What events come to."""
    checksums, transactions = Checksums(), reading()
    said: list[object] = []
    try:
        for data in events:
            for item in transactions.event(checksums.event(data), data):
                said += item.events
    finally:
        transactions.close()
    return said


def test_a_real_binlog_is_read_whole(real_binlog: list[bytes]) -> None:
    """S1: nothing of it is left out."""
    changes = [event for event in read(real_binlog) if isinstance(event, ChangeEvent)]
    told = [(event.collection, event.operation.value, event.document_id) for event in changes]
    assert told == [
        ("a", "insert", "0"),
        ("b", "insert", "1"),
        ("b", "replace", "1"),
        ("b", "insert", "2"),
        ("b", "replace", "1"),
        ("b", "replace", "2"),
        ("b", "delete", "2"),
        ("c", "insert", changes[-1].document_id),
    ]
    kinds = {data[4] for data in real_binlog}
    assert kinds >= {
        EventType.GTID_LOG,
        EventType.GTID_TAGGED_LOG,
        EventType.TRANSACTION_PAYLOAD,
        EventType.PARTIAL_UPDATE_ROWS,
        EventType.XA_PREPARE,
    }


@settings(max_examples=cases(300))
@given(data=st.data())
def test_a_mutated_event_is_an_error_or_a_value_and_never_a_crash(
    real_binlog: list[bytes], data: st.DataObject
) -> None:
    """S1: cut, grown and flipped anywhere, with a checksum that fits."""
    which = data.draw(st.integers(1, len(real_binlog) - 1))
    event = bytearray(real_binlog[which])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(4, len(event) - 5))
        match data.draw(st.sampled_from(["flip", "cut", "grow", "byte"])):
            case "flip":
                event[at] ^= 1 << data.draw(st.integers(0, 7))
            case "byte":
                event[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0xFB, 0xFC, 0xFE, 0xFF]))
            case "cut":
                del event[at : at + data.draw(st.integers(1, 9))]
            case _:
                event[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        if len(event) < 24:
            return
    mutated = [*real_binlog[:which], signed(bytes(event)), *real_binlog[which + 1 :]]
    # An error with its type and place is all that is asked of it.
    with contextlib.suppress(PenstockError, MalformedEventError):
        read(mutated)


@settings(max_examples=cases(300))
@given(st.binary(max_size=60))
def test_bytes_that_are_no_json_are_an_error_or_a_value(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        json_value(data)
    with contextlib.suppress(ValueError):
        JsonDiffs(data).applied({"a": [1, {"b": 2}]})


def test_json_that_refers_to_itself_ends() -> None:
    """An array whose one element is itself; and one of many elements that are all the next."""
    with pytest.raises(MalformedEventError, match=r"circles|deeper"):
        json_value(b"\x02" + struct.pack("<HH", 1, 7) + b"\x02" + struct.pack("<H", 0))
    levels, width = 50, 40
    size = 4 + 3 * width
    body = b"".join(
        struct.pack("<HH", width, size) + (b"\x02" + struct.pack("<H", size)) * width
        for _ in range(levels)
    )
    with pytest.raises(MalformedEventError):
        json_value(b"\x02" + body)


def packed(events: list[bytes], *, method: int = 0, cut: int = 0) -> bytes:
    """The body of a TRANSACTION_PAYLOAD event with these events."""
    inner = b"".join(events)
    data = inner if method == 255 else pa.compress(inner, "zstd", asbytes=True)
    data = data[: len(data) - cut]
    size = b"\x01\x09\xfe" + struct.pack("<Q", len(data))
    which = b"\x02" + (b"\x01" + bytes([method]) if method < 0xFB else b"\x03\xfc\xff\x00")
    return which + size + b"\x00" + data


def query_event(text: bytes) -> bytes:
    body = struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0" + text
    return HEADER.pack(0, EventType.QUERY, 1, HEADER.size + len(body), 0, 0) + body


@pytest.mark.parametrize("method", [0, 255])
def test_a_compressed_transaction_is_its_events(method: int) -> None:
    events = [query_event(b"BEGIN"), query_event(b"x" * 100_000), query_event(b"COMMIT")]
    found = list(payload_events(packed(events, method=method)))
    assert [event.body for event in found] == [event[HEADER.size :] for event in events]


def test_a_compressed_transaction_that_is_damaged_is_refused() -> None:
    """S1: never a part of it as if it were whole."""
    events = [query_event(b"BEGIN"), query_event(bytes(range(256)) * 40)]
    whole = packed(events)
    for damaged in (
        packed(events, cut=3),
        packed(events, method=255, cut=3),
        packed(events, method=7),
        whole[:-1],
        whole + b"x",
        packed(events, method=255) + events[0],
        whole[:1],
        b"\x09\x01\x00" + whole,
        packed([events[0][:-1]]),
        packed([*events, events[0][:7]]),
    ):
        with pytest.raises(MalformedEventError):
            list(payload_events(damaged))


def test_what_a_compressed_transaction_cannot_have_stops_capture(real_binlog: list[bytes]) -> None:
    """S1: another transaction, or a payload, within one."""
    begin = next(
        i for i, data in enumerate(real_binlog) if data[4] == EventType.TRANSACTION_PAYLOAD
    )
    for kind in (EventType.GTID_LOG, EventType.TRANSACTION_PAYLOAD, EventType.ROTATE):
        inner = HEADER.pack(0, kind, 1, HEADER.size + 30, 0, 0) + bytes(30)
        body = packed([inner])
        head = HEADER.pack(0, EventType.TRANSACTION_PAYLOAD, 1, 0, 0, 0)
        with pytest.raises(UndecodableError, match=rf"40 .*type {kind}"):
            read([*real_binlog[:begin], signed(head + body + bytes(4))])


def test_a_compressed_transaction_is_unpacked_as_it_is_taken() -> None:
    """S14: half a gigabyte from a few kilobytes, in the memory of an event."""
    event = query_event(b"x" * (1 << 20))
    count = 512
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, "zstd") as output:
        for _ in range(count):
            output.write(event)
    data = stream.getvalue().to_pybytes()
    body = b"\x02\x01\x00\x01\x09\xfe" + struct.pack("<Q", len(data)) + b"\x00" + data
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum(1 for _ in payload_events(body)) == count
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10, f"{grown >> 10} MiB"
