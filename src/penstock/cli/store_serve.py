"""`penstock store serve`: a store for other processes, over a Unix socket, over HTTP, or both."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli import output, store_dynamodb
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.serve.dynamodb.config import DynamoConfig
    from penstock.store import Store
    from penstock.store.remote.config import ServerConfig


def serve(
    path: Annotated[Path, typer.Argument(help="The store's folder.", metavar="PATH")],
    socket: Annotated[
        Path | None,
        typer.Option(help="The Unix socket to listen at; only this user may open it."),
    ] = None,
    connections_max: Annotated[
        int, typer.Option(help="Connections at once; one more is refused.")
    ] = 256,
    request_bytes_max: Annotated[
        str, typer.Option(help="The largest request, as 16MiB.")
    ] = "16MiB",
    outbox_bytes_max: Annotated[
        str, typer.Option(help="What may wait to be read by one client, as 1MiB.")
    ] = "1MiB",
    transaction_seconds_max: Annotated[
        float, typer.Option(help="How long a client may hold a transaction open.")
    ] = 5.0,
    stop_seconds_max: Annotated[
        float, typer.Option(help="How long a stop waits for answers and transactions.")
    ] = 10.0,
    sync: Annotated[
        Literal["full", "none"],
        typer.Option(
            help="full: a write is on the disk when it is answered. none: it is within a second, "
            "and a power cut takes what is not."
        ),
    ] = "full",
    free_bytes_min: Annotated[
        str,
        typer.Option(
            help="With less free on the disk, what adds is refused; what makes room is done down "
            "to an eighth of it."
        ),
    ] = "64MiB",
    dynamodb: store_dynamodb.AddressOption = None,
    dynamodb_credentials: store_dynamodb.CredentialsOption = None,
    dynamodb_region: store_dynamodb.RegionOption = "us-east-1",
    dynamodb_account: store_dynamodb.AccountOption = "000000000000",
    dynamodb_retention: store_dynamodb.RetentionOption = "24h",
    dynamodb_iterator_age: store_dynamodb.IteratorOption = "15m",
    dynamodb_shard_age: store_dynamodb.ShardAgeOption = "4h",
    dynamodb_shard_bytes: store_dynamodb.ShardBytesOption = "128MiB",
    dynamodb_connections_max: store_dynamodb.ConnectionsOption = 256,
    dynamodb_request_bytes_max: store_dynamodb.RequestOption = "16MiB",
    dynamodb_reader_threads: store_dynamodb.ThreadsOption = 4,
    dynamodb_origins: store_dynamodb.OriginOption = None,
    as_json: output.JsonOption = False,
) -> None:
    """Serve a store to any number of processes, and be its only writer, until SIGTERM.

    What clients may ask is in docs/reference/store-protocol.md; `penstock.store.Client` asks it.
    DynamoDB's protocol, for its own clients: docs/reference/dynamodb.md.
    """
    from penstock import store
    from penstock.cli import logs
    from penstock.config import parse_size
    from penstock.store.remote.config import ServerConfig

    logs.configure(as_json=as_json, process="store")
    try:
        config = ServerConfig(
            connections_max=connections_max,
            request_bytes_max=parse_size(request_bytes_max),
            outbox_bytes_max=parse_size(outbox_bytes_max),
            transaction_seconds_max=transaction_seconds_max,
            stop_seconds_max=stop_seconds_max,
        )
        free = parse_size(free_bytes_min)
    except ValueError as error:
        raise ConfigError(f"the server's options: {error}. Nothing was started.") from error
    if socket is None and dynamodb is None:
        raise ConfigError(
            "nothing to serve at was said. Nothing was started. Give --socket, --dynamodb or both."
        )
    endpoint = None
    if dynamodb is not None:
        endpoint = store_dynamodb.read_config(
            dynamodb,
            dynamodb_credentials,
            region=dynamodb_region,
            account=dynamodb_account,
            stream_retention=dynamodb_retention,
            iterator_seconds=dynamodb_iterator_age,
            shard_age=dynamodb_shard_age,
            shard_bytes=dynamodb_shard_bytes,
            connections_max=dynamodb_connections_max,
            request_bytes_max=dynamodb_request_bytes_max,
            reader_threads=dynamodb_reader_threads,
            origins=dynamodb_origins or (),
        )
    opened = partial(store.open, path, sync=sync, free_bytes_min=free)
    asyncio.run(_serve(opened, socket, config, endpoint, as_json=as_json))


async def _serve(
    opened: "Callable[..., Store]",
    socket: Path | None,
    config: "ServerConfig",
    endpoint: "DynamoConfig | None",
    *,
    as_json: bool,
) -> None:
    from penstock.store.shards import ShardLimits

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    handled = (signal.SIGTERM, signal.SIGINT)
    for number in handled:
        loop.add_signal_handler(number, stop.set)
    limits = None
    if endpoint is not None:
        limits = ShardLimits(age_seconds=endpoint.shard_age, bytes_max=endpoint.shard_bytes)
    db = await asyncio.to_thread(opened, shards=limits)
    try:
        async with AsyncExitStack() as stack:
            places = dict[str, str]()
            # The socket's server ends first: until then a transaction of one of its clients may
            # hold up the writes that the other has been asked for and is to answer.
            if endpoint is not None:
                from penstock.serve.dynamodb.server import serving_dynamodb

                address = await stack.enter_async_context(
                    serving_dynamodb(db, endpoint, stop_seconds=config.stop_seconds_max)
                )
                places["dynamodb"] = f"http://{address}"
            if socket is not None:
                from penstock.store.remote.server import serving

                await stack.enter_async_context(serving(db, socket, config))
                places["socket"] = str(socket)
            if as_json:
                output.emit({"store": str(db.path), **places, "pid": os.getpid()})
            else:
                line = f"serving {db.path} at {' and '.join(places.values())}"
                output.stdout().print(line, markup=False, soft_wrap=True, highlight=False)
            await stop.wait()
    finally:
        await asyncio.to_thread(db.close)
        for number in handled:
            loop.remove_signal_handler(number)
