"""What a source raises while its changes are captured, and what its supervisor does."""

from penstock.errors.base import PenstockError


class SourceError(PenstockError):
    """A source failed. Its position stands where the log last made it durable."""

    code = "source"
    exit_code = 3


class SourceUnavailableError(SourceError):
    """The source does not answer, or broke off; capture retries from its durable position."""

    code = "source.unavailable"
    transient = True


class SourceSilentError(SourceUnavailableError):
    """The source yielded nothing for its deadline, not even an empty commit (S15)."""

    code = "source.silent"

    def __init__(self, *, source: str, silence_seconds_max: float) -> None:
        super().__init__(
            f"{source}: nothing was heard for {silence_seconds_max:g} s, not even that it is "
            f"quiet. Its session is closed and a new one starts from the durable position."
        )


class PositionLostError(SourceError):
    """The source no longer holds the changes that follow our position (S7)."""

    code = "source.position_lost"

    def __init__(self, *, source: str, position: str, detail: str) -> None:
        self.source = source
        self.position = position
        self.detail = detail
        super().__init__(
            f"{source}: the changes after our position are gone from the source ({detail}). "
            f"Capture has stopped and the log has a gap entry here, so nothing was skipped "
            f"silently; everything captured so far is safe. Set on_position_lost = 'snapshot' to "
            f"copy the data again, or 'gap' to go on from now, then run `penstock reload`."
        )


class SourceChangedError(SourceError):
    """Another server answers under this source's name (S6)."""

    code = "source.changed"

    def __init__(self, *, source: str, expected: str, found: str) -> None:
        super().__init__(
            f"{source}: the log was captured from {expected}, but {found} answers now. "
            f"Capture has stopped and nothing was mixed. Point the source at the original "
            f"server, or give the new server a source name of its own."
        )


class UndecodableError(SourceError):
    """A change that cannot be represented exactly (invariant 10)."""

    code = "source.undecodable"

    def __init__(
        self,
        *,
        source: str,
        what: str,
        position: str,
        safe: str = "Capture has stopped before it and nothing was skipped",
        remedy: str | None = None,
    ) -> None:
        self.what = what
        self.position = position
        remedy = remedy or (
            "Set on_undecodable = 'dead_letter' to keep its bytes in the log, record the gap and "
            "go on; and please report it with the type named here."
        )
        super().__init__(f"{source}: cannot decode {what} at position {position}. {safe}. {remedy}")
