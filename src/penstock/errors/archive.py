"""What the archive of the log raises, written and read."""

from penstock.errors.base import PenstockError


class ArchiveError(PenstockError):
    """The archive cannot be written or read. Capture goes on, and what it holds is safe."""

    code = "archive"
    exit_code = 4


class ArchiveUnavailableError(ArchiveError):
    """The folder or bucket of the archive does not answer, or refuses."""

    code = "archive.unavailable"
    transient = True

    def __init__(self, where: str, error: BaseException, said: str | None = None) -> None:
        """`said` is what is told of the error, if not all that it says."""
        super().__init__(
            f"the archive at {where} cannot be reached ({type(error).__name__}: "
            f"{error if said is None else said}). Nothing that it holds was changed. Check the "
            f"path, the rights on it and what serves it."
        )


class ArchiveDamagedError(ArchiveError):
    """A file of the archive is missing, or not what was written."""

    code = "archive.damaged"

    def __init__(self, where: str, what: str) -> None:
        super().__init__(
            f"the archive is damaged at {where}: {what}. Nothing was skipped, and nothing of it "
            f"was changed. Bring that file back from a copy of the archive."
        )


class ArchiveGoneError(ArchiveError):
    """The archive that a log has begun is not there any more: its disk may not be mounted."""

    code = "archive.gone"

    def __init__(self, where: str, noted: str) -> None:
        """`noted` is the file that says that it was begun."""
        super().__init__(
            f"there is no archive at {where}, where this log has begun one. Nothing was made "
            f"there, and the log keeps for a while what is not archived. See that its disk is "
            f"mounted, or bring it back from a copy. To begin another one there, without what the "
            f"log has no more, remove {noted} first."
        )


class ArchiveForeignError(ArchiveError):
    """The archive belongs to another log, or to one that parted from this one."""

    code = "archive.foreign"

    def __init__(self, where: str, what: str) -> None:
        super().__init__(
            f"the archive at {where} is not of this log: {what}. Nothing of it was read or "
            f"changed. Name another [archive] path; this one can still be restored to a log of "
            f"its own with `penstock log restore`."
        )


class ArchiveBehindError(ArchiveError):
    """The archive ends before the log begins: some entries are in neither."""

    code = "archive.behind"

    def __init__(self, where: str, *, until: int, trimmed: int) -> None:
        super().__init__(
            f"the archive at {where} ends at entry {until}, and the log begins after "
            f"{trimmed}: what lies between is in neither. Nothing was read. The service records it "
            f"as lost when it next archives; until then read without the archive, which begins "
            f"with the oldest entry of the log."
        )
