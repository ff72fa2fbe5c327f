"""`penstock snapshot`: copy a source again, beside its stream; and the request behind it."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec import Struct, ValidationError, convert

from penstock.cli import output
from penstock.cli.operate import SourceArgument
from penstock.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.cli.config import Settings
    from penstock.ports import ChangeSource

REQUEST: Final = "snapshot"
BEGIN_SECONDS: Final = 25.0
"""How long a source may take to begin: it does so between two transactions."""


def command(
    source: SourceArgument,
    collections: Annotated[
        list[str] | None,
        typer.Argument(help="Collections; none: all that the source captures.", show_default=False),
    ] = None,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Copy what is there now, while the stream goes on; and tell what is gone as deleted.

    For rows that were captured from the middle of their life, or after a gap. Returns once the copy
    has begun: from then on no crash stops it. The log says when it is complete.
    """
    from penstock.cli.config import load
    from penstock.cli.control import request

    settings: Settings = load(config)
    answer = request(settings.log.path, REQUEST, source=source, collections=collections or [])
    if as_json:
        output.emit(answer)
        return
    names = ", ".join(answer["collections"]) or "nothing: no collection is there"
    deletes = (
        "What is gone is told as deleted when the copy is complete."
        if answer["tellsDeletes"]
        else "What is gone is NOT told: set enabled = true under [state] for that."
    )
    output.stdout().print(
        f"{source} is being copied again: {names}. {deletes}", markup=False, soft_wrap=True
    )


class _Asked(Struct, kw_only=True):
    source: str
    collections: list[str] = []


class SnapshotRequests:
    """Takes the request in the capture process."""

    def __init__(
        self, log: Path, sources: "Callable[[], list[ChangeSource]]", *, keeps_state: bool
    ) -> None:
        """`log` is the log's folder; `sources` tells which are captured now."""
        self._log = log
        self._sources = sources
        self._keeps_state = keeps_state

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Begin a copy. Raises RequestError where it cannot begin, and says why."""
        from penstock.ports import Copies
        from penstock.state.tables import known_collections

        try:
            asked = convert(
                {name: value for name, value in request.items() if name != "request"}, _Asked
            )
        except ValidationError as error:
            raise RequestError(f"not a request for a copy: {error}. Nothing was copied.") from None
        found = {source.name: source for source in self._sources()}
        source = found.get(asked.source)
        if source is None:
            raise RequestError(
                f"there is no source {asked.source!r}; captured are: "
                f"{', '.join(found) or 'none'}. Nothing was copied."
            )
        if not isinstance(source, Copies):
            raise RequestError(f"{source.name}: this kind of source cannot be copied.")
        known = await asyncio.to_thread(known_collections, self._log, source.name)
        try:
            async with asyncio.timeout(BEGIN_SECONDS):
                names = await source.copy(asked.collections, known=known)
        except TimeoutError:
            raise RequestError(
                f"{source.name} has not begun a copy within {BEGIN_SECONDS:g} seconds: it is "
                f"reading a long transaction, or does not answer. See `penstock status`, and ask "
                f"again."
            ) from None
        return {
            "source": source.name,
            "collections": names,
            "tellsDeletes": self._keeps_state,
        }
