"""Where reading passes from an archive to its log: at an entry that is the same in both."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.archive.begun import require_new
from penstock.archive.manifest import require_same_log
from penstock.archive.place import Place
from penstock.archive.reading import Archive
from penstock.errors import ArchiveBehindError, ArchiveForeignError
from penstock.ports import Bounds
from penstock.progress import Progress


class Joining:
    """An archive that is opened when it is needed, and again when the log has left it behind.

    Belongs to one thread.
    """

    def __init__(self, path: str, *, before_opening: Callable[[], None] = lambda: None) -> None:
        """`before_opening` raises for who may not read an archive."""
        self._path = path
        self._before_opening = before_opening
        self._archive: Archive | None = None
        self._met: set[tuple[int, int]] = set()

    def close(self) -> None:
        """Let go of the file that was read last."""
        if self._archive is not None:
            self._archive.close()

    def at(self, live: Bounds, again: Callable[[], Bounds]) -> tuple[Archive, Progress]:
        """The archive, and the first end of a range in it that the log has, too.

        `again` asks for the log's bounds once more. Raises ArchiveError where there is none, for
        another log's, and ArchiveBehindError for one that ends before the log begins.
        """
        archive = self._archive
        joint = None if archive is None else archive.join(live.trimmed)
        if archive is None or joint is None:
            self._before_opening()
            archive = Archive.open(self._path)
            self._require_same_log(archive, live, again)
            joint = archive.join(live.trimmed)
        if joint is None:
            raise ArchiveBehindError(
                archive.place.where, until=archive.manifest.until, trimmed=live.trimmed
            )
        check = archive.check_at(joint)
        assert check is not None
        self._archive = archive
        return archive, Progress(live.log_id, joint, check)

    def _require_same_log(
        self, archive: Archive, live: Bounds, again: Callable[[], Bounds]
    ) -> None:
        manifest = archive.manifest
        if manifest.log_id == live.log_id and manifest.until > live.head:
            # The log may have gone on, and been archived, between its answer and the opening.
            live = again()
        require_same_log(manifest, live, archive.place.where)

    def has_met(self, joint: Progress) -> bool:
        """Whether the log's entry was held against the archive's."""
        return (joint.log_id, joint.sequence) in self._met

    def meet(self, joint: Progress, found: int | None) -> None:
        """Hold the log's check at `joint` against the archive's; None: retention has passed it.

        Raises ArchiveForeignError for another entry.
        """
        if found is not None and found != joint.check:
            raise ArchiveForeignError(
                Place(self._path).where,
                f"entry {joint.sequence} is not the one that this log has there",
            )
        self._met.add((joint.log_id, joint.sequence))


def is_there(path: str, *, log: Path) -> bool:
    """Whether anything was archived at `path` yet, by the log in the folder `log`. Raises
    ArchiveGoneError where it was, and is not there any more."""
    place = Place(path)
    if place.newest() is not None:
        return True
    require_new(log, place.where)
    return False


def joined_bounds(live: Bounds, archive: Archive) -> Bounds:
    """What log and archive hold together."""
    begin = archive.manifest
    if begin.begin >= live.trimmed:
        return live
    return msgspec.structs.replace(live, trimmed=begin.begin, trimmed_check=begin.begin_check)
