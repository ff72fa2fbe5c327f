"""What the capture process is asked over the socket beside its log, by name.

Whoever can do something while capture runs registers it here under a name; a command sends
`{"request": name, ...}` and gets one JSON object back.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from penstock.cli.config import near
from penstock.errors import LogError, RequestError
from penstock.log.wake import ask

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Gets the whole request and returns the answer, without a key `error`.

It runs in the loop of capture, so it awaits what takes time. A PenstockError that it raises is the
answer: its code and its sentence. The answer must fit into a socket's buffer (64 KiB are safe).
"""

ASK_SECONDS: Final = 30.0


class Control:
    """The requests that this process knows."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def register(self, name: str, handler: Handler) -> None:
        """Answer requests called `name` with `handler`. Raises ValueError for a name in use."""
        if name in self._handlers:
            raise ValueError(f"the request {name!r} is registered already")
        self._handlers[name] = handler

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to `request`, which is for `ChangeLog.on_request`.

        Raises RequestError, with the names that are near, for a request that nobody registered.
        """
        name = request.get("request")
        handler = self._handlers.get(name) if isinstance(name, str) else None
        if handler is None:
            raise RequestError(
                f"capture knows no request {name!r}{near(str(name), self._handlers)}. Nothing was "
                f"changed. A command that is newer than the running service needs it restarted."
            )
        return await handler(request)


def request(
    folder: Path, name: str, *, timeout_seconds: float = ASK_SECONDS, **facts: Any
) -> dict[str, Any]:
    """Ask the process that captures into the log at `folder`; blocks until it answers.

    Raises LogError when nobody answers in time, and RequestError with the answer's own sentence
    when it is refused.
    """
    try:
        answer = ask(folder, {"request": name, **facts}, timeout_seconds=timeout_seconds)
    except LogError as error:
        if not isinstance(error.__cause__, TimeoutError):
            raise
        raise LogError(
            f"capture has not answered `{name}` within {timeout_seconds:g} s. It may still do what "
            f"it was asked: look at `penstock status`."
        ) from error
    if "error" in answer:
        raise RequestError(str(answer.get("message", answer["error"])))
    return answer
