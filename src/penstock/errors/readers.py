"""What a reader meets: the service is away, refuses, or cannot do what is asked; or what came is
not whole, or cannot be taken up.
"""

from penstock.errors.base import PenstockError


class DocumentMisfitError(PenstockError):
    """A document does not fit the columns that a reader declared; nothing was made null for it."""

    code = "document.misfit"

    def __init__(
        self,
        *,
        sequence: int,
        path: str,
        reason: str,
        schema: str = "documentSchema",
        otherwise: str = "read the column `rejected` too: it then holds what does not fit",
    ) -> None:
        """`schema` is what the user calls the declaration, `otherwise` how to go on with it."""
        super().__init__(
            f"the document at sequence {sequence} does not fit {schema}: {path}: {reason}. "
            f"Nothing was written for this batch. Widen the type in {schema}, or {otherwise}."
        )


class ServiceUnavailableError(PenstockError):
    """The Penstock service does not answer a reader; what the reader saved is safe."""

    code = "service.unavailable"
    transient = True
    exit_code = 6


class ServiceBusyError(ServiceUnavailableError):
    """The service has as many readers as it may; this one was refused and may come back (P18)."""

    code = "service.busy"

    def __init__(self, *, readers_max: int, setting: str = "max_connections under [serve]") -> None:
        super().__init__(
            f"{readers_max} readers are connected, and no more are allowed. The others are not "
            f"affected. Try again later, or raise {setting}."
        )


class RateLimitedError(ServiceUnavailableError):
    """This client asks more often, or at more places at once, than one client may."""

    code = "service.limited"

    def __init__(self, *, what: str, wait_seconds: float = 1.0) -> None:
        self.wait_seconds = wait_seconds
        super().__init__(
            f"{what} is the limit of one client, and it is reached. The others are not affected, "
            f"and what you processed is safe. Try again in a moment, or raise it under [access]."
        )


class AccessError(PenstockError):
    """Whoever asks may not have what they ask for; nothing was sent."""

    code = "access"
    exit_code = 12


class UnauthenticatedError(AccessError):
    """Nothing that came with the request says who asks. One sentence for every reason, so that it
    tells nobody which tokens there are, or were."""

    code = "access.unauthenticated"

    def __init__(self) -> None:
        super().__init__(
            "this service wants to know who asks, and nothing that came with the request says so: "
            "no token, or one that is not valid, or not any more. What you processed is safe. "
            "Bring a token of `penstock access create`."
        )


class ForbiddenError(AccessError):
    """Whoever asks is known, and has no grant for it."""

    code = "access.forbidden"

    def __init__(self, *, verb: str) -> None:
        super().__init__(
            f"this needs the verb '{verb}', which your token does not have. Nothing was sent. Ask "
            f"whoever runs the service for one that has."
        )


class RequestError(PenstockError):
    """The service cannot do what a reader asks; nothing was sent."""

    code = "request"
    exit_code = 2


class StateFailedError(RequestError):
    """Whoever keeps the current rows met a defect; the stream and capture go on."""

    code = "state.failed"

    def __init__(self, *, error: str) -> None:
        super().__init__(
            f"the current rows are not kept up: a defect ({error}). Streams and capture are not "
            f"affected, no row is wrong, and it is tried again every half a minute. Please report "
            f"it with the lines of the log that say where."
        )


class CapturesIncompleteError(PenstockError):
    """A subscription got fewer captures of a transaction, or more, than its header counts (E11)."""

    code = "captures.incomplete"
    exit_code = 5

    def __init__(self, *, request: str, version: int, matched: int, got: int) -> None:
        super().__init__(
            f"request {request}: {matched} changes of commit {version} match, and {got} came. What "
            f"came of earlier commits is whole. Throw away what came of this one and subscribe "
            f"again behind the commit before it; if it comes so again, please report it."
        )


class ProgramError(PenstockError):
    """The program that consumes did not process a change; its progress was not saved."""

    code = "program"


class HistoryUnknownError(RequestError):
    """What a document was at a place, or that place, cannot be told from what is kept."""

    code = "history.unknown"

    def __init__(
        self,
        *,
        why: str,
        what: str = "what the document was there",
        remedy: str = "Ask for a later place; `penstock snapshot` copies what the log does not "
        "have, for the future",
    ) -> None:
        super().__init__(f"{what} is not known: {why}. Nothing was sent. {remedy}.")


class StateIncompleteError(RequestError):
    """Not every current row of what a reader asks for is known (P19)."""

    code = "state.incomplete"

    def __init__(self, *, source: str, what: str, under_way: bool, undecoded: bool = False) -> None:
        """`undecoded`: all that is missing came as dead letters that name no row."""
        why = (
            "a change or a copied row of it could not be decoded, and its dead letter does not say "
            "which row it was"
            if undecoded
            else "it was captured from the middle of its life, or changes of it were lost"
        )
        copies = f"`penstock snapshot {source}`, which copies it beside the stream"
        remedy = f"Run {copies}, then ask again"
        if undecoded:
            remedy = (
                f"Once it can be decoded, run `penstock deadletter replay {source}` or {copies}, "
                f"then ask again"
            )
        elif under_way:
            remedy = (
                "A copy is under way: ask again once the log has its snapshot_completed, and where "
                "it met older rows its snapshot_reconciled (`penstock tail --control`)"
            )
        super().__init__(
            f"not all current rows of {what} are known: {why}. Nothing was sent, and the stream is "
            f"not affected. {remedy}."
        )


class RowsOvertakenError(RequestError):
    """Retention removed what follows the rows of a Snapshot while they were sent (P7)."""

    code = "state.overtaken"

    def __init__(self) -> None:
        super().__init__(
            "while these rows were sent, retention removed changes that follow them, so nothing "
            "could be followed from here. Throw away what came; the log is not affected. Take "
            "fewer collections or shards at a time, or raise hold and hold_bytes of [state], or "
            "the log's retention; then ask again."
        )
