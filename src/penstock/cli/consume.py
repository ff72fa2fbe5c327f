"""`penstock consume --exec CMD`: any program as a consumer, its progress kept for it."""

import asyncio
import shlex
import signal
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import output
from penstock.errors import ConfigError


def command(
    program: Annotated[
        str,
        typer.Option(
            "--exec",
            metavar="CMD",
            help="The program: reads one event a line, answers `ok` or `error REASON`. Split as a "
            "shell would, and run without one.",
        ),
    ],
    progress: Annotated[
        Path, typer.Option(help="Where its progress is kept, one file a consumer.")
    ],
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    token_file: output.TokenFileOption = None,
    tls_ca: output.CaOption = None,
    tls_certificate: output.CertificateOption = None,
    tls_key: output.KeyOption = None,
    endpoint: Annotated[
        str | None, typer.Option(help="The service's gRPC address, instead of the configured one.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="What `penstock status` calls it.")
    ] = "penstock consume",
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning", help="Without progress yet: start with the oldest entry of the log."
        ),
    ] = False,
    collections: Annotated[
        list[str] | None,
        typer.Option(
            "--collections", help="Only these: collection or source/collection; repeatable."
        ),
    ] = None,
    shard_by: Annotated[
        list[str] | None,
        typer.Option(help="What shards are made by, as documentId; repeatable, in order."),
    ] = None,
    shard_count: Annotated[int, typer.Option(min=0, help="How many shards there are.")] = 0,
    shard_ids: Annotated[
        list[int] | None,
        typer.Option("--shard-id", min=0, help="A shard that this consumer takes; repeatable."),
    ] = None,
    every_change: Annotated[
        bool,
        typer.Option(
            "--every-change", help="Never merge the changes of a document, however far behind."
        ),
    ] = False,
    control: Annotated[
        bool, typer.Option("--control", help="Give it schema, gap and system events too.")
    ] = False,
    retries: Annotated[
        int, typer.Option(min=1, help="How often a change is tried again before it is set aside.")
    ] = 5,
    retry_pause: Annotated[
        float, typer.Option(min=0.0, help="Seconds before the first of them; doubled each time.")
    ] = 0.5,
    dead_letters: Annotated[
        Path | None,
        typer.Option(help="Where changes are set aside; without, PROGRESS.dead.jsonl."),
    ] = None,
    answer_timeout: Annotated[
        float, typer.Option(min=0.0, help="Seconds to process one change; 0 = no limit.")
    ] = 60.0,
) -> None:
    """Pipe changes as JSON lines to a program of any language, and keep its progress.

    The program reads one event a line and answers each with one line: `ok`, or `error REASON`. A
    change counts as processed once it answered `ok`. One that fails, because the program says so,
    ends or hangs, is tried again with growing pauses; when it has failed for good it is written to
    the dead letters, whole, and passed. So after a crash a change may come twice, and none is
    missed. Ends with Ctrl-C, once the change in hand is done.
    """
    arguments = shlex.split(program)
    if not arguments:
        raise ConfigError("--exec is empty. Nothing was started. Give it a program.")
    from penstock.cli.config import load
    from penstock.cli.tail import oldest
    from penstock.client import (
        Credentials,
        DeadLetterFile,
        FileProgress,
        Retry,
        follow,
        handle_changes,
    )
    from penstock.client.program import Program
    from penstock.subscribe.shards import shards_of

    store = FileProgress(progress)
    shown = Credentials.from_environment(
        token_file=token_file, ca=tls_ca, certificate=tls_certificate, key=tls_key
    )
    after = ""
    if from_beginning and not store.load():
        after = oldest(load(config).serve.flight, shown)
    target = endpoint or load(config).serve.grpc
    letters = DeadLetterFile(dead_letters or progress.with_name(f"{progress.name}.dead.jsonl"))

    async def consume() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for which in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(which, stop.set)
        changes = follow(
            target,
            after=after,
            collections=collections or [],
            control_events=control,
            consumer_id=name,
            store=store,
            coalesce_on_catch_up=not every_change,
            shards=shards_of(shard_by or [], shard_count, shard_ids or []),
            credentials=shown,
        )
        async with Program(arguments, answer_seconds=answer_timeout) as running:
            await handle_changes(
                changes,
                running,
                dead_letters=letters,
                retry=Retry(initial_seconds=retry_pause, max_retries=retries),
                stop=stop,
            )

    asyncio.run(consume())
    if as_json:
        output.emit({"event": "stopped", "progress": store.load()})
