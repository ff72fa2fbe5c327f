"""Which archives a log has begun: a small file in its folder for each.

Without it a service that starts while the archive's disk is not mounted would take the empty folder
for the place of a new archive, and let retention go on.
"""

import hashlib
from pathlib import Path
from typing import Final

from penstock.errors import ArchiveGoneError
from penstock.folders import make_folder, write_whole

_FOLDER: Final = "archives"


def note_begun(log: Path, where: str) -> None:
    """Keep that the log in the folder `log` has an archive at `where`: a folder, or a URL without
    its secrets."""
    file = _file(log, where)
    if not file.exists():
        make_folder(file.parent)
        write_whole(file, f"{where}\n".encode())


def require_new(log: Path, where: str) -> None:
    """Raise ArchiveGoneError if the log has begun an archive there; it was not found."""
    file = _file(log, where)
    if file.exists():
        raise ArchiveGoneError(where, str(file))


def _file(log: Path, where: str) -> Path:
    return log / _FOLDER / hashlib.sha256(where.encode()).hexdigest()[:16]
