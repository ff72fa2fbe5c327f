"""MySQL, its writers and capture in processes of their own, killed with -9 at any moment."""

import random
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.sources.mysql.connection import Connected
from penstock.testing.servers import MySqlServer
from tests.children import Child, running
from tests.mysql import programs
from tests.mysql.support import Story, binlogs, caught_up, run, source_of
from tests.mysql.test_crash import PROGRAMS, compared, contents, once, whole
from tests.seeds import seed_of
from tests.telling import read_log

LIVES = 9


@pytest.mark.slow
async def test_killed_at_random_all_leave_a_log_that_adds_up_to_the_tables(
    start_mysql: Callable[..., MySqlServer], tmp_path: Path
) -> None:
    """S1, S5, invariants 2 and 3: tables of all kinds, compressed, tagged, large and XA
    transactions; writers, capture and the server itself are killed."""
    rng = random.Random(seed_of("mysql-9-crash"))
    log_path = tmp_path / "log"
    server = start_mysql(options=["--innodb-redo-log-capacity=64M"])
    with server.connect() as db:
        programs.prepare(db)

    def writing() -> tuple[object, ...]:
        return ("write", server.port, rng.getrandbits(32))

    capturing = ("capture", server.port, log_path)
    with running(PROGRAMS, *writing()) as writers, running(PROGRAMS, *capturing) as captures:
        for life in range(LIVES):
            captures[-1].says(rng.randrange(2, 12))
            writers[-1].says(rng.randrange(2, 30))
            match ("writer", "capture", "server")[life % 3]:
                case "writer":
                    writers[-1].kill()
                    writers.append(Child(PROGRAMS, *writing()))
                case "capture":
                    captures[-1].kill()
                    captures.append(Child(PROGRAMS, *capturing))
                case _:
                    programs.kill(server)
        captures[-1].says(3)
    with server.connect() as db:
        for xid in programs.prepared(db):
            run(db, f"XA COMMIT '{xid}'")
    story = await read_log(log_path, Story(), source="db")
    captured = len(story.changes)
    source = source_of(server, include=["d.*"], start="beginning")
    await caught_up(server, source, story)
    with server.connect() as db:
        ours = {table: list(rows.values()) for table, rows in story.rows().items()}
        for table in (*programs.TABLES, "xa"):
            assert compared(ours.get(f"d.{table}", [])) == compared(contents(db, table)), table
        told = [(event.transaction, event.collection) for event in once(story)]
        assert told == list(logged(server, db)), "as the server's own tool reads its binlogs"
    ids = [event.event_id for event in story.events]
    assert len(ids) == len(set(ids)), "no event is in the log twice"
    named = set[str]()
    for item in whole(story.items):
        names = {event.transaction for event in item if event.transaction is not None}
        assert len(names) <= 1
        assert not names & named, "a transaction is one commit of the log"
        named |= names
    assert captured > 100
    assert any(":tag:" in name for name in named)
    assert ours["d.xa"]


def logged(server: MySqlServer, db: Connected) -> Iterator[tuple[str, str]]:
    """The transaction and table of each row in the binlogs, by the server's own tool: where it was
    committed."""
    files = [str(server.data / name) for name in binlogs(db)]
    text = subprocess.run(
        [
            *(*server.binlog_command(), "--no-defaults", "-v"),
            *("--base64-output=decode-rows", *files),
        ],
        capture_output=True,
        check=True,
    ).stdout.decode(errors="replace")
    gtid, held, prepared = "", list[str](), dict[str, list[str]]()
    for line in text.splitlines():
        if found := re.match(r"SET @@SESSION.GTID_NEXT= '([^']+:\d+)'", line):
            gtid, held = found[1], []
        elif found := re.match(r"### (?:INSERT INTO|UPDATE|DELETE FROM) `d`\.`(\w+)`", line):
            held.append(found[1])
        elif line.startswith("COMMIT"):
            yield from ((gtid, table) for table in held)
            held = []
        elif found := re.match(r"XA PREPARE (\S+)", line):
            prepared[found[1]], held = held, []
        elif found := re.match(r"XA COMMIT ([^\s;/]+)", line):
            yield from ((gtid, table) for table in prepared.pop(found[1]))
        elif found := re.match(r"XA ROLLBACK ([^\s;/]+)", line):
            prepared.pop(found[1])
