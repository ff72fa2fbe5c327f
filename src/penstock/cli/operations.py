"""What an operator asks of a running capture: pause, resume and rewind a source."""

import asyncio
from typing import Any

from msgspec import Struct, ValidationError, convert, to_builtins

from penstock.capture import Supervisor
from penstock.cli.control import Control
from penstock.cli.paused import PausedSources
from penstock.errors import RequestError
from penstock.ports import ChangeLog

_RENAMES_MAX = 100
"""An answer is small; the entry in the log has them all."""


class _Asked(Struct, kw_only=True):
    """What a request about one source says."""

    source: str
    to: str | None = None
    by_seconds: float | None = None


class Operations:
    """The handlers of these requests. Each answers with the source as it stands afterwards."""

    def __init__(self, log: ChangeLog, supervisor: Supervisor, paused: PausedSources) -> None:
        self._log = log
        self._supervisor = supervisor
        self._paused = paused

    def register(self, control: Control) -> None:
        """Take the requests `pause`, `resume` and `rewind`."""
        control.register("pause", self.pause)
        control.register("resume", self.resume)
        control.register("rewind", self.rewind)

    async def pause(self, request: dict[str, Any]) -> dict[str, Any]:
        asked = _asked(request)
        self._require(asked.source)
        # Kept first: a source that was said to be paused is so after any crash.
        await asyncio.to_thread(self._paused.change, asked.source, paused=True)
        changed = await self._supervisor.pause(asked.source)
        return await self._answer(asked.source, changed=changed)

    async def resume(self, request: dict[str, Any]) -> dict[str, Any]:
        asked = _asked(request)
        self._require(asked.source)
        await asyncio.to_thread(self._paused.change, asked.source, paused=False)
        changed = await self._supervisor.resume(asked.source)
        return await self._answer(asked.source, changed=changed)

    async def rewind(self, request: dict[str, Any]) -> dict[str, Any]:
        asked = _asked(request)
        if (asked.to is None) is (asked.by_seconds is None):
            raise RequestError("say either a position or a duration. Nothing was changed.")
        if asked.by_seconds is not None and asked.by_seconds <= 0:
            raise RequestError("a rewind goes back: its duration must be above 0.")
        before = await self._log.position(asked.source)
        back = await self._supervisor.rewind(asked.source, to=asked.to, by_seconds=asked.by_seconds)
        answer = await self._answer(asked.source, changed=True)
        renames = None if back.renames is None else to_builtins(back.renames[:_RENAMES_MAX])
        return {**answer, "from": before, "renames": renames}

    def _require(self, name: str) -> None:
        """Raise RequestError for a name that is not captured, before anything is kept of it."""
        names = [status.source for status in self._supervisor.status()]
        if name not in names:
            raise RequestError(
                f"there is no source {name!r}; captured are: {', '.join(names) or 'none'}. "
                f"Nothing was changed."
            )

    async def _answer(self, name: str, *, changed: bool) -> dict[str, Any]:
        status = next(one for one in self._supervisor.status() if one.source == name)
        return {
            "source": name,
            "state": status.state.value,
            "changed": changed,
            "position": await self._log.position(name),
        }


def _asked(request: dict[str, Any]) -> _Asked:
    try:
        return convert(request, _Asked)
    except ValidationError as error:
        raise RequestError(f"not a request about a source: {error}.") from None
