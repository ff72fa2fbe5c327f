"""A field that a server has no column for is a reject; it stops no pipeline."""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import pymysql
import pytest
from msgspec import structs

from penstock.errors import DestinationError
from penstock.extjson import encode
from penstock.spark.replica.mysql import one_case
from tests.spark.replica.contract import line
from tests.spark.replica.support import (
    Driver,
    MysqlReplica,
    PostgresReplica,
    SqlReplica,
    database,
)
from tests.spark.tables import Entries, change, put
from tests_support.servers import MariaDbServer, PostgresServer


class Named(NamedTuple):
    replica: SqlReplica
    refused: tuple[tuple[str, ...], ...]
    """The fields of documents, beside `_id`, of which the last one has no column."""
    written: tuple[tuple[str, ...], ...]


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.server) for name in ("postgres", "mariadb")]
)
def named(request: pytest.FixtureRequest) -> Named:
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        return Named(
            PostgresReplica(postgres.create(database())),
            (("xmin",), ("xmax",), ("cmin",), ("cmax",), ("ctid",), ("n", "tableoid"), ("a ",)),
            (("XMIN",), ("cTid",), ("oid",), ("xmin ,",), ("\U0001f600",), ("a\t",)),
        )
    mariadb: MariaDbServer = request.getfixturevalue("mariadb")
    own = ("DB_ROW_ID", "db_trx_id", "Db_Roll_Ptr", "FTS_DOC_ID", "fts_doc_id")
    return Named(
        MysqlReplica(mariadb.host, mariadb.port, request.getfixturevalue("mariadb_database")),
        (
            *((name,) for name in own),
            ("\U0001f600",),
            ("n", "a\U0001f600b"),
            *((f"a{blank}",) for blank in " \t\n\v\f\r"),
            ("i", "\u0130"),
            ("\u03b1\u03c3", "\u0391\u03a3"),
        ),
        (("xmin",), ("DB_MIX_ID",), ("_rowid",), ("row_start",), ("e", "\u00e9"), (" a",)),
    )


@pytest.fixture
def start(named: Named) -> Iterator[Any]:
    drivers: list[Driver] = []

    def start(entries: Entries) -> Driver:
        drivers.append(Driver(entries, named.replica.config()))
        drivers[-1].start()
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()


@pytest.mark.parametrize("made", [False, True])
def test_a_field_that_can_have_no_column_is_rejected_and_stops_nothing(
    named: Named, start: Any, made: bool
) -> None:
    """Whether its table is there or not; the row is healed without the field, or by its delete."""
    entries, replica = Entries(), named.replica
    entries.commit(put(0))
    driver: Driver = start(entries)
    if made:
        driver.apply()
    refused = dict(enumerate(named.refused, 1))
    written = dict(enumerate(named.written, 101))
    for key, fields in {**refused, **written}.items():
        entries.commit(put(key, **dict.fromkeys(fields, key)))
    assert driver.apply(1 if made else 0).rejected == len(refused)
    assert replica.rows("orders") == {
        0: {"_id": 0},
        **{key: {"_id": key, **dict.fromkeys(names, key)} for key, names in written.items()},
    }
    rejects = replica.rejects()
    assert [row["sequence"] for row in rejects] == [1 + key for key in refused]
    assert all("column" in row["reason"] for row in rejects)
    assert all(row["healed"] is None for row in rejects)
    head = entries.head
    entries.commit(change(1, "replace", {"_id": 1, "n": 1}), change(2, "delete"))
    driver.apply(head)
    assert replica.rows("orders")[1] == {"_id": 1, "n": 1}
    healed = [row["healed"] is not None for row in replica.rejects()]
    assert healed == [True, True, *(False for _ in rejects[2:])]


def test_what_is_rejected_leaves_no_column_behind(named: Named, start: Any) -> None:
    """Neither for its name nor for a value that this server does not hold."""
    entries, replica = Entries(), named.replica
    names = dict.fromkeys(named.refused[0], 1)
    # PostgreSQL has no such text, and MariaDB no such number.
    unfit = '{"_id":2,"y":"text","t":"\\u0000","d":{"$numberDouble":"NaN"}}'
    entries.commit(put(1, x="text", Total=1, **names), change(2, "insert", text=unfit))
    entries.commit(put(4), put(3, x=7, y=8, total=9))
    driver: Driver = start(entries)
    for end in (3, 4):
        driver.apply(0, end)
    assert [row["sequence"] for row in replica.rejects()] == [1, 2]
    assert replica.rows("orders") == {
        4: {"_id": 4},
        3: {"_id": 3, "x": 7, "y": 8, "total": 9},
    }


def test_a_key_that_can_have_no_column_is_rejected_and_stops_nothing(
    named: Named, start: Any
) -> None:
    (name,) = named.refused[0]
    entries = Entries()
    row = structs.replace(
        change(1, "insert"), key=encode({name: 1}), full_document=encode({name: 1})
    )
    entries.commit(row, line(1, n=1))
    entries.commit(structs.replace(change(1, "delete"), key=encode({name: 1})), line(2, n=2))
    driver: Driver = start(entries)
    assert driver.apply(0, 2).rejected == 1
    driver.apply(2)
    assert named.replica.rows("orders") == {}
    assert set(named.replica.rows("lines")) == {1, 2}
    assert [one["healed"] is not None for one in named.replica.rejects()] == [True]


def test_a_table_may_be_called_as_a_column_of_the_server(named: Named, start: Any) -> None:
    (name,) = named.refused[0]
    entries = Entries()
    entries.commit(change(1, "insert", {"_id": 1}, collection=name))
    start(entries).apply()
    assert named.replica.rows(name) == {1: {"_id": 1}}


def test_a_table_whose_name_a_server_cannot_write_is_refused_by_name(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """MySQL would make one that is called "?"."""
    entries = Entries()
    entries.commit(change(1, "insert", {"_id": 1}, collection="\U0001f600"))
    replica = MysqlReplica(mariadb.host, mariadb.port, mariadb_database)
    driver = Driver(entries, replica.config())
    driver.start()
    with pytest.raises(DestinationError, match="no table can be called"):
        driver.apply()
    driver.close()


def test_no_two_columns_are_told_apart_that_the_server_takes_for_one(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    """All letters that are one in some case, in pairs."""
    alike: dict[str, set[str]] = defaultdict(set)
    for letter in map(chr, (*range(1, 0xD800), *range(0xE000, 0x10000))):
        for kind in (letter.lower(), letter.upper(), letter.casefold()):
            alike[kind[0]] |= {letter, kind[0]}
    pairs = {
        pair for letters in alike.values() for pair in itertools.combinations(sorted(letters), 2)
    }
    apart = [(a, b) for a, b in sorted(pairs) if one_case(a) != one_case(b)]
    assert len(apart) > 100
    replica = MysqlReplica(mariadb.host, mariadb.port, mariadb_database)
    with replica.connect() as connection, connection.cursor() as cursor:
        for a, b in apart:
            cursor.execute(f"CREATE TEMPORARY TABLE made (`{a}_` int, `{b}_` int) ENGINE=MEMORY")
            cursor.execute("DROP TEMPORARY TABLE made")
        with pytest.raises(pymysql.err.OperationalError, match="Duplicate column"):
            cursor.execute(
                "CREATE TEMPORARY TABLE made (`\u0391\u03a3` int, `\u03b1\u03c3` int) ENGINE=MEMORY"
            )


def test_collections_with_long_names_have_tables_of_their_own(named: Named, start: Any) -> None:
    """Names that a server takes stay; the others are short enough for its files, too."""
    replica, entries = named.replica, Entries()
    names = [f"{letter * 64}{end}" for letter in "aж中-" for end in ("", "1", "2")]
    entries.commit(
        *(change(at, "insert", {"_id": at}, collection=name) for at, name in enumerate(names))
    )
    driver: Driver = start(entries)
    assert driver.apply().rejected == 0
    tables = [driver.config.table_of("db", name) for name in names]
    assert [list(replica.rows(table)) for table in tables] == [[at] for at in range(len(names))]
    told = replica.ask("SELECT name, collection FROM _penstock_tables")
    assert {row["name"]: row["collection"] for row in told} == dict(zip(tables, names, strict=True))
