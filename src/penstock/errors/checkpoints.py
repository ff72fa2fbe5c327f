"""What the published copy of where the log stands raises, and its store."""

from penstock.errors.base import PenstockError


class CheckpointError(PenstockError):
    """The published copy failed. The positions beside the events, in the log, are safe."""

    code = "checkpoint"
    exit_code = 8


class CheckpointUnavailableError(CheckpointError):
    """The store of published copies does not answer; capture goes on, and asks again."""

    code = "checkpoint.unavailable"
    transient = True

    def __init__(self, message: str, *, why: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.why = why
        """What is in the way, for who says it in other words,"""
        self.remedy = remedy
        """and the next step, as a sentence."""


class CheckpointConflictError(CheckpointError):
    """Another process wrote the published copy since it was read; nothing was changed."""

    code = "checkpoint.conflict"

    def __init__(self, *, instance: str) -> None:
        super().__init__(
            f"the published copy of instance {instance} was written by another process meanwhile. "
            f"Nothing was changed. Look at `penstock checkpoint show`, and try again."
        )


class CheckpointStoreError(CheckpointError):
    """The store of published copies answers with what no retry mends."""

    code = "checkpoint.store"


class CheckpointUntrustedError(CheckpointStoreError):
    """We do not trust the certificate of the store of published copies, or it not ours."""

    code = "checkpoint.untrusted"

    def __init__(
        self,
        why: str,
        *,
        remedy: str = "Correct ca, certificate and key of [checkpoint], or the store's own "
        "certificate.",
    ) -> None:
        super().__init__(
            f"the store of published copies cannot be asked: {why}. Nothing was published, and "
            f"the positions in the log are safe. {remedy}"
        )


class SupersededError(CheckpointError):
    """Another machine has taken this one's place: two must not capture as one instance."""

    code = "checkpoint.superseded"
    exit_code = 9

    def __init__(self, *, instance: str, log_id: int, taken_over_by: int) -> None:
        who = (
            f"log {taken_over_by:016x}, which goes on from ours ({log_id:016x})"
            if taken_over_by != log_id
            else f"another process, which begins a new log above ours ({log_id:016x}) or runs with "
            f"a copy of it"
        )
        super().__init__(
            f"instance {instance} was taken over by {who}. Capture stops here for good, and what "
            f"this log holds is safe. If this machine is the one to keep, stop the other one, run "
            f"`penstock checkpoint clear --published` here, and start again; otherwise retire it, "
            f"or give it an instance name of its own."
        )


class ForeignCheckpointError(CheckpointError):
    """The instance's name belongs to a log that has nothing to do with this one."""

    code = "checkpoint.foreign"
    exit_code = 9

    def __init__(self, *, instance: str, log_id: int, published: int) -> None:
        super().__init__(
            f"the published copy of instance {instance} is of log {published:016x}, which neither "
            f"goes on from this log ({log_id:016x}) nor comes before it. Nothing was captured and "
            f"the copy is as it was. Give this service an instance name of its own under "
            f"[checkpoint]; or, if that log is given up, run `penstock checkpoint clear "
            f"--published`."
        )


class OutdatedLogError(CheckpointError):
    """The log on this disk is an older copy of the one that was published."""

    code = "checkpoint.outdated_log"

    def __init__(self, *, instance: str, log_id: int) -> None:
        super().__init__(
            f"the published copy of instance {instance} is of this log ({log_id:016x}), and says "
            f"what this log does not: the disk holds an older copy of it. Capture has stopped and "
            f"nothing was mixed. Start again: the log then goes on from its own position under a "
            f"new id, and markers ahead of it are refused."
        )
