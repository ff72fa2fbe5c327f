"""The decoder takes what a server wrote, and anything else with an error: never a wrong length."""

import contextlib
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError, SourceUnavailableError, UndecodableError
from penstock.event import ChangeEvent, SchemaEvent, event_id
from penstock.sources.mysql import binlog, rows, tables
from penstock.sources.mysql import transactions as grouping
from penstock.sources.mysql.binlog import HEADER, Checksums, EventType, MalformedEventError
from penstock.sources.mysql.events import Teller
from penstock.sources.mysql.held import Undone
from penstock.sources.mysql.positions import Flavour, MysqlPosition, Server, begun_at
from penstock.sources.mysql.rows import compile_table
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.tables import Table
from penstock.sources.mysql.transactions import Transactions
from tests.mysql.anything import KINDS, POINT, AnyTable
from tests.mysql.support import run
from tests.seeds import cases
from tests_support.servers import MariaDbServer, MariaDbVersion

CHARSETS = {**dict.fromkeys(range(1, 4096), "utf8mb4"), 8: "latin1", 33: "utf8mb3", 63: "binary"}


@pytest.fixture(scope="module")
def real_binlog(mariadb_version: MariaDbVersion) -> Iterator[list[bytes]]:
    """The events of a real binlog: a table of all types, written, updated and deleted; DDL; and
    one compressed."""
    from contextlib import ExitStack

    from tests.conftest import started

    with ExitStack() as stack:
        server = started(
            stack,
            MariaDbServer(
                version=mariadb_version,
                options=["--log-bin-compress=1", "--log-bin-compress-min-len=2000"],
            ),
        )
        with server.connect() as db:
            run(db, "SET sql_mode = ''", "CREATE DATABASE d", "USE d")
            every = [(kind, True) for kind in [*KINDS, POINT] if "INET" not in kind.ddl]
            AnyTable(every[:60], [[None] * 60], []).make(db, "a")
            run(db, "CREATE TABLE b (id INT PRIMARY KEY, t TEXT, n DECIMAL(20, 5), d DATETIME(3))")
            run(db, "INSERT INTO b VALUES (1, REPEAT('x', 3000), 1.5, NOW()), (2, 'y', -7, NULL)")
            run(db, "UPDATE b SET t = 'z'", "DELETE FROM b WHERE id = 1", "TRUNCATE b")
            run(db, "RENAME TABLE b TO c", "DROP TABLE c", "FLUSH BINARY LOGS")
        yield split((server.data / "mysql-bin.000001").read_bytes())


def split(file: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 4
    while at < len(file):
        size = int.from_bytes(file[at + 9 : at + 13], "little")
        found.append(file[at : at + size])
        at += size
    return found


def reading(
    undone: Undone,
    *,
    charsets: Mapping[int, str] = CHARSETS,
    flavour: Flavour = "mariadb",
    position: MysqlPosition | None = None,
    **options: Any,
) -> Transactions:
    def compiled(table: Table) -> rows.CompiledTable:
        return compile_table(table, charsets)

    teller = Teller("db", tenant=None)
    return Transactions(
        *("db", position or begun_at(Server(1), "", Scope(), flavour)),
        teller=teller,
        compile_table=compiled,
        charset_of=lambda number: charsets.get(number, ""),
        characters=lambda _, ones: dict.fromkeys(ones, "?"),
        undone=undone,
        **options,
    )


def read(events: list[bytes], *, undone: Undone | None = None) -> list[object]:
    """What events come to."""
    checksums, transactions = Checksums(), reading({} if undone is None else undone)
    said: list[object] = []
    with contextlib.closing(transactions):
        for data in events:
            for item in transactions.event(checksums.event(data), data):
                said += item.events
    return said


def signed(data: bytes) -> bytes:
    """An event with the size and checksum that it should have."""
    data = data[:9] + struct.pack("<I", len(data)) + data[13:]
    return data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))


@pytest.mark.both_mariadbs
def test_a_real_binlog_is_read_whole(real_binlog: list[bytes]) -> None:
    said = read(real_binlog)
    changes = [event for event in said if isinstance(event, ChangeEvent)]
    assert [event.collection for event in changes] == ["a", "b", "b", "b", "b", "b"]
    kinds = {data[4] for data in real_binlog}
    assert EventType.WRITE_ROWS_COMPRESSED_V1 in kinds
    assert EventType.UPDATE_ROWS_COMPRESSED_V1 in kinds


def test_a_byte_that_changed_on_its_way_is_noticed(real_binlog: list[bytes]) -> None:
    """By the event's checksum, whichever byte it is."""
    checksums = Checksums()
    for data in real_binlog:
        event = checksums.event(data)
        if event.type in {EventType.FORMAT_DESCRIPTION, EventType.ROTATE}:
            continue
        for at in range(0, len(data), 7):
            damaged = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
            if damaged[4] in {EventType.FORMAT_DESCRIPTION, EventType.ROTATE}:
                continue
            with pytest.raises(MalformedEventError):
                checksums.event(damaged)


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


def test_a_type_that_is_not_known_stops_capture_unless_the_server_says_it_may_be_left_out(
    real_binlog: list[bytes],
) -> None:
    """S1."""
    begin = next(i for i, data in enumerate(real_binlog) if data[4] == EventType.GTID)
    for kind in (18, 43, 50, 164, 200, 255):
        strange = bytearray(real_binlog[begin])
        strange[4] = kind
        with pytest.raises(UndecodableError, match=f"type {kind} "):
            read([*real_binlog[:begin], signed(bytes(strange))])
        strange[17] |= binlog.IGNORABLE_FLAG
        if kind != EventType.XA_PREPARE:
            read([*real_binlog[:begin], signed(bytes(strange))])


def test_rows_of_a_table_that_was_described_otherwise_stop_capture(
    real_binlog: list[bytes],
) -> None:
    """S4: the number of columns is that of the table map, or nothing is read."""
    body = Checksums()
    maps = [data for data in real_binlog if data[4] == EventType.TABLE_MAP]
    for data in real_binlog:
        event = body.event(data)
        if event.type == EventType.WRITE_ROWS_V1:
            other = tables.parse_table(maps[-1][19:-4])
            compiled = compile_table(other, CHARSETS)
            with pytest.raises(MalformedEventError, match="another's"):
                rows.changes(event.type, event.body, compiled)
            return
    pytest.fail("no rows were written")


def test_what_a_dying_server_took_back_is_told_of_another_transaction_of_the_same_name(
    real_binlog: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5: a server that died within a transaction may name the next one the same."""
    monkeypatch.setattr(grouping, "FRAGMENT_BYTES", 0)
    last = next(i for i, data in enumerate(real_binlog) if data[4] in rows.ROWS)
    first = max(i for i, data in enumerate(real_binlog[:last]) if data[4] == EventType.GTID)
    end = next(i for i in range(last, len(real_binlog)) if real_binlog[i][4] == EventType.XID)
    undone: Undone = {}
    with pytest.raises(SourceUnavailableError, match="took"):
        read([*real_binlog[:1], *real_binlog[first : last + 1], *real_binlog[:1]], undone=undone)
    file = bytes(8) + b"mysql-bin.000002"
    rotate = signed(HEADER.pack(0, EventType.ROTATE, 1, 0, 0, 0) + file + bytes(4))
    said = read([rotate, *real_binlog[:1], *real_binlog[first : end + 1]], undone=undone)
    assert [type(one) for one in said] == [ChangeEvent, SchemaEvent]


@pytest.mark.parametrize("ends_in_rollback", [True, False])
def test_a_table_that_was_created_and_not_committed_is_not_taken_for_there(
    real_binlog: list[bytes], *, ends_in_rollback: bool
) -> None:
    """Else a rename to its name is not told."""
    row = next(i for i, data in enumerate(real_binlog) if data[4] in rows.ROWS)
    begin = max(i for i, data in enumerate(real_binlog[:row]) if data[4] == EventType.GTID)
    created = next(data for data in real_binlog if b"CREATE TABLE b (" in data)
    rollback = signed(created[: created.index(b"CREATE TABLE b (")] + b"ROLLBACK" + bytes(4))
    checksums, transactions = Checksums(), reading({})
    with contextlib.closing(transactions):
        for data in (
            *(real_binlog[0], real_binlog[begin], created),
            rollback if ends_in_rollback else real_binlog[0],
        ):
            assert [*transactions.event(checksums.event(data), data)] == []
        assert not transactions.open
        assert ("d", "b") not in transactions.shapes


def test_a_table_is_described_by_its_own_transaction(real_binlog: list[bytes]) -> None:
    """S4: and so what a server described before is not kept for as long as its binlog is."""
    end = next(i for i, data in enumerate(real_binlog) if data[4] == EventType.XID)
    begin = max(i for i, data in enumerate(real_binlog[:end]) if data[4] == EventType.GTID)
    again = [data for data in real_binlog[begin : end + 1] if data[4] != EventType.TABLE_MAP]
    with pytest.raises(UndecodableError, match="not described"):
        read([*real_binlog[: end + 1], *again])


def test_rows_are_read_whatever_number_their_table_has(real_binlog: list[bytes]) -> None:
    """S1: 0x00FFFFFF says that rows are of no table, and is the number of a table all the same,
    once a server has opened so many."""
    numbered = [
        signed(data[:19] + b"\xff\xff\xff\0\0\0" + data[25:])
        if data[4] == EventType.TABLE_MAP or data[4] in rows.ROWS
        else data
        for data in real_binlog
    ]
    assert read(numbered) == read(real_binlog)


@given(st.binary(max_size=40))
def test_compressed_bytes_are_inflated_or_refused(data: bytes) -> None:
    packed = bytes([0x81, len(data)]) + zlib.compress(data)
    assert binlog.uncompressed(packed) == data
    for damaged in (packed[:-1], packed[:1] + b"\xff" + packed[2:], data):
        with contextlib.suppress(MalformedEventError):
            assert binlog.uncompressed(damaged) == data


def described(kind: int, meta: bytes, *, count: int = 1) -> bytes:
    """A TABLE_MAP of one column, or of none."""
    types, columns = bytes([kind]) * count, bytes([count])
    sized = bytes([len(meta) * count]) + meta * count
    return bytes(8) + b"\1d\0\1t\0" + columns + types + sized + b"\1" * count + b"\4\2\1c"


def test_a_table_without_columns_and_lengths_without_an_end_are_refused() -> None:
    """S1: rows without columns have no end, and a length of sixteen bytes ends nowhere."""
    with pytest.raises(MalformedEventError, match="no columns"):
        tables.parse_table(described(3, b"", count=0))
    for kind, meta in ((252, b"\x10"), (252, b"\0"), (255, b"\5"), (254, b"\xfc\x10")):
        with pytest.raises(MalformedEventError, match=r"have \d+ bytes|of type 252"):
            tables.parse_table(described(kind, meta))


@pytest.mark.parametrize(("layout", "kind"), [("<d", 5), ("<f", 4)])
@pytest.mark.parametrize(("value", "name"), [("nan", "NaN"), ("-inf", "-Infinity")])
def test_a_number_that_is_none_is_not_null(layout: str, kind: int, value: str, name: str) -> None:
    """A28: JSON has no word for it, and would say null."""
    table = tables.parse_table(described(kind, b"\x08"))
    read = compile_table(table, CHARSETS).read
    assert read(b"\0" + struct.pack(layout, float(value)), 0)[0] == {"c": {"$numberDouble": name}}
    assert read(b"\0" + struct.pack(layout, 1.5), 0)[0] == {"c": 1.5}


def packed(digits: str, precision: int, scale: int, *, negative: bool) -> bytes:
    """A DECIMAL of so many digits as a server packs it, group by group."""
    widths = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    whole = precision - scale
    cuts = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    data, at = b"", 0
    for many in cuts:
        if many:
            data += int(digits[at : at + many]).to_bytes(widths[many], "big")
            at += many
    data = bytes([data[0] ^ 0x80]) + data[1:]
    return bytes(byte ^ 0xFF for byte in data) if negative else data


@settings(max_examples=cases(500))
@given(data=st.data())
def test_a_decimal_of_any_precision_and_scale_has_all_of_its_digits(data: st.DataObject) -> None:
    """A28."""
    precision = data.draw(st.integers(1, 65))
    scale = data.draw(st.integers(0, min(precision, 38)))
    digits = data.draw(st.text("0123456789", min_size=precision, max_size=precision))
    negative = data.draw(st.booleans())
    table = tables.parse_table(described(246, bytes([precision, scale])))
    row = b"\0" + packed(digits, precision, scale, negative=negative)
    found, end = compile_table(table, CHARSETS).read(row + b"behind", 0)
    number = str(int(digits[: precision - scale] or "0"))
    text = f"{number}.{digits[precision - scale :]}" if scale else number
    assert found == {"c": {"$numberDecimal": f"-{text}" if negative else text}}
    assert end == len(row)


@given(
    st.tuples(*(st.integers(0, most) for most in (9999, 12, 31, 23, 59, 59))),
    st.integers(0, 6),
    st.integers(0, 999_999),
)
def test_a_datetime_is_written_as_it_is(parts: tuple[int, ...], digits: int, micros: int) -> None:
    """S2: zero and partial ones, too."""
    year, month, day, hour, minute, second = parts
    value = ((year * 13 + month) << 5 | day) << 17 | hour << 12 | minute << 6 | second
    size = (digits + 1) // 2
    fraction = int(f"{micros:06d}"[: 2 * size] or "0")
    row = b"\0" + (value + (1 << 39)).to_bytes(5, "big") + fraction.to_bytes(size, "big")
    read = compile_table(tables.parse_table(described(18, bytes([digits]))), CHARSETS).read
    text = f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}"
    text += f".{micros:06d}"[: digits + 1] if digits else ""
    assert read(row, 0) == ({"c": text}, len(row))


def test_an_event_is_known_by_its_transaction_and_its_number(real_binlog: list[bytes]) -> None:
    """A1: among the rows of its table, whatever it is made from on the way."""
    numbers: dict[tuple[str, str], int] = {}
    for event in read(real_binlog):
        if not isinstance(event, ChangeEvent):
            continue
        gtid = event.position.rpartition(":")[0]
        assert event.transaction == gtid
        of_table = f"{gtid}:{len(event.database)}:{event.database}.{event.collection}"
        second = b'"movedFrom"' in bytes(event.origin or b"")
        number = numbers.get((gtid, of_table), -1) + (not second)
        numbers[gtid, of_table] = number
        name = f"{of_table}:{number}" + (":new" if second else "")
        assert event.event_id == event_id("db", name, 0)


def test_rows_without_columns_are_refused() -> None:
    """S1: they take no bytes, and would be read for ever."""
    compiled = compile_table(tables.parse_table(described(3, b"")), CHARSETS)
    body = bytes(6) + b"\1\0" + b"\2\0" + b"\1" + b"\0" + b"more"
    with pytest.raises(MalformedEventError, match="no columns"):
        rows.changes(EventType.WRITE_ROWS, body, compiled)
