"""What a trigger raises, which calls functions with the records of a stream."""

from penstock.errors.base import PenstockError


class TriggerError(PenstockError):
    """A trigger cannot go on; its checkpoint stands behind what was handled."""

    code = "trigger"
    exit_code = 11


class TriggerLockedError(TriggerError):
    """Another process runs the trigger, or an environment of one that was killed still ends."""

    code = "trigger.locked"

    def __init__(self, *, name: str, owner: str) -> None:
        super().__init__(
            f"trigger {name} runs already, in process {owner}. Nothing was read. Stop that one "
            f"first, or give this one another name. If it was killed, its calls are still ending: "
            f"start again in a moment."
        )


class TriggerTrimmedError(TriggerError):
    """The stream's retention removed records that the trigger has not handled."""

    code = "trigger.trimmed"

    def __init__(self, *, shard: str) -> None:
        self.shard = shard
        super().__init__(
            f"records of {shard} are gone that were not handled: the stream's retention was "
            f"faster, or what it is of was put back to an older copy. What was handled is safe, "
            f"nothing was skipped silently, and the trigger has stopped. Make good what is missing "
            f"from the table, then start with --on-trimmed horizon, which goes on with the oldest "
            f"record that is left."
        )


class TriggerStreamEndedError(TriggerError):
    """The stream was disabled, or its table deleted; every record of it was handled."""

    code = "trigger.stream_ended"

    def __init__(self, *, stream: str) -> None:
        super().__init__(
            f"the stream {stream} has ended, and all of it was handled. Nothing more will come of "
            f"it. Changes that were made without a stream are in no stream: make them good from "
            f"the table, then start with --on-stream-end follow, or another --name, for a new one."
        )


class TriggerStreamGoneError(TriggerError):
    """There is no such stream, or none any more."""

    code = "trigger.stream_gone"

    def __init__(self, *, what: str) -> None:
        super().__init__(
            f"{what} is not there. What was handled is safe, and nothing was read. If its "
            f"retention has passed, what was not handled is lost: make it good from the table, "
            f"then start under another --name. Else look at --table, --stream and --endpoint."
        )


class TriggerStreamChangedError(TriggerError):
    """The checkpoint belongs to another stream than the one that was named."""

    code = "trigger.stream_changed"

    def __init__(self, *, name: str, expected: str, found: str) -> None:
        super().__init__(
            f"the checkpoint of trigger {name} is of {expected}, and {found} was named. Nothing "
            f"was read and the checkpoint is as it was. Name that stream, or give this trigger "
            f"another --name."
        )
