"""What an operator asks of a running capture about dead letters."""

from typing import Any

from msgspec import Struct, ValidationError, convert, to_builtins

from penstock.capture import Supervisor
from penstock.capture.deadletter import KeepsLetters, Letter
from penstock.cli.control import Control
from penstock.errors import RequestError


class _Asked(Struct, kw_only=True):
    source: str
    letters: list[Letter]
    settle: bool = False
    everything: bool = False


class LetterRequests:
    """The handler of the request `deadletter`."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def register(self, control: Control) -> None:
        """Take the request."""
        control.register("deadletter", self.deal)

    async def deal(self, request: dict[str, Any]) -> dict[str, Any]:
        """Replay or settle letters; answers with what became of each.

        Raises RequestError for a source that is not captured or keeps no letters.
        """
        try:
            asked = convert(request, type=_Asked)
        except ValidationError as error:
            raise RequestError(f"not a request about letters: {error}.") from None
        sources = {source.name: source for source in self._supervisor.sources()}
        source = sources.get(asked.source)
        if source is None:
            raise RequestError(f"there is no source {asked.source!r}. Nothing was changed.")
        if not isinstance(source, KeepsLetters):
            raise RequestError(f"{asked.source}: this kind of source keeps no dead letters.")
        outcomes = await source.replay(
            asked.letters, settle=asked.settle, everything=asked.everything
        )
        return {"outcomes": to_builtins(outcomes)}
