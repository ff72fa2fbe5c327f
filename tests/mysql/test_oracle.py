"""What is told is what the server's own tool reads in its binlogs: each change once, in order."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import pymysql
import pytest

from penstock.event import Fragment
from penstock.sources.mysql.connection import Connected
from tests.mysql.anything import POINT, AnyTable, Kind, kinds_of
from tests.mysql.oracle import Lists, differs, dumped, logged, told
from tests.mysql.support import binlogs, caught_up, run, source_of
from tests.mysql.test_values import LOOSE, edges
from tests.seeds import seed_of
from tests_support.servers import MariaDbServer

DOMAINS = 3
KEYS = 30
LOCKED = {1205, 1213}
"""A session waits for another: its statement did not come about, or its transaction."""
BIG = 9 << 20
"""More than a fragment."""


class Workload:
    """Transactions of several sessions, interleaved, each in a domain and with keys of its own."""

    def __init__(self, server: MariaDbServer, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sessions = [server.connect(autocommit=False) for _ in range(DOMAINS)]
        self.kinds: dict[str, list[Kind]] = {}
        self.values: dict[str, list[list[Any]]] = {}
        every = kinds_of(server)
        self.rng.shuffle(every)
        for number in range(5):
            self.kinds[f"any{number}"] = every[number::5]
            self.values[f"any{number}"] = [[*edges(one), None] for one in every[number::5]]

    def prepare(self) -> None:
        """Ten tables, of all types, with keys of all kinds and without one."""
        db = self.sessions[0]
        run(db, "CREATE DATABASE d", "CREATE DATABASE elsewhere", "USE d")
        run(db, "CREATE TABLE elsewhere.t (id INT PRIMARY KEY)")
        for name, kinds in self.kinds.items():
            AnyTable([(kind, True) for kind in kinds], [], []).make(db, name)
        run(
            db,
            "CREATE TABLE moving (a VARCHAR(20), n INT, b BIGINT UNSIGNED, PRIMARY KEY (b, a))",
            "CREATE TABLE keyless (k BIGINT, n INT)",
            "CREATE TABLE altered (id INT PRIMARY KEY, n INT)",
            "CREATE TABLE swapped (id INT PRIMARY KEY, n INT)",
            "CREATE TABLE large (id INT PRIMARY KEY, t LONGTEXT)",
            "CREATE TABLE never (id INT PRIMARY KEY, n INT) ENGINE = MyISAM",
        )
        for number, session in enumerate(self.sessions):
            run(session, LOOSE, "USE d", f"SET SESSION gtid_domain_id = {number}")
            run(session, "SET SESSION innodb_lock_wait_timeout = 0")
            run(session, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def step(self) -> None:
        """One statement, the end of a transaction, or a statement that changes tables."""
        try:
            self._step()
        except pymysql.err.OperationalError as error:
            if error.args[0] not in LOCKED:
                raise

    def _step(self) -> None:
        number = self.rng.randrange(DOMAINS)
        db, what = self.sessions[number], self.rng.random()
        if what < 0.62:
            self._change(db, number)
        elif what < 0.85:
            run(db, "COMMIT")
        elif what < 0.88:
            run(db, "ROLLBACK")
        elif what < 0.93:
            # Where it writes to a table that cannot be rolled back, the binlog has all of it.
            key = self._key(number)
            run(db, "SAVEPOINT s", f"REPLACE INTO altered (id, n) VALUES ({key}, -1)")
            run(db, f"REPLACE INTO never VALUES ({key}, 1)", "ROLLBACK TO s")
        elif what < 0.97:
            for one in self.sessions:
                run(one, "COMMIT")
            run(db, *self._alteration())
        else:
            run(db, "SET SESSION binlog_annotate_row_events = " + self.rng.choice(["0", "1"]))

    def end(self) -> None:
        """A transaction in several fragments, the others' ends, and the tables as they are now."""
        for session in self.sessions:
            run(session, "COMMIT")
        db = self.sessions[1]
        run(db, f"REPLACE INTO large VALUES (1, REPEAT('x', {BIG})), (2, 'ž'), (3, NULL)")
        run(db, "UPDATE large SET t = CONCAT(t, 'y') WHERE id < 3")
        run(db, "UPDATE large SET id = id + 10", *["COMMIT"])
        for session in self.sessions:
            run(session, "COMMIT", "SET SESSION binlog_annotate_row_events = 1")
            for table in self.kinds:
                run(session, f"DELETE FROM {table} WHERE id % 2 = 0 AND id % {DOMAINS} = 0")
            run(session, "COMMIT")

    def _key(self, number: int) -> int:
        return self.rng.randrange(KEYS) * DOMAINS + number

    def _change(self, db: Connected, number: int) -> None:
        rng, key = self.rng, self._key(number)
        table = rng.choice([*self.kinds, *self.kinds, "moving", "keyless", "altered", "swapped"])
        if rng.random() < 0.05:
            run(db, f"REPLACE INTO elsewhere.t VALUES ({key})")
        n = rng.randrange(1000)
        if table in self.kinds:
            self._any(db, table, key)
        elif table == "moving":
            run(db, rng.choice([
                f"INSERT IGNORE INTO moving VALUES ('i{n}', {n}, {key})",
                f"UPDATE IGNORE moving SET a = CONCAT('k', {n}) WHERE b = {key}",
                f"UPDATE moving SET n = {n} WHERE b = {key}",
                f"DELETE FROM moving WHERE b = {key} LIMIT 1",
            ]))  # fmt: skip
        elif table == "keyless":
            run(db, rng.choice([
                f"INSERT INTO keyless (k, n) VALUES ({key}, {n}), ({key}, {n})",
                f"UPDATE keyless SET n = {n} WHERE k = {key}",
                f"DELETE FROM keyless WHERE k = {key} LIMIT 1",
            ]))  # fmt: skip
        else:
            run(db, rng.choice([
                f"REPLACE INTO {table} (id, n) VALUES ({key}, {n}), ({key + DOMAINS}, {n})",
                f"UPDATE {table} SET n = {n} WHERE id = {key}",
                f"DELETE FROM {table} WHERE id = {key}",
            ]))  # fmt: skip

    def _any(self, db: Connected, table: str, key: int) -> None:
        rng, kinds = self.rng, self.kinds[table]
        places = ["%s" if kind is not POINT else "ST_GeomFromText(%s, 4326)" for kind in kinds]
        rows = [[rng.choice(values) for values in self.values[table]] for _ in range(2)]
        with db.cursor() as cursor:
            if rng.random() < 0.6:
                one = f"(%s, {', '.join(places)})"
                cursor.execute(
                    f"REPLACE INTO {table} VALUES {one}, {one}",
                    [key, *rows[0], key + DOMAINS, *rows[1]],
                )
            else:
                sets = ", ".join(f"c{i} = {place}" for i, place in enumerate(places))
                cursor.execute(f"UPDATE IGNORE {table} SET {sets} WHERE id = %s", [*rows[0], key])

    def _alteration(self) -> list[str]:
        column = f"c{self.rng.randrange(1 << 30)}"
        return self.rng.choice([
            [f"ALTER TABLE altered ADD COLUMN {column} INT DEFAULT 7 FIRST"],
            [f"ALTER TABLE altered ADD COLUMN {column} VARCHAR(9) DEFAULT 'ž'"],
            ["ALTER TABLE altered MODIFY n BIGINT"],
            ["TRUNCATE TABLE altered"],
            [
                "CREATE TABLE shadow LIKE swapped",
                "INSERT INTO shadow SELECT * FROM swapped",
                "COMMIT",
                "RENAME TABLE swapped TO gone, shadow TO swapped",
                "DROP TABLE gone",
            ],
            ["FLUSH BINARY LOGS"],
        ])  # fmt: skip

    def lists(self) -> Lists:
        """The values of each ENUM and SET."""
        found: Lists = {}
        for table in self.kinds:
            columns = run(self.sessions[0], f"SHOW COLUMNS FROM d.{table}")
            found[table] = [
                [one.replace("''", "'") for one in kind[kind.index("(") + 2 : -2].split("','")]
                if (kind := str(said)).startswith(("enum", "set"))
                else []
                for _, said, *_ in columns
            ]
        return found


@pytest.mark.slow
@pytest.mark.both_mariadbs
@pytest.mark.parametrize(
    ("steps", "options"),
    [
        (400, []),
        (400, ["--log-bin-compress=1", "--log-bin-compress-min-len=10"]),
        pytest.param(20_000, ["--binlog-row-event-max-size=256"], marks=pytest.mark.soak),
    ],
)
async def test_every_change_of_the_binlog_is_told_once_and_in_order_with_its_values(
    start_mariadb: Callable[..., MariaDbServer], steps: int, options: list[str]
) -> None:
    """S1, S4, S6, A1, A13, A28: all types, changing keys, tables without one, DDL in between, large
    transactions, interleaved domains, and what was rolled back."""
    server = start_mariadb(options=options)
    workload = Workload(server, seed_of("mysql-oracle"))
    workload.prepare()
    for _ in range(steps):
        workload.step()
    workload.end()
    source = source_of(server, include=["d.*"], start="beginning", statement_bytes_max="1MiB")
    story = await caught_up(server, source)
    with server.connect() as db:
        files = [server.data / name for name in binlogs(db)]
    theirs = list(logged(dumped(files, tool=server.binlog_command()), database="d"))
    lists, seen = workload.lists(), Counter[str]()
    for number, (ours, one) in enumerate(zip_longest(told(story.events), theirs)):
        assert ours is not None, f"{number}: {one[:3]} was logged, and not told"
        assert one is not None, f"{number}: {ours[:3]} was told, and not logged"
        why = differs(ours, one, lists)
        assert why is None, f"{number}: {why}"
        seen[one.what] += 1
        seen["stated"] += one.statement is not None
    assert min(seen[what] for what in ("insert", "update", "delete", "ddl", "stated")) > 10
    assert {event.transaction.split("-")[0] for event in story.changes if event.transaction} == {
        str(number) for number in range(DOMAINS)
    }
    assert any(isinstance(item, Fragment) for item in story.items)
