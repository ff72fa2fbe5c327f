"""Folders and files that appear whole or not at all, whenever the process or the machine dies."""

import asyncio
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import ConfigError


def no_place(path: Path, error: OSError) -> ConfigError:
    """The error where nothing can be written at `path`."""
    return ConfigError(
        f"{path} cannot be written to: {error.strerror} ({error.filename or path}). Nothing was "
        f"started. Name a folder that this user may write to, or may make."
    )


@contextmanager
def appearing(target: Path) -> Generator[Path]:
    """A new folder to fill: at the end of the block it is on the disk, and stands at `target`.

    Until then it lies beside it, hidden, and goes if the block raises; one that was left by a
    process that died is emptied first. Raises ConfigError when `target` holds something, or another
    process fills it.
    """
    import fcntl  # there is none on Windows, where clients keep files too

    target = target.resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir()) or target.is_mount()):
        raise ConfigError(
            f"{target} is not an empty folder, or a disk of its own. Nothing was copied. Name one "
            f"that does not exist."
        )
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = target.parent / f".{target.name}.unfinished"
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"another backup to {target} is under way. Nothing was copied. Wait for it, or "
                f"name another folder."
            ) from error
        for left in folder.iterdir():
            left.unlink()  # by a backup that died
        try:
            yield folder
            for file in folder.iterdir():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
            sync_folder(folder)
            folder.rename(target)
        except BaseException:
            shutil.rmtree(folder)
            raise
    finally:
        os.close(lock)
    sync_folder(target.parent)


def make_folder(folder: Path, *, mode: int = 0o777) -> None:
    """Have a folder; those that this makes have names that survive a power cut when it returns.

    Raises ConfigError where it cannot be made.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise no_place(folder, error) from None
    for one in missing:
        sync_folder(one.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut: LMDB syncs its files, not their names."""
    if os.name == "nt":
        return  # Windows has no folder to sync: its names are journaled
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Differs once a file is another one, or has another content; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def write_whole(path: Path, content: bytes) -> None:
    """Put `content` at `path`: on the disk when this returns, and never seen in part."""
    draft = path.with_name(f"{path.name}.new")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()  # on a full disk it is in the way of others
        raise
    sync_folder(path.parent)


async def keep_whole(path: Path, content: bytes) -> None:
    """Do `write_whole` in a thread. Who is cancelled meanwhile waits for it to end, so that nothing
    is written behind the lock of who wrote it."""
    writing = asyncio.ensure_future(asyncio.to_thread(write_whole, path, content))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.gather(writing, return_exceptions=True)
        raise
