"""Where a trigger stands: a file of its own, replaced whole, and a lock for its one runner.

The lock is of the open file, so a process that was given the descriptor holds it too: after kill -9
of a trigger nobody can start it again until the calls that it had under way are over. Else an old
call could write behind a newer one, and an item's changes would come out of order.
"""

import asyncio
import os
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from penstock.errors import TriggerError, TriggerLockedError
from penstock.folders import keep_whole, make_folder
from penstock.locks import hold
from penstock.trigger.lineage import Place

FORMAT: Final = 1
_FILE: Final = "checkpoint.json"
_LOCK: Final = "lock"


class _Kept(Struct, frozen=True):
    """What the file holds."""

    format: int
    stream: str
    shards: dict[str, Place]


@contextmanager
def locked(folder: Path, *, name: str) -> Generator[int]:
    """Be the only one to run the trigger; yields the descriptor that holds the lock.

    Raises TriggerLockedError while another process, or a child of a killed one, holds it.
    """
    make_folder(folder, mode=0o700)
    descriptor = hold(
        folder / _LOCK, refused=lambda owner: TriggerLockedError(name=name, owner=owner)
    )
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Checkpoints:
    """The places of a trigger in the shards of one stream. For the process that holds the lock."""

    def __init__(self, folder: Path) -> None:
        """Read what is kept. Raises TriggerError if it is not what this program wrote."""
        self._path = folder / _FILE
        self._turn = asyncio.Lock()
        self.stream: str | None = None
        """The ARN that the places belong to; None before the first."""
        self.places: dict[str, Place] = {}
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return
        except msgspec.DecodeError as error:
            raise self._unreadable() from error
        if kept.format != FORMAT:
            raise self._unreadable()
        self.stream, self.places = kept.stream, kept.shards

    async def put(self, shard: str, place: Place) -> None:
        """Keep a place, durably when this returns."""
        async with self._turn:
            self.places[shard] = place
            await self._write()

    async def put_all(
        self, stream: str, places: Mapping[str, Place], *, moving: Collection[str] = ()
    ) -> None:
        """Keep these places of a stream instead of all others, durably when this returns.

        Shards that are `moving` stay where they are by then: this may have waited for them.
        """
        async with self._turn:
            moved = {shard: self.places[shard] for shard in moving if shard in self.places}
            self.stream, self.places = stream, {**places, **moved}
            await self._write()

    async def _write(self) -> None:
        assert self.stream is not None
        kept = _Kept(FORMAT, self.stream, self.places)
        try:
            await keep_whole(self._path, msgspec.json.encode(kept))
        except OSError as error:
            raise TriggerError(
                f"the checkpoint {self._path} cannot be written ({error.strerror}). What was "
                f"handled since the last one comes again, and nothing is skipped. Make space, or "
                f"repair the disk, and start again."
            ) from error

    def _unreadable(self) -> TriggerError:
        return TriggerError(
            f"{self._path} is not a checkpoint that this Penstock reads. Nothing was read from the "
            f"stream, for to begin anew would skip or repeat records. Restore the file, or move it "
            f"away to begin at --starting-position."
        )
