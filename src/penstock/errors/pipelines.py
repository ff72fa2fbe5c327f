"""What a pipeline raises, which runs in Spark."""

from penstock.errors.base import PenstockError


class PipelineError(PenstockError):
    """A pipeline cannot go on; its target is as the last whole batch left it."""

    code = "pipeline"
    exit_code = 7


class WorkersUnavailableError(PipelineError):
    """Spark could not start a Python process, or reach one, in its own time: a busy machine."""

    code = "pipeline.workers"
    transient = True

    def __init__(self, *, pipeline: str) -> None:
        super().__init__(
            f"pipeline {pipeline}: Spark's Python workers did not answer in time, as on a machine "
            f"that does much else. Nothing of the batch was written. The batch is tried again."
        )


class IncompleteCommitError(PipelineError):
    """A commit in a batch has not the rows or the digest that it had when it was captured."""

    code = "pipeline.incomplete_commit"

    def __init__(
        self, *, commit: int, rows: int, commit_rows: int, digest: int, commit_digest: int
    ) -> None:
        super().__init__(
            f"commit {commit} was captured with {commit_rows} entries and digest "
            f"{commit_digest:016x}, but {rows} arrived with digest {digest:016x}. Nothing of the "
            f"batch was written. Run `penstock log check`; if the log is sound, please report it."
        )


class ChangesLostError(PipelineError):
    """Changes that a pipeline's target needs were lost upstream, or never captured."""

    code = "pipeline.changes_lost"

    def __init__(
        self, *, pipeline: str = "", sequence: int, description: str, remedy: str = ""
    ) -> None:
        """`remedy` is what mends it without a copy, where anything does."""
        self.sequence = sequence
        super().__init__(
            f"{f'pipeline {pipeline}: ' if pipeline else ''}at sequence {sequence} the log says "
            f"that changes are missing: {description}. Nothing from there on was written. "
            f"{f'{remedy} Otherwise copy' if remedy else 'Copy'} the data again with `penstock "
            f"snapshot`, then set on_gap = 'record' to write the gap down and go on."
        )


class HistoryTrimmedError(PipelineError):
    """A new pipeline cannot have everything: the log's first entries are gone (P7)."""

    code = "pipeline.history_trimmed"

    def __init__(self, *, pipeline: str, trimmed: int) -> None:
        super().__init__(
            f"pipeline {pipeline} is new, and the first {trimmed} entries are no longer in the "
            f"log: what they changed would be missing from its tables. Nothing was written. Copy "
            f"the data with `penstock snapshot`, then set start = 'oldest' to begin knowingly with "
            f"the oldest entry that is left."
        )


class PipelineChangedError(PipelineError):
    """A pipeline's tables are not those that its configuration describes; it would skip changes."""

    code = "pipeline.changed"

    def __init__(self, *, pipeline: str, change: str, remedy: str, new: str = "path") -> None:
        super().__init__(
            f"pipeline {pipeline} cannot go on where it stood: {change}. Nothing was written, and "
            f"what is in its tables is safe. Give the pipeline a new {new}, {remedy}."
        )


class SupersededPipelineError(PipelineError):
    """Another driver goes on with the pipeline; this one has written nothing since."""

    code = "pipeline.superseded"

    def __init__(self, *, pipeline: str) -> None:
        super().__init__(
            f"pipeline {pipeline}: another driver has begun to run it, and goes on from where this "
            f"one was. Nothing was written twice. Run one driver per pipeline."
        )


class DestinationError(PipelineError):
    """A database that is replicated into refuses what a pipeline does."""

    code = "pipeline.destination"

    def __init__(self, *, pipeline: str, what: str, remedy: str) -> None:
        super().__init__(
            f"pipeline {pipeline}: {what}. Nothing of the batch was written, what is in the "
            f"destination is whole, and the log keeps what comes. {remedy}"
        )


class PartialViewError(PipelineError):
    """The service does not show a pipeline everything of its source, so no commit of it could be
    proven complete; nothing was written."""

    code = "pipeline.partial_view"

    def __init__(self, *, source: str) -> None:
        super().__init__(
            f"the token of this pipeline does not show everything of the source {source!r}, so "
            f"what is left out could not be told from what is lost. Nothing was written. Give it "
            f"one of `penstock access create NAME --source {source}` with all verbs and nothing "
            f"hidden; to keep columns out, leave them out at the source, or read with "
            f"format('penstock')."
        )


class BatchTooLargeError(PipelineError):
    """A batch, reduced, is more than the driver may hold in memory; nothing of it was written."""

    code = "pipeline.batch_too_large"

    def __init__(
        self, *, pipeline: str, entries: int, size: int, size_max: int, loading: str = ""
    ) -> None:
        """`loading` is the collection of which a first load has read a range of keys: its entries
        are rows, and no setting of batches divides them."""
        what = f"a batch of {entries} entries"
        remedy = (
            "Lower max_events_per_batch; if it is one commit, which is never cut, raise "
            "max_bytes_per_batch on a machine with some four times as much memory. Of that no "
            "field alone may have more than 2 GiB."
        )
        if loading:
            what = f"a range of {entries} rows of {loading}, which the first load reads as one,"
            remedy = (
                f"Raise max_bytes_per_batch on a machine with some four times as much memory, and "
                f"start the pipeline again. Or lower first_load_rows and have its ranges made anew "
                f"with `penstock pipeline backfill {pipeline} --collection {loading}`; a table "
                f"that is not divided, as one without a key, stays one range."
            )
        super().__init__(
            f"pipeline {pipeline}: {what} comes to {size} bytes in the driver, and {size_max} are "
            f"allowed. Nothing of it was written. {remedy}"
        )


class FieldTooLargeError(PipelineError):
    """One field of a batch has more text than a column can have, however much memory there is."""

    code = "pipeline.field_too_large"

    def __init__(self, *, pipeline: str) -> None:
        super().__init__(
            f"pipeline {pipeline}: one field alone comes to more than 2 GiB of text in a batch, "
            f"for which no setting makes room. Nothing is lost: what is written is whole, and the "
            f"log has the batch. Lower max_events_per_batch, or first_load_rows where a first load "
            f"reads it. If it is one commit, which is never cut, leave its collection out of "
            f"`collections`, and keep that in a pipeline with to = 'changelog', which takes a "
            f"commit in pieces."
        )


class SparkMemoryError(PipelineError):
    """Spark has not the memory that a batch takes; it is on its way whole where the driver is on
    another machine than the workers."""

    code = "pipeline.spark_memory"

    def __init__(self, *, pipeline: str, what: str) -> None:
        super().__init__(
            f"pipeline {pipeline}: {what}. Its destination has the batch whole or not at all, and "
            f"it is applied again when the pipeline is started. Lower max_events_per_batch; if it "
            f"is one commit, which is never cut, raise driver.memory, driver.maxResultSize or "
            f"executor.memory in [spark]."
        )


class TableRefusedError(PipelineError):
    """A Delta table was altered by its owner, and cannot be written, or not with these rows."""

    code = "pipeline.table_refused"

    def __init__(self, *, table: str, why: str) -> None:
        super().__init__(
            f"the table {table} {why}. Nothing of what was refused is in it: it is as it was. Then "
            f"start the pipeline again."
        )


class RejectsError(PipelineError):
    """More changes were rejected than may be, or all of them; what fits is written."""

    code = "pipeline.rejects"

    def __init__(self, *, pipeline: str, what: str) -> None:
        super().__init__(
            f"pipeline {pipeline}: {what}. Each is in the rejects with its reason, and what fits "
            f"is written: nothing is lost. See `penstock pipeline rejects {pipeline}`. Started "
            f"again, it goes on behind them."
        )


class PipelinesStoppedError(PipelineError):
    """Some of the pipelines that a driver ran cannot go on; the others ended as they should."""

    code = "pipeline.some_stopped"

    def __init__(self, *, failed: int, of: int, said: str) -> None:
        """`said`: each by its name, with its error's code and sentence."""
        super().__init__(
            f"{failed} of {of} pipelines stopped for good, and held none of the others up: {said} "
            f"Do what each says, then run it again."
        )


class ResetRefusedError(PipelineError):
    """A pipeline cannot begin elsewhere without a loss or a repeat, or not now."""

    code = "pipeline.reset_refused"

    def __init__(self, *, pipeline: str, why: str, remedy: str) -> None:
        super().__init__(f"pipeline {pipeline} was not reset: {why}. Nothing was changed. {remedy}")


class BackfillRefusedError(PipelineError):
    """A pipeline's rows cannot be read from the source again, or not now."""

    code = "pipeline.backfill_refused"

    def __init__(self, *, pipeline: str, why: str, remedy: str) -> None:
        super().__init__(
            f"nothing of pipeline {pipeline} will be read again: {why}. Nothing was changed. "
            f"{remedy}"
        )


class ExpectationError(PipelineError):
    """A change does not meet an expectation whose action is to stop; its batch is not written."""

    code = "pipeline.expectation"

    def __init__(self, *, pipeline: str, sequence: int, expectation: str) -> None:
        super().__init__(
            f"pipeline {pipeline}: the change at sequence {sequence} does not meet the expectation "
            f"{expectation}, whose action is to stop. Nothing of its batch was written, and all "
            f"before it is safe. Correct the row at the source and lower max_events_per_batch to "
            f"see how far it goes, or set action = 'drop' to write such changes to the rejects."
        )


class TransformError(PipelineError):
    """A step's own code fails in a way that no single change explains; nothing was written."""

    code = "pipeline.transform"
