"""Capture of MariaDB: rows in bulk and single-row transactions, against mysql-replication (S3).

One MariaDB, one binlog, read over TCP by turns: by mysql-replication 1.0.17 with nothing done to
its rows, by our session to events as the log takes them (documents and keys are JSON then, with ids
and the origin of each), and by our source through the pump into a durable log. Targets: events are
told 5 times as fast in bulk, and 8 times in transactions of one row. The ratio by processor time is
what a busy machine distorts least.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import MariadbAnnotateRowsEvent, MariadbGtidEvent, XidEvent
from pymysqlreplication.row_event import (
    DeleteRowsEvent,
    RowsEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
)
from rich.console import Console
from rich.table import Table

from penstock.capture import pump
from penstock.cli.capture_process import relax_collector
from penstock.event import Commit
from penstock.log import LmdbLog, LogConfig
from penstock.sources.mysql import MysqlSource, MysqlSourceConfig
from penstock.sources.mysql.positions import parse_gtids, parse_position
from penstock.sources.mysql.session import Session
from penstock.sources.mysql.stream import drawn_server_id
from tests_support.servers import MariaDbServer

TARGETS = {"bulk": 5.0, "single": 8.0}
ROWS_IN_A_STATEMENT = 500
COLUMNS = (
    "id BIGINT PRIMARY KEY AUTO_INCREMENT, customer INT NOT NULL, "
    "status ENUM('new','paid','sent'), total DECIMAL(12,2), weight DOUBLE, note VARCHAR(200), "
    "placed DATETIME(3), changed TIMESTAMP NULL"
)
_console = Console(width=120)


class Rate(NamedTuple):
    """How fast a binlog was read."""

    rows: int
    seconds: float
    processor: float


def fill(server: MariaDbServer, *, bulk: int, single: int) -> dict[str, tuple[str, str]]:
    """Write both workloads, each into a binlog of its own; by its name: the file, and its end."""
    row = (
        "n % 1000, 1 + n % 3, n * 0.37, n / 7, CONCAT('a note of some length, no ', n), "
        "TIMESTAMPADD(SECOND, n, '2026-01-01 00:00:00.5'), NOW()"
    )
    into = "(customer, status, total, weight, note, placed, changed)"
    with server.connect() as db, db.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("USE shop")
        cursor.execute(
            f"CREATE PROCEDURE fill_single(many INT) BEGIN DECLARE n INT DEFAULT 0; "
            f"WHILE n < many DO INSERT INTO single {into} VALUES ({row}); "
            f"SET n = n + 1; END WHILE; END"
        )
        found: dict[str, tuple[str, str]] = {}
        for name in ("bulk", "single"):
            cursor.execute(f"CREATE TABLE {name} ({COLUMNS})")
            cursor.execute("FLUSH BINARY LOGS")
            cursor.execute("SHOW MASTER STATUS")
            file = cursor.fetchone()[0]
            if name == "single":
                cursor.execute("CALL fill_single(%s)", (single,))
            for start in range(0, bulk if name == "bulk" else 0, ROWS_IN_A_STATEMENT):
                cursor.execute(
                    f"INSERT INTO bulk {into} SELECT {row} FROM "
                    f"(SELECT seq AS n FROM seq_{start}_to_{start + ROWS_IN_A_STATEMENT - 1}) s"
                )
            cursor.execute("SELECT @@gtid_binlog_pos")
            found[name] = (file, cursor.fetchone()[0])
        return found


def timed(read: Callable[[], int]) -> Rate:
    clock, processor = time.perf_counter(), time.process_time()
    rows = read()
    return Rate(rows, time.perf_counter() - clock, time.process_time() - processor)


def peer(server: MariaDbServer, after: str, rows: int) -> int:
    """Rows by mysql-replication, after a place: with what ours says of them, too, the
    names and ends of transactions and the texts of statements."""
    stream = BinLogStreamReader(
        connection_settings={"host": server.host, "port": server.port, "user": "root"},
        server_id=drawn_server_id(),
        is_mariadb=True,
        auto_position=after,
        blocking=True,
        enable_logging=False,
        annotate_rows_event=True,
        only_events=[
            *(MariadbGtidEvent, XidEvent, MariadbAnnotateRowsEvent),
            *(WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent),
        ],
    )
    seen = 0
    try:
        for event in stream:
            if isinstance(event, RowsEvent):
                seen += len(event.rows)
            if seen >= rows:
                break
    finally:
        stream.close()
    return seen


def configured(server: MariaDbServer, **options: Any) -> MysqlSourceConfig:
    options = {"port": server.port, "user": "root", "start": "beginning", **options}
    return MysqlSourceConfig.model_validate(options)


def before(server: MariaDbServer, file: str, config: MysqlSourceConfig) -> Any:
    """The position at the begin of a file."""
    session = Session("db", config, server_id=4712, undone={})
    try:
        (item,) = session.begin(None).items
        assert isinstance(item, Commit)
        with server.connect() as db, db.cursor() as cursor:
            cursor.execute("SELECT BINLOG_GTID_POS(%s, 4)", (file,))
            gtids = cursor.fetchone()[0]
        position = parse_position(item.position)
        return type(position)(position.server, gtids, position.scope)
    finally:
        session.close()


def ours(config: MysqlSourceConfig, position: Any, end: str) -> int:
    """Rows as events, by one session."""
    session = Session("db", config, server_id=4712, undone={})
    until = parse_gtids(end)
    seen = 0
    try:
        step = session.begin(position)
        while True:
            for item in step.items:
                seen += len(item.events)
            last = getattr(step.items[-1], "position", None) if step.items else None
            if last is not None and parse_gtids(parse_position(last).gtids) == until:
                return seen
            step = session.step()
    finally:
        session.close()


async def logged(config: MysqlSourceConfig, position: Any, end: str) -> int:
    """Rows in a durable log."""
    until = parse_gtids(end)
    with tempfile.TemporaryDirectory() as folder:
        async with LmdbLog(LogConfig(path=Path(folder) / "log")) as log:

            class From(MysqlSource):
                """One that begins at a place in the binlog."""

                def changes(self, *, position: str | None = None) -> Any:
                    return super().changes(position=position or started)

            started = position.text()
            pumping = asyncio.ensure_future(pump(From("db", config), log))
            try:
                while True:
                    at = await log.position("db")
                    if at is not None and parse_gtids(parse_position(at).gtids) == until:
                        return (await log.bounds()).head
                    if pumping.done():
                        pumping.result()
                    await asyncio.wait({pumping}, timeout=0.01)
            finally:
                pumping.cancel()
                await asyncio.wait({pumping})


def show(name: str, rates: dict[str, list[Rate]]) -> None:
    unit = "rows/s" if name == "bulk" else "transactions/s"
    table = Table(title=f"{name}: {rates['peer'][0].rows:,}, {len(rates['peer'])} rounds")
    columns = ("reader", unit, "spread", "times the peer", "by processor time", "us each", "target")
    for column in columns:
        table.add_column(column, justify="left" if column == "reader" else "right")
    for reader, found in rates.items():
        each = [one.rows / one.seconds for one in found]
        ratios = [
            (mine.rows / mine.seconds) / (other.rows / other.seconds)
            for mine, other in zip(found, rates["peer"], strict=True)
        ]
        worked = [
            (mine.rows / mine.processor) / (other.rows / other.processor)
            for mine, other in zip(found, rates["peer"], strict=True)
        ]
        ratio = statistics.median(ratios)
        wanted = TARGETS[name]
        table.add_row(
            *(reader, f"{statistics.median(each):,.0f}", f"{min(each):,.0f} to {max(each):,.0f}"),
            *(f"{ratio:.1f}", f"{statistics.median(worked):.1f}"),
            f"{statistics.median([one.processor / one.rows for one in found]) * 1e6:.1f}",
            f">= {wanted:g}: {'met' if ratio >= wanted else 'MISSED'}"
            if reader == "events"
            else "",
        )
    _console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bulk", type=int, default=200_000, help="rows, in statements of 500")
    parser.add_argument("--single", type=int, default=30_000, help="transactions of one row")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    relax_collector()  # as the capture process does
    with MariaDbServer() as server:
        files = fill(server, bulk=chosen.bulk, single=chosen.single)
        for name, (file, end) in files.items():
            rows = chosen.bulk if name == "bulk" else chosen.single
            config = configured(server, include=[f"shop.{name}"])
            position = before(server, file, config)
            rates: dict[str, list[Rate]] = {"peer": [], "events": [], "log": []}
            for _ in range(chosen.rounds):
                rates["peer"].append(timed(lambda: peer(server, position.gtids, rows)))  # noqa: B023
                rates["events"].append(timed(lambda: ours(config, position, end)))  # noqa: B023
                rates["log"].append(
                    timed(lambda: asyncio.run(logged(config, position, end)))  # noqa: B023
                )
            for found in rates.values():
                assert all(one.rows == rows for one in found), found
            show(name, rates)


if __name__ == "__main__":
    main()
