"""Whether so many changes were rejected that a pipeline is to stop. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import PenstockError, RejectsError
from penstock.spark.config import ReadingConfig, SteppedPipelineConfig
from penstock.spark.progress import PipelineProgress


def too_many(
    pipeline: str, config: ReadingConfig, *, rejected: int, rows: int, before: int
) -> RejectsError | None:
    """The error that ends a run behind a batch that rejected so many changes and wrote so many
    rows, `before` which the run had rejected so many; None where it goes on."""
    if not rejected or not isinstance(config, SteppedPipelineConfig):
        return None
    number, share = config.max_rejects, config.max_rejects_share
    whole = before + rejected
    if number is not None and whole > number:
        what = f"this run has rejected {whole:,} changes, and max_rejects allows {number:,}"
        return RejectsError(pipeline=pipeline, what=what)
    if share is not None and rejected > share * (rejected + rows):
        what = (
            f"a batch has rejected {rejected:,} changes of {rejected + rows:,}, and "
            f"max_rejects_share allows {share:g} of them"
        )
        return RejectsError(pipeline=pipeline, what=what)
    return None


@dataclass
class Counted:
    """What the batches of a run came to."""

    rows: int = 0
    rejected: int = 0

    def count(self, batch: PipelineProgress) -> None:
        """Add a batch."""
        self.rows += batch.rows
        self.rejected += batch.rejected


def with_rejected(
    errors: Mapping[str, PenstockError], runs: Mapping[str, Counted]
) -> dict[str, PenstockError]:
    """The errors of runs by pipeline, and one for each other run of which nothing came to the
    destination but rejects."""
    found: dict[str, PenstockError] = dict(errors)
    for pipeline, run in runs.items():
        if run.rejected and not run.rows:
            what = f"this run has written no row, and rejected {run.rejected:,} changes"
            found.setdefault(
                pipeline, RejectsError(pipeline=pipeline, what=f"{what}: all that came")
            )
    return found
