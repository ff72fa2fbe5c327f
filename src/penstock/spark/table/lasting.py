"""What is committed to a table on this machine's disk survives a power cut.

delta-rs leaves it to the kernel when a disk has a file; an object store has it once it says so. A
commit that the disk has lost is one that never was to whoever reads the table, so nothing may be
written that builds on it before: where a pipeline stands, or that a change was rejected.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

_LOG: Final = "_delta_log"


class _Added(Struct):
    path: str


class _Action(Struct):
    """A line of a commit: what of it is needed here."""

    add: _Added | None = None


def keep_commits(path: str, *, after: int, until: int) -> None:
    """Have the disk hold the versions behind `after` up to `until` of the table at `path`, and all
    that they added. With -1 the table is new."""
    folder = local_folder(path)
    if folder is None or until <= after:
        return
    log = folder / _LOG
    versions = [f"{version:020d}" for version in range(after + 1, until + 1)]
    # Not by a pattern: Python keeps each, and those of others go for it.
    written = {file for file in log.iterdir() if file.name.partition(".")[0] in versions}
    for version in versions:
        with suppress(FileNotFoundError):
            lines = (log / f"{version}.json").read_bytes().splitlines()
            written.update(folder / name for name in _added(lines))
    for file in (*sorted(written), log / "_last_checkpoint"):
        # Another's draft, or what upkeep has taken since, needs none.
        with suppress(FileNotFoundError):
            sync(file)
    folders = {parent for file in written for parent in _inside(folder, file)}
    for one in sorted(folders, reverse=True):
        sync(one)
    if after < 0:
        # Which of them are new nobody knows any more; one that may not be read is not.
        for parent in folder.parents:
            with suppress(PermissionError):
                sync(parent)


def _added(lines: Iterable[bytes]) -> Iterator[str]:
    for line in lines:
        action = msgspec.json.decode(line, type=_Action)
        if action.add is not None:
            yield unquote(action.add.path)


def _inside(folder: Path, file: Path) -> Iterator[Path]:
    """The folders that `file` is in, up to `folder`."""
    for parent in file.parents:
        yield parent
        if parent == folder:
            return


def local_folder(path: str) -> Path | None:
    """The folder of this machine that a path or URL names; None for another's."""
    if "://" not in path:
        return Path(path).absolute()
    url = urlsplit(path)
    return Path(unquote(url.path)) if url.scheme == "file" else None


def sync(path: Path) -> None:
    """Have the disk hold a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
