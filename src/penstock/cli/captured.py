"""DynamoDB Streams of what `penstock run` captures: from the settings to the server."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pydantic import SecretStr

from penstock.cli.config import Settings
from penstock.cli.images import TellsImages
from penstock.cli.store_dynamodb import read_keys
from penstock.clocks import SystemClock
from penstock.errors import ConfigError
from penstock.serve.dynamodb.config import CapturedConfig, ViewType

if TYPE_CHECKING:
    from penstock.serve.access import Access
    from penstock.serve.dynamodb.captured.index import CapturedLog
    from penstock.serve.listen import HttpServer


@asynccontextmanager
async def captured_streams(
    settings: Settings,
    config: CapturedConfig,
    log: "CapturedLog",
    access: "Access | None" = None,
    bound: "Callable[[HttpServer], None] | None" = None,
) -> AsyncGenerator[str]:
    """Serve them inside the block; yields the address, and `bound` is given the server.

    Raises ConfigError for keys that cannot be read, a view that is asked for of a source that never
    gives it or of a table that cannot be, and a port that is taken.
    """
    # The store's library comes with it: only who serves this needs it.
    from penstock.serve.dynamodb.captured.index import CapturedIndex, index_path
    from penstock.serve.dynamodb.server import serving_captured

    lacking = lacking_views(settings)
    _refuse_views(settings, config, lacking)
    keys: dict[str, SecretStr] = {}
    if config.credentials is not None:
        path = settings.path.resolve().parent / config.credentials
        keys = {key: SecretStr(secret) for key, secret in read_keys(path).items()}
    path, clock = index_path(settings.log.path), SystemClock()
    index = await asyncio.to_thread(CapturedIndex, log, path, config, clock=clock, lacking=lacking)
    async with serving_captured(
        log,
        index,
        config,
        keys=keys,
        clock=clock,
        access=access,
        tls=settings.serve.tls,
        bound=bound,
        of_one_address=settings.serve.connections.of_one_address,
    ) as address:
        yield address


def lacking_views(settings: Settings) -> dict[str, frozenset[ViewType]]:
    """By source, the views that it never gives."""
    found: dict[str, frozenset[ViewType]] = {}
    for name, source in settings.sources.items():
        lacking: set[ViewType] = set()
        if isinstance(source.config, TellsImages):
            if source.config.lacks_after:
                lacking |= {"NEW_IMAGE", "NEW_AND_OLD_IMAGES"}
            if source.config.lacks_before:
                lacking |= {"OLD_IMAGE", "NEW_AND_OLD_IMAGES"}
        found[name] = frozenset(lacking)
    return found


def _refuse_views(
    settings: Settings, config: CapturedConfig, lacking: Mapping[str, frozenset[ViewType]]
) -> None:
    from penstock.serve.dynamodb.captured.names import escaped, is_table_name

    sources = tuple(f"{escaped(name)}." for name in settings.sources)
    for table in config.views:
        if not (table.startswith(sources) and is_table_name(table)):
            raise ConfigError(
                f"{settings.path}: serve.dynamodb.views.{table}: no source here can have a table "
                f"of that name. Nothing was started. Write SOURCE.DATABASE.COLLECTION as "
                f"ListTables does: in quotes, `-` as `--`, and whatever is no letter, digit, `_` "
                f"or dot as `-` and two hex digits."
            )
    for name, views in lacking.items():
        asked = [("view", config.view)] + [
            (f"views.{table}", view)
            for table, view in config.views.items()
            if table.startswith(f"{escaped(name)}.")
        ]
        for setting, view in asked:
            if view in views:
                raise ConfigError(
                    f"{settings.path}: serve.dynamodb.{setting}: [sources.{name}] never gives what "
                    f"{view} needs. Nothing was started. Ask for another view, or have the source "
                    f"give it."
                )
