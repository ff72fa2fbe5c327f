"""Events of a real server, changed anywhere: an error of ours or a value, never a crash or a hang.

The corpus is a binlog with every type, its edges among the values. A seed draws a transaction,
changes some of its events and signs them anew, so that no checksum stands before the decoder; what
is told of it goes the whole way, into the log's own bytes.
"""

import random
import resource
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import NamedTuple

import pytest

from penstock.errors import PenstockError
from penstock.event import AnyEvent
from penstock.sources.mysql.binlog import Checksums, EventType, MalformedEventError
from penstock.sources.mysql.connection import Connected, charsets
from penstock.sources.mysql.origins import OriginRules
from penstock.sources.mysql.positions import Flavour
from penstock.sources.mysql.tables import parse_table
from penstock.sources.mysql.transactions import Transactions
from penstock.wire import encode
from tests.conftest import started
from tests.mysql.anything import KINDS, POINT, AnyTable, Kind
from tests.mysql.mysql_kinds import MYSQL_KINDS
from tests.mysql.support import run
from tests.mysql.test_decoding import reading, signed, split
from tests.mysql.test_values import LOOSE, edges
from tests.seeds import seed_of
from tests_support.servers import MariaDbServer, MariaDbVersion, MySqlServer

pytestmark = pytest.mark.server
GROWTH_BYTES_MAX = 256 << 20
"""Of this process, whatever it reads."""


class Corpus(NamedTuple):
    """A binlog's events."""

    format: bytes
    """The FORMAT_DESCRIPTION."""
    transactions: list[list[bytes]]
    """Each from its GTID to its end."""
    charsets: dict[int, str]
    """By collation."""
    flavour: Flavour


@pytest.fixture(scope="module", params=["mariadb", "mariadb 11.8", "mysql"])
def corpus(request: pytest.FixtureRequest) -> Corpus:
    """A binlog of all types, plain and compressed, with what else is in one."""
    match request.param:
        case "mariadb":
            return of_mariadb("system")
        case "mariadb 11.8":
            return of_mariadb("11.8")
        case _:
            return of_mysql()


def of_mysql() -> Corpus:
    """With transactions that are compressed, binary JSON in parts, and texts of statements."""
    with ExitStack() as stack:
        options = ["--binlog-rows-query-log-events=ON", "--binlog-row-event-max-size=1024"]
        server = started(stack, MySqlServer(options=options))
        with server.connect() as db:
            run(db, LOOSE, "CREATE DATABASE d", "USE d")
            run(db, "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'")
            for compressed in ("OFF", "ON"):
                run(db, f"SET SESSION binlog_transaction_compression = {compressed}")
                fill(db, MYSQL_KINDS, compressed)
                run(
                    db,
                    f"CREATE TABLE j_{compressed} (id INT PRIMARY KEY, j JSON)",
                    f'INSERT INTO j_{compressed} VALUES (1, \'{{"a": [1, 2.5, null, "ž"]}}\')',
                    f"UPDATE j_{compressed} SET j = JSON_SET(j, '$.a[1]', 7, '$.a[3]', 'x')",
                    f"UPDATE j_{compressed} SET j = JSON_REMOVE(j, '$.a[0]')",
                    *(f"XA START 'x{compressed}'", f"DELETE FROM j_{compressed}"),
                    *(f"XA END 'x{compressed}'", f"XA PREPARE 'x{compressed}'"),
                    *(f"XA COMMIT 'x{compressed}'", f"DROP TABLE j_{compressed}"),
                )
            run(db, "FLUSH BINARY LOGS")
            known = charsets(db, range(1, 4096))
            ((name, *_), *_) = run(db, "SHOW BINARY LOGS")
        file = split((server.data / str(name)).read_bytes())
    kinds = {EventType.GTID_LOG, EventType.GTID_TAGGED_LOG}
    return Corpus(file[0], apart(file, kinds), known, "mysql")


def apart(file: list[bytes], begins: Collection[int]) -> list[list[bytes]]:
    """The transactions of a file."""
    starts = [i for i, data in enumerate(file) if data[4] in begins]
    return [file[i:j] for i, j in pairwise([*starts, len(file) - 1])]


def fill(db: Connected, every: Sequence[Kind], name: str) -> None:
    """Tables of all types, with the edges of each."""
    for number in range(0, len(every), 6):
        kinds = every[number : number + 6]
        values = [[*(edges(kind) * 6)[:6], None] for kind in kinds]
        made = [list(row) for row in zip(*values, strict=True)]
        table = f"t{number}_{name}"
        AnyTable([(kind, True) for kind in kinds], made, [(1, made[0])]).make(db, table)
        run(db, f"DELETE FROM {table} WHERE id = 0", f"UPDATE {table} SET id = id + 50")


def of_mariadb(version: MariaDbVersion) -> Corpus:
    """With rows and statements that are compressed, rolled back, and of tables without a key."""
    options = ["--log-bin-compress-min-len=10", "--binlog-row-event-max-size=1024"]
    with ExitStack() as stack:
        server = started(stack, MariaDbServer(version=version, options=options))
        with server.connect() as db:
            run(db, LOOSE, "CREATE DATABASE d", "USE d")
            for compressed in ("OFF", "ON"):
                run(db, f"SET GLOBAL log_bin_compress = {compressed}")
                fill(db, [*KINDS, POINT], compressed)
                run(
                    db,
                    f"CREATE TABLE k_{compressed} (a VARCHAR(9), b INT) ENGINE = MyISAM",
                    *("BEGIN", f"INSERT INTO k_{compressed} VALUES ('ž', 1)", "SAVEPOINT s"),
                    *(f"INSERT INTO t0_{compressed} (id) VALUES (99)", "ROLLBACK TO s", "COMMIT"),
                    f"RENAME TABLE k_{compressed} TO `l_{compressed}`",
                    f"ALTER TABLE l_{compressed} ADD c INT DEFAULT 5, ADD PRIMARY KEY (b)",
                    *(f"TRUNCATE l_{compressed}", f"DROP TABLE l_{compressed}"),
                    *("XA START 'x','y'", f"DELETE FROM t0_{compressed}", "XA END 'x','y'"),
                    *("XA PREPARE 'x','y'", "XA COMMIT 'x','y'"),
                )
            run(db, "FLUSH BINARY LOGS")
            known = charsets(db, range(1, 4096))
        file = split((server.data / "mysql-bin.000001").read_bytes())
    return Corpus(file[0], apart(file, {EventType.GTID}), known, "mariadb")


def read(events: Sequence[bytes], corpus: Corpus) -> list[AnyEvent]:
    """What events come to, as the log keeps it."""
    checksums = Checksums()
    transactions = reading(
        {},
        charsets=corpus.charsets,
        flavour=corpus.flavour,
        origins=OriginRules(statements="redacted", bytes_max=200),
    )
    told: list[AnyEvent] = []
    with closing(transactions):
        collect(events, checksums, transactions, told)
    encode(told)
    return told


def collect(
    events: Sequence[bytes], checksums: Checksums, transactions: Transactions, told: list[AnyEvent]
) -> None:
    """Add what events come to."""
    for data in events:
        event = checksums.event(data)
        size = len(event.body)
        if event.type in PACKED:
            size *= 20_000  # what zlib or zstd makes of it at most
        before = len(told)
        for item in transactions.event(event, data):
            told += item.events
        assert len(told) - before <= 100 + 2 * (size + len(told)), "bounded by what was read"


PACKED = {*range(166, 172), EventType.QUERY_COMPRESSED, EventType.TRANSACTION_PAYLOAD}
"""Those that are compressed."""

# --- changes --------------------------------------------------------------------------------------

EDGES = (0, 1, 2, 0x7F, 0x80, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF)
BODY = 19


def flip(rng: random.Random, event: bytearray) -> None:
    event[rng.randrange(4, len(event) - 4)] ^= 1 << rng.randrange(8)


def edge(rng: random.Random, event: bytearray) -> None:
    event[rng.randrange(4, len(event) - 4)] = rng.choice(EDGES)


def edge_of_the_body(rng: random.Random, event: bytearray) -> None:
    """Where the lengths and numbers are."""
    event[rng.randrange(BODY, min(len(event) - 4, BODY + 40))] = rng.choice(EDGES)


def cut(rng: random.Random, event: bytearray) -> None:
    at = rng.randrange(BODY, len(event) - 4)
    del event[at : min(at + rng.randrange(1, 12), len(event) - 4)]


def end(rng: random.Random, event: bytearray) -> None:
    del event[rng.randrange(BODY, len(event) - 4) : -4]


def grow(rng: random.Random, event: bytearray) -> None:
    at = rng.randrange(BODY, len(event) - 4)
    event[at:at] = rng.randbytes(rng.randrange(1, 12))


def repeat(rng: random.Random, event: bytearray) -> None:
    at = rng.randrange(BODY, len(event) - 4)
    event[at:at] = event[at : min(at + rng.randrange(1, 40), len(event) - 4)]


def number(rng: random.Random, event: bytearray) -> None:
    """A number of some bytes, as large as it can be, or nearly."""
    size = rng.choice([2, 3, 4, 8])
    at = rng.randrange(BODY, len(event) - 4)
    value = (1 << 8 * size) - rng.choice([1, 2, 1 << 8 * size - 1])
    event[at : min(at + size, len(event) - 4)] = value.to_bytes(size, "little")


CHANGES: tuple[Callable[[random.Random, bytearray], None], ...] = (
    *(flip, edge, edge_of_the_body, edge_of_the_body, cut, end, grow, repeat, number),
)


def changed(rng: random.Random, corpus: Corpus) -> list[bytes]:
    """A transaction, of which events are changed, spliced, left out, doubled or exchanged."""
    events = list(rng.choice(corpus.transactions))
    match rng.randrange(12):
        case 0:
            del events[rng.randrange(len(events))]
        case 1:
            events.insert(rng.randrange(len(events)), rng.choice(events))
        case 2:
            events.insert(rng.randrange(len(events)), rng.choice(rng.choice(corpus.transactions)))
        case 3:
            rng.shuffle(events)
        case 4:
            # The body of one event under the head of another.
            i, other = rng.randrange(len(events)), rng.choice(rng.choice(corpus.transactions))
            events[i] = signed(events[i][:BODY] + other[BODY:])
        case _:
            pass
    for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
        if not events:
            break
        i = rng.randrange(len(events))
        event = bytearray(events[i])
        for _ in range(rng.choice([1, 1, 2, 4])):
            if len(event) > BODY + 5:
                rng.choice(CHANGES)(rng, event)
        events[i] = signed(bytes(event)) if rng.random() < 0.97 else bytes(event)
    return [corpus.format, *events]


def grown() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.parametrize("times", [3_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_events_that_are_changed_anywhere_are_an_error_or_a_value(
    corpus: Corpus, times: int
) -> None:
    """S1: never a crash, a hang, or memory without a bound."""
    rng = random.Random(seed_of("mysql-decoder-fuzz"))
    before, values, errors = grown(), 0, 0
    for _ in range(times):
        state = rng.getstate()
        try:
            values += bool(read(changed(rng, corpus), corpus))
        except (PenstockError, MalformedEventError):
            errors += 1
        except BaseException:
            rng.setstate(state)
            print("of these events:", [data.hex() for data in changed(rng, corpus)])
            raise
    assert grown() - before < GROWTH_BYTES_MAX
    # Most are found out, and some are changed where any value is one.
    assert errors > times // 4
    assert values > times // 20


def test_the_corpus_is_read_whole(corpus: Corpus) -> None:
    """What is fuzzed is right before it is changed: all kinds of events, rows and columns."""
    kinds = {data[4] for events in corpus.transactions for data in events}
    if corpus.flavour == "mysql":
        assert kinds >= {
            *(EventType.TRANSACTION_PAYLOAD, EventType.PARTIAL_UPDATE_ROWS, EventType.ROWS_QUERY),
            *(EventType.XA_PREPARE, EventType.WRITE_ROWS, EventType.DELETE_ROWS),
        }
        assert sum(len(read([corpus.format, *one], corpus)) for one in corpus.transactions) > 500
        return
    assert kinds >= {
        *(EventType.TABLE_MAP, EventType.GTID, EventType.XID, EventType.QUERY),
        *(EventType.WRITE_ROWS_V1, EventType.UPDATE_ROWS_V1, EventType.DELETE_ROWS_V1),
        *(EventType.WRITE_ROWS_COMPRESSED_V1, EventType.UPDATE_ROWS_COMPRESSED_V1),
        *(EventType.DELETE_ROWS_COMPRESSED_V1, EventType.QUERY_COMPRESSED),
        *(EventType.ANNOTATE_ROWS, EventType.XA_PREPARE),
    }
    types, told = set[int](), 0
    for events in corpus.transactions:
        told += len(read([corpus.format, *events], corpus))
        for data in events:
            if data[4] == EventType.TABLE_MAP:
                types |= {column.type for column in parse_table(data[BODY:-4]).columns}
    assert told > 500
    assert len(types) == 22, "all that a server writes today"
