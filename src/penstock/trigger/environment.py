"""The process that runs the function: one call at a time, as an execution environment of Lambda.

Started as `python -m penstock.trigger.environment MODULE:FUNCTION LOCK`, by `environments`. Frames
go in on standard input and out on what was standard output: four bytes of length, then JSON. What
the function prints goes to standard error. When its parent is gone it ends at once, within a call
too; until then it holds the trigger's lock, by the inherited descriptor.
"""

import asyncio
import importlib
import inspect
import json
import os
import queue
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Struct

HEAD: Final = struct.Struct(">I")


class Facts(Struct, frozen=True):
    """What a call knows about itself."""

    request_id: str
    name: str
    arn: str
    timeout_seconds: float


class Call(Struct, frozen=True):
    """One call of the function."""

    event: Any
    facts: Facts


class Outcome(Struct, frozen=True, omit_defaults=True):
    """How a call ended, or the loading of the function."""

    answer: Any = None
    error: str = ""
    """The name of what was raised; empty if nothing was."""
    message: str = ""


class Context:
    """What the function gets beside the event: the members of Lambda's context object.

    https://docs.aws.amazon.com/lambda/latest/dg/python-context.html
    """

    function_version = "$LATEST"
    identity: object = None
    client_context: object = None

    def __init__(self, facts: Facts) -> None:
        self.function_name = facts.name
        self.invoked_function_arn = facts.arn
        self.aws_request_id = facts.request_id
        self.memory_limit_in_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
        self.log_group_name = f"/penstock/trigger/{facts.name}"
        self.log_stream_name = str(os.getpid())
        self._deadline = time.monotonic() + facts.timeout_seconds

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the call is killed."""
        return max(0, round((self._deadline - time.monotonic()) * 1000))


def load(reference: str) -> Callable[[Any, Context], Any]:
    """The callable of `module:name`. Raises what importing it raises, and TypeError."""
    module, _, path = reference.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{reference} cannot be called")
    function: Callable[[Any, Context], Any] = found
    return function


def main() -> None:
    """Serve calls until standard input ends."""
    reference, lock = sys.argv[1], int(sys.argv[2])
    os.set_inheritable(lock, False)  # what the function starts is not the trigger
    # The parent says when to stop: a signal to the whole group must not cut a call short.
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb") as answers:
        # Nor is what it forks: it must not answer, or keep the lock, in this one's place.
        inherited = (lock, requests.fileno(), answers.fileno())
        os.register_at_fork(after_in_child=lambda: _close(inherited))
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.close(nowhere)
        os.dup2(2, 1)
        try:
            function = load(reference)
        except BaseException as error:
            _write(answers, Outcome(error=type(error).__name__, message=str(error)))
            return
        _write(answers, Outcome())
        _serve(function, requests, answers)


def _close(descriptors: tuple[int, ...]) -> None:
    """Let a forked process go without these; of what is buffered for them nothing is written."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for one in descriptors:
        os.dup2(nowhere, one, inheritable=False)
    os.close(nowhere)


def _serve(function: Callable[[Any, Context], Any], requests: BinaryIO, answers: BinaryIO) -> None:
    waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    idle = threading.Event()
    idle.set()

    def listen() -> None:
        while (frame := _read(requests)) is not None:
            idle.clear()
            waiting.put(frame)
        if not idle.is_set():
            os._exit(1)  # whoever asked is dead: nothing may be written behind its successor
        waiting.put(None)

    threading.Thread(target=listen, daemon=True).start()
    pid = os.getpid()
    with asyncio.Runner() as runner:
        while (frame := waiting.get()) is not None:
            outcome = _call(function, frame, runner)
            if os.getpid() != pid:
                os._exit(0)  # the function forked, and both came back: only the first may answer
            idle.set()
            _write(answers, outcome)


def _call(function: Callable[[Any, Context], Any], frame: bytes, runner: asyncio.Runner) -> Outcome:
    call = _decoder.decode(frame)
    try:
        answer = function(call.event, Context(call.facts))
        if inspect.isawaitable(answer):
            answer = runner.run(_awaited(answer))
    except BaseException as error:
        # To the function's own standard error, as Lambda's logs have it.
        traceback.print_exc()
        return Outcome(error=type(error).__name__, message=str(error))
    try:
        msgspec.json.encode(answer)
        # msgspec writes null for NaN and the infinities, and a list of failures that is null is
        # success.
        json.dumps(msgspec.to_builtins(answer, str_keys=True), allow_nan=False)
    except Exception as error:
        kind = type(answer).__name__
        return Outcome(error="InvalidAnswer", message=f"JSON cannot hold this {kind}: {error}")
    return Outcome(answer=answer)


async def _awaited(answer: Any) -> Any:
    return await answer


def _read(requests: BinaryIO) -> bytes | None:
    """A frame; None at the end."""
    head = requests.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (size,) = HEAD.unpack(head)
    body = requests.read(size)
    return body if len(body) == size else None


def _write(answers: BinaryIO, outcome: Outcome) -> None:
    body = msgspec.json.encode(outcome)
    answers.write(HEAD.pack(len(body)) + body)
    answers.flush()


_decoder: Final = msgspec.json.Decoder(Call)

if __name__ == "__main__":
    main()
