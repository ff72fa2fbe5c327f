"""A copy beside the binlog: nothing stale, nothing lost, whoever writes meanwhile."""

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pymysql
import pytest

from penstock.errors import RequestError, UndecodableError
from penstock.event import ChangeEvent, Commit, Fragment, SystemEvent
from penstock.ports import ChangeSource, Copies, Moves
from penstock.sources.mysql import chunks
from penstock.sources.mysql.selecting import Span
from tests.mysql.support import Rows, Story, caught_up, completed, numbers, run, source_of
from tests.seeds import seed_of
from tests.telling import follow
from tests_support.servers import MariaDbServer, MySqlServer, SqlServer

Start = Callable[..., SqlServer]


def copying(server: SqlServer, database: str, **options: Any) -> Any:
    """A source that copies `database`, a few rows at a time."""
    options = {"start": "snapshot", "snapshot_chunk_documents": 3, **options}
    return source_of(server, include=[f"{database}.*"], **options)


def enough(items: int) -> Callable[[Story], bool]:
    """Holds after so many items."""
    return lambda story: len(story.items) >= items


def chunks_of(more: int) -> Callable[[Story], bool]:
    """Holds after so many more chunks, or when the copy is complete."""
    left = more

    def reached(story: Story) -> bool:
        nonlocal left
        said = story.items[-1].events
        left -= any(isinstance(event, ChangeEvent) and event.snapshot for event in said)
        return left <= 0 or completed(story)

    return reached


def said_of(event: object) -> dict[str, Any]:
    assert isinstance(event, SystemEvent)
    found: dict[str, Any] = msgspec.json.decode(event.description)
    return found


def contents(db: Any, database: str, *tables: str) -> Rows:
    """What is in tables of plain numbers and texts, by their keys. Empty ones are left out."""
    found: Rows = {}
    for table in tables:
        columns = run(db, f"SHOW COLUMNS FROM {database}.{table}")
        names = [str(column[0]) for column in columns]
        keys = [str(part[4]) for part in run(db, f"SHOW INDEX FROM {database}.{table}")]
        for row in run(db, f"SELECT * FROM {database}.{table}"):
            document = dict(zip(names, row, strict=True))
            key = msgspec.json.encode({name: document[name] for name in keys}).decode()
            found.setdefault(f"{database}.{table}", {})[key] = document
    return found


def test_the_source_fulfils_its_ports(server: SqlServer) -> None:
    source = source_of(server)
    assert isinstance(source, ChangeSource)
    assert isinstance(source, Copies)
    assert isinstance(source, Moves)


async def test_a_copy_comes_between_its_announcements_and_goes_on_after_a_crash(
    server: SqlServer, database: str
) -> None:
    """A29: with tables of all sizes, of none, and one without a key, which is one reading."""
    with server.connect(database=database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY)",
            f"INSERT INTO a SELECT seq FROM {numbers(1, 7)}",
        )
        run(
            db,
            "CREATE TABLE b (id INT PRIMARY KEY)",
            f"INSERT INTO b SELECT seq FROM {numbers(1, 3)}",
        )
        run(db, "CREATE TABLE e (id INT PRIMARY KEY)", "CREATE VIEW v AS SELECT * FROM a")
        run(db, "CREATE TABLE k (n INT)", "INSERT INTO k VALUES (1), (1)")
    story = Story()
    while not completed(story):
        source = copying(server, database)
        await follow(source, story, enough(len(story.items) + 2))
    assert [operation for operation, _ in story.said] == ["snapshot_started", "snapshot_completed"]
    assert [event.document_id for event in story.changes if event.collection == "a"] == [
        *map(str, range(1, 8))
    ]
    assert len(story.changes) == 12, "each row once"
    assert all(event.snapshot for event in story.changes)
    assert all(event.full_document_as_of_event for event in story.changes)
    assert len({event.event_id for event in story.events}) == 14
    started, ended = [said_of(event) for event in story.events if isinstance(event, SystemEvent)]
    names = [f"{database}.{table}" for table in ("a", "b", "e", "k")]
    assert started["collections"] == ended["collections"] == names
    assert (ended["documents"], ended["whole"]) == (12, True)
    assert started["snapshot"] == ended["snapshot"]
    with server.connect(database=database) as db:
        run(db, "INSERT INTO a VALUES (8)")
    await caught_up(server, copying(server, database), story)
    assert (story.changes[-1].document_id, story.changes[-1].snapshot) == ("8", False)


async def test_events_of_a_copy_are_the_same_when_it_is_read_again(
    server: SqlServer, database: str
) -> None:
    """P26."""
    with server.connect(database=database) as db:
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY)",
            f"INSERT INTO a SELECT seq FROM {numbers(1, 7)}",
        )
    source, story = copying(server, database), Story()
    await follow(source, story, completed)
    begun = Story(next(item.position for item in story.items if isinstance(item, Commit)))
    again = await follow(source, begun, completed)
    assert again.events == story.events


# --- while others write ---------------------------------------------------------------------------

KEYS = 120
WITHOUT_SNAPSHOTS: dict[type[SqlServer], str] = {
    MariaDbServer: "ENGINE = Aria TRANSACTIONAL = 0",
    MySqlServer: "ENGINE = MyISAM",
}


class Writers:
    """Threads that write to tables, where each row says how late it was written.

    They write about as fast as somebody reads, so that the reading gets to where they are.
    """

    def __init__(self, server: SqlServer, database: str, rng: random.Random) -> None:
        self._server, self._database = server, database
        self._stop = threading.Event()
        self._counter = 0
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(30)
        seeds = [rng.getrandbits(32) for _ in range(3)]
        self._threads = [threading.Thread(target=self._write, args=(seed,)) for seed in seeds]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def read(self, item: Commit | Fragment) -> None:
        """Somebody has read this."""
        if item.events:
            self._turns.release()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, seed: int) -> None:
        rng = random.Random(seed)
        with self._server.connect(database=self._database, autocommit=False) as db:
            if isinstance(self._server, MariaDbServer):
                run(db, f"SET SESSION gtid_domain_id = {rng.randrange(3)}")
            while not self._stop.is_set():
                # Of a transaction that changed nothing, nothing is read.
                self._turns.acquire(timeout=0.02)
                try:
                    for _ in range(rng.choice([1, 1, 3])):
                        self._change(db, rng)
                    run(db, "COMMIT" if rng.random() < 0.9 else "ROLLBACK")
                except pymysql.MySQLError:
                    run(db, "ROLLBACK")  # a deadlock

    def _change(self, db: Any, rng: random.Random) -> None:
        table, key = rng.choice(["one", "two", "other"]), rng.randrange(KEYS)
        where = "a = 'k' AND id" if table == "two" else "id"
        what = rng.random()
        if what < 0.2:
            run(db, f"DELETE FROM {table} WHERE {where} = {key}")
            return
        # The number is drawn while the row is locked, so that it rises with each of its changes.
        run(db, f"SELECT 1 FROM {table} WHERE {where} = {key} FOR UPDATE")
        with self._lock:
            self._counter += 1
            number = self._counter
        if what < 0.4:
            other = rng.randrange(KEYS)
            run(db, f"UPDATE IGNORE {table} SET id = {other}, n = {number} WHERE {where} = {key}")
        elif table == "two":
            run(db, f"REPLACE INTO two VALUES ('k', {key}, {number})")
        else:
            run(db, f"REPLACE INTO {table} VALUES ({key}, {number})")


async def test_a_copy_under_writers_ends_with_what_is_there_and_no_row_is_older_than_its_place(
    server: SqlServer, database: str
) -> None:
    """Invariant 9: an InnoDB row counts its own writes, and in the log that count never falls; a
    key moves, too. The tables of another engine have no snapshots, and end as they are."""
    rng = random.Random(seed_of("mysql-copy"))
    with server.connect(database=database) as db:
        run(
            db,
            "CREATE TABLE one (id INT PRIMARY KEY, n INT)",
            "CREATE TABLE two (a VARCHAR(9), id INT, n INT, PRIMARY KEY (a, id))",
            f"CREATE TABLE other (id INT PRIMARY KEY, n INT) {WITHOUT_SNAPSHOTS[type(server)]}",
            f"INSERT INTO one SELECT seq, 0 FROM {numbers(0, KEYS - 1)}",
            f"INSERT INTO two SELECT 'k', seq, 0 FROM {numbers(0, KEYS - 1)}",
            f"INSERT INTO other SELECT seq, 0 FROM {numbers(0, KEYS - 1)}",
        )
        source, story = copying(server, database, snapshot_chunk_documents=7), Story()
        with Writers(server, database, rng) as writers:
            while not completed(story):
                await follow(source, story, chunks_of(rng.randrange(1, 9)), on_item=writers.read)
            writers.stop()
        await caught_up(server, source, story)
        expected = contents(db, database, "one", "two", "other")
    assert story.rows(copies=True) == expected
    assert len({event.event_id for event in story.events}) == len(story.events)
    newest = dict[tuple[str, bytes], int]()
    for event in story.changes:
        if event.full_document is not None and event.collection != "other":
            place = (event.collection, bytes(event.key))
            told = msgspec.json.decode(event.full_document)["n"]
            assert told >= newest.get(place, 0), "a row that is older than what was said before"
            newest[place] = told
    assert any(event.snapshot for event in story.changes)
    assert not all(event.snapshot for event in story.changes)


_OF_MYSQL = (
    "--plugin-load-add=semisync_source.so",
    "--loose-rpl-semi-sync-source-wait-point=AFTER_SYNC",
    "--loose-rpl-semi-sync-source-timeout=3000",
    "--loose-rpl-semi-sync-source-wait-no-replica=ON",
)
SEMI_SYNC = {
    "mariadb": (
        "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
        "--rpl-semi-sync-master-timeout=3000",
        "--rpl-semi-sync-master-wait-no-slave=ON",
    ),
    "mysql": _OF_MYSQL,
    "files": _OF_MYSQL,
}


async def test_a_transaction_that_is_told_before_others_see_it_is_in_the_rows_that_follow_it(
    kind: str, start: Start
) -> None:
    """Invariant 9: with semi-synchronous replication a server sends a transaction, and waits for a
    replica to have it before anybody else sees it. A chunk that was read meanwhile lacks it."""
    server = start(options=SEMI_SYNC[kind])
    with server.connect() as db, server.connect() as other:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, n INT)")
        run(db, "INSERT INTO d.a VALUES (1, 0)")
        source, story = source_of(server, heartbeat_seconds=0.1), Story()
        capturing = asyncio.Event()
        waiting: asyncio.Future[list[str]] | None = None

        def note(item: Commit | Fragment) -> None:
            nonlocal waiting
            capturing.set()
            told = [event for event in item.events if isinstance(event, ChangeEvent)]
            if told and not told[0].snapshot:
                # Told, and seen by nobody yet.
                assert run(db, "SELECT n FROM d.a") == [(0,)]
                waiting = asyncio.ensure_future(source.copy(["d.a"], known=()))

        reading = asyncio.ensure_future(follow(source, story, completed, on_item=note))
        await capturing.wait()
        # It gives up for good at the first timeout, so it begins now.
        name = "master" if kind == "mariadb" else "source"
        run(db, f"SET GLOBAL rpl_semi_sync_{name}_enabled = ON")
        update = asyncio.to_thread(run, other, "UPDATE d.a SET n = 1")
        await asyncio.gather(update, reading)
        assert waiting is not None
        await waiting
    told = [msgspec.json.decode(event.full_document or b"") for event in story.changes]
    assert told == [{"id": 1, "n": 1}, {"id": 1, "n": 1}]
    assert [event.snapshot for event in story.changes] == [False, True]


# --- what happens while a chunk is read -----------------------------------------------------------


def meanwhile(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """Has something happen once, right before or behind a step of reading a chunk."""
    original = getattr(chunks.ChunkReader, step)
    left = [act]

    def stepped(self: chunks.ChunkReader, *arguments: Any) -> Any:
        if step == "_now" and left:
            left.pop()()
        found = original(self, *arguments)
        if step == "_begin" and left:
            left.pop()()
        return found

    monkeypatch.setattr(chunks.ChunkReader, step, stepped)


async def test_rows_of_a_table_without_snapshots_that_change_while_they_are_read_are_left_out(
    server: SqlServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 9: the stream tells them, and what was read of them is older."""
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE m (id INT PRIMARY KEY, n INT) ENGINE = MyISAM")
        run(db, f"INSERT INTO m SELECT seq, 0 FROM {numbers(1, 60)}", "CREATE TABLE o (n INT)")
        original, story = chunks.ChunkReader.chunk, Story()
        moved, firsts = False, list[int]()  # ... of the chunk that changes while it is read

        def change() -> None:
            run(db, f"UPDATE m SET n = 1 WHERE id = {firsts[0]}")
            run(db, f"DELETE FROM m WHERE id = {firsts[0] + 1}")

        def read(self: chunks.ChunkReader, opened: chunks.Opened, span: Span) -> Any:
            if not firsts and any(event.collection == "o" for event in story.changes):
                # The stream stands at a known place, and the chunk is read now.
                assert span.after is not None
                firsts.append(int(span.after[0]) + 1)
                meanwhile(monkeypatch, "_now", change)
            return original(self, opened, span)

        def move(item: Commit | Fragment) -> None:
            nonlocal moved
            if not moved and any(event.collection == "m" for event in item.events):
                moved = True
                run(db, "INSERT INTO o VALUES (1)")

        monkeypatch.setattr(chunks.ChunkReader, "chunk", read)
        await follow(copying(server, database), story, completed, on_item=move)
        there = contents(db, database, "m")
    (first,) = firsts
    told = [(e.operation.value, e.document_id) for e in story.changes if e.collection == "m"]
    expected = [("insert", str(one)) for one in range(1, 61) if one not in {first, first + 1}]
    expected[first - 1 : first - 1] = [("replace", str(first)), ("delete", str(first + 1))]
    assert told == expected
    rows = story.rows(copies=True)
    assert rows[f"{database}.m"] == there[f"{database}.m"]


@pytest.mark.parametrize(
    "statements",
    [
        ["RENAME TABLE a TO c"],
        ["RENAME TABLE a TO c", "CREATE TABLE a (id INT PRIMARY KEY, n INT)"],
        ["ALTER TABLE a ADD COLUMN m INT DEFAULT 5"],
        ["ALTER TABLE a FORCE"],
        ["DROP TABLE a"],
        ["TRUNCATE TABLE a", "INSERT INTO a VALUES (1, 9)"],
    ],
    ids=lambda statements: statements[-1],
)
async def test_a_table_that_changes_between_its_snapshot_and_its_rows_is_read_again(
    server: SqlServer,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    statements: list[str],
) -> None:
    """S4, invariant 9: also one that is gone by then, under that name."""
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, n INT)", "INSERT INTO a VALUES (1, 1), (2, 2)")
        meanwhile(monkeypatch, "_begin", lambda: run(db, *statements))
        story = await follow(copying(server, database), Story(), completed)
        await caught_up(server, source_of(server, include=[f"{database}.*"]), story)
        tables = [str(name) for (name,) in run(db, "SHOW TABLES")]
        there = contents(db, database, *tables)
    assert story.rows(copies=True) == there
    if statements[0].startswith("ALTER"):
        told = [what for what, _ in story.said]
        assert told == ["snapshot_started", "modify", "snapshot_completed"]
        behind = story.events.index(next(e for e in story.events if e.operation == "modify"))
        assert all(story.events.index(event) > behind for event in story.changes)


# --- nothing is held ------------------------------------------------------------------------------


async def test_between_chunks_anybody_may_alter_the_table_that_is_copied(
    server: SqlServer, database: str
) -> None:
    with server.connect(database=database) as db:
        run(db, "SET lock_wait_timeout = 0")
        run(
            db,
            "CREATE TABLE a (id INT PRIMARY KEY)",
            f"INSERT INTO a SELECT seq FROM {numbers(1, 9)}",
        )
        story, altered = Story(), 0

        def alter(item: Commit | Fragment) -> None:
            nonlocal altered
            if any(isinstance(event, ChangeEvent) and event.snapshot for event in item.events):
                altered += 1
                run(db, f"ALTER TABLE a ADD COLUMN c{altered} INT DEFAULT {altered}")

        await follow(copying(server, database), story, completed, on_item=alter)
    assert altered == 3
    rows = [msgspec.json.decode(event.full_document or b"") for event in story.changes]
    assert [len(row) for row in rows] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [row["id"] for row in rows] == list(range(1, 10))


async def test_a_table_that_somebody_has_locked_is_waited_for_and_the_stream_goes_on(
    server: SqlServer, database: str
) -> None:
    with (
        server.connect(database=database) as db,
        server.connect(database=database) as other,
    ):
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
        run(db, "CREATE TABLE b (id INT PRIMARY KEY)", "LOCK TABLES a WRITE")
        run(other, "INSERT INTO b VALUES (1)")
        source, story = copying(server, database), Story()
        await follow(source, story, lambda story: bool(story.said))
        run(other, "INSERT INTO b VALUES (2)")
        await follow(source, story, lambda story: bool(story.changes))
        assert [(e.collection, e.document_id) for e in story.changes] == [("b", "2")]
        run(db, "UNLOCK TABLES")
        await follow(source, story, completed)
    assert [(e.collection, e.document_id) for e in story.changes if e.snapshot] == [
        ("a", "1"),
        ("b", "1"),
        ("b", "2"),
    ]


async def test_a_table_without_a_key_is_read_at_one_moment_however_far_the_stream_is_behind(
    server: SqlServer, database: str
) -> None:
    """A11: its rows are known by all that they hold, so a row of before must not come later."""
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE k (n INT)", f"INSERT INTO k SELECT seq FROM {numbers(1, 20)}")
        source, story = copying(server, database), Story()
        await follow(source, story, lambda story: bool(story.said))
        run(db, "DELETE FROM k WHERE n <= 5", "UPDATE k SET n = n + 100 WHERE n <= 10")
        deleted = False

        def delete(item: Commit | Fragment) -> None:
            nonlocal deleted
            if not deleted and any(isinstance(e, ChangeEvent) and e.snapshot for e in item.events):
                deleted = True
                run(db, "DELETE FROM k WHERE n = 20", "INSERT INTO k VALUES (200)")

        await follow(source, story, completed, on_item=delete)
        await caught_up(server, source, story)
        left = sorted(row[0] for row in run(db, "SELECT n FROM k"))
    (rows,) = story.rows(copies=True).values()
    assert sorted(row["n"] for row in rows.values()) == left
    snapshot = [event.snapshot for event in story.changes]
    first = snapshot.index(True)
    assert all(snapshot[first : first + 15]), "nothing else is told among its rows"


async def test_large_rows_come_in_small_chunks(server: SqlServer, database: str) -> None:
    """In bounded memory: with a key and without one."""
    with server.connect(database=database) as db:
        big = "REPEAT('x', 1000000)"
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, t LONGTEXT)", "CREATE TABLE k (t LONGTEXT)")
        run(db, f"INSERT INTO a SELECT seq, {big} FROM {numbers(1, 30)}")
        run(db, f"INSERT INTO k SELECT CONCAT(seq, {big}) FROM {numbers(1, 30)}")
    source = copying(server, database, snapshot_chunk_documents=1000)
    sizes: list[int] = []
    keys: list[str] = []

    def weigh(item: Commit | Fragment) -> None:
        rows = [event for event in item.events if isinstance(event, ChangeEvent)]
        sizes.append(sum(len(event.full_document or b"") for event in rows))
        keys.extend(event.document_id for event in rows)

    await follow(source, Story(), completed, on_item=weigh)
    assert len(set(keys)) == len(keys) == 60
    assert max(sizes) <= chunks.CHUNK_BYTES_MAX + (1 << 20)


async def test_a_chunk_reads_no_more_rows_than_it_has(
    start: Start,
) -> None:
    """Whatever the key's columns have in common."""
    server = start()
    with server.connect() as db:
        run(
            db, "CREATE DATABASE d", "CREATE TABLE d.a (a INT, b INT, c INT, PRIMARY KEY (a, b, c))"
        )
        run(db, "USE d", f"INSERT INTO a SELECT 1, seq % 2, seq FROM {numbers(1, 4000)}")
        before = handled(db)
        story = Story()
        await follow(copying(server, "d", snapshot_chunk_documents=400), story, completed)
        read = handled(db) - before
    assert len(story.changes) == 4000
    assert read < 4 * 4000


def handled(db: Any) -> int:
    """How many rows the server has read, of tables and of indexes."""
    return sum(int(n) for _, n in run(db, "SHOW GLOBAL STATUS LIKE 'Handler_read%'"))


# --- asked for ------------------------------------------------------------------------------------


async def asking(source: Any, story: Story, names: list[str], known: Any = ()) -> list[str]:
    """Ask for a copy while the source is followed until the copy is complete."""
    capturing, begun = asyncio.Event(), story.said.count(("snapshot_completed", ""))

    def done(story: Story) -> bool:
        return story.said.count(("snapshot_completed", "")) > begun

    reading = asyncio.ensure_future(follow(source, story, done, on_item=lambda _: capturing.set()))
    try:
        await capturing.wait()
        copied: list[str] = await source.copy(names, known=known)
        await reading
        return copied
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_copy_that_is_asked_for_begins_at_once_and_is_durable_when_it_is_answered(
    server: SqlServer, database: str
) -> None:
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
        run(db, "INSERT INTO a VALUES (1)")
    a, b = f"{database}.a", f"{database}.b"
    options = {"start": "now", "heartbeat_seconds": 600, "heartbeat_deadline_seconds": 900}
    source, story = copying(server, database, **options), Story()
    assert await asking(source, story, [a]) == [a]
    assert [event.document_id for event in story.changes] == ["1"]
    assert await asking(source, story, [b, a]) == [b, a]
    assert await asking(source, story, []) == [a, b]
    started = [said_of(e) for e in story.events if e.operation == "snapshot_started"]
    assert [one["whole"] for one in started] == [False, False, True]
    assert len({one["snapshot"] for one in started}) == 3


async def test_what_is_not_captured_is_not_copied(server: SqlServer, database: str) -> None:
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
    source = source_of(server, include=[f"{database}.a", f"{database}.gone"])
    story = Story()
    with pytest.raises(RequestError, match="not being captured now"):
        await source.copy([f"{database}.a"], known=())
    for name in ("a", f"{database}.b", f"{database}.none", "mysql.user"):
        with pytest.raises(RequestError, match="captures no table"):
            await asking(source, story, [name])
    # One that was dropped, and that the log has told of, is copied: its rows are told as gone.
    gone = f"{database}.gone"
    assert await asking(source, story, [gone], {(database, "gone")}) == [gone]


async def test_a_row_that_has_no_exact_form_stops_the_copy_by_its_table(
    server: SqlServer, database: str
) -> None:
    """Invariant 10."""
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, t TEXT CHARACTER SET cp1250)")
        run(db, "INSERT INTO a VALUES (1, 'ž')")
    with pytest.raises(UndecodableError, match=rf"{database}\.a.*character set cp1250"):
        await follow(copying(server, database), Story(), completed)
