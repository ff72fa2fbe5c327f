"""Which sources an operator has paused: a small file beside the log.

It is no part of the log: to pause is a decision about this service, not a fact about its data, so a
copy of the log that is restored elsewhere starts with nothing paused, and forgetting the file costs
nothing (a source goes on from its position). Capture alone writes it: whoever holds the log's lock.
"""

from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import ConfigError, LogError
from penstock.folders import write_whole

NAME: Final = "paused.json"


class PausedSources:
    """The names of paused sources, kept over restarts."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def read(self) -> frozenset[str]:
        """The names; none where nobody ever paused one. Raises ConfigError for a damaged file."""
        try:
            return frozenset(msgspec.json.decode(self._path.read_bytes(), type=list[str]))
        except FileNotFoundError:
            return frozenset()
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{self._path} is damaged ({error}). Nothing was started. Remove the file: every "
                f"source is then captured, from where it stands."
            ) from error

    def change(self, name: str, *, paused: bool) -> None:
        """Keep that a source is paused, or that it is not; on the disk when this returns. Raises
        LogError where the disk refuses it."""
        names = set(self.read())
        if (name in names) is paused:
            return
        (names.add if paused else names.discard)(name)
        try:
            write_whole(self._path, msgspec.json.encode(sorted(names)))
        except OSError as error:
            raise LogError(
                f"{self._path} cannot be written ({error.strerror}), so nobody can tell whether "
                f"{name} is paused at the next start. Until then it is as it was. Make room on the "
                f"disk, or repair it, and ask again."
            ) from error
