"""A copy under writers, with capture and the server killed with -9 in the middle of it."""

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from penstock.event import SystemEvent
from tests.children import MODULE, Child
from tests.mysql import programs
from tests.mysql.conftest import on
from tests.mysql.killing import compared, contents
from tests.mysql.support import Story, caught_up, completed, numbers, run, source_of
from tests.seeds import seed_of
from tests.telling import follow, read_log
from tests_support.servers import SqlServer

LIVES = 5
ROOM = {
    "mariadb": ("--innodb-log-file-size=64M",),
    "mysql": ("--innodb-redo-log-capacity=64M",),
    "files": ("--innodb-redo-log-capacity=64M",),
}
ROWS = 600
PROGRAMS = "tests.mysql.programs"


@pytest.mark.slow
@on("files", soak=("mariadb", "mysql"))
async def test_a_copy_goes_on_after_each_kill_and_adds_up_to_the_tables(
    kind: str, start: Callable[..., SqlServer], tmp_path: Path
) -> None:
    """A29, invariants 2 and 9: it is not begun anew, and no row of it comes twice."""
    rng = random.Random(seed_of("mysql-copy-crash"))
    log_path = tmp_path / "log"
    server = start(options=ROOM[kind])
    with server.connect() as db:
        programs.prepare(db)
        run(db, "USE d")
        behind = numbers(programs.KEYS, programs.KEYS + ROWS)
        run(db, f"INSERT INTO plain SELECT seq, 0, REPEAT('x', seq % 900) FROM {behind}")
        run(db, f"INSERT INTO moving SELECT CONCAT('z', seq), seq, 0 FROM {behind}")
        run(db, f"INSERT INTO keyless SELECT seq * {programs.KEYS} + 39, 0 FROM {behind}")
        run(db, f"INSERT INTO altered SELECT seq, 0 FROM {behind}")
        run(db, f"INSERT INTO swapped SELECT seq, 0 FROM {behind}")

    def started(name: str, given: object) -> Child:
        return processes.enter_context(Child(*MODULE, PROGRAMS, name, server.port, given))

    with ExitStack() as processes:
        capture = started("copy", log_path)
        # Nothing is prepared before it begins, which would have the copy begin anew.
        assert capture.line(), capture.tail()
        with started("write", rng.getrandbits(32)) as writer:
            for life in range(LIVES):
                capture.says(rng.randrange(2, 30))
                writer.says(rng.randrange(2, 20))
                if life % 3 == 2:
                    programs.kill(server)
                else:
                    capture.kill()
                    capture = started("copy", log_path)
        capture.says(3)
    with server.connect() as db:
        for xid in programs.prepared(db):
            run(db, f"XA COMMIT '{xid}'")
    story = await read_log(log_path, Story(), source="db")
    copied = [event for event in story.changes if event.snapshot]
    source = source_of(server, include=["d.*"], start="snapshot", snapshot_chunk_documents=200)
    if ("snapshot_completed", "") not in story.said:
        await follow(source, story, completed)
    await caught_up(server, source, story)
    with server.connect() as db:
        ours = {table: list(rows.values()) for table, rows in story.rows(copies=True).items()}
        for table in programs.TABLES:
            assert compared(ours.get(f"d.{table}", [])) == compared(contents(db, table)), table
    ids = [event.event_id for event in story.events]
    assert len(ids) == len(set(ids)), "no event is in the log twice"
    begun = [
        msgspec.json.decode(event.description)
        for event in story.events
        if isinstance(event, SystemEvent) and event.operation == "snapshot_started"
    ]
    assert len(begun) == 1, "it went on, and did not begin anew"
    keyed = [(e.collection, bytes(e.key)) for e in story.changes if e.snapshot]
    keyed = [place for place in keyed if place[0] == "plain"]
    assert len(keyed) == len(set(keyed)) >= ROWS
    print(f"{len(copied)} rows were copied between the kills")
