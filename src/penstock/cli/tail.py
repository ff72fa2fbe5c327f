"""`penstock tail`: watch changes pass."""

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from penstock.cli import output
from penstock.errors import ConfigError
from penstock.event import Kind
from penstock.harmless import harmless

if TYPE_CHECKING:
    from penstock.client import Change, Credentials

_STYLES = {"insert": "green", "update": "yellow", "replace": "cyan", "delete": "red"}


def command(
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    token_file: output.TokenFileOption = None,
    tls_ca: output.CaOption = None,
    tls_certificate: output.CertificateOption = None,
    tls_key: output.KeyOption = None,
    endpoint: Annotated[
        str | None, typer.Option(help="The service's gRPC address, instead of the configured one.")
    ] = None,
    after: Annotated[str, typer.Option(help="Go on after this progress marker.")] = "",
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the oldest entry of the log.")
    ] = False,
    collections: Annotated[
        list[str] | None,
        typer.Option(
            "--collections", help="Only these: collection or source/collection; repeatable."
        ),
    ] = None,
    control: Annotated[
        bool, typer.Option("--control", help="Show schema, gap and system events too.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many changes.")] = None,
) -> None:
    """Watch changes pass: those to come, or from a place in the log.

    Reconnects by itself. Ends with Ctrl-C, after --limit changes, or with the error that ends it.
    """
    from penstock.cli.config import load
    from penstock.client import Credentials, Retry, follow_sync
    from penstock.wire import to_json

    if from_beginning and after:
        raise ConfigError("--from-beginning and --after exclude each other. Give one of them.")
    shown = Credentials.from_environment(
        token_file=token_file, ca=tls_ca, certificate=tls_certificate, key=tls_key
    )
    if from_beginning:
        after = oldest(load(config).serve.flight, shown)
    target = endpoint or load(config).serve.grpc
    with follow_sync(
        target,
        after=after,
        collections=collections or [],
        control_events=control,
        consumer_id="penstock tail",
        coalesce_on_catch_up=False,  # who watches wants to see what happened
        retry=Retry(initial_seconds=0.25, max_seconds=5.0, max_retries=8),
        credentials=shown,
    ) as changes:
        for count, change in enumerate(changes, start=1):
            if as_json:
                sys.stdout.buffer.write(to_json(change.entry) + b"\n")
                sys.stdout.flush()
            else:
                _print(change)
            if count == limit:
                return


def oldest(flight: str, credentials: "Credentials | None" = None) -> str:
    """The oldest marker of the log that is served at a Flight address."""
    from penstock.client.credentials import NOBODY
    from penstock.client.flight import LogClient
    from penstock.progress import Progress

    with LogClient(flight, patience_seconds=5.0, credentials=credentials or NOBODY) as client:
        bounds = client.bounds()
    return str(Progress(bounds.log_id, bounds.trimmed, bounds.trimmed_check))


def line(change: "Change") -> Text:
    """A change as one line: place, time, what, where, key, document."""
    event = change.entry.event
    text = Text()
    text.append(f"{change.sequence:>9} ", "dim")
    text.append(f"{change.commit}.{change.ordinal:<4} ", "dim")
    text.append(f"{output.instant(event.timestamp)} ", "blue")
    style = _STYLES.get(change.operation, "magenta" if change.kind is Kind.SCHEMA else "bold red")
    text.append(f"{harmless(change.operation):<8} ", style)
    text.append(f"{harmless(f'{event.source}/{change.collection}')} ")
    text.append(f"{harmless(change.document_id)} ", "bold")
    shown = change.update.get("updatedFields") if change.update else change.document
    if shown is not None:
        text.append(harmless(compact(shown)), "dim" if change.update is None else "yellow")
    return text


def compact(document: object) -> str:
    """A document as JSON on one line."""
    return msgspec.json.encode(document).decode()


def _print(change: "Change") -> None:
    console = output.stdout()
    if console.is_terminal:
        console.print(line(change), no_wrap=True, overflow="ellipsis", crop=True)
    else:
        console.print(line(change), soft_wrap=True)
