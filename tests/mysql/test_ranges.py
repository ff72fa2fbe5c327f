"""Tables read by ranges beside their stream: as of which place, of which server, of which table."""

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from msgspec import structs

from penstock.errors import (
    ConfigError,
    SourceChangedError,
    SourceUnavailableError,
    UndecodableError,
)
from penstock.ports import KeyRange
from penstock.sources.mysql import MysqlSource, MysqlSourceConfig
from penstock.sources.mysql import ranges as reading_ranges
from penstock.sources.mysql.agreement import has_told
from penstock.sources.mysql.positions import Flavour, Server, begun_at
from penstock.sources.mysql.splitting import Splitter
from penstock.testing.contracts.ranges import documents, rows_of
from tests.mysql.conftest import on
from tests.mysql.ranges import by_ranges, reading
from tests.mysql.support import Story, caught_up, numbers, run, source_of
from tests.mysql.test_semi_sync import acknowledged, items_of, running, until_row, waiting
from tests.mysql.test_xa import decide, prepared, table
from tests.telling import follow
from tests_support.servers import SqlServer

PLACES: dict[Flavour, tuple[str, str, str]] = {
    "mariadb": ("0-1-5,1-2-7", "1-2-7", "0-1-5,1-2-8"),
    "mysql": (
        "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7",
        "3e11fa47-71ca-11e1-9e33-c80aa9429562:7",
        "3e11fa47-71ca-11e1-9e33-c80aa9429562:6",
    ),
    "mysql_files": ("mysql-bin.000010:500", "mysql-bin.000010:500", "mysql-bin.000010:501"),
}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be read now is not waited for."""
    monkeypatch.setattr(reading_ranges, "PATIENCE_SECONDS", 0.0)


async def standing(server: SqlServer, database: str) -> Story:
    """Where a source that captures `database` stands now."""
    source = source_of(server, include=[f"{database}.*"])
    return await caught_up(server, source, await follow(source, Story(), lambda _: True))


# --- places and settings: nobody is asked ---------------------------------------------------------


@pytest.mark.parametrize("flavour", PLACES)
def test_a_position_has_told_a_read_where_it_has_all_of_its_transactions(flavour: Flavour) -> None:
    at, before, behind = PLACES[flavour]
    known = begun_at(Server(1), at, config().scope, flavour)
    assert has_told(known, at)
    assert has_told(known, before)
    assert not has_told(known, behind)
    older = "mysql-bin.000009:900"
    assert flavour != "mysql_files" or has_told(known, older)


def config(**options: Any) -> MysqlSourceConfig:
    return MysqlSourceConfig.model_validate({"user": "u", **options})


async def test_settings_that_do_not_agree_with_the_stream_are_refused_before_anybody_is_asked() -> (
    None
):
    """S2: a row is only right if each change says all of it; and of what is captured alone."""
    partial = MysqlSource("db", config(on_partial_rows="decode"))
    with pytest.raises(ConfigError, match="on_partial_rows"):
        partial.require_readable()
    opened = MysqlSource("db", config())
    opened.require_readable()
    part = KeyRange(database="d", collection="a")
    for captured in ({"include": ["d.a"]}, {"columns": {"exclude": ["d.a.x"]}}):
        scope = config(**captured).scope
        position = begun_at(Server(1), "", scope, "mariadb").text()
        with pytest.raises(ConfigError, match="captures other tables or columns"):
            await opened.ranges("", "", rows=1, position=position)
        with pytest.raises(ConfigError, match="captures other tables or columns"):
            await opened.read_range(part, position=position)


# --- as of which place ----------------------------------------------------------------------------


async def test_another_server_or_one_that_has_not_got_there_is_not_read(
    server: SqlServer, database: str, soon: None
) -> None:
    """S6."""
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    story = await standing(server, database)
    source = reading(server, database)
    part = KeyRange(database=database, collection="a")
    other = structs.replace(story.place, server=Server(77)).text()
    with pytest.raises(SourceChangedError):
        await source.ranges("", "", rows=1, position=other)
    with pytest.raises(SourceChangedError):
        await source.read_range(part, position=other)
    ahead = structs.replace(story.place, gtids=ahead_of(story)).text()
    with pytest.raises(SourceUnavailableError, match="has not got to"):
        await source.ranges("", "", rows=1, position=ahead)
    with pytest.raises(SourceUnavailableError, match="has not got to"):
        await source.read_range(part, position=ahead)
    await source.close()


def ahead_of(story: Story) -> str:
    """Behind a transaction that the server has not committed yet."""
    gtids, flavour = story.place.gtids, story.place.flavour
    if flavour == "mysql_files":
        file, _, offset = gtids.rpartition(":")
        return f"{file}:{int(offset) + 1}"
    head, mark, last = gtids.rpartition("-")
    return f"{head}{mark}{int(last) + 1}"


@pytest.mark.parametrize("engine", ["InnoDB", "MyISAM"])
async def test_what_changes_between_the_definition_and_the_snapshot_is_read(
    server: SqlServer, database: str, engine: str
) -> None:
    with server.connect(database=database) as db:
        run(db, f"CREATE TABLE a (id INT PRIMARY KEY, n INT) ENGINE = {engine}")
        run(db, f"INSERT INTO a SELECT seq, 0 FROM {numbers(1, 9)}")
        story = await standing(server, database)
        run(db, "UPDATE a SET n = 1 WHERE id > 4", "DELETE FROM a WHERE id = 9")
        await caught_up(server, source_of(server, include=[f"{database}.*"]), story)
        rows = await by_ranges(reading(server, database), str(story.position), rows=4)
    told = [msgspec.json.decode(row.full_document or b"") for row in rows]
    assert sorted((one["id"], one["n"]) for one in told) == [(i, int(i > 4)) for i in range(1, 9)]


@on("mariadb", soak=("mysql",))
async def test_a_commit_that_was_sent_and_is_not_seen_yet_is_waited_for(
    start: Callable[..., SqlServer], soon: None
) -> None:
    """With AFTER_SYNC the stream has it before others see it: a snapshot without it is too old."""
    server = waiting(start())
    with server.server.connect() as db:
        server.set(db, "wait_point", "AFTER_SYNC")
    follower = source_of(server.server, include=["d.*"], semi_sync=True)
    source, part = reading(server.server, "d"), KeyRange(database="d", collection="a")
    async with aclosing(items_of(follower)) as items:
        await follower.acknowledge((await anext(items)).position)
        with running(server, "INSERT INTO d.a VALUES (1)") as thread:
            item = await until_row(items, follower, "1")
            with pytest.raises(SourceUnavailableError, match=r"stream has told what|not got to"):
                await source.read_range(part, position=item.position)
            await follower.acknowledge(item.position)
            await acknowledged(items, follower, thread)
            (row,) = await rows_of(source, part, item.position)
    assert row.document_id == "1"
    await source.close()


@on("mariadb")
async def test_rows_of_an_xa_transaction_that_may_be_ending_are_waited_for(
    start: Callable[..., SqlServer], soon: None
) -> None:
    """MariaDB has its commit in the binlog a moment before others see it, and lists it until then:
    nobody can tell it from one that is only prepared."""
    server = start()
    with table(server) as db:
        prepared(server, "'x'", 1)
        story = await standing(server, "d")
        source = reading(server, "d")
        part = KeyRange(database="d", collection="a")
        with pytest.raises(SourceUnavailableError, match="XA RECOVER"):
            await source.read_range(part, position=str(story.position))
        decide(db, "COMMIT 'x'")
        (row,) = await rows_of(source, part, str(story.position))
        # One that is prepared once the position was read as of is none of it.
        prepared(server, "'y'", 2)
        assert len(await rows_of(source, part, str(story.position))) == 1
        await caught_up(server, source_of(server, include=["d.*"]), story)
        with pytest.raises(SourceUnavailableError, match="XA RECOVER"):
            await source.read_range(part, position=str(story.position))
        decide(db, "ROLLBACK 'y'")
        await source.close()
    assert row.document_id == "1"


# --- of which table -------------------------------------------------------------------------------


async def test_a_range_of_a_key_that_was_altered_since_is_not_read(
    server: SqlServer, database: str, soon: None
) -> None:
    """A place in one key is none in another; the ALTER is in the log, and plans it anew."""
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, n INT NOT NULL)")
        run(db, f"INSERT INTO a SELECT seq, 10 - seq FROM {numbers(1, 9)}")
        position = str((await standing(server, database)).position)
        source = reading(server, database)
        ranges = (await source.ranges("", "a", rows=3, position=position)).ranges
        assert len(ranges) > 2
        run(db, "ALTER TABLE a DROP PRIMARY KEY, ADD PRIMARY KEY (n)")
        for part in ranges:
            with pytest.raises(SourceUnavailableError, match="its key was altered"):
                await source.read_range(part, position=position)
        run(db, "ALTER TABLE a DROP PRIMARY KEY")
        for why in ("changed meanwhile", "another key's"):
            with pytest.raises(SourceUnavailableError, match=why):
                await source.read_range(ranges[1], position=position)
        (whole,) = (await source.ranges("", "a", rows=3, position=position)).ranges
        assert len(await rows_of(source, whole, position)) == 9
        await source.close()


@pytest.mark.parametrize(
    ("statement", "listed"),
    [
        ("DROP TABLE a", set[str]()),
        ("ALTER TABLE a DROP id", {"a"}),
        ("RENAME TABLE a TO b", {"b"}),
    ],
)
async def test_a_table_that_is_another_while_it_is_divided_is_listed_as_it_is_then(
    server: SqlServer,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
    listed: set[str],
) -> None:
    """S10: whatever a server says of a table that is gone, the load goes on."""
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, n INT)")
        run(db, f"INSERT INTO a SELECT seq, 0 FROM {numbers(1, 9)}")
        position = str((await standing(server, database)).position)
        left = [statement]

        class Interrupted(Splitter):
            def edges(self, *, rows: int) -> list[tuple[str, ...]]:
                while left:
                    run(db, left.pop())
                return super().edges(rows=rows)

        monkeypatch.setattr(reading_ranges, "Splitter", Interrupted)
        source = reading(server, database)
        ranges = (await source.ranges("", "", rows=3, position=position)).ranges
        await source.close()
    assert {part.collection for part in ranges} == listed


async def test_a_table_without_a_key_is_one_range_of_one_moment(
    server: SqlServer, database: str
) -> None:
    """A11: its rows are told as the stream tells them, known by all that they hold."""
    with server.connect(database=database) as db:
        source = source_of(server, include=[f"{database}.*"])
        story = await follow(source, Story(), lambda _: True)
        run(db, "CREATE TABLE a (n INT)", f"INSERT INTO a SELECT seq FROM {numbers(1, 8)}")
        await caught_up(server, source, story)
        ranged = reading(server, database)
        (part,) = (await ranged.ranges("", "", rows=2, position=str(story.position))).ranges
        first = await ranged.read_range(part, position=str(story.position))
        assert len(first.events) == 3
        run(db, "UPDATE a SET n = 0", "INSERT INTO a VALUES (9)")
        assert first.rest is not None
        rest = await rows_of(ranged, first.rest, str(story.position))
        assert documents([*first.events, *rest]) == documents(story.changes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading_ranges, "PATIENCE_SECONDS", 0.0)
            with pytest.raises(SourceUnavailableError, match="in one transaction"):
                await ranged.read_range(first.rest, position=str(story.position))
        await ranged.close()


async def test_columns_that_come_or_go_while_a_range_is_read_spoil_no_row(
    server: SqlServer, database: str
) -> None:
    """Each chunk is of one definition; which one, the log's ALTER decides."""
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, n INT)")
        run(db, f"INSERT INTO a SELECT seq, seq FROM {numbers(1, 9)}")
        story = await standing(server, database)
        source = reading(server, database)
        part = KeyRange(database=database, collection="a")
        found: list[dict[str, Any]] = []
        for alter in ("ADD b INT DEFAULT 7", "RENAME COLUMN n TO m", "DROP m", "MODIFY b CHAR(9)"):
            read = await source.read_range(part, position=str(story.position))
            found.append(msgspec.json.decode(read.events[0].full_document or b""))
            assert read.rest is not None
            part = structs.replace(read.rest, after=None)
            run(db, f"ALTER TABLE a {alter}")
        read = await source.read_range(part, position=str(story.position))
        found.append(msgspec.json.decode(read.events[0].full_document or b""))
        await source.close()
        before = len(story.events)
        await caught_up(server, source_of(server, include=[f"{database}.*"]), story)
    assert found == [
        {"id": 1, "n": 1},
        {"id": 1, "n": 1, "b": 7},
        {"id": 1, "m": 1, "b": 7},
        {"id": 1, "b": 7},
        {"id": 1, "b": "7"},
    ]
    assert [event.operation for event in story.events[before:]] == ["modify"] * 4


async def test_a_row_without_an_exact_form_is_named_and_capture_is_not_said_to_stop(
    server: SqlServer, database: str
) -> None:
    """Invariant 10."""
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY, t TEXT CHARACTER SET latin2)")
        run(db, "INSERT INTO a VALUES (1, 'x')")
    position = str((await standing(server, database)).position)
    source = reading(server, database)
    with pytest.raises(UndecodableError, match=r"latin2.*capture goes on") as raised:
        await source.ranges("", "", rows=1, position=position)
    assert "Capture has stopped" not in str(raised.value)
    await source.close()


@on("mariadb", soak=("mysql", "files"))
async def test_a_server_that_does_not_log_whole_rows_is_refused_by_name(
    start: Callable[..., SqlServer],
) -> None:
    """S2."""
    server = start()
    with table(server) as db:
        story = await standing(server, "d")
        run(db, "SET GLOBAL binlog_row_image = 'MINIMAL'")
    source = reading(server, "d")
    with pytest.raises(ConfigError, match=r"binlog_row_image is MINIMAL.*Nothing was read"):
        await source.ranges("", "", rows=1, position=str(story.position))
    await source.close()
