"""The log's format: what this Penstock writes, and how an older log becomes that.

A log is upgraded when it is opened for writing, in the one transaction that opens it: step by step
from its own format to the newest, whole or not at all. Readers wait for that.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from penstock.errors import LogFormatError, OutdatedFormatError
from penstock.kv import Env, Transaction
from penstock.log.layout import FORMAT, FORMAT_KEY, META, pack_u64, unpack_u64

Upgrade = Callable[[Transaction, Env], None]
"""Makes a log of one format one of the next, inside the transaction; it writes no format itself."""

UPGRADES: Final[Mapping[int, Upgrade]] = MappingProxyType({})
"""From each older format to the next. Empty: there was no older one yet."""


def require_readable(found: bytes, path: Path) -> None:
    """Raise LogFormatError for a format that is not read here, OutdatedFormatError for one that
    capture will upgrade."""
    version = _known(found, path)
    if version < FORMAT:
        _steps(version, path)
        raise OutdatedFormatError(
            f"the log at {path} has format {version}, and this Penstock reads {FORMAT}. Nothing "
            f"was changed. `penstock run` upgrades it when it starts."
        )


def upgrade(txn: Transaction, env: Env, found: bytes) -> None:
    """Bring the log to this Penstock's format.

    Raises LogFormatError for a newer one, one that never was, and one that no step leads from;
    then, and when a step fails, nothing is changed.
    """
    version = _known(found, env.path)
    steps = _steps(version, env.path)
    for step in steps:
        step(txn, env)
    if steps:
        txn.put(FORMAT_KEY, pack_u64(FORMAT), db=env[META])


def _known(found: bytes, path: Path) -> int:
    version = unpack_u64(found) if len(found) == 8 else 0
    if version > FORMAT:
        raise LogFormatError(
            f"the log at {path} has format {version}; this Penstock reads up to {FORMAT}. Nothing "
            f"was changed. Use the Penstock that wrote it, or a newer one."
        )
    if version < 1:
        raise LogFormatError(
            f"the log at {path} has a format that no Penstock ever wrote, so it is damaged. "
            f"Nothing was changed. Restore a backup of it."
        )
    return version


def _steps(version: int, path: Path) -> list[Upgrade]:
    try:
        return [UPGRADES[older] for older in range(version, FORMAT)]
    except KeyError as error:
        raise LogFormatError(
            f"the log at {path} has format {version}, and this Penstock cannot upgrade format "
            f"{error.args[0]}. Nothing was changed. Use a Penstock in between first."
        ) from None
