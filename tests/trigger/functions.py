"""Functions that triggers call in these tests. What they are called with goes into a file."""

import json
import math
import os
import time
from pathlib import Path
from typing import Any

CALLS = "TRIGGER_CALLS"
"""Names the file that every call is a line of."""
BAD = "TRIGGER_BAD"
"""Names a file: while it is there, items that it names fail."""


class BadItemError(Exception):
    """An item that is to fail."""


def note(event: Any, **facts: Any) -> list[str]:
    """Write a call down; returns its items, by their key."""
    items = [item_of(record) for record in event["Records"]]
    with Path(os.environ[CALLS]).open("a") as file:
        file.write(json.dumps({"items": items, "pid": os.getpid(), **facts}) + "\n")
    return items


def item_of(record: Any) -> str:
    """An item and its value, as k=3."""
    image = record["dynamodb"].get("NewImage", {})
    key = record["dynamodb"]["Keys"]["id"]["S"]
    return f"{key}={image['v']['N']}" if "v" in image else key


def bad() -> list[str]:
    """What is to fail now."""
    path = Path(os.environ.get(BAD, ""))
    return path.read_text().split() if path.is_file() else []


def handle(event: Any, context: Any) -> None:
    """Fails while any item of the batch is bad."""
    if set(note(event)) & set(bad()):
        raise BadItemError


async def handle_async(event: Any, context: Any) -> None:
    """The same, asynchronously."""
    handle(event, context)


def whole(event: Any, context: Any) -> None:
    """Writes the event down as it is, and what the context says."""
    members = (
        "function_name",
        "function_version",
        "invoked_function_arn",
        "memory_limit_in_mb",
        "aws_request_id",
    )
    facts = {member: getattr(context, member) for member in members}
    facts["remaining"] = context.get_remaining_time_in_millis()
    with Path(os.environ[CALLS]).open("a") as file:
        file.write(json.dumps({"event": event, "context": facts}) + "\n")
    print("what a function prints is no answer")


def hang(event: Any, context: Any) -> None:
    """Never returns while anything is bad."""
    note(event)
    while bad():
        time.sleep(0.01)


def fork(event: Any, context: Any) -> None:
    """Fails while an item is bad; what it forked comes back without an error."""
    if set(note(event)) & set(bad()):
        child = os.fork()
        if child == 0:
            return
        os.waitpid(child, 0)
        raise BadItemError


def fork_away(event: Any, context: Any) -> None:
    """What it forked goes on while anything is bad."""
    note(event)
    if os.fork() == 0:
        while bad():
            time.sleep(0.01)
        os._exit(0)


def die(event: Any, context: Any) -> None:
    """Takes its process with it while an item is bad."""
    if set(note(event)) & set(bad()):
        os._exit(7)


def wrong_answer(event: Any, context: Any) -> Any:
    """Answers what is no answer, while anything is bad."""
    note(event)
    return {"batchItemFailures": [{"itemIdentifier": ""}]} if bad() else None


def report(event: Any, context: Any) -> Any:
    """Reports the items that are bad."""
    return {
        "batchItemFailures": [
            {"itemIdentifier": record["dynamodb"]["SequenceNumber"]}
            for record, item in zip(event["Records"], note(event), strict=True)
            if item in bad()
        ]
    }


def large_answer(event: Any, context: Any) -> Any:
    """Answers with more than there may be, while anything is bad."""
    note(event)
    return {"batchItemFailures": [], "more": "x" * (6 << 20)} if bad() else None


def answer_of(event: Any, context: Any) -> Any:
    """Answers what the event names, which Python has and JSON has not."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    answers: dict[str, Any] = {
        "nan": {"batchItemFailures": math.nan},
        "infinity": [-math.inf],
        "surrogate": "\ud800",
        "object": object(),
        "deep": deep,
        "number": {"total": 1.5, "none": None},
    }
    return answers[event["answer"]]


def keep(letter: Any, context: Any) -> None:
    """A failure destination."""
    with Path(os.environ[CALLS]).open("a") as file:
        file.write(json.dumps({"letter": letter}) + "\n")


def add_up(event: Any, context: Any) -> Any:
    """Sums the values by item in the window's state; "big" makes it too large."""
    facts = {name: value for name, value in event.items() if name != "Records"}
    state = dict(event["state"])
    facts["state"] = {name: value for name, value in state.items() if name != "filling"}
    items = note(event, **facts)
    if set(items or ["end"]) & set(bad()):
        raise BadItemError
    for item in items:
        key, _, value = item.partition("=")
        state[key] = state.get(key, 0) + int(value)
        if key == "big":
            state["filling"] = "x" * (1 << 20)
    return None if event["isFinalInvokeForWindow"] else {"state": state}


def add_up_all(event: Any, context: Any) -> Any:
    """As `add_up`, but goes on behind a bad item, and says which it was."""
    state: dict[str, Any] = dict(event["state"])
    failed: list[Any] = []
    facts = {name: value for name, value in event.items() if name != "Records"}
    for record, item in zip(event["Records"], note(event, **facts), strict=True):
        key, _, value = item.partition("=")
        if item in bad():
            failed.append({"itemIdentifier": record["dynamodb"]["SequenceNumber"]})
        else:
            state[key] = state.get(key, 0) + int(value)
    return {"state": state, "batchItemFailures": failed}
