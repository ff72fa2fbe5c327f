"""What sources have written of their quotas, kept beside the log: a small file for each.

It is kept before it is used, so that no crash lets a source write more. Without the file, as in a
log that was restored elsewhere, a source begins with its whole quota.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.capture.quota import Quota, Reservation, Share
from penstock.capture.supervise import Clock
from penstock.cli.config import Settings
from penstock.errors import ConfigError, LogFullError
from penstock.folders import keep_whole


def share_of(settings: Settings, name: str, *, clock: Clock) -> Share | None:
    """The share of a source that has a quota; None for others."""
    bytes_max = settings.capture.quotas.get(name)
    if bytes_max is None or settings.log.retention is None:
        return None
    path = settings.log.path / f"quota-{name}.json"

    async def keep(reserved: Sequence[Reservation]) -> None:
        try:
            await keep_whole(path, msgspec.json.encode(reserved))
        except OSError as error:
            raise LogFullError(
                f"{name}: what it has written of its quota cannot be kept at {path} "
                f"({error.strerror}), so its batch was not appended. Nothing was lost; capture "
                f"goes on by itself once the disk takes it."
            ) from error

    quota = Quota(
        bytes_max=bytes_max,
        window_ms=int(settings.log.retention * 1000),
        reserved=_kept(path),
    )
    return Share(name, quota, clock, keep=keep)


def _kept(path: Path) -> list[Reservation]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Reservation])
    except FileNotFoundError:
        return []
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{path} is damaged ({error}). Nothing was started. Remove the file: the source then "
            f"begins with its whole quota."
        ) from error
