"""What the tests of first loads from MariaDB share: a service that captures it, and its writers."""

import random
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql

from tests.cli.service import configure
from tests.mysql.support import run
from tests_support.servers import SqlServer

CONFIG = """
[log]
path = "log"
free_bytes_min = 0
[sources.shop]
type = "mysql"
port = {port}
user = "root"
include = ["{database}.*"]
heartbeat_seconds = 0.2
heartbeat_deadline_seconds = 20
snapshot_chunk_documents = 50
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "127.0.0.1:0"
[pipelines.p]
source = "shop"
{collections}
path = "lake"
trigger = 0.1
first_load = "source"
first_load_rows = 100
"""
ORDERS = "(id INT PRIMARY KEY, n INT, text VARCHAR(99) COLLATE utf8mb4_general_ci)"
_REFUSED = frozenset({1062, 1146, 1054, 1412, 1213, 1205})
"""A key that is there; a table or column that is not, or was altered just now; a lock."""
_PAUSE_SECONDS = 0.002
"""Between two writes: what is captured and applied is to keep up."""


def configured(folder: Path, server: SqlServer, database: str, *, collections: str = "") -> Path:
    """A configuration file for one database of a server and a pipeline with a first load."""
    text = CONFIG.format(port=server.port, database=database, collections=collections)
    return configure(folder, text)


class Writer(threading.Thread):
    """Inserts, updates, deletes and moves rows at random until it is told to stop."""

    def __init__(
        self, server: SqlServer, database: str, *tables: str, keys: int, seed: int
    ) -> None:
        super().__init__(name="writer")
        self._server, self._database, self._tables = server, database, tables
        self._keys = keys
        self._dice = random.Random(seed)
        self._stop_it = threading.Event()
        self.writes = 0

    def run(self) -> None:
        with self._server.connect(database=self._database) as db:
            while not self._stop_it.wait(_PAUSE_SECONDS):
                self.writes += 1
                try:
                    run(db, self._statement())
                except pymysql.MySQLError as error:
                    if error.args[0] not in _REFUSED:
                        raise

    def _statement(self) -> str:
        table, what = self._dice.choice(self._tables), self._dice.random()
        key, other = self._dice.randrange(self._keys), self._dice.randrange(self._keys)
        if what < 0.3:
            return f"DELETE FROM {table} WHERE id = {key}"
        if what < 0.6:
            return f"REPLACE INTO {table} (id, n) VALUES ({key}, {self.writes})"
        if what < 0.7:
            return f"UPDATE {table} SET id = {other} WHERE id = {key}"
        return f"UPDATE {table} SET n = {self.writes} WHERE id BETWEEN {key} AND {key + 3}"

    def stop(self) -> None:
        self._stop_it.set()
        self.join()


@contextmanager
def writing(
    server: SqlServer, database: str, *tables: str, keys: int, seed: int
) -> Generator[Writer]:
    """Writes to these tables go on inside the block."""
    writer = Writer(server, database, *tables, keys=keys, seed=seed)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def documents(server: SqlServer, database: str, table: str = "orders") -> dict[str, Any]:
    """What a table has, by key as the pipeline's table has it; nulls left out."""
    with server.connect(database=database) as db:
        names = [str(column[0]) for column in run(db, f"SHOW COLUMNS FROM {table}")]
        rows = [dict(zip(names, row, strict=True)) for row in run(db, f"SELECT * FROM {table}")]
    return {
        f'{{"id":{row["id"]}}}': {name: value for name, value in row.items() if value is not None}
        for row in rows
    }
