"""A consumer that may be killed at any time: it files each change, then lets progress pass it.

    python consumer.py ADDRESS FOLDER MARKER [WISHES]

What it filed survives it, because kill -9 loses no write that the kernel has taken. A line that
was cut short was not processed; the change comes again. Where changes were lost (DATA_LOSS), it
does what `docs/how-to/mongodb.md` says: it rebuilds from current rows, and follows from there.
"""

import asyncio
import os
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from penstock.client import FileProgress, Retry, follow, snapshot
from penstock.errors import GapError, ServiceUnavailableError, StateIncompleteError
from penstock.subscribe.shards import Shards
from penstock.wire import to_json

CHANGES = "changes.jsonl"
PROGRESS = "progress"
REBUILDS = "rebuilds"
"""One line for each time it rebuilt: the marker after the gap that it was stopped by."""
_LOOK_BYTES = 1 << 20
_AGAIN_SECONDS = 0.2
_RETRY = Retry(max_seconds=2.0)
"""A test's services are back soon."""


class Wishes(Struct, frozen=True, kw_only=True):
    """What a consumer asks for. By default everything, as captured."""

    control_events: bool = True
    coalesce: bool = False
    collections: tuple[str, ...] = ()
    shards: Shards | None = None
    save_each: bool = False
    """Save after each change, not once in a second."""


class UnsyncedProgress(FileProgress):
    """For saving often: a power cut would lose what it saved, kill -9 does not."""

    def save(self, marker: str) -> None:
        beside = self.path.with_name(f"{self.path.name}.new")
        beside.write_text(f"{marker}\n", encoding="ascii")
        beside.replace(self.path)


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


async def consume(address: str, folder: Path, marker: str, wishes: Wishes) -> None:
    """Follow what is wished for, from `marker` or from what was saved, for ever."""
    store = (UnsyncedProgress if wishes.save_each else FileProgress)(folder / PROGRESS)
    after_gap = ""
    while True:
        whole_lines(folder / CHANGES)
        with (folder / CHANGES).open("ab", buffering=0) as filed:
            async with follow(
                address,
                after=marker,
                store=store,
                save_interval_seconds=0 if wishes.save_each else 1,
                retry=_RETRY,
                collections=wishes.collections,
                control_events=wishes.control_events,
                consumer_id=folder.name,
                coalesce_on_catch_up=wishes.coalesce,
                shards=wishes.shards,
            ) as changes:
                try:
                    async for change in changes:
                        filed.write(to_json(change.entry, plain_numbers=False) + b"\n")
                except GapError as gap:
                    after_gap = gap.after
        store.save(await rebuild(address, folder, wishes))
        with (folder / REBUILDS).open("a") as rebuilds:
            rebuilds.write(f"{after_gap}\n")


async def rebuild(address: str, folder: Path, wishes: Wishes) -> str:
    """Put current rows in the place of all that was filed; returns the marker that follows them.

    A kill before that marker is saved leaves the old one, which ends at the same loss again.
    """
    beside = folder / f"{CHANGES}.new"
    while True:
        try:
            with beside.open("wb") as filed:
                async with snapshot(
                    address, collections=wishes.collections, shards=wishes.shards
                ) as rows:
                    async for row in rows:
                        filed.write(to_json(row.entry, plain_numbers=False) + b"\n")
        except (StateIncompleteError, ServiceUnavailableError):
            # The copy that makes the loss good is under way, or the service is; or an operator has
            # to ask for one.
            await asyncio.sleep(_AGAIN_SECONDS)
        else:
            beside.replace(folder / CHANGES)
            return rows.progress


if __name__ == "__main__":
    _address, _folder, _marker, *_wishes = sys.argv[1:]
    asyncio.run(
        consume(
            _address,
            Path(_folder),
            _marker,
            msgspec.json.decode(_wishes[0], type=Wishes) if _wishes else Wishes(),
        )
    )
