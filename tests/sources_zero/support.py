"""A source over a scripted endpoint, and what it says."""

from typing import Any

from msgspec import json

from penstock.event import AnyEvent, Commit, Fragment
from penstock.sources.zero import ZeroSource, ZeroSourceConfig
from penstock.zero.lexi import lexi_version
from penstock.zero.messages import Change, Insert
from tests.zero.scripted import (
    ScriptedEndpoint,
    relation,
    row,
    system_tables,
    table,
    transaction,
)

ITEM = relation("item", "id")
COLUMNS = {"id": "text!", "n": "int8", "at": "timestamptz", "j": "json", "tags": "text[]"}
Items = list[Commit | Fragment]


def source(url: str, **settings: Any) -> ZeroSource:
    """A source that says soon that it is quiet."""
    return ZeroSource("z", config(url, **{"heartbeat_seconds": 0.1, **settings}))


def config(url: str, **settings: Any) -> ZeroSourceConfig:
    """Its configuration."""
    return ZeroSourceConfig.model_validate({"type": "zero", "url": url, **settings})


def item(name: str, **values: Any) -> Insert:
    """A row of the table that the tests follow."""
    return Insert(relation=ITEM, new=row(id=name, **values))


def endpoint(*rows: Change, watermark: int = 1) -> ScriptedEndpoint:
    """An endpoint with a table, and Zero's own."""
    changes = [
        *table("item", COLUMNS, key=["id"]),
        *rows,
        *system_tables("item", app="penstock"),
    ]
    return ScriptedEndpoint(snapshot=transaction(lexi_version(watermark), *changes))


def events(items: Items) -> list[AnyEvent]:
    """All that was said."""
    return [event for one in items for event in one.events]


def words(items: Items) -> list[str]:
    """The operation of each event."""
    return [str(event.operation) for event in events(items)]


def document(event: Any) -> Any:
    """What an event has for a document."""
    return None if event.full_document is None else json.decode(event.full_document)


def facts(event: Any) -> Any:
    """What an event that is no change says."""
    return json.decode(event.description)
