"""What a pipeline's driver and the service say to each other, over Flight's actions.

    action pipeline   PipelineTold    how a pipeline is, and how far   -> PipelineAnswer
    action pipelines  -               how all of them are              -> list of PipelineStatus
    action order      PipelineOrder   stop one, or forget it           -> nothing

`place` is what counts: all of the log up to there is durably in the pipeline's destination, and the
log holds what follows it, within the limits of [serve.pipelines].
"""

from typing import Final, Literal

from msgspec import Struct

from penstock.progress import Progress

ACTION_TELL: Final = "pipeline"
ACTION_LIST: Final = "pipelines"
ACTION_ORDER: Final = "order"

TOLD_SECONDS: Final = 5.0
"""A driver says how it is at least so often, also while nothing changes."""
AWAY_SECONDS: Final = 30.0
"""One that has said nothing for so long is away."""

RunState = Literal["running", "ended", "stopped", "failed"]
"""What a driver says of its run: `ended` as it was meant to, `stopped` because the service was
asked to, `failed` with an error that does not pass."""


class PipelineTold(Struct, frozen=True, kw_only=True, rename="camel"):
    """How a pipeline is, as its driver says. The counts are those of this run."""

    pipeline: str
    run: str
    """Tells one run of a driver from the next."""
    source: str
    to: str
    place: Progress
    """Everything up to here is durably in the destination."""
    oldest: bool = False
    """It is about to begin with the log's oldest entry, and the log holds what it has of it."""
    state: RunState = "running"
    code: str = ""
    """Of the error that it ended with, or that it waits for to pass."""
    batches: int = 0
    entries: int = 0
    rows: int = 0
    rejected: int = 0
    batch_seconds: float = 0.0
    """What the last batch took; 0 before the first."""
    entries_per_second: float = 0.0
    """Of the last batch."""
    verified_at_ms: int = 0
    """When its tables were last compared with the log, in Unix milliseconds; 0 for never."""
    differences: int = 0
    """Rows that differed then."""
    verify_code: str = ""
    """Of the error for which the last comparison came to nothing."""
    lost: int = 0
    """Entries that retention removed before they were read: the destination has a gap for them."""
    untidied: int = 0
    """Tables of which not all was tidied, when that was due last: what is left there grows."""


class PipelineAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the service wants of the run that told."""

    stop: bool = False
    """Finish the batch under way, and end."""


class PipelineOrder(Struct, frozen=True, kw_only=True, rename="camel"):
    """What somebody wants of a pipeline."""

    pipeline: str
    order: Literal["stop", "forget"]


class PipelineStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """How a pipeline is, as the service knows it."""

    pipeline: str
    source: str
    to: str
    state: str
    """`running`, `away` (it ran, and has said nothing for half a minute), `ended`, `stopped`,
    `failed`."""
    code: str = ""
    stopping: bool = False
    """It was asked to stop, and has not ended yet."""
    progress: str
    """The marker of where its destination has come."""
    sequence: int
    lag_entries: int
    """Entries of the log that follow it, of all sources."""
    lag_seconds: float
    """Since when the first of those is in the log; 0 if there is none."""
    trimmed: bool
    """Retention has removed entries that it has not applied."""
    held_bytes: int
    """About what of the log it needs that is still there."""
    held_until_ms: int
    """When the log stops waiting for it if it says nothing more, in Unix milliseconds."""
    told_at_ms: int
    began_at_ms: int
    batches: int = 0
    entries: int = 0
    rows: int = 0
    rejected: int = 0
    batch_seconds: float = 0.0
    entries_per_second: float = 0.0
    verified_at_ms: int = 0
    differences: int = 0
    verify_code: str = ""
    lost: int = 0
    untidied: int = 0
