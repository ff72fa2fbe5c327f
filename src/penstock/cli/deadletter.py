"""`penstock deadletter list | replay | settle`: changes that could not be decoded."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec import json, to_builtins

from penstock.cli import output

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.capture.deadletter import Letter, Outcome, Outstanding
    from penstock.ports import LogReader

app = typer.Typer(help="Look after changes that could not be decoded.", no_args_is_help=True)

SourceArgument = Annotated[str, typer.Argument(help="The source's name.", metavar="SOURCE")]
LettersArgument = Annotated[
    list[str] | None, typer.Argument(help="Letters by id; without any: all.", metavar="[ID]...")
]
REQUEST_BYTES_MAX: Final = 24 << 10
"""A request and its answer each fit into one message of the socket."""
DURABLE_SECONDS: Final = 30.0
"""So long the log may take until it has what capture said."""


@app.command("list")
def list_letters(
    source: SourceArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Show the dead letters of a source that nobody has dealt with, the oldest first."""
    letters = asyncio.run(outstanding(_log_of(config, source), source))
    for letter in letters:
        if as_json:
            output.emit(to_builtins(letter))
        else:
            what = ".".join(filter(None, (letter.database, letter.collection))) or source
            output.stdout().print(
                f"{letter.id}  {letter.operation} of {what}: {letter.reason}",
                markup=False,
                soft_wrap=True,
            )
    if not as_json and not len(letters):
        output.stdout().print(f"{source} has no dead letters", markup=False)


@app.command("replay")
def replay(
    source: SourceArgument,
    letters: LettersArgument = None,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Read the documents of dead letters again and capture them as they are now.

    The old change is not applied: newer ones may have come since. What still cannot be decoded
    stays a letter, and the exit code is 1 then. The service must run.
    """
    outcomes = _deal(_log_of(config, source), source, letters, as_json=as_json, settle=False)
    if not all(outcome.done for outcome in outcomes):
        raise typer.Exit(1)


@app.command("settle")
def settle(
    source: SourceArgument,
    letters: LettersArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="All letters of the source.")] = False,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Say that dead letters were dealt with otherwise, as by a copy of their collection."""
    from penstock.errors import RequestError

    if bool(letters) is everything:
        raise RequestError("name the letters, or say --all. Nothing was changed.")
    log = _log_of(config, source)
    if not everything:
        _deal(log, source, letters, as_json=as_json, settle=True)
        return
    # Capture may say more of them meanwhile.
    while _deal(log, source, None, as_json=as_json, settle=True, everything=True):
        pass


def _deal(
    log: "Path",
    source: str,
    ids: list[str] | None,
    *,
    as_json: bool,
    settle: bool,
    everything: bool = False,
) -> "list[Outcome]":
    from penstock.errors import LogError, RequestError

    known = {letter.id: letter for letter in asyncio.run(outstanding(log, source))}
    unknown = [one for one in ids or () if one not in known]
    if unknown:
        raise RequestError(
            f"{source} has no outstanding letter {unknown[0]}. Nothing was changed. "
            f"`penstock deadletter list {source}` shows what there is."
        )
    outcomes = _ask(
        log, source, [known[one] for one in ids or known], settle=settle, everything=everything
    )
    done = [outcome.letter for outcome in outcomes if outcome.done]
    if not asyncio.run(_durable(log, source, done)):
        raise LogError(
            f"{source}: capture said what became of the letters, but the log does not have it yet. "
            f"Nothing is lost. Look again with `penstock deadletter list {source}`."
        )
    for outcome in outcomes:
        if as_json:
            output.emit(to_builtins(outcome))
        else:
            output.stdout().print(
                f"{outcome.letter}  {outcome.detail}", markup=False, soft_wrap=True
            )
    if not as_json and not outcomes:
        output.stdout().print(f"{source} has no dead letters", markup=False)
    return outcomes


def _log_of(config: "Path", source: str) -> "Path":
    from penstock.cli.config import load, near
    from penstock.errors import RequestError

    settings = load(config)
    if source not in settings.sources:
        raise RequestError(
            f"there is no source {source!r}{near(source, settings.sources)}. Nothing was changed."
        )
    return settings.log.path


def _ask(
    log: "Path", source: str, letters: "list[Letter]", *, settle: bool, everything: bool
) -> "list[Outcome]":
    from msgspec import convert

    from penstock.capture.deadletter import Outcome
    from penstock.cli.control import request

    outcomes: list[Outcome] = []
    parts = list(_parts(letters)) or [[]] * everything
    for number, some in enumerate(parts, 1):
        answer = request(
            log,
            "deadletter",
            source=source,
            letters=some,
            settle=settle,
            everything=everything and number == len(parts),
        )
        outcomes += convert(answer["outcomes"], type=list[Outcome])
    return outcomes


def _parts(letters: "list[Letter]") -> Iterator[list[Any]]:
    """The letters in parts that a request can hold."""
    part: list[Any] = []
    size = 0
    for letter in letters:
        plain = to_builtins(letter)
        weight = len(json.encode(plain))
        if part and size + weight > REQUEST_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(plain)
        size += weight
    if part:
        yield part


async def outstanding(log: "Path", source: str) -> "Outstanding":
    """The letters of a source that the log says are outstanding."""
    from penstock.capture.deadletter import Outstanding
    from penstock.log import LmdbLogReader

    found = Outstanding(source)
    async with LmdbLogReader(log) as reader:
        await _read_on(reader, found, source, after=(await reader.bounds()).trimmed)
    return found


async def _read_on(reader: "LogReader", found: "Outstanding", source: str, *, after: int) -> int:
    """Take what the log has beyond `after`; returns the sequence up to which that was."""
    from penstock.capture.deadletter import COLLECTION
    from penstock.errors import TrimmedError

    head = (await reader.bounds()).head
    while after < head:
        try:
            blocks = await reader.read(after=after, until=head)
        except TrimmedError:
            after = (await reader.bounds()).trimmed  # retention was faster; those letters are gone
            continue
        for block in blocks:
            after = block.first_sequence + block.stop - 1
            streams = block.streams
            if any(one.source == source and one.collection == COLLECTION for one in streams):
                found.take(entry.event for entry in block.entries())
    return after


async def _durable(log: "Path", source: str, done: list[str]) -> bool:
    """Whether the log has the deletes of `done`, waiting for them for a while."""
    from penstock.capture.deadletter import Outstanding
    from penstock.log import LmdbLogReader

    found = Outstanding(source)
    try:
        async with asyncio.timeout(DURABLE_SECONDS), LmdbLogReader(log) as reader:
            after = (await reader.bounds()).trimmed
            while True:
                after = await _read_on(reader, found, source, after=after)
                if not any(letter in found for letter in done):
                    return True
                await reader.wait(after=after)
    except TimeoutError:
        return False
