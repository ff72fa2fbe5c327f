"""What a marker raises that cannot be resumed from."""

from penstock.errors.base import PenstockError


class ProgressError(PenstockError):
    """A reader's marker cannot be resumed from."""

    code = "progress"
    exit_code = 5


class TrimmedError(ProgressError):
    """Retention removed an entry that the reader has not seen (P7)."""

    code = "TRIMMED"

    def __init__(self, *, oldest: str, pipeline: str = "", remedy: str = "") -> None:
        """`pipeline` is the reader, if one was overtaken, and `remedy` what it needs then."""
        self.oldest = oldest
        super().__init__(
            f"pipeline {pipeline}: retention has removed entries from the log that it had not "
            f"read. Nothing that follows them was written, and what its destination has is whole. "
            f"{remedy} The oldest marker that is left: {oldest}"
            if pipeline
            else f"the entries after this marker were removed by retention. What you processed is "
            f"safe, but what came next is no longer here. Rebuild from the source, then follow "
            f"from the oldest marker: {oldest}"
        )


class StreamChangedError(ProgressError):
    """The marker belongs to another log, or to this one before it was restored (F10)."""

    code = "STREAM_CHANGED"

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"this marker is not of this log: {detail}. Nothing was sent. Rebuild from the source, "
            f"then subscribe with an empty marker."
        )


class AheadError(ProgressError):
    """The marker is ahead of everything this log holds."""

    code = "AHEAD"

    def __init__(self, *, sequence: int, head: int) -> None:
        super().__init__(
            f"this marker stands at sequence {sequence}, but the log ends at {head}: the log was "
            f"restored from an older copy. Nothing was sent. Rebuild from the source, then "
            f"subscribe with an empty marker."
        )

    @classmethod
    def saying(cls, sentence: str) -> "AheadError":
        """The error of something that is no marker, with a sentence of its own."""
        error = cls(sequence=0, head=0)
        error.args = (sentence,)
        return error


class MalformedProgressError(ProgressError):
    """Not a marker at all."""

    code = "MALFORMED"

    def __init__(self, marker: str) -> None:
        super().__init__(
            f"not a progress marker: {marker[:64]!r}. Nothing was sent. Send back, unchanged, the "
            f"`progress` of the last event you processed, or an empty one to start at the head."
        )

    @classmethod
    def saying(cls, sentence: str) -> "MalformedProgressError":
        """The same of a place that is asked for otherwise, with a sentence of its own."""
        error = cls("")
        error.args = (sentence,)
        return error


class GapError(ProgressError):
    """Changes were lost, and this reader did not ask to be told, or cannot be told which."""

    code = "GAP"

    def __init__(self, *, after: str, description: str) -> None:
        self.after = after
        super().__init__(
            f"changes were lost between the source and the log: {description}. Everything "
            f"before was delivered. Rebuild what the gap names, then follow from the marker after "
            f"it: {after}"
        )

    @classmethod
    def saying(cls, sentence: str, *, after: str) -> "GapError":
        """The error with another sentence than the usual one."""
        error = cls(after=after, description="")
        error.args = (sentence,)
        return error


class RenamedError(ProgressError):
    """A rename that this reader may not be shown took or filled the name that it follows."""

    code = "RENAMED"

    def __init__(self, *, after: str, collection: str) -> None:
        """`collection` is the name that the reader knows."""
        self.after = after
        super().__init__(
            f"a rename took or filled the name {collection}: from here on it means something else, "
            f"and what it meant before is under another name, or gone. Everything before was "
            f"delivered. Take what you have of it as of another collection; to follow the name, "
            f"begin behind the marker: {after}"
        )
