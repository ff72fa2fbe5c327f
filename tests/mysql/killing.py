"""A server, its writers and its capture in processes of their own, killed with -9 at random."""

import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from penstock.event import AnyEvent, ChangeEvent, Commit, Fragment, Operation
from penstock.sources.mysql.connection import Connected
from tests.children import MODULE, Child
from tests.mysql import programs
from tests.mysql.support import Story, binlogs, caught_up, run, source_of
from tests.telling import read_log
from tests_support.servers import MySqlServer, SqlServer

_LIVES = 9
_PROGRAMS = "tests.mysql.programs"
_MARIADB_BEGINS = r"#\d{6}\s.*\sGTID (\d+-\d+-\d+)"
_MYSQL_BEGINS = r"SET @@SESSION.GTID_NEXT= '([^']+:\d+)'"
"""What the servers' own tools write of a transaction."""


async def adds_up(server: SqlServer, folder: Path, *, seed: int) -> set[str]:
    """Kill all of them at random: the log then adds up to the tables, and is what the server's own
    tool reads in its binlogs. Returns the transactions' names."""
    rng, log_path = random.Random(seed), folder / "log"
    with server.connect() as db:
        programs.prepare(db)
    lives(server, log_path, rng)
    with server.connect() as db:
        for xid in programs.prepared(db):
            run(db, f"XA COMMIT '{xid}'")
    story = await read_log(log_path, Story(), source="db")
    captured = len(story.changes)
    await caught_up(server, source_of(server, include=["d.*"], start="beginning"), story)
    with server.connect() as db:
        ours = {table: list(rows.values()) for table, rows in story.rows().items()}
        for table in (*programs.TABLES, "xa"):
            assert compared(ours.get(f"d.{table}", [])) == compared(contents(db, table)), table
        told = [(event.transaction, event.collection) for event in once(story)]
        assert told == list(logged(server, db)), "as the server's own tool reads them"
    ids = [event.event_id for event in story.events]
    assert len(ids) == len(set(ids)), "no event is in the log twice"
    assert captured > 100
    assert ours["d.xa"]
    return named(story)


def lives(server: SqlServer, log_path: Path, rng: random.Random) -> None:
    """Of the writers, of capture and of the server, each ended in its turn."""

    def started(name: str, given: object) -> Child:
        return processes.enter_context(Child(*MODULE, _PROGRAMS, name, server.port, given))

    with ExitStack() as processes:
        writer = started("write", rng.getrandbits(32))
        capture = started("capture", log_path)
        for life in range(_LIVES):
            capture.says(rng.randrange(2, 12))
            writer.says(rng.randrange(2, 30))
            match ("writer", "capture", "server")[life % 3]:
                case "writer":
                    writer.kill()
                    writer = started("write", rng.getrandbits(32))
                case "capture":
                    capture.kill()
                    capture = started("capture", log_path)
                case _:
                    programs.kill(server)
        capture.says(3)


def named(story: Story) -> set[str]:
    """The transactions' names; each is one commit of the log."""
    found = set[str]()
    for item in whole(story.items):
        names = {event.transaction for event in item if event.transaction is not None}
        assert len(names) <= 1
        assert not names & found, "a transaction is one commit of the log"
        found |= names
    return found


def compared(rows: list[dict[str, Any]]) -> Counter[str]:
    """Rows without an order. Of a column that came later, a row of before says nothing."""
    return Counter(
        repr(sorted((name, value) for name, value in row.items() if value is not None))
        for row in rows
    )


def contents(db: Connected, table: str) -> list[dict[str, Any]]:
    """What is in a table, in the form of the log."""
    asked = {"y": "CAST(y AS CHAR)", "z": "TO_BASE64(z)"}
    if table == "wide":
        asked["b"] = "b + 0"
    names = [str(row[0]) for row in run(db, f"SHOW COLUMNS FROM d.{table}")]
    columns = ", ".join(asked.get(name, name) for name in names)
    return [
        {name: written(name, value) for name, value in zip(names, row, strict=True)}
        for row in run(db, f"SELECT {columns} FROM d.{table}")
    ]


def written(column: str, value: Any) -> Any:
    """A value as the log has it."""
    if value is None:
        return None
    if column == "x":
        return {"$numberDecimal": str(value)}
    if column == "z":
        return {"$binary": {"base64": value, "subType": "00"}}
    if column == "s":
        return str(value).split(",") if value else []
    return value


def once(story: Story) -> Iterator[ChangeEvent]:
    """The changes, an update of a key once."""
    last: ChangeEvent | None = None
    for event in story.changes:
        if last is None or not is_moved(last, event):
            yield event
        last = event


def is_moved(last: ChangeEvent, event: ChangeEvent) -> bool:
    """Whether these are the old and the new key of one row, as only the workload's updates make."""
    if (last.transaction, last.collection) != (event.transaction, event.collection):
        return False
    if (last.operation, event.operation) != (Operation.DELETE, Operation.INSERT):
        return False
    if event.collection == "keyless":
        before = msgspec.json.decode(last.full_document_before_change or b"")
        return bool(before["one"] == msgspec.json.decode(event.full_document or b"")["one"])
    return event.collection == "moving" and '"a":"k' in bytes(event.key).decode()


def logged(server: SqlServer, db: Connected) -> Iterator[tuple[str, str]]:
    """The transaction and table of each row in the binlogs, by the server's own tool: where it was
    committed."""
    files = [str(server.data / name) for name in binlogs(db)]
    text = subprocess.run(
        [*server.binlog_command(), "--no-defaults", "-v", "--base64-output=decode-rows", *files],
        capture_output=True,
        check=True,
    ).stdout.decode(errors="replace")
    begins = _MYSQL_BEGINS if isinstance(server, MySqlServer) else _MARIADB_BEGINS
    gtid, held, prepared = "", list[str](), dict[str, list[str]]()
    for line in text.splitlines():
        if found := re.match(begins, line):
            gtid, held = found[1], []
        elif found := re.match(r"### (?:INSERT INTO|UPDATE|DELETE FROM) `d`\.`(\w+)`", line):
            held.append(found[1])
        elif line.startswith("COMMIT"):
            yield from ((gtid, table) for table in held)
            held = []
        elif found := re.match(r"XA PREPARE ([^\s;/]+)", line):
            prepared[found[1]], held = held, []
        elif found := re.match(r"XA COMMIT ([^\s;/]+)", line):
            yield from ((gtid, table) for table in prepared.pop(found[1]))
        elif found := re.match(r"XA ROLLBACK ([^\s;/]+)", line):
            prepared.pop(found[1])


def whole(items: list[Commit | Fragment]) -> Iterator[list[AnyEvent]]:
    """The commits of a story, fragments joined to what ends them."""
    held = list[AnyEvent]()
    for item in items:
        held += item.events
        if isinstance(item, Commit):
            yield held
            held = []
