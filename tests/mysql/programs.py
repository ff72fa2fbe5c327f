"""Processes for a test to kill with -9 at any moment.

python programs.py write PORT SEED [BIG] write to a server from several threads, and change tables;
                                         BIG: how likely a transaction has a row of 9 MiB
python programs.py capture PORT LOG      capture it into a log
python programs.py copy PORT LOG         with a copy of what is there, a few rows at a time
"""

import asyncio
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pymysql

from penstock.capture.pump import PumpProgress, pump
from penstock.errors import PenstockError
from penstock.log import LmdbLog
from penstock.log.config import LogConfig
from penstock.sources.mysql import MysqlSource, MysqlSourceConfig
from penstock.sources.mysql.connection import Connected
from tests.mysql.support import run

if TYPE_CHECKING:
    from tests_support.servers import SqlServer

KEYS = 40
TABLES = ("plain", "moving", "wide", "keyless", "altered", "swapped")
DOMAINS = 3
BIG = 9 << 20
"""More than a fragment."""
_LOCKED = "GET_LOCK('truncate', 60)"
_UNLOCKED = "RELEASE_LOCK('truncate')"


def say(word: object) -> None:
    """One write a line, straight to the pipe: a kill cannot hold back what was said."""
    os.write(1, f"{word}\n".encode())


def prepare(db: Connected) -> None:
    """The tables, each of another kind."""
    run(
        db,
        "CREATE DATABASE d",
        "CREATE TABLE d.plain (id INT PRIMARY KEY, n INT, t LONGTEXT)",
        "CREATE TABLE d.moving (a VARCHAR(20), b BIGINT UNSIGNED, n INT, PRIMARY KEY (b, a))",
        "CREATE TABLE d.wide (id INT PRIMARY KEY, x DECIMAL(20, 5), y DATETIME(6), z BLOB, "
        "e ENUM('a', 'b'), s SET('x', 'y'), f DOUBLE, b BIT(5), w VARCHAR(20) CHARSET latin1)",
        "CREATE TABLE d.keyless (one BIGINT, n INT)",
        "CREATE TABLE d.altered (id INT PRIMARY KEY, n INT)",
        "CREATE TABLE d.swapped (id INT PRIMARY KEY, n INT)",
        "CREATE TABLE d.xa (id BIGINT PRIMARY KEY)",
    )


def connected(port: int) -> Connected:
    """A connection, as soon as there is a server."""
    while True:
        try:
            return pymysql.connect(
                host="127.0.0.1",
                port=port,
                user="root",
                database="d",
                read_timeout=30,
                ssl_disabled=True,
            )
        except pymysql.MySQLError:
            time.sleep(0.02)


def write(port: int, seed: int, number: int, *, big: float) -> None:
    """Transactions in a domain of this thread's own, or of another kind than others', for ever."""
    rng = random.Random(f"{seed}:{number}")
    while True:
        try:
            db = connected(port)
            on_mysql = "MariaDB" not in run(db, "SELECT VERSION()")[0][0]
            run(db, KINDS_OF_TRANSACTIONS[number] if on_mysql else f"SET gtid_domain_id = {number}")
            while True:
                if rng.random() < 0.1:
                    decide(port, rng)
                for _ in range(rng.choice([1, 1, 2, 5, 40])):
                    run(db, change(rng))
                if rng.random() < big:
                    key = rng.randrange(KEYS)
                    run(db, f"REPLACE INTO plain VALUES ({key}, 0, REPEAT('x', {BIG}))")
                    run(db, f"REPLACE INTO plain VALUES ({key}, 1, 'small again')")
                run(db, "COMMIT" if rng.random() < 0.9 else "ROLLBACK")
                if number == 0 and rng.random() < 0.1:
                    statements = alteration(rng)
                    run(db, *(one for one in statements if not on_mysql or "IF NOT" not in one))
                say(number)
        except pymysql.MySQLError:
            pass  # a deadlock, a column that was not there yet, a server that was killed


KINDS_OF_TRANSACTIONS = (
    "SET binlog_row_value_options = 'PARTIAL_JSON'",
    "SET binlog_transaction_compression = ON",
    "SET gtid_next = 'AUTOMATIC:tag'",
)
"""Of MySQL's, by the number of the thread."""


def prepared(db: Connected) -> list[str]:
    """The XA transactions that are prepared."""
    names = [row[3] for row in run(db, "XA RECOVER")]
    return [name.decode() if isinstance(name, bytes) else name for name in names]


def decide(port: int, rng: random.Random) -> None:
    """Prepare an XA transaction, or have one that any writer prepared committed or rolled back.

    By another session: with MariaDB, who has prepared one can do nothing else.
    """
    with connected(port) as db:
        waiting = prepared(db)
        if len(waiting) < 5:
            xid = f"'{rng.getrandbits(60)}'"
            run(db, f"XA START {xid}", f"INSERT INTO xa VALUES ({rng.getrandbits(40)})")
            run(db, f"XA END {xid}", f"XA PREPARE {xid}")
            return
        verb = "ROLLBACK" if rng.random() < 0.2 else "COMMIT"
        run(db, f"XA {verb} '{rng.choice(waiting)}'")


def change(rng: random.Random) -> str:
    """A statement that changes rows."""
    table, key, n = rng.choice(TABLES), rng.randrange(KEYS), rng.randrange(1000)
    where = {"moving": f"b = {key}", "keyless": f"one % {KEYS} = {key}"}.get(table, f"id = {key}")
    what = rng.random()
    if what < 0.25:
        return f"DELETE FROM {table} WHERE {where}"
    if what < 0.5:
        sets = {
            "wide": "x = -x, y = NOW(6), z = REPEAT('\\0', 9), e = 'b', s = 'x,y', f = f / 3",
            "moving": f"a = CONCAT('k', {n}), n = {n}",
        }.get(table, f"n = {n}")
        return f"UPDATE {table} SET {sets} WHERE {where}"
    return {
        "plain": f"REPLACE INTO plain VALUES ({key}, {n}, 'ž{n}')",
        "moving": f"INSERT IGNORE INTO moving VALUES ('i{n}', {key}, {n})",
        "wide": f"REPLACE INTO wide VALUES ({key}, {n}.5, NOW(6), x'00ff', 'a', '', {n} / 7, 3, "
        f"CONVERT(0xe9 USING latin1))",
        "keyless": f"INSERT INTO keyless VALUES ({rng.getrandbits(40) * KEYS + key}, {n})",
    }.get(table) or f"REPLACE INTO {table} (id, n) VALUES ({key}, {n})"


def kill(server: "SqlServer") -> None:
    """kill -9 of the server, and start it again; never within a TRUNCATE.

    One that is cut off there may have emptied the table, and have no word of it in its binlog
    (MariaDB, docs/how-to/mysql.md): then nobody who reads the binlog adds up to the table.
    """
    with server.connect() as db:
        assert run(db, f"SELECT {_LOCKED}") == [(1,)]
        server.kill()
    server.restart()


def alteration(rng: random.Random) -> list[str]:
    """Statements that change a table, and commit by themselves."""
    return rng.choice(
        [
            ["ALTER TABLE altered ADD COLUMN IF NOT EXISTS m INT"],
            [f"SELECT {_LOCKED}", "TRUNCATE TABLE altered", f"SELECT {_UNLOCKED}"],
            [
                "DROP TABLE IF EXISTS shadow, gone",
                "CREATE TABLE shadow LIKE swapped",
                "INSERT INTO shadow SELECT * FROM swapped",
                "COMMIT",
                "RENAME TABLE swapped TO gone, shadow TO swapped",
                "DROP TABLE gone",
            ],
            ["FLUSH BINARY LOGS"],
        ]
    )


OPTIONS = {"user": "root", "include": ["d.*"], "heartbeat_seconds": 0.5}
CHUNK = 20
"""Rows."""


async def capture(port: int, log_path: Path, **options: object) -> None:
    """Capture for ever; says how much is durable whenever that has changed."""
    log = LmdbLog(LogConfig(path=log_path, free_bytes_min=0))
    config = MysqlSourceConfig.model_validate({"port": port, **OPTIONS, **options})
    source = MysqlSource("db", config)
    while True:
        progress, told = PumpProgress(), 0
        pumping = asyncio.ensure_future(pump(source, log, progress=progress))
        while not pumping.done():
            if progress.appended != told:
                told = progress.appended
                say(told)
            await asyncio.wait({pumping}, timeout=0.005)
        try:
            pumping.result()
        except PenstockError as error:
            if not error.transient:
                raise
            await log.abandon("db")


if __name__ == "__main__":
    what, port, third = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if what == "write":
        big = float(sys.argv[4]) if len(sys.argv) > 4 else 0.02
        for one in range(1, DOMAINS):
            arguments = (port, int(third), one)
            threading.Thread(target=write, args=arguments, kwargs={"big": big}, daemon=True).start()
        write(port, int(third), 0, big=big)
    elif what == "copy":
        options = {"start": "snapshot", "snapshot_chunk_documents": CHUNK}
        asyncio.run(capture(port, Path(third), **options))
    else:
        asyncio.run(capture(port, Path(third), start="beginning"))
