"""MariaDB or MySQL as a source, in tests: what a source says, and the rows that it adds up to."""

from collections.abc import Callable
from typing import Any, cast

import msgspec
from pymysql.connections import Connection

from penstock.event import (
    AnyEvent,
    ChangeEvent,
    Fragment,
    Operation,
    SchemaEvent,
    SystemEvent,
)
from penstock.sources.mysql import MysqlSource, MysqlSourceConfig
from penstock.sources.mysql.connection import Connected, facts
from penstock.sources.mysql.file_places import FilePlace
from penstock.sources.mysql.holdings import flavour_of, holdings
from penstock.sources.mysql.positions import MysqlPosition, parse_position
from tests.telling import Told, follow
from tests.waiting import wait_until
from tests_support.servers import SqlServer

Rows = dict[str, dict[str, Any]]
"""Documents by table and by key as text."""


def config_of(server: SqlServer, **options: Any) -> MysqlSourceConfig:
    """A configuration that captures from `server`."""
    options = {"port": server.port, "user": "root", "heartbeat_seconds": 0.2, **options}
    options.setdefault("heartbeat_deadline_seconds", max(20, 2 * options["heartbeat_seconds"]))
    return MysqlSourceConfig.model_validate(options)


def source_of(server: SqlServer, **options: Any) -> MysqlSource:
    """A source over `server`."""
    return MysqlSource("db", config_of(server, **options))


def run(connection: "Connection[Any]", *statements: str | bytes) -> list[tuple[Any, ...]]:
    """Run statements; the rows of the last."""
    rows: tuple[tuple[Any, ...], ...] = ()
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            rows = cast("tuple[tuple[Any, ...], ...]", cursor.fetchall() or ())
    return list(rows)


def numbers(first: int, last: int) -> str:
    """What to select from for a column `seq` of these numbers, on any server."""
    listed = ", ".join(map(str, range(first, last + 1)))
    return f"JSON_TABLE('[{listed}]', '$[*]' COLUMNS (seq INT PATH '$')) AS numbers"


def end_of(connection: Connected) -> str:
    """Where the server's binlog ends now."""
    found = facts(connection)
    return holdings(connection, found, flavour_of(found)).end


def binlogs(connection: Connected) -> list[str]:
    """The names of the server's binlogs, oldest first."""
    return [str(name) for name, *_ in run(connection, "SHOW BINARY LOGS")]


def purge(connection: Connected) -> None:
    """Purge all binlogs but the newest. The server keeps one that it still sends to somebody, which
    it notices with its next heartbeat that nobody is there."""

    def is_purged() -> bool:
        *older, newest = binlogs(connection)
        if older:
            run(connection, f"PURGE BINARY LOGS TO '{newest}'")
        return not older

    wait_until(is_purged)


class Story(Told):
    """What a source has said, and where it stands."""

    @property
    def said(self) -> list[tuple[str, str]]:
        """As `Told.said`, without the columns of tables (`shapes`)."""
        return [
            (event.operation, event.collection)
            for event in self.effects
            if not isinstance(event, ChangeEvent)
        ]

    @property
    def effects(self) -> list[AnyEvent]:
        """All that was said but the columns of tables (`shapes`)."""
        shapes = {event.event_id for event in self.shapes}
        return [event for event in self.events if event.event_id not in shapes]

    @property
    def shapes(self) -> list[SchemaEvent]:
        """What was said of the columns of tables."""
        schema = [event for event in self.events if isinstance(event, SchemaEvent)]
        return [event for event in schema if b'"columns":' in bytes(event.description)]

    @property
    def system(self) -> list[SystemEvent]:
        """What was said of the source."""
        return [event for event in self.events if isinstance(event, SystemEvent)]

    @property
    def place(self) -> MysqlPosition:
        assert self.position is not None
        return parse_position(self.position)

    def crash(self) -> None:
        """What was staged of an open transaction is dropped."""
        while self.items and isinstance(self.items[-1], Fragment):
            self.items.pop()

    def rows(self, *, copies: bool = False) -> Rows:
        """The changes applied, as a consumer would. Empty tables are left out.

        Each must fit what is there, unless there are `copies`: a change may be of a row that is not
        copied yet, or a row of one that came before.
        """
        rows: Rows = {}
        for event in self.events:
            name = f"{event.database}.{event.collection}"
            if isinstance(event, ChangeEvent):
                of_table = rows.setdefault(name, {})
                key = bytes(event.key).decode()
                if event.operation is Operation.DELETE:
                    assert of_table.pop(key, None) is not None or copies
                else:
                    assert event.full_document is not None
                    assert copies or (key in of_table) == (event.operation is Operation.REPLACE)
                    of_table[key] = msgspec.json.decode(event.full_document)
            elif event.operation == "drop":
                rows.pop(name, None)
            elif event.operation == "dropDatabase":
                for one in [one for one in rows if one.startswith(f"{event.database}.")]:
                    rows.pop(one)
            elif event.operation == "rename":
                said = msgspec.json.decode(cast("Any", event).description)
                moved = rows.pop(name, None)
                target = f"{said['to']['db']}.{said['to']['coll']}"
                rows.pop(target, None)
                if moved is not None and said["targetCaptured"]:
                    rows[target] = moved
        return {table: found for table, found in rows.items() if found}


def completed(story: Told) -> bool:
    """Holds where it was said last that a copy is complete."""
    said = story.items[-1].events if story.items else ()
    return any(event.operation == "snapshot_completed" for event in said)


def covers(place: MysqlPosition, gtids: str) -> bool:
    """Whether these transactions are before a position."""
    ours = place.told()
    if isinstance(ours, FilePlace):
        return FilePlace.parse(gtids).unknown(ours.text()) is None
    return ours.purged(gtids) is None


def behind(gtids: str) -> Callable[[Story], bool]:
    """Holds once a source stands at or behind these transactions."""

    def reached(story: Story) -> bool:
        if story.position is None or isinstance(story.items[-1], Fragment):
            return False
        return covers(story.place, gtids)

    return reached


def in_binlog(name: str) -> Callable[[Story], bool]:
    """Holds once a source reads this binlog."""
    return lambda story: story.place.binlog is not None and story.place.binlog.file == name


async def caught_up(server: SqlServer, source: MysqlSource, story: Story | None = None) -> Story:
    """What the source says up to where the server's binlog ends now."""
    story = Story() if story is None else story
    with server.connect() as connection:
        until = behind(end_of(connection))
    return await follow(source, story, until)
