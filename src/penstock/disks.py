"""The file systems under us: how much room they have, and whether LMDB may live on them."""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import ConfigError

_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
"""White space and backslashes in it; all else is written as it is."""
_NETWORK: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "lustre", "nfs", "nfs4", "smb3"}
    | {"fuse.ceph", "fuse.davfs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "ncpfs", "smbfs"}
)


class Space(NamedTuple):
    """Bytes of a file system, as an ordinary user sees them."""

    free: int
    total: int


def space(path: Path) -> Space:
    """The space of the file system that holds `path`."""
    found = os.statvfs(path)
    return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def network_filesystem(path: Path, mounts: str) -> str | None:
    """The type of the network file system that holds `path`; None for a local one.

    `mounts` is the text of /proc/self/mountinfo (format: proc(5)).
    """
    nearest, kind = -1, ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = Path(_ESCAPED.sub(lambda one: chr(int(one[1], 8)), fields.split(" ")[4]))
        if path.is_relative_to(point) and len(point.parts) >= nearest:
            nearest, kind = len(point.parts), rest.split(" ")[0]
    return kind if kind in _NETWORK else None


def refuse_network_filesystem(path: Path) -> None:
    """Raise ConfigError where LMDB's memory map and locks cannot be trusted."""
    try:
        mounts = os.fsdecode(_MOUNTS.read_bytes())
    except OSError:
        return  # not Linux: nothing tells us
    kind = network_filesystem(path.resolve(), mounts)
    if kind is not None:
        raise ConfigError(
            f"{path} lies on a network file system ({kind}), where LMDB's memory map and locks "
            f"do not hold. Nothing was written. Choose a path on a local disk."
        )
