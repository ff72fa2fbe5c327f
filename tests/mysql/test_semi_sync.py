"""A server's commits wait until the log holds them, and for nothing else."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager
from typing import Any, cast

import msgspec
import pymysql
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.event import ChangeEvent, Commit, SystemEvent
from penstock.sources.mysql import MysqlSource
from penstock.sources.mysql.binlog import Event, EventType
from penstock.sources.mysql.chunks import ChunkReader
from penstock.sources.mysql.connection import Connected
from penstock.sources.mysql.doctor import doctor
from penstock.sources.mysql.events import Teller
from penstock.sources.mysql.positions import told
from penstock.sources.mysql.replies import MAGIC, Replies, Reply
from tests.mysql.support import Story, caught_up, config_of, end_of, run, source_of
from tests.seeds import cases
from tests.telling import follow
from tests.waiting import patience, wait_until
from tests_support.servers import MariaDbServer, MySqlServer, SqlServer

COMPRESSED = pytest.mark.parametrize(
    ("server", "compression"),
    [
        ("mariadb", "off"),
        ("mysql", "zlib"),
        pytest.param("mariadb", "zlib", marks=pytest.mark.soak),
        pytest.param("mysql", "off", marks=pytest.mark.soak),
    ],
    indirect=["server"],
)
FOREVER = 3_600_000
"""Milliseconds: a commit that nobody replies to does not end within a test."""


class Server:
    """A server whose commits wait."""

    def __init__(self, server: SqlServer) -> None:
        self.server = server
        self.on_mariadb = isinstance(server, MariaDbServer)
        self.name = f"rpl_semi_sync_{'master' if self.on_mariadb else 'source'}"

    def set(self, db: Connected, name: str, value: object) -> None:
        run(db, f"SET GLOBAL {self.name}_{name} = {value}")

    def status(self, db: Connected, name: str) -> str:
        ((_, value),) = run(db, f"SHOW GLOBAL STATUS LIKE '{self.name}_{name}'")
        return str(value)


@pytest.fixture(params=["mariadb", "mysql"])
def server(
    request: pytest.FixtureRequest,
    start_mariadb: Callable[..., MariaDbServer],
    start_mysql: Callable[..., MySqlServer],
) -> Server:
    """A server of either kind that has tables, and waits for ever."""
    return waiting(start_mariadb() if request.param == "mariadb" else start_mysql())


def waiting(server: SqlServer) -> Server:
    """A server, with its tables, and with commits that wait for ever."""
    made = Server(server)
    with made.server.connect() as db:
        if not made.on_mariadb:
            run(db, "INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        run(db, "CREATE DATABASE other", "CREATE TABLE other.a (id INT PRIMARY KEY)")
        made.set(db, "timeout", FOREVER)
        made.set(db, "enabled", 1)
    return made


@contextmanager
def running(server: Server, *statements: str) -> Generator[threading.Thread]:
    """A session that runs these. What waits for ever at the end is let go."""

    def work() -> None:
        with server.server.connect() as db:
            run(db, *statements)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        with server.server.connect() as db:
            server.set(db, "enabled", 0)
        thread.join()


async def ended(thread: threading.Thread) -> None:
    await asyncio.to_thread(thread.join)


Items = AsyncGenerator[Any]


def items_of(source: MysqlSource) -> Items:
    return cast("Items", source.changes(position=None))


async def until_row(items: Items, source: MysqlSource, key: str) -> Commit:
    """The commit that has this row, not acknowledged; what comes before it is."""
    async with patience():
        async for item in items:
            assert isinstance(item, Commit)
            if any(getattr(event, "document_id", None) == key for event in item.events):
                return item
            await source.acknowledge(item.position)
    raise AssertionError


async def acknowledged(items: Items, source: MysqlSource, thread: threading.Thread) -> None:
    """Go on, and acknowledge what comes, until a session has ended."""
    ending = asyncio.ensure_future(ended(thread))
    async with patience():
        while not ending.done():
            await source.acknowledge((await anext(items)).position)


@pytest.mark.slow
@COMPRESSED
async def test_a_commit_waits_until_what_it_changed_is_acknowledged(
    server: Server, compression: str
) -> None:
    """Invariant 1: told is not enough."""
    source = source_of(server.server, include=["d.*"], semi_sync=True, compression=compression)
    async with aclosing(items_of(source)) as items:
        first = await anext(items)
        await source.acknowledge(first.position)
        with running(server, "INSERT INTO d.a VALUES (1)") as thread:
            item = await until_row(items, source, "1")
            for _ in range(3):
                # Heartbeats: the server has time, and is told nothing.
                assert not (await anext(items)).events
            with server.server.connect() as db:
                assert server.status(db, "wait_sessions") == "1"
                assert server.status(db, "yes_tx") == "0"
            assert thread.is_alive()
            await source.acknowledge(item.position)
            await acknowledged(items, source, thread)
            with server.server.connect() as db:
                assert (server.status(db, "yes_tx"), server.status(db, "no_tx")) == ("1", "0")


@pytest.mark.slow
@COMPRESSED
async def test_what_follows_is_replied_to_one_after_the_other_and_told_once(
    server: Server, compression: str
) -> None:
    """S5: captured and not, large, DDL of captured tables, over files, and XA; none waits for what
    the log need not hold, or for us who ask about a table that it has locked."""
    source = source_of(
        server.server, include=["d.*"], semi_sync=True, compression=compression, start="beginning"
    )
    xa = ("XA START 'x'", "INSERT INTO d.a VALUES (7)", "XA END 'x'", "XA PREPARE 'x'")
    statements = [
        *(f"INSERT INTO d.a VALUES ({number})" for number in range(100, 130)),
        *("INSERT INTO other.a VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO other.a VALUES (2)"),
        *("ALTER TABLE d.a ADD t LONGTEXT", "INSERT INTO d.a VALUES (1, REPEAT('x', 20000000))"),
        *("ALTER TABLE d.a DROP t", "INSERT INTO d.a VALUES (2)", "CREATE TABLE d.b (id INT)"),
        *(*xa, "XA COMMIT 'x'", "INSERT INTO d.a VALUES (3)", "TRUNCATE TABLE d.b"),
    ]
    async with aclosing(items_of(source)) as items:
        story = Story()
        with running(server, *statements) as thread:
            ending = asyncio.ensure_future(ended(thread))
            async with patience():
                while not ending.done():
                    item = await anext(items)
                    story.take(item)
                    if isinstance(item, Commit):
                        await source.acknowledge(item.position)
            with server.server.connect() as db:
                assert server.status(db, "no_tx") == "0"
                assert int(server.status(db, "yes_tx")) >= 30
    plain = source_of(server.server, include=["d.*"], start="beginning")
    whole = await caught_up(server.server, plain)
    await caught_up(server.server, plain, story)
    assert [e.event_id for e in story.events] == [e.event_id for e in whole.events]
    assert len(story.changes) == 34


@pytest.mark.slow
async def test_a_statement_that_waits_for_us_has_what_we_would_ask_about_and_is_replied_to_first(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    """Else each would wait for the other: one has locked its table until we reply."""
    server = waiting(start_mariadb())
    with server.server.connect() as db:
        server.set(db, "enabled", 0)
        run(db, "CREATE TABLE d.b (id INT PRIMARY KEY)")
        server.set(db, "enabled", 1)
    source = source_of(server.server, include=["d.*"], semi_sync=True)
    async with aclosing(items_of(source)) as items:
        await source.acknowledge((await anext(items)).position)
        with running(server, "ALTER TABLE d.a ADD n INT") as one:
            item = await anext(items)
            while not item.events:
                item = await anext(items)
            with running(server, "ALTER TABLE d.b ADD n INT") as other:
                with server.server.connect() as db:
                    wait_until(lambda: server.status(db, "wait_sessions") == "2")
                await source.acknowledge(item.position)
                await acknowledged(items, source, one)
                await acknowledged(items, source, other)
                with server.server.connect() as db:
                    assert server.status(db, "no_tx") == "0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "begins"),
    [
        ("mariadb", "snapshot"),
        ("mysql", "beginning"),
        ("mysql", "now"),
        pytest.param("mariadb", "beginning", marks=pytest.mark.soak),
        pytest.param("mariadb", "now", marks=pytest.mark.soak),
        pytest.param("mysql", "snapshot", marks=pytest.mark.soak),
    ],
    indirect=["server"],
)
async def test_a_statement_that_waits_as_capture_begins_is_replied_to(
    server: Server, begins: str
) -> None:
    """Its table is locked meanwhile, and rows of it come before it that were never met."""
    with server.server.connect() as db:
        server.set(db, "enabled", 0)
        run(db, "CREATE TABLE d.b (id INT PRIMARY KEY)", "INSERT INTO d.b VALUES (1)")
        server.set(db, "enabled", 1)
    source = source_of(server.server, include=["d.*"], semi_sync=True, start=begins)
    with running(server, "ALTER TABLE d.b ADD n INT") as thread:
        with server.server.connect() as db:
            wait_until(lambda: server.status(db, "wait_sessions") == "1")
        async with aclosing(items_of(source)) as items:
            await acknowledged(items, source, thread)
        with server.server.connect() as db:
            assert server.status(db, "no_tx") == "0"


@pytest.mark.slow
async def test_a_statement_that_waits_as_capture_begins_with_another_scope_is_replied_to(
    server: Server,
) -> None:
    """Which tables came into it is looked up without waiting for the one that is locked."""
    with server.server.connect() as db:
        server.set(db, "enabled", 0)
        run(db, "CREATE TABLE d.b (id INT PRIMARY KEY)")
        before = await caught_up(server.server, source_of(server.server, include=["d.a"]))
        server.set(db, "enabled", 1)
    source = source_of(server.server, include=["d.*"], semi_sync=True, connect_timeout=5)
    with running(server, "ALTER TABLE d.b ADD n INT") as thread:
        with server.server.connect() as db:
            wait_until(lambda: server.status(db, "wait_sessions") == "1")
        async with aclosing(cast("Items", source.changes(position=before.position))) as items:
            first = await anext(items)
            await source.acknowledge(first.position)
            assert msgspec.json.decode(first.events[0].description)["added"] == ["d.b"]
            await acknowledged(items, source, thread)


@pytest.mark.slow
async def test_rows_of_a_table_that_is_met_while_a_statement_on_it_waits_are_told(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    """Its columns were asked for when the stream began."""
    server = waiting(start_mariadb())
    with server.server.connect() as db:
        server.set(db, "enabled", 0)
        run(db, "CREATE TABLE d.b (id INT PRIMARY KEY, v INT AS (id + 1) VIRTUAL, n INT)")
        run(db, "CREATE TABLE d.c (id INT PRIMARY KEY)")
        server.set(db, "enabled", 1)
    source = source_of(server.server, include=["d.*"], semi_sync=True)
    async with aclosing(items_of(source)) as items:
        await source.acknowledge((await anext(items)).position)
        with server.server.connect() as db:
            server.set(db, "enabled", 0)
            run(db, "INSERT INTO d.b (id, n) VALUES (1, 2)", "INSERT INTO d.c VALUES (1)")
            server.set(db, "enabled", 1)
        alter = "ALTER TABLE d.b ADD m INT", "ALTER TABLE d.c ADD m INT"
        with running(server, alter[0]) as one, running(server, alter[1]) as other:
            with server.server.connect() as db:
                wait_until(lambda: server.status(db, "wait_sessions") == "2")
            item = await until_row(items, source, "1")
            await source.acknowledge(item.position)
            (row,) = item.events
            assert isinstance(row, ChangeEvent)
            assert row.full_document is not None
            assert msgspec.json.decode(row.full_document) == {"id": 1, "n": 2}
            await acknowledged(items, source, one)
            await acknowledged(items, source, other)
        with server.server.connect() as db:
            assert server.status(db, "no_tx") == "0"


@pytest.mark.slow
def test_a_copy_of_everything_has_a_table_that_is_locked_while_another_one_is_open(
    server: Server,
) -> None:
    """Invariant 4: MariaDB leaves such a table out of its lists for who has others locked."""
    with server.server.connect() as db:
        server.set(db, "enabled", 0)
        run(db, "CREATE TABLE d.b (id INT PRIMARY KEY)", "CREATE TABLE d.keyless (id INT)")
        known = told("mariadb" if server.on_mariadb else "mysql", end_of(db))
        server.set(db, "enabled", 1)
    reader = ChunkReader("db", config_of(server.server, include=["d.*"]))
    with running(server, "ALTER TABLE d.b ADD n INT"):
        with server.server.connect() as db:
            wait_until(lambda: server.status(db, "wait_sessions") == "1")
        try:
            reader.open(("d", "keyless"), known)
            assert reader.tables() == [("d", "a"), ("d", "b"), ("d", "keyless")]
        finally:
            reader.discard()


@pytest.mark.slow
async def test_without_us_a_commit_waits_its_time_and_the_server_goes_on(server: Server) -> None:
    """As with any replica that is away; and with us again, the server waits again."""
    source = source_of(server.server, include=["d.*"], semi_sync=True)
    with server.server.connect() as db:
        server.set(db, "timeout", 100)
        run(db, "INSERT INTO d.a VALUES (1)")
        assert (server.status(db, "yes_tx"), server.status(db, "no_tx")) == ("0", "1")
        assert server.status(db, "status") == "OFF"
        story = await follow(source, Story(), lambda _: True)
        server.set(db, "timeout", FOREVER)
    async with aclosing(items_of(source)) as items:
        await source.acknowledge((await anext(items)).position)
        number = 2
        yes = 0
        while not yes:
            # The server waits again once it has heard that we have caught up.
            with running_once(server, f"INSERT INTO d.a VALUES ({number})") as thread:
                await acknowledged(items, source, thread)
            number += 1
            with server.server.connect() as db:
                yes = int(server.status(db, "yes_tx"))
    assert story.position is not None


@contextmanager
def running_once(server: Server, statement: str) -> Generator[threading.Thread]:
    def work() -> None:
        with server.server.connect() as db:
            run(db, statement)

    thread = threading.Thread(target=work)
    thread.start()
    yield thread
    thread.join()


@pytest.mark.slow
async def test_a_server_that_does_not_wait_is_captured_and_the_doctor_says_so(
    server: Server, mysql: MySqlServer
) -> None:
    """No setting is ignored in silence."""
    config = config_of(server.server, semi_sync=True, include=["d.*"])

    async def said() -> tuple[bool, str]:
        checks = await doctor("db", config)
        ((ok, fix),) = [(check.ok, check.fix) for check in checks if check.name == "semi-sync"]
        return ok, fix

    assert await said() == (True, "")
    with server.server.connect() as db:
        server.set(db, "enabled", 0)
        ok, fix = await said()
        assert not ok
        assert f"SET GLOBAL {server.name}_enabled = ON" in fix
        run(db, "INSERT INTO d.a VALUES (1)")
        story = await caught_up(server.server, MysqlSource("db", config))
        run(db, "INSERT INTO d.a VALUES (2)")
        await caught_up(server.server, MysqlSource("db", config), story)
    assert [event.document_id for event in story.changes] == ["2"]
    if not server.on_mariadb:
        # One that has no such plugin at all sends events as ever.
        checks = await doctor("db", config_of(mysql, semi_sync=True))
        (check,) = [check for check in checks if check.name == "semi-sync"]
        assert "INSTALL PLUGIN" in check.fix
        story = await caught_up(mysql, source_of(mysql, semi_sync=True))
        assert story.position is not None


# --- what is owed ---------------------------------------------------------------------------------


def an_event(end: int, kind: int = EventType.XID, body: bytes = b"") -> Event:
    return Event(kind, 0, end, 0, body)


@given(st.data())
@settings(max_examples=cases(300))
def test_no_place_is_told_before_all_before_it_is_durable(data: st.DataObject) -> None:
    """Invariant 1: whatever is said, waits, and is acknowledged in whatever batches."""
    replies = Replies()
    replies.opened(bytes([MAGIC, 0]))
    replies.passed(an_event(0, EventType.ROTATE, (4).to_bytes(8, "little") + b"bin.1"))
    said: list[str] = []
    """Positions, each as often as it was said with something to hold."""
    durable = 0
    owed: list[tuple[int, int]] = []
    told = 0
    for end in range(1, data.draw(st.integers(1, 40))):
        if data.draw(st.booleans()):
            position = data.draw(st.sampled_from([f"new {end}", *said[-1:]]))
            events = data.draw(st.sampled_from([(), (an_event_of("gap"),)]))
            if events or position not in said[-1:]:
                said.append(position)
            replies.said(Commit(source="db", position=position, events=events))
        waits = data.draw(st.booleans())
        assert replies.opened(bytes([MAGIC, waits]) + b"x") == b"x"
        replies.passed(an_event(end))
        if waits:
            owed.append((len(said), end))
        if durable < len(said) and data.draw(st.booleans()):
            until = data.draw(st.integers(durable + 1, len(said)))
            replies.durable(said[until - 1])
            # A position that was said twice may have been either.
            durable = durable + 1 + said[durable:].index(said[until - 1])
        assert replies.durable_count == durable
        due = replies.due()
        if due is not None:
            assert due.file == "bin.1"
            assert told < due.offset
            told = due.offset
        assert told == max([end for needs, end in owed if needs <= durable], default=0)


def test_one_acknowledgement_stands_for_a_commit_and_the_heartbeats_behind_it() -> None:
    """The log tells the last position of what it has appended together, once."""
    replies = Replies()
    replies.opened(bytes([MAGIC, 0]))
    replies.passed(an_event(0, EventType.ROTATE, (4).to_bytes(8, "little") + b"bin.1"))
    gap = an_event_of("gap")
    replies.said(Commit(source="db", position="a", events=(gap,)))
    replies.said(Commit(source="db", position="a", events=()))
    replies.opened(bytes([MAGIC, 1]))
    replies.passed(an_event(9))
    assert replies.due() is None, "the log may not have the first"
    replies.durable("a")
    assert replies.due() == Reply("bin.1", 9)
    # Two that have something to hold are two, whatever their positions say.
    replies.said(Commit(source="db", position="b", events=(gap,)))
    replies.said(Commit(source="db", position="b", events=(gap,)))
    replies.opened(bytes([MAGIC, 1]))
    replies.passed(an_event(10))
    replies.durable("b")
    assert replies.due() is None
    replies.durable("b")
    assert replies.due() == Reply("bin.1", 10)


def an_event_of(operation: str) -> SystemEvent:
    teller = Teller("db", tenant=None)
    return teller.system(operation, "1", position="", seconds=0, facts={})


def test_a_reply_is_as_the_protocol_has_it_and_an_event_without_a_head_is_an_error() -> None:
    """Nothing is guessed where a plugin came or went meanwhile."""
    assert Reply("bin.2", 258).packed() == b"\xef\x02\x01\0\0\0\0\0\0bin.2"
    for wrong in (b"", b"\xef", b"\x00\x01event"):
        with pytest.raises(pymysql.err.InternalError):
            Replies().opened(wrong)
