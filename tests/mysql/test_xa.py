"""XA transactions where a position cannot leave one out: MariaDB's domains, and MySQL's files.

What is prepared is told where it is committed, and never where it is rolled back, over any restart.
MySQL with GTIDs: test_on_mysql.
"""

import gc
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from io import IOBase
from tempfile import SpooledTemporaryFile
from typing import cast

import pymysql
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from penstock.errors import PositionLostError, SourceUnavailableError
from penstock.event import ChangeEvent, Commit, Fragment
from penstock.sources.mysql import session, transactions
from penstock.sources.mysql.binlog import Event, EventType, MalformedEventError, begun
from penstock.sources.mysql.connection import Connected
from penstock.sources.mysql.doctor import doctor
from penstock.sources.mysql.positions import Server, begun_at, parse_position
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.standing import NOTHING_PREPARED, Prepared, Standing
from penstock.sources.mysql.stream import drawn_server_id
from tests.mysql.support import Story, caught_up, config_of, purge, run, source_of
from tests.mysql.test_decoding import reading
from tests.seeds import cases
from tests.telling import follow
from tests_support.servers import MariaDbServer, MySqlServer, SqlServer

Start = Callable[..., SqlServer]
KINDS = ["mariadb", "mysql_files"]
NO_SUCH_XID = 1397


@pytest.fixture(params=KINDS)
def start(
    request: pytest.FixtureRequest,
    start_mariadb: Callable[..., MariaDbServer],
    start_mysql: Callable[..., MySqlServer],
) -> Start:
    """Start a server of either kind."""
    if request.param == "mariadb":
        return start_mariadb
    return lambda: start_mysql(options=["--gtid-mode=OFF"])


def prepared(server: SqlServer, xid: str, *rows: int, domain: int = 0) -> None:
    """Prepare a transaction with rows of d.a. With MariaDB, its session could do nothing else."""
    values = ", ".join(f"({row})" for row in rows)
    with server.connect() as db:
        if domain:
            run(db, f"SET gtid_domain_id = {domain}")
        run(db, f"XA START {xid}", f"INSERT INTO d.a VALUES {values}", f"XA END {xid}")
        run(db, f"XA PREPARE {xid}")


def decide(db: Connected, what: str) -> None:
    """Commit or roll back what another session has prepared, as soon as that one is gone."""
    while True:
        try:
            run(db, f"XA {what}")
        except pymysql.err.OperationalError as error:
            if error.args[0] != NO_SUCH_XID:
                raise
        else:
            return


@contextmanager
def table(server: SqlServer) -> Generator[Connected]:
    """A connection to a server that has d.a."""
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        yield db


def reaches_back(story: Story) -> bool:
    """Whether its position says from where the server must send again."""
    return story.place.since is not None


def told(story: Story) -> list[int]:
    return [int(event.document_id) for event in story.changes]


async def test_each_comes_in_the_place_of_its_commit_the_same_from_any_position(
    start: Start,
) -> None:
    """S1, S5, S6, invariant 2: among others, over files, one long prepared, and one rolled back."""
    server = start()
    on_mariadb = isinstance(server, MariaDbServer)
    source = source_of(server, start="beginning")
    story = Story()
    with table(server) as db:
        prepared(server, "'long','\\\\',7", 1, 2)
        await caught_up(server, source, story)
        run(db, "INSERT INTO d.a VALUES (10)", "FLUSH BINARY LOGS")
        prepared(server, "'back'", 3)
        prepared(server, "'short'", 4)
        run(db, "INSERT INTO d.a VALUES (11)")
        await caught_up(server, source, story)
        decide(db, "COMMIT 'short'")
        decide(db, "ROLLBACK 'back'")
        run(db, "INSERT INTO d.a VALUES (12)")
        run(db, "XA START 'one'", "INSERT INTO d.a VALUES (5)", "XA END 'one'")
        run(db, "XA COMMIT 'one' ONE PHASE")
        run(db, "XA START 'none'", "SELECT * FROM d.a", "XA END 'none'", "XA PREPARE 'none'")
        run(db, "XA COMMIT 'none'", "BEGIN", "INSERT INTO d.a VALUES (13), (14)", "COMMIT")
        await caught_up(server, source, story)
        assert reaches_back(story)
        run(db, "FLUSH BINARY LOGS")
        if on_mariadb:
            # The commit is of another domain than the prepare.
            run(db, "SET gtid_domain_id = 5", "INSERT INTO d.a VALUES (15)")
        decide(db, "COMMIT 'long','\\\\',7")
        run(db, "INSERT INTO d.a VALUES (16)")
        if on_mariadb:
            run(db, "SET gtid_domain_id = 0", "INSERT INTO d.a VALUES (17)")
        await caught_up(server, source, story)
    middle = [15, 1, 2, 16, 17] if on_mariadb else [1, 2, 16]
    assert told(story) == [10, 11, 4, 12, 5, 13, 14, *middle]
    assert not reaches_back(story)
    assert not story.place.since_at
    assert story.said == [("create", "a")]
    ids = [event.event_id for event in story.events]
    commits = [item for item in story.items if isinstance(item, Commit)]
    assert sum("since" in item.position for item in commits) > 5
    for number, item in enumerate(commits):
        rest = [event.event_id for item in commits[number + 1 :] for event in item.events]
        again = Story(item.position)
        await caught_up(server, source, again)
        assert [event.event_id for event in again.events] == rest, item.position
    whole = await caught_up(server, source_of(server, start="beginning"), Story())
    assert [event.event_id for event in whole.events] == ids


async def test_a_server_that_is_killed_between_prepare_and_commit_loses_none(start: Start) -> None:
    """S5: kill -9; and what it tells again of others is not told twice."""
    server = start()
    source = source_of(server, start="beginning")
    with table(server) as db:
        prepared(server, "'x'", 1)
        run(db, "INSERT INTO d.a VALUES (2)")
        story = await follow(source, Story(), lambda story: told(story) == [2])
    server.kill()
    with pytest.raises(SourceUnavailableError):
        await follow(source, story, lambda _: False)
    server.restart()
    with server.connect() as db:
        run(db, "INSERT INTO d.a VALUES (3)")
        await caught_up(server, source, story)
        decide(db, "COMMIT 'x'")
        await caught_up(server, source, story)
    assert told(story) == [2, 3, 1]


async def test_domains_that_go_on_beside_one_that_is_prepared_are_told_once(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    """S6: prepared in two domains, committed in a third, with a new domain meanwhile."""
    server = start_mariadb()
    source = source_of(server, start="beginning")
    story = Story()
    with table(server) as db:
        for domain in (1, 2):
            run(db, f"SET gtid_domain_id = {domain}", f"INSERT INTO d.a VALUES ({domain})")
            prepared(server, f"'{domain}'", 10 + domain, domain=domain)
            run(db, f"INSERT INTO d.a VALUES ({20 + domain})")
            await caught_up(server, source, story)
        run(db, "SET gtid_domain_id = 3", "INSERT INTO d.a VALUES (3)")
        await caught_up(server, source, story)
        decide(db, "COMMIT '1'")
        await caught_up(server, source, story)
        assert reaches_back(story), "the other one is still prepared"
        run(db, "SET gtid_domain_id = 1", "INSERT INTO d.a VALUES (4)")
        decide(db, "COMMIT '2'")
        await caught_up(server, source, story)
        run(db, "SET gtid_domain_id = 2", "INSERT INTO d.a VALUES (5)")
        await caught_up(server, source, story)
    assert told(story) == [1, 21, 2, 22, 3, 11, 4, 12, 5]
    assert not reaches_back(story)


async def test_a_replica_that_takes_the_place_of_the_server_has_what_is_prepared(
    start_mariadb: Callable[..., MariaDbServer],
) -> None:
    """A10, S6."""
    one, two = start_mariadb(), start_mariadb(server_id=2)
    with table(one) as db, two.connect() as replica:
        run(
            replica,
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {one.port}, "
            f"MASTER_USER = 'root', MASTER_USE_GTID = slave_pos",
            "START SLAVE",
        )
        prepared(one, "'x'", 1)
        run(db, "INSERT INTO d.a VALUES (2)")
        story = await caught_up(one, source_of(one, start="beginning"))
        ((late,),) = run(replica, f"SELECT MASTER_GTID_WAIT('{story.place.gtids}', 60)")
        assert late == 0
        one.kill()
        run(replica, "STOP SLAVE", "INSERT INTO d.a VALUES (3)")
        await caught_up(two, source_of(two), story)
        decide(replica, "COMMIT 'x'")
        await caught_up(two, source_of(two), story)
    assert told(story) == [2, 3, 1]


async def test_what_was_prepared_before_the_beginning_is_a_gap_when_it_is_committed(
    start: Start,
) -> None:
    """Invariant 4: nobody knows its rows; and one that is rolled back is none."""
    server = start()
    source = source_of(server)
    with table(server) as db:
        prepared(server, "'x'", 1)
        prepared(server, "'y'", 2)
        story = await follow(source, Story(), lambda _: True)
        decide(db, "ROLLBACK 'y'")
        decide(db, "COMMIT 'x'")
        run(db, "INSERT INTO d.a VALUES (3)")
        await caught_up(server, source, story)
    assert [event.operation for event in story.effects] == ["gap", "insert"]
    assert b'"xa_prepared_before"' in bytes(story.effects[0].description)  # type: ignore[union-attr]


async def test_binlogs_that_hold_what_is_prepared_are_needed_and_count_as_near_to_loss(
    start: Start,
) -> None:
    """S7, S8, A9: without its rows nothing is gone on with in silence."""
    server = start()
    source = source_of(server, start="beginning")
    with table(server) as db:
        run(db, "INSERT INTO d.a VALUES (1)", "FLUSH BINARY LOGS")
        purge(db)
        prepared(server, "'x'", 2)
        # What was committed since is a day younger.
        run(db, "SET timestamp = UNIX_TIMESTAMP() + 100000", "INSERT INTO d.a VALUES (3)")
        run(db, "FLUSH BINARY LOGS", "INSERT INTO d.a VALUES (4)")
        story = await caught_up(server, source_of(server, start="beginning"))
        assert story.position is not None
        assert told(story) == [3, 4]
        left = await source.seconds_to_loss(story.position)
        assert left is not None
        assert 0 <= left < 600
        purge(db)
        assert await source.seconds_to_loss(story.position) == 0
        checks = await doctor("db", config_of(server), position=story.position)
        assert [check.ok for check in checks if check.name == "position"] == [False]
        with pytest.raises(PositionLostError, match="XA transaction that was prepared there"):
            await follow(source, story, lambda _: False)
        await caught_up(server, source_of(server, on_position_lost="gap"), story)
        assert not reaches_back(story)
        decide(db, "COMMIT 'x'")
        run(db, "INSERT INTO d.a VALUES (5)")
        await caught_up(server, source, story)
        said = [event.operation for event in story.effects]
        assert said == ["insert", "insert", "gap", "gap_ended", "gap", "insert"]


async def test_a_source_speaks_while_much_comes_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S15: what is read for one that is prepared moves no position, and is no silence."""
    monkeypatch.setattr(session, "SAY_SECONDS", 0)
    server = start()
    source = source_of(server, start="beginning", include=["d.a"], heartbeat_seconds=5)
    with table(server) as db:
        run(db, "CREATE TABLE d.t (id INT PRIMARY KEY, t LONGTEXT)")
        prepared(server, "'x'", 1)
        for number in range(20):
            run(db, f"INSERT INTO d.t VALUES ({number}, REPEAT('x', 200000))")
        story = await caught_up(server, source)
        again = Story(story.position)
        run(db, "INSERT INTO d.a VALUES (2)")
    await follow(source, again, lambda story: told(story) == [2])
    same = [item for item in again.items if isinstance(item, Commit)]
    assert sum(item.position == story.position for item in same) > 3


def test_a_session_that_ends_amid_the_rows_of_one_leaves_no_file_open(
    start_mariadb: Callable[..., MariaDbServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S14: where a large one is handed on in parts, and nobody asks for the next."""
    monkeypatch.setattr(transactions, "FRAGMENT_BYTES", 0)
    server = start_mariadb()
    config = config_of(server, start="beginning")
    reading = session.Session("db", config, server_id=drawn_server_id(), undone={})
    reading.begin(None)
    before = open_files()
    with table(server) as db:
        prepared(server, "'x'", 1, 2)
        decide(db, "COMMIT 'x'")
    handed_on = False
    while not handed_on:
        step = reading.step()
        assert step.error is None
        handed_on = any(isinstance(item, Fragment) and told_of(item) for item in step.items)
    opened = [one for one in open_files() if one not in before]
    assert opened
    reading.close()
    assert not [one for one in opened if one in open_files()]


def told_of(item: Fragment) -> bool:
    """Whether it has rows."""
    return any(isinstance(event, ChangeEvent) for event in item.events)


def open_files() -> list[object]:
    """Of what is prepared; also those that nobody has any more, and are not collected yet."""
    kind = cast("type[IOBase]", SpooledTemporaryFile)
    return [one for one in gc.get_objects() if issubclass(type(one), kind) and not one.closed]


async def test_a_prepared_one_counts_as_near_to_loss_with_gtids_too(
    start_mysql: Callable[..., MySqlServer],
) -> None:
    """S8: from its prepare on, whatever was committed since."""
    server = start_mysql()
    source = source_of(server, start="beginning")
    with table(server) as db:
        prepared(server, "'x'", 2)
        run(db, "INSERT INTO d.a VALUES (3)")
        story = await follow(source, Story(), lambda story: told(story) == [3])
        at = story.place.since_at
        assert at
        assert not reaches_back(story)
        decide(db, "COMMIT 'x'")
        await caught_up(server, source, story)
    assert told(story) == [3, 2]
    assert not story.place.since_at


# --- where a stream stands ------------------------------------------------------------------------

SERVER = Server(1)


@given(st.data())
@settings(max_examples=cases(300))
def test_from_where_one_is_prepared_everything_else_is_told_once(data: st.DataObject) -> None:
    """S6, over any interleaving of domains, on the server or on a replica that has another."""
    domains = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=30))
    last: dict[int, int] = {}
    names: list[str] = []
    for domain in domains:
        last[domain] = last.get(domain, 0) + data.draw(st.integers(1, 2))
        names.append(f"{domain}-1-{last[domain]}")
    first = data.draw(st.integers(0, len(names) - 1))
    until = data.draw(st.integers(first + 1, len(names)))
    one = Standing(begun_at(SERVER, "", Scope(), "mariadb"))
    waits = NOTHING_PREPARED
    begins: dict[str, str | None] = {}
    for number, name in enumerate(names[:until]):
        assert not one.repeats(name)
        begins[name] = one.since(name)
        if number == first:
            waits = Prepared(one.since(name), 1)
        one.ended(name, prepared=waits)
    position = parse_position(one.position.text())
    assert position == one.position
    again = Standing(position)
    from_there = names[first:]
    mixed = data.draw(st.booleans())
    if mixed:
        # As a replica may have them: each domain in its order, but mixed otherwise.
        left = {domain: [n for n in from_there if n[0] == str(domain)] for domain in set(domains)}
        order = data.draw(st.permutations([n[0] for n in from_there]))
        from_there = [left[int(domain)].pop(0) for domain in order]
    new: list[str] = []
    known = NOTHING_PREPARED
    for name in from_there:
        repeats = again.repeats(name)
        if name == names[first]:
            assert repeats
            known = waits
        if repeats:
            assert mixed or again.since(name) == begins[name]
            continue
        new.append(name)
        again.ended(name, prepared=known)
        # It is still prepared, even where it has not come again yet.
        assert again.position.since is not None
    assert sorted(new) == sorted(names[until:])
    if new:
        assert again.position.told().unknown(",".join(names)) is None


def test_a_name_that_a_dying_server_gives_again_to_what_is_prepared_is_not_behind_it() -> None:
    """S5, S6: of two transactions of one name, the first was none. Else a position would reach back
    to behind what is prepared, and its rows would never come."""
    place = structs.replace(begun_at(SERVER, "0-1-7", Scope(), "mariadb"), since="0-1-5", version=3)
    stream = reading({}, position=place)
    with closing(stream):
        transaction(stream, 0, 6)
        transaction(stream, 0, 7, ends=False)
        list(stream.event(Event(EventType.FORMAT_DESCRIPTION, 0, 0, 0, b""), b""))
        transaction(stream, 1, 1)
        assert stream.position.since == "0-1-5", "not all has come again"
        transaction(stream, 0, 7, prepares=True)
        transaction(stream, 1, 2)
        assert stream.position.since == "0-1-6,1-1-1"
        assert stream.position.gtids == "0-1-7,1-1-2"


def transaction(
    stream: transactions.Transactions,
    domain: int,
    number: int,
    *,
    prepares: bool = False,
    ends: bool = True,
) -> None:
    """Have a stream read a transaction of MariaDB's without rows."""
    xid = (1).to_bytes(4, "little") + b"\1\0x"
    body = number.to_bytes(8, "little") + domain.to_bytes(4, "little")
    body += b"\x40" + xid if prepares else b"\0"
    header = bytes(5) + (1).to_bytes(4, "little") + bytes(10)
    list(stream.event(Event(EventType.GTID, 1, 0, 0, body), header + body))
    if prepares:
        list(stream.event(Event(EventType.XA_PREPARE, 1, 0, 0, bytes(13)), b""))
    elif ends:
        list(stream.event(Event(EventType.XID, 1, 0, 0, bytes(8)), b""))


@given(st.binary(max_size=20), st.binary(max_size=20), st.integers(0, 0xFFFFFFFF), st.binary())
def test_the_name_of_a_transaction_is_read_and_what_is_short_is_an_error(
    first: bytes, second: bytes, form: int, rest: bytes
) -> None:
    """S1: and what follows it is found behind it."""
    head = (7).to_bytes(8, "little") + (3).to_bytes(4, "little")
    xid = form.to_bytes(4, "little") + bytes([len(first), len(second)]) + first + second
    found = begun(head + b"\x42" + bytes(8) + xid + b"\x10" + (99).to_bytes(4, "little") + rest)
    assert found.xid == f"X'{first.hex()}',X'{second.hex()}',{form}"
    assert (found.xa_prepared, found.thread) == (True, 99)
    with pytest.raises(MalformedEventError):
        begun(head + b"\x80" + xid[:-1])
