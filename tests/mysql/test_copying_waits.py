"""What a copy waits for, and says; and what waits for a copy."""

from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from penstock.errors import UndecodableError
from penstock.event import Commit, Fragment, SchemaEvent
from penstock.sources.mysql import chunks, copier, late, transactions
from penstock.sources.mysql.connection import ask
from penstock.sources.mysql.late import FIRST_SECONDS, NEXT_SECONDS, Late
from penstock.sources.mysql.selecting import ColumnFacts, Definition
from penstock.sources.mysql.session import Session
from penstock.sources.mysql.stream import drawn_server_id
from tests.mysql.conftest import on
from tests.mysql.support import Story, completed, config_of, numbers, run
from tests.mysql.test_copying import contents, copying
from tests.telling import follow
from tests_support.servers import SqlServer


def filled(db: Any) -> None:
    """A table of seven rows."""
    run(db, "CREATE TABLE a (id INT PRIMARY KEY, n INT)")
    run(db, f"INSERT INTO a SELECT seq, seq FROM {numbers(1, 7)}")


async def test_a_table_that_stays_locked_is_said_to_keep_a_copy_waiting(
    server: SqlServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No silence: why, of which table; and the copy goes on once it can."""
    monkeypatch.setattr(late, "FIRST_SECONDS", 0.0)
    with server.connect(database=database) as db, server.connect(database=database) as other:
        filled(db)
        run(other, "LOCK TABLES a WRITE")
        locked = True
        logged: list[Any] = []
        says = Late.said

        def said(one: Late, table: str, why: str, now: float) -> None:
            nonlocal locked
            says(one, table, why, now)
            if locked and logged_by():
                run(other, "UNLOCK TABLES")
                locked = False

        def logged_by() -> list[Any]:
            return [entry for entry in logged if entry["event"].startswith("a copy waits")]

        monkeypatch.setattr(Late, "said", said)
        with capture_logs() as logs:
            logged = logs
            story = await follow(copying(server, database), Story(), completed)
        assert story.rows(copies=True) == contents(db, database, "a")
    (first, *_) = logged_by()
    assert first["table"] == f"{database}.a"
    assert first["source"] == "db"
    assert "1205" in first["why"] or "3024" in first["why"]


async def test_a_table_that_the_stream_never_gets_to_in_time_is_said_to_keep_a_copy_waiting(
    server: SqlServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 4: one that does not divide is opened again and again, and that is no reading."""
    monkeypatch.setattr(late, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(copier, "OPEN_SECONDS_MAX", -1.0)
    opens = chunks.ChunkReader.open
    with server.connect(database=database) as db, capture_logs() as logs:
        run(db, "CREATE TABLE a (n INT)", "CREATE TABLE other (id INT AUTO_INCREMENT PRIMARY KEY)")
        run(db, "INSERT INTO a VALUES (1), (2)")
        opened = 0

        def logged() -> list[Any]:
            return [entry for entry in logs if entry["event"].startswith("a copy waits")]

        def opening(reader: chunks.ChunkReader, name: tuple[str, str], told: Any) -> Any:
            nonlocal opened
            opened += name[1] == "a"
            assert opened < 100, "without a word"
            if name[1] == "a" and not logged():
                run(db, "INSERT INTO other VALUES ()")
            return opens(reader, name, told)

        monkeypatch.setattr(chunks.ChunkReader, "open", opening)
        story = await follow(copying(server, database), Story(), completed)
        copied = story.rows(copies=True)[f"{database}.a"].values()
        assert sorted(row["n"] for row in copied) == [1, 2]
    assert logged()[0]["table"] == f"{database}.a"


def test_who_waits_says_so_after_a_while_and_seldom_again() -> None:
    """And anew once it could be read in between."""
    one = Late("db")
    with capture_logs() as logs:
        for now in (0.0, FIRST_SECONDS - 1, FIRST_SECONDS, FIRST_SECONDS + 1):
            one.said("d.a", "locked", now)
        assert [entry["seconds"] for entry in logs] == [FIRST_SECONDS]
        one.said("d.a", "locked", FIRST_SECONDS + NEXT_SECONDS)
        assert len(logs) == 2
        one.read()
        one.said("d.a", "locked", 10 * NEXT_SECONDS)
        assert len(logs) == 2


async def test_a_column_that_the_server_describes_and_never_reads_stops_the_copy(
    server: SqlServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4: nothing is tried for ever without a word."""
    describes = chunks.defined

    def described(*args: Any, **options: Any) -> Definition:
        found = describes(*args, **options)
        ghost = ColumnFacts("ghost", "int", "int(11)", None, None)
        return structs.replace(found, columns=(*found.columns, ghost))

    monkeypatch.setattr(chunks, "defined", described)
    with server.connect(database=database) as db:
        filled(db)
        with pytest.raises(UndecodableError, match=r"\.a for a copy: .*ghost"):
            await follow(copying(server, database), Story(), completed)


@on("mysql", "files")
async def test_a_column_that_goes_while_a_table_is_opened_only_has_it_opened_again(
    server: SqlServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4: the definition is as of the snapshot, and the table is newer."""
    dropped = False
    with server.connect(database=database) as db:
        filled(db)

        def asking(connection: Any, question: str, *values: object) -> Any:
            nonlocal dropped
            if question.endswith("LIMIT 0") and not dropped:
                dropped = True
                run(db, "ALTER TABLE a DROP COLUMN n, ALGORITHM = INSTANT")
            return ask(connection, question, *values)

        monkeypatch.setattr("penstock.sources.mysql.chunks.ask", asking)
        story = await follow(copying(server, database), Story(), completed)
        assert story.rows(copies=True) == contents(db, database, "a")
    assert dropped


async def test_a_copy_that_is_asked_for_waits_until_a_transaction_is_handed_out_whole(
    server: SqlServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 2: its last event is read, and its commit is still to be said."""
    monkeypatch.setattr(transactions, "FRAGMENT_BYTES", 0)
    session = Session(
        *("db", config_of(server, include=[f"{database}.*"])),
        server_id=drawn_server_id(),
        undone={},
    )
    try:
        session.begin(None)
        with server.connect(database=database) as db:
            run(db, "CREATE TABLE a (id INT PRIMARY KEY)")
        step = session.step()
        while not step.items:
            step = session.step()
        while not any(isinstance(item, Fragment) for item in step.items):
            step = session.step()
        (part,) = step.items
        assert [type(event) for event in part.events] == [SchemaEvent]
        step = session.step([[(database, "a")]])
        assert not step.begun
        (rest,) = step.items
        assert isinstance(rest, Commit)
        assert rest.events == ()
        step = session.step([[(database, "a")]])
        while not step.begun:
            step = session.step([[(database, "a")]])
    finally:
        session.close()
