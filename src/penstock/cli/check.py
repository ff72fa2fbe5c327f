"""`penstock config check`: is the configuration right? Nothing is started.

Sources that answer are asked whether what the settings name is there.
"""

import asyncio
from typing import TYPE_CHECKING, Final

import typer
from msgspec import structs

from penstock.cli import output
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.cli.config import Settings, SourceSettings

ANSWER_SECONDS_MAX: Final = 5.0

app = typer.Typer(help="The configuration.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command("check")
def check(
    config: output.ConfigOption = output.DEFAULT_CONFIG, as_json: output.JsonOption = False
) -> None:
    """Check the configuration, and say what it configures; secrets are not shown.

    Every error of the file is said at once.
    """
    from penstock.cli.config import load
    from penstock.cli.images import remarks
    from penstock.cli.status import unmatched_names

    settings = load(config)
    told = [*remarks(settings), *asyncio.run(_names(settings))]
    for name, sentences in unmatched_names(settings).items():
        told += [f"pipelines.{name}: {one}" for one in sentences]
    if as_json:
        output.emit({"ok": True, **summary(settings), "remarks": told})
        return
    console = output.stdout()
    console.print(f"{settings.path} is right.", markup=False)
    for key, value in summary(settings).items():
        console.print(f"  {key}: {value}", markup=False)
    for remark in told:
        console.print(remark, markup=False)


async def _names(settings: "Settings") -> list[str]:
    """What the settings of sources name that is not there; of one that does not answer, that."""
    if not settings.sources:
        return ["there is no [sources.NAME]: nothing is captured"]
    found = await asyncio.gather(*map(_named, settings.sources.values()))
    named = zip(settings.sources, found, strict=True)
    return [f"sources.{name}: {one}" for name, told in named for one in told]


async def _named(source: "SourceSettings") -> list[str]:
    from penstock.ports import NamesThings

    opened = None
    try:
        opened = _impatient(source).open()
        if not isinstance(opened, NamesThings):
            return []
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return await opened.unmatched()
    except (PenstockError, TimeoutError):
        return ["not compared with what is there; `penstock doctor` says why"]
    finally:
        if opened is not None:
            await opened.close()


def _impatient(source: "SourceSettings") -> "SourceSettings":
    """A source that waits no longer than we do: what it does in a thread is not broken off."""
    seconds = getattr(source.config, "connect_timeout", 0.0)
    if seconds <= ANSWER_SECONDS_MAX:
        return source
    config = source.config.model_copy(update={"connect_timeout": ANSWER_SECONDS_MAX})
    return structs.replace(source, config=config)


def summary(settings: "Settings") -> dict[str, object]:
    """What a configuration says, without a secret."""
    return {
        "log": str(settings.log.path),
        "sources": {name: source.kind for name, source in settings.sources.items()},
        "grpc": settings.serve.grpc,
        "flight": settings.serve.flight,
        "http": settings.serve.http,
        "dynamodb": "off" if settings.serve.dynamodb is None else settings.serve.dynamodb.address,
        "pipelines": {name: pipeline.to for name, pipeline in settings.pipelines.items()},
    }
