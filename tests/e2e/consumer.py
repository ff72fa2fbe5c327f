"""A consumer that may be killed at any time: it files each change, then lets progress pass it.

    python consumer.py ADDRESS FOLDER MARKER

What it filed survives it, because kill -9 loses no write that the kernel has taken. A line that
was cut short was not processed; the change comes again.
"""

import asyncio
import os
import sys
from pathlib import Path

from penstock.client import FileProgress, follow
from penstock.wire import to_json

CHANGES = "changes.jsonl"
_LOOK_BYTES = 1 << 20


def whole_lines(path: Path) -> None:
    """Cut the unfinished line off that a kill may have left, in place: a kill may come here too."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _LOOK_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        file.truncate(end)


async def consume(address: str, folder: Path, marker: str) -> None:
    """Follow everything, control events too, from `marker` or from what was saved."""
    whole_lines(folder / CHANGES)
    store = FileProgress(folder / "progress")
    with (folder / CHANGES).open("ab", buffering=0) as filed:
        async with follow(
            address,
            after=marker,
            store=store,
            control_events=True,
            consumer_id="crash-test",
            coalesce_on_catch_up=False,
        ) as changes:
            async for change in changes:
                filed.write(to_json(change.entry, plain_numbers=False) + b"\n")


if __name__ == "__main__":
    asyncio.run(consume(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
