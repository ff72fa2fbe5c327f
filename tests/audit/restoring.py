"""From a real server into a trail, and back: what both tests and their references need."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner, Result

from penstock.audit.entries import entry_of
from penstock.audit.packing import Packer
from penstock.audit.trail import Trail
from penstock.cli import audit_restore
from penstock.event import AnyEvent, ChangeEvent, kind_of
from penstock.sources.mysql.connection import Connected
from tests.audit.support import BYTES_MAX, marker, writer_of
from tests.mysql.support import Story, caught_up, completed, run, source_of
from tests.telling import follow
from tests_support.servers import SqlServer


class Audited:
    """Databases of a server, and the trail of them."""

    def __init__(
        self,
        server: SqlServer,
        trail: Trail,
        databases: Sequence[str],
        folder: Path,
        **options: Any,
    ) -> None:
        self.server = server
        self.trail = trail
        self.hides = ""
        """A line of the source's configuration."""
        self._folder = folder
        self._databases = list(databases)
        self._options = options
        self._source = source_of(server, include=[f"{name}.*" for name in databases], **options)
        self._story = Story()
        self._sequence = 0
        self._items = 0

    def configured(self) -> Path:
        """A penstock.toml with the pipeline `trail`."""
        path = self._folder / "penstock.toml"
        path.write_text(
            f"""
            [sources.shop]
            type = "mysql"
            user = "root"
            port = {self.server.port}
            {self.hides}

            [pipelines.trail]
            to = "audit"
            source = "shop"
            uri = "{self.trail.config.uri.get_secret_value()}"
            database = "{self.trail.config.database}"
            """
        )
        return path

    def also(self, database: str) -> None:
        """Capture another database, before it begins."""
        self._databases.append(database)
        include = [f"{name}.*" for name in self._databases]
        self._source = source_of(self.server, include=include, **self._options)

    async def begin(self) -> None:
        """From here on everything is to be in the trail."""
        await follow(self._source, self._story, lambda _: True)
        self._items = len(self._story.items)

    async def catch_up(self) -> int:
        """Bring what the server has committed into the trail; returns the trail's last place."""
        await caught_up(self.server, self._source, self._story)
        return self._written()

    async def copied(self) -> int:
        """As `catch_up`, up to the end of a copy."""
        await follow(self._source, self._story, completed)
        return self._written()

    def _written(self) -> int:
        packer = Packer(events_max=100, bytes_max=BYTES_MAX)
        writer = writer_of(self.trail)
        for row in self._rows():
            entry = entry_of(row, tz="Asia/Kolkata", bytes_max=BYTES_MAX)
            writer.write(packer.add(entry), marker=marker)
        writer.write(packer.end(), marker=marker)
        return writer.head.at

    def _rows(self) -> Iterator[dict[str, Any]]:
        held: list[AnyEvent] = []
        for item in self._story.items[self._items :]:
            held += item.events
            if not hasattr(item, "position"):
                continue  # a fragment: its commit follows
            first = self._sequence + 1
            self._sequence += len(held)
            digest = sum(range(first, self._sequence + 1))
            for ordinal, event in enumerate(held):
                yield row_of(event, first, ordinal, len(held), digest)
            held = []
        self._items = len(self._story.items)


def row_of(event: AnyEvent, first: int, ordinal: int, rows: int, digest: int) -> dict[str, Any]:
    """An event as a pipeline reads it, of a commit of `rows` events that begins at `first`."""
    said: dict[str, Any] = {
        "sequence": first + ordinal,
        "check": first + ordinal,
        "commit": first,
        "commit_rows": rows,
        "commit_digest": digest,
        "ordinal": ordinal,
        "kind": int(kind_of(event)),
        "operation_type": str(event.operation),
        "source": "shop",
        "database": event.database,
        "collection": event.collection,
        "event_id": event.event_id,
        "document_id": None,
        "key": None,
        "full_document": None,
        "full_document_before_change": None,
        "update_description": None,
        "position": event.position,
        "transaction": event.transaction,
        "timestamp": event.timestamp,
        "schema_version": event.schema_version,
        "snapshot": False,
        "unchanged": [],
        "origin": None,
    }
    if not isinstance(event, ChangeEvent):
        return {**said, "full_document": bytes(event.description).decode()}
    return said | {
        "document_id": event.document_id,
        "key": bytes(event.key).decode(),
        "full_document": _text(event.full_document),
        "full_document_before_change": _text(event.full_document_before_change),
        "snapshot": event.snapshot,
    }


def _text(document: Any) -> str | None:
    return None if document is None else bytes(document).decode()


def tables_of(db: Connected, database: str) -> list[str]:
    return sorted(str(name) for (name,) in run(db, f"SHOW TABLES IN {database}"))


def keep(db: Connected, database: str, reference: str) -> None:
    """A copy of all tables as they are now, made by the server itself."""
    run(db, f"CREATE DATABASE {reference}")
    for table in tables_of(db, database):
        columns = ", ".join(f"`{column}`" for column in written(db, database, table))
        run(
            db,
            f"CREATE TABLE {reference}.`{table}` LIKE {database}.`{table}`",
            f"INSERT INTO {reference}.`{table}` ({columns}) "
            f"SELECT {columns} FROM {database}.`{table}`",
        )


def written(db: Connected, database: str, table: str) -> list[str]:
    """The columns that take values."""
    described = run(db, f"SHOW COLUMNS FROM {database}.`{table}`")
    return [str(name) for name, *_, extra in described if " GENERATED" not in str(extra)]


KEEP_MODE = "SET sql_mode = 'ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00'"


def differing(db: Connected, database: str, reference: str) -> list[str]:
    """The tables of two databases that are not the same, by the server's own checksum of rows."""
    names = {*tables_of(db, database), *tables_of(db, reference)}
    return [
        name
        for name in sorted(names)
        if checksum(db, database, name) != checksum(db, reference, name)
    ]


def checksum(db: Connected, database: str, table: str) -> Any:
    ((_, total),) = run(db, f"CHECKSUM TABLE {database}.`{table}` EXTENDED")
    return total


def restore(audited: Audited, *arguments: str, fails: bool = False) -> Result:
    """Run the command against the server and the trail."""
    app = typer.Typer()
    app.callback()(lambda: None)
    audit_restore.register(app)
    where = audited.configured()
    places = ["--config", str(where)]
    if "--target" not in arguments and "--no-target" not in arguments:
        places += ["--target", f"mysql://root@127.0.0.1:{audited.server.port}"]
    given = [one for one in arguments if one != "--no-target"]
    result = CliRunner().invoke(app, ["restore", "trail", *given, *places])
    if not fails and result.exception is not None:
        raise result.exception
    assert fails == (result.exit_code != 0), result.output
    return result
