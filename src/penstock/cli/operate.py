"""`penstock pause | resume | rewind`, one source of a running service; and `reload`, all of it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output

if TYPE_CHECKING:
    from penstock.cli.config import Settings

SourceArgument = Annotated[str, typer.Argument(help="The source's name.", metavar="SOURCE")]


def pause(
    source: SourceArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Stop capturing a source until it is resumed, over restarts too; the others go on.

    The database keeps only so much history: `penstock status` says how long a source may wait.
    """
    answer = _ask(config, "pause", source=source)
    _tell(
        answer,
        f"{source} is paused at {answer['position'] or 'its start'}. `penstock resume {source}` "
        f"goes on from there.",
        as_json=as_json,
    )


def resume(
    source: SourceArgument,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Capture a source again that is paused, or that has stopped and whose cause was mended.

    One that waits for its next retry is tried at once.
    """
    answer = _ask(config, "resume", source=source)
    said = "is captured again" if answer["changed"] else "was not paused or stopped"
    _tell(answer, f"{source} {said}; `penstock status` says how it is.", as_json=as_json)


def rewind(
    source: SourceArgument,
    to: Annotated[
        str | None, typer.Option("--to", help="An earlier position, of the source or of an event.")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="How far back, by the source's clock: 30m, 2h, 1d.")
    ] = None,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Move a paused source back, to capture again what followed.

    Everything since then is appended to the log once more, with the same eventIds: readers see
    older states again before the newest. Nothing that is in the log is removed.
    """
    from penstock.config import parse_duration
    from penstock.errors import RequestError

    if (to is None) is (by is None):
        raise RequestError("say either --to POSITION or --by DURATION. Nothing was changed.")
    seconds = None
    if by is not None:
        try:
            seconds = float(parse_duration(by))
        except ValueError as error:
            raise RequestError(f"--by: {error}. Nothing was changed.") from None
    answer = _ask(config, "rewind", source=source, to=to, by_seconds=seconds)
    _tell(
        answer,
        f"{source} stands at {answer['position']} now. `penstock resume {source}` captures again "
        f"what followed. {_rebuilt(source, answer['renames'])}",
        as_json=as_json,
    )


def _rebuilt(source: str, renames: list[dict[str, str]] | None) -> str:
    """What a rewind leaves to be done."""
    remedy = f"until `penstock snapshot {source}` was run and is complete"
    if renames is None:
        what = "The log was not searched for renames; where one comes again, tables"
    elif renames:
        names = ", ".join(f"{one['from']} to {one['to']}" for one in renames)
        what = f"Renames come again ({names}): tables of both names"
    else:
        return (
            f"No rename comes again, so tables stay right; its current rows are refused {remedy}."
        )
    return f"{what} are wrong, and its current rows are refused, {remedy}."


def reload(
    config: output.ConfigOption = output.DEFAULT_CONFIG, as_json: output.JsonOption = False
) -> None:
    """Take over the changed configuration without a restart, as far as that can be (as SIGHUP).

    Sources that are new, gone or changed start, stop or restart alone. What needs a restart is
    named, and so are files of settings that were renewed. A configuration with an error changes
    nothing. It is an error where a changed file of a setting cannot be used: what was read before
    is in force.
    """
    from penstock.errors import RequestError

    answer = _ask(config, "reload")
    words = [
        f"{word}: {', '.join(answer[key])}"
        for word, key in (
            ("added", "added"),
            ("removed", "removed"),
            ("restarted", "changed"),
            ("applied", "applied"),
            ("renewed", "renewed"),
            ("needs a restart of `penstock run`", "needsRestart"),
        )
        if answer[key]
    ]
    failed: list[str] = answer["failed"]
    if words or not failed or as_json:
        _tell(answer, "; ".join(words) or "nothing has changed", as_json=as_json)
    if failed:
        raise RequestError(
            f"{' '.join(failed)} What was read before is in force. Correct the files, and reload "
            f"once more."
        )


def _ask(config: Any, name: str, **facts: Any) -> dict[str, Any]:
    from penstock.cli.config import load
    from penstock.cli.control import request

    settings: Settings = load(config)
    return request(settings.log.path, name, **facts)


def _tell(answer: dict[str, Any], sentence: str, *, as_json: bool) -> None:
    if as_json:
        output.emit(answer)
    else:
        output.stdout().print(sentence, markup=False, soft_wrap=True)
