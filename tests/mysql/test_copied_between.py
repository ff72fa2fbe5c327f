"""What changes while a chunk of a copy is read: before its snapshot is taken, and behind it."""

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.event import ChangeEvent, Commit, Fragment
from penstock.sources.mysql import chunks, moments
from penstock.sources.mysql.binlog import Gtid, begun
from penstock.sources.mysql.connection import ask
from penstock.sources.mysql.positions import Domains, parse_gtids
from tests.mysql.conftest import on
from tests.mysql.support import Story, caught_up, completed, config_of, end_of, numbers, run
from tests.mysql.test_copying import contents, copying
from tests.telling import follow
from tests_support.servers import SqlServer

_XA = struct.Struct("<QIBIBB")
"""Of a GTID event: number, domain, flags; and of a name: format, lengths of its parts."""


class Between:
    """Has something happen once, right before or behind the snapshot for a table's rows.

    Not before the stream has told a change of the table `other`, from when on it is known where in
    the binlog it stands, so that what is read can wait for it. Nor are the rows behind the first
    that are told read before.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, where: str, table: str, act: Callable[[], object]
    ) -> None:
        self.happened = False
        self.story = Story()
        opened = ""
        opens, asks = chunks.ChunkReader.open, ask

        def opening(reader: chunks.ChunkReader, name: tuple[str, str], told: Any) -> Any:
            nonlocal opened
            opened = name[1]
            if opened == table and self.story.changes and not self.knows:
                raise moments.NotNowError("the stream has not told of the other table yet")
            return opens(reader, name, told)

        def asking(connection: Any, question: str, *values: object) -> Any:
            here = question == moments.BEGIN and opened == table
            now = here and self.knows and not self.happened
            if now and where == "before":
                act()
            found = asks(connection, question, *values)
            if now and where == "behind":
                act()
            self.happened = self.happened or now
            return found

        monkeypatch.setattr(chunks.ChunkReader, "open", opening)
        monkeypatch.setattr("penstock.sources.mysql.moments.ask", asking)

    @property
    def knows(self) -> bool:
        """Whether the stream has told of the table `other`."""
        return any(event.collection == "other" for event in self.story.changes)

    async def copied(self, server: SqlServer, database: str, **options: Any) -> Story:
        """What a copy of `database` and the stream tell."""
        with server.connect(database=database) as db:
            wrote = False

            def write(item: Commit | Fragment) -> None:
                nonlocal wrote
                if not wrote and any(isinstance(event, ChangeEvent) for event in item.events):
                    wrote = True
                    run(db, "INSERT INTO other VALUES (1)")

            source = copying(server, database, **options)
            await follow(source, self.story, completed, on_item=write)
            await caught_up(server, source, self.story)
        assert self.happened
        return self.story


def told(story: Story, table: str) -> list[tuple[str, Any]]:
    """What was done to rows of a table: which operation, and `n`; copied ones by `copy`."""
    return [
        (
            "copy" if event.snapshot else event.operation.value,
            msgspec.json.decode(event.full_document)["n"] if event.full_document else None,
        )
        for event in story.changes
        if event.collection == table
    ]


@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize("engine", ["InnoDB", "MyISAM"])
async def test_rows_that_change_around_a_snapshot_end_as_they_are_and_never_go_back(
    server: SqlServer, database: str, monkeypatch: pytest.MonkeyPatch, where: str, engine: str
) -> None:
    """Invariant 9: changed, deleted, inserted, deleted and inserted, and moved to another key."""
    with server.connect(database=database) as db:
        run(db, f"CREATE TABLE m (id INT PRIMARY KEY, n INT) ENGINE = {engine}")
        run(db, f"INSERT INTO m SELECT 10 * seq, 0 FROM {numbers(1, 6)}")
        run(db, "CREATE TABLE other (id INT PRIMARY KEY)")
        change = (
            "UPDATE m SET n = 1 WHERE id = 40",
            "DELETE FROM m WHERE id = 50",
            "INSERT INTO m VALUES (45, 1)",
            "DELETE FROM m WHERE id = 60",
            "INSERT INTO m VALUES (60, 1)",
            "UPDATE m SET id = 15, n = 1 WHERE id = 45",
            "UPDATE m SET n = 2 WHERE id = 60",
        )
        between = Between(monkeypatch, where, "m", lambda: run(db, *change))
        story = await between.copied(server, database)
        there = contents(db, database, "m", "other")
    assert story.rows(copies=True) == there
    newest: dict[bytes, int] = {}
    for event in story.changes:
        if event.full_document is not None and event.collection == "m":
            n = msgspec.json.decode(event.full_document)["n"]
            assert n >= newest.get(bytes(event.key), 0), "a row that is older than what was said"
            newest[bytes(event.key)] = n
    assert told(story, "m")[:3] == [("copy", 0)] * 3


@on("mysql", "files")
async def test_only_what_is_in_doubt_is_left_to_the_stream(
    server: SqlServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is not told yet, and surely in the snapshot, is in the chunk."""
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE m (id INT PRIMARY KEY, n INT)", "CREATE TABLE other (id INT)")
        run(db, f"INSERT INTO m SELECT seq, 0 FROM {numbers(1, 6)}")
        between = Between(
            monkeypatch, "before", "m", lambda: run(db, "UPDATE m SET n = 2 WHERE id = 5")
        )
        opens = chunks.ChunkReader.open
        changed = False

        def opening(reader: chunks.ChunkReader, name: tuple[str, str], told: Any) -> Any:
            nonlocal changed
            if between.knows and not changed:
                changed = True
                run(db, "UPDATE m SET n = 1 WHERE id = 4")
            return opens(reader, name, told)

        monkeypatch.setattr(chunks.ChunkReader, "open", opening)
        story = await between.copied(server, database)
    rows = told(story, "m")[3:]
    assert rows == [("replace", 1), ("replace", 2), ("copy", 1), ("copy", 0)]


@pytest.mark.parametrize("where", ["before", "behind"])
async def test_rows_without_a_key_that_change_around_a_snapshot_end_as_they_are(
    server: SqlServer, database: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A11: what a row was before must not come behind its change."""
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
        run(db, "CREATE TABLE z (n INT)", "CREATE TABLE other (id INT PRIMARY KEY)")
        run(db, f"INSERT INTO z SELECT seq FROM {numbers(1, 9)}")
        change = ("UPDATE z SET n = 20 WHERE n = 2", "DELETE FROM z WHERE n = 3")
        between = Between(monkeypatch, where, "z", lambda: run(db, *change))
        story = await between.copied(server, database)
        left = sorted(n for (n,) in run(db, "SELECT n FROM z"))
    rows = story.rows(copies=True)[f"{database}.z"]
    assert sorted(row["n"] for row in rows.values()) == left


@pytest.mark.parametrize("where", ["before", "behind"])
async def test_a_row_that_lacks_columns_is_told_behind_or_before_the_whole_one(
    server: SqlServer, database: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Invariant 9: it cannot take the place of the row that is copied, which is read again."""
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE m (id INT PRIMARY KEY, n INT, x INT)", "CREATE TABLE other (id INT)")
        run(db, f"INSERT INTO m SELECT seq, 0, seq FROM {numbers(1, 6)}")
        run(db, "SET SESSION binlog_row_image = MINIMAL")
        kept = "binlog_rows_query_log_events"
        if run(db, f"SHOW VARIABLES LIKE '{kept}'"):
            run(db, f"SET SESSION {kept} = ON")
        between = Between(
            monkeypatch, where, "m", lambda: run(db, "UPDATE m SET n = 1 WHERE id = 5")
        )
        story = await between.copied(server, database, on_partial_rows="decode")
    rows: dict[str, dict[str, Any]] = {}
    for event in story.changes:
        if event.collection == "m" and event.full_document is not None:
            row = msgspec.json.decode(event.full_document)
            rows.setdefault(event.document_id, {}).update(row)
    assert rows == {str(n): {"id": n, "n": int(n == 5), "x": n} for n in range(1, 7)}


@on("mariadb")
async def test_a_row_of_an_xa_commit_that_a_snapshot_may_lack_is_the_streams(
    server: SqlServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB has an XA COMMIT in its binlog before InnoDB shows it."""
    with server.connect(database=database) as db, server.connect(database=database) as other:
        run(
            db,
            "CREATE TABLE m (id INT PRIMARY KEY, n INT)",
            "CREATE TABLE other (id INT PRIMARY KEY)",
        )
        run(db, f"INSERT INTO m SELECT seq, 0 FROM {numbers(1, 6)}")
        xid = f"'{database}'"
        change = "UPDATE m SET n = 2 WHERE id = 5"

        def commit() -> None:
            run(db, "UPDATE m SET n = 1 WHERE id = 4")
            run(other, f"XA START {xid}", change, f"XA END {xid}", f"XA PREPARE {xid}")
            run(other, f"XA COMMIT {xid}")

        between = Between(monkeypatch, "before", "m", commit)
        story = await between.copied(server, database)
        assert story.rows(copies=True) == contents(db, database, "m", "other")
    rows = [
        ("copy" if event.snapshot else "stream", msgspec.json.decode(event.key)["id"])
        for event in story.changes
        if event.collection == "m"
    ]
    assert rows.count(("stream", 5)) == 1
    assert ("copy", 5) not in rows
    assert ("copy", 4) in rows


@on("mariadb")
async def test_no_snapshot_is_taken_while_a_told_xa_commit_is_not_seen(
    server: SqlServer, database: str
) -> None:
    """What the stream has told as committed, and XA RECOVER still lists."""
    with server.connect(database=database) as db:
        run(db, "CREATE TABLE m (id INT PRIMARY KEY, n INT)")
        xid, text = f"'{database}','b',7", f"X'{database.encode().hex()}',X'62',7"
        reader = chunks.ChunkReader("db", config_of(server))
        body = _XA.pack(9, 0, 0x80, 7, len(database), 1) + database.encode() + b"b"
        told = Domains(parse_gtids(end_of(db)))
        try:
            run(db, f"XA START {xid}", "INSERT INTO m VALUES (1, 1)", f"XA END {xid}")
            run(db, f"XA PREPARE {xid}")
            reader.xas.passed(begun(body).xid, Gtid(0, 1, 8), prepares=True)
            reader.open((database, "m"), told)  # one that is not told as committed
            reader.close()
            reader.xas.passed(begun(body).xid, Gtid(0, 1, 9), prepares=False)
            assert begun(body).xid == text
            try:
                with pytest.raises(moments.NotNowError):
                    reader.open((database, "m"), told)
            finally:
                reader.discard()
                run(db, f"XA COMMIT {xid}")
            reader.open((database, "m"), told)
            reader.close()
        finally:
            reader.discard()
