"""What an audit trail raises: its writer, its readers, and what is done to it."""

from penstock.errors.base import PenstockError


class AuditError(PenstockError):
    """An audit trail cannot be written, read or proved; what is in it is as it was."""

    code = "audit"
    exit_code = 7


class TrailUnavailableError(AuditError):
    """The MongoDB of a trail does not answer; the log keeps what comes meanwhile."""

    code = "audit.unavailable"
    transient = True


class TrailHeadError(AuditError):
    """The head of a trail is not what this Penstock writes; nothing can be told from it."""

    code = "audit.head"


class TrailBusyError(AuditError):
    """A large commit is on its way into a trail, and nothing else can be added meanwhile."""

    code = "audit.busy"
    transient = True

    def __init__(self, *, trail: str) -> None:
        super().__init__(
            f"trail of {trail}: a large commit is on its way into it, so nothing can be added now; "
            f"nothing was changed. Run this again in a while; if the pipeline is down, start it, "
            f"for it brings the commit in."
        )


class TrailSlowError(AuditError):
    """A query of a trail took longer than it may, and was given up."""

    code = "audit.slow"


class TrailMissingError(AuditError):
    """A trail that is to be read was not begun yet."""

    code = "audit.missing"


class TrailMovedError(AuditError):
    """Something else was added to the trail while a large commit was on its way."""

    code = "audit.moved"
    transient = True

    def __init__(self, *, trail: str) -> None:
        super().__init__(
            f"trail of {trail}: an erasure was added while a large commit was on its way. Nothing "
            f"of the commit was made visible, and it is written again behind the erasure."
        )


class TrailBehindError(AuditError):
    """The trail lacks what its writer wrote: it was restored from a backup, or cut."""

    code = "audit.behind"
    transient = True

    def __init__(self, *, trail: str) -> None:
        super().__init__(
            f"trail of {trail}: it lacks batches that this pipeline wrote, as after a restore from "
            f"a backup. Nothing was added, and the log is read again from where the trail stands."
        )


class TrailTakenError(AuditError):
    """A trail has one writer and one source, and these are others."""

    code = "audit.taken"

    def __init__(self, *, trail: str, why: str, remedy: str) -> None:
        super().__init__(
            f"trail of {trail}: {why}. Nothing was written, and what is in the trail is safe. "
            f"{remedy}"
        )


class TrailConflictError(AuditError):
    """A change is in the trail already, and says something else there."""

    code = "audit.conflict"

    def __init__(self, *, trail: str, record: str) -> None:
        super().__init__(
            f"trail of {trail}: record {record} is there already and says something else of the "
            f"same change. Nothing was written over. Run `penstock audit verify`: either the "
            f"trail was altered, or two servers' changes came under one source's name."
        )
