"""Copies beside XA transactions: of which an earlier session told, or nobody."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from msgspec import structs

from penstock.sources.mysql.binlog import Gtid
from penstock.sources.mysql.chunks import ChunkReader
from penstock.sources.mysql.copying import whole_copy
from penstock.sources.mysql.late import Late
from penstock.sources.mysql.listening import Listener
from penstock.sources.mysql.moments import KnownXas
from tests.mysql.conftest import on
from tests.mysql.support import Story, behind, caught_up, completed, end_of, run, source_of
from tests.mysql.test_copying import contents
from tests.mysql.test_xa import decide, prepared, table
from tests.telling import follow
from tests_support.servers import MariaDbServer, SqlServer

Start = Callable[..., SqlServer]


def gaps(story: Story) -> list[str]:
    """Why, of each."""
    said = [msgspec.json.decode(one.description) for one in story.system if one.operation == "gap"]
    return [str(one["reason"]) for one in said]


def begun(story: Story) -> bool:
    """Holds once anything was said."""
    return bool(story.items)


# --- nobody told of it ----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"start": "snapshot"}, {"on_position_lost": "snapshot"}])
async def test_rows_that_were_prepared_before_the_beginning_are_copied_once_they_are_committed(
    start: Start, options: dict[str, Any]
) -> None:
    """A29, invariant 4: a gap, and then what heals it; with MariaDB, a copy waits for them."""
    server = start()
    source = source_of(server, include=["d.*"], **options)
    story = Story()
    with table(server) as db:
        run(db, "INSERT INTO d.a VALUES (9)")
        prepared(server, "'x'", 1)
        begins = options.get("start") == "snapshot"
        waits = isinstance(server, MariaDbServer)
        await follow(source, story, completed if begins and not waits else begun)
        decide(db, "COMMIT 'x'")
        run(db, "INSERT INTO d.a VALUES (2)")
        await follow(source, story, behind(end_of(db)))
        assert gaps(story) == ["xa_prepared_before"]
        assert story.place.copying is not None, "what is missing is to be copied"
        await follow(source, story, completed)
        assert story.rows(copies=True) == contents(db, "d", "a")
    said = [what for what, _ in story.said]
    assert said[said.index("gap") + 1 :] == ["snapshot_started", "snapshot_completed"]


async def test_where_nobody_asked_for_copies_such_rows_are_a_gap_alone(start: Start) -> None:
    """Invariant 4: told, and left to who reads it."""
    server = start()
    source = source_of(server, include=["d.*"])
    with table(server) as db:
        prepared(server, "'x'", 1)
        story = await follow(source, Story(), lambda _: True)
        decide(db, "COMMIT 'x'")
        await follow(source, story, behind(end_of(db)))
    assert gaps(story) == ["xa_prepared_before"]
    assert story.place.copying is None


# --- an earlier session told of it ----------------------------------------------------------------


@contextmanager
def with_rows(server: SqlServer) -> Generator[Any]:
    """A connection to a server that has d.b, too, and that has prepared a change of its row 5."""
    with table(server) as db:
        run(db, "CREATE TABLE d.b (id INT PRIMARY KEY, n INT)")
        run(db, "INSERT INTO d.b VALUES (4, 0), (5, 0)")
        with server.connect() as other:
            run(other, "XA START 'x'", "UPDATE d.b SET n = 2 WHERE id = 5", "XA END 'x'")
            run(other, "XA PREPARE 'x'")
        yield db


def copied_on(story: Story) -> Story:
    """As `story` stands, with a copy that an operator has asked for."""
    copying = whole_copy([("d", "b")], seconds=1)
    return Story(structs.replace(story.place, copying=copying).text())


@on("mariadb")
@pytest.mark.parametrize("first", [True, False])
async def test_no_row_is_copied_while_an_earlier_session_may_have_told_what_it_lacks(
    start: Start, monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    """Invariant 9: of an XA transaction that is listed, and that this session knows nothing of,
    nobody knows whether its commit is in the binlog before it. Nor of one before the first."""
    says = Late.said
    waited: list[str] = []
    server = start()
    with with_rows(server) as db:

        def said(late: Late, table: str, why: str, now: float) -> None:
            says(late, table, why, now)
            if not waited:
                decide(db, "COMMIT 'x'")
            waited.append(why)

        monkeypatch.setattr(Late, "said", said)
        source = source_of(server, include=["d.b"], start="snapshot")
        story = Story()
        if not first:
            source = source_of(server, include=["d.b"])
            story = copied_on(await follow(source, story, lambda _: True))
        await follow(source, story, completed)
        # Its rows in no chunk of before, and its commit was told to nobody.
        await caught_up(server, source, story)
        if first:
            await follow(source, story, lambda story: story.place.copying is None)
        assert "X'78',X'',1" in waited[0]
        assert gaps(story) == ["xa_prepared_before"]
        assert story.rows(copies=True) == contents(db, "d", "b")


@on("mariadb")
async def test_no_row_is_copied_before_the_stream_was_read_again_to_where_it_stood(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 9: that a transaction was prepared there is not that it still is."""
    hears, passes, opens = Listener.hear, KnownXas.passed, ChunkReader.open
    known: list[bool] = []
    """Of each XA transaction that was read again, whether it was prepared; else it ended."""
    when: list[list[bool]] = []

    def one_by_one(listener: Listener, *args: Any, **options: Any) -> list[bytes]:
        events = hears(listener, *args, **options)
        if len(events) > 1:
            listener.again(events[1:])
        return events[:1]

    def passed(xas: KnownXas, xid: str, gtid: Gtid, *, prepares: bool) -> None:
        passes(xas, xid, gtid, prepares=prepares)
        known.append(prepares)

    def opening(reader: ChunkReader, name: tuple[str, str], told: Any) -> Any:
        when.append(list(known))
        return opens(reader, name, told)

    server = start()
    with with_rows(server) as db:
        prepared(server, "'long'", 1)
        decide(db, "COMMIT 'x'")
        before = await caught_up(server, source_of(server, start="beginning"))
        assert before.place.since is not None
        monkeypatch.setattr(Listener, "hear", one_by_one)
        monkeypatch.setattr(KnownXas, "passed", passed)
        monkeypatch.setattr(ChunkReader, "open", opening)
        story = await follow(source_of(server, include=["d.b"]), copied_on(before), completed)
        assert story.rows(copies=True) == contents(db, "d", "b")
    assert when[0] == [True, False], "long is prepared, and x was committed"


@on("mariadb")
async def test_one_that_was_prepared_since_and_waits_for_long_keeps_no_copy_waiting(
    start: Start,
) -> None:
    """Its rows come with its commit, which the stream tells."""
    server = start()
    source = source_of(server, include=["d.b"], start="snapshot")
    with with_rows(server) as db:
        decide(db, "ROLLBACK 'x'")
        begun = await follow(source, Story(), lambda _: True)
        prepared(server, "'long'", 1)
        with server.connect() as other:
            run(other, "XA START 'y'", "UPDATE d.b SET n = 3 WHERE id = 4", "XA END 'y'")
            run(other, "XA PREPARE 'y'")
        run(db, "INSERT INTO d.b VALUES (6, 0)")
        story = await follow(source, begun, completed)
        assert gaps(story) == []
        decide(db, "COMMIT 'y'")
        await follow(source, story, behind(end_of(db)))
        assert story.rows(copies=True) == contents(db, "d", "b")
