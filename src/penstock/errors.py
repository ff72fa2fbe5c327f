"""Every error that Penstock raises, as one tree.

    PenstockError
    ├── ConfigError                  the configuration says something impossible
    ├── SourceError
    │   ├── SourceUnavailableError   transient: the source does not answer
    │   │   └── SourceSilentError    it said nothing for too long, not even that it is quiet
    │   ├── PositionLostError        the source no longer holds what follows our position
    │   ├── SourceChangedError       another server answers under the source's name
    │   └── UndecodableError         a change that we cannot represent exactly
    ├── LogError
    │   ├── LogFullError             transient: no space; capture waits and goes on
    │   ├── LogLockedError           another process writes this log
    │   ├── LogFormatError           the log is of a format that is not read here
    │   ├── OutdatedFormatError      the log is of an older format, and capture upgrades it
    │   └── LogCorruptError          the log does not say what it must
    ├── CheckpointError              the published copy of where the log stands
    │   ├── CheckpointUnavailableError   transient: its store does not answer
    │   ├── CheckpointConflictError  another process wrote it since we looked
    │   ├── CheckpointStoreError     its store answers with what no retry mends
    │   │   └── CheckpointUntrustedError     one of the two does not trust the other's certificate
    │   ├── SupersededError          another log has taken this one's place
    │   ├── ForeignCheckpointError   the instance's name belongs to another log
    │   └── OutdatedLogError         the log is an older copy of the one that was published
    ├── ArchiveError                 the archive cannot be written or read
    │   ├── ArchiveUnavailableError  transient: its folder or bucket does not answer
    │   ├── ArchiveDamagedError      a file of it is missing, or not what was written
    │   ├── ArchiveForeignError      it is of another log
    │   └── ArchiveBehindError       it ends before the log begins
    ├── DocumentMisfitError          a document does not fit the columns that a reader declared
    ├── ServiceUnavailableError      transient: the Penstock service does not answer
    │   ├── ServiceBusyError         it serves as many readers as it may
    │   └── RateLimitedError         this client asks more often than it may
    ├── AccessError                  whoever asks may not have what they ask for
    │   ├── UnauthenticatedError     nothing that they brought says who they are, or not any more
    │   └── ForbiddenError           they are known, and may not do this
    ├── RequestError                 the service cannot do what a reader asks
    │   ├── StateIncompleteError     not all current rows of what it asks for are known
    │   ├── HistoryUnknownError      what a document was there cannot be told
    │   ├── StateFailedError         the current rows are not kept up, on a defect
    │   └── RowsOvertakenError       what follows the rows was trimmed while they were sent
    ├── CapturesIncompleteError      a transaction came without some of what its header counts
    ├── ProgramError                 the program that consumes did not process a change
    ├── PipelineError                a pipeline cannot go on; its target stands at its last batch
    │   ├── WorkersUnavailableError  transient: Spark's Python processes do not answer
    │   ├── IncompleteCommitError    a batch does not hold what was captured
    │   ├── ChangesLostError         changes that the target needs were lost upstream
    │   ├── HistoryTrimmedError      the log no longer has what a new pipeline must begin with
    │   ├── PipelineChangedError     its target is not the one that its configuration describes
    │   ├── SupersededPipelineError  another driver goes on with it
    │   ├── DestinationError         the database that it writes to refuses what it does
    │   ├── PartialViewError         its token does not show everything of its source
    │   ├── BatchTooLargeError       a batch is more than the driver may hold
    │   ├── SparkMemoryError         a batch is more than Spark has memory for
    │   ├── ExpectationError         a change does not meet an expectation that stops
    │   ├── TransformError           a user's own code fails, and not on a change alone
    │   ├── PipelinesStoppedError    some of a driver's pipelines cannot go on
    │   ├── ResetRefusedError        a pipeline cannot begin there without a loss or a repeat
    │   └── BackfillRefusedError     a pipeline's rows cannot be read from the source again
    ├── AuditError                   an audit trail cannot be written, read or proved
    │   ├── TrailUnavailableError    transient: its MongoDB does not answer
    │   ├── TrailHeadError           the head of a trail is not what Penstock writes
    │   ├── TrailBusyError           transient: a large commit is on its way
    │   ├── TrailSlowError           a query took longer than it may
    │   ├── TrailMissingError        nothing was written to it yet
    │   ├── TrailMovedError          transient: an erasure got ahead of a large commit
    │   ├── TrailBehindError         transient: it lacks what its writer wrote, as after a restore
    │   ├── TrailTakenError          another writer, or another source, has the trail
    │   └── TrailConflictError       another record has the id of one that is to be written
    ├── TriggerError                 a trigger cannot go on; its checkpoint stands
    │   ├── TriggerLockedError       another process runs the trigger
    │   ├── TriggerTrimmedError      records that it has not handled were removed
    │   ├── TriggerStreamEndedError  its stream ended, and all of it was handled
    │   ├── TriggerStreamGoneError   its stream is not there
    │   └── TriggerStreamChangedError    its checkpoint is of another stream
    ├── ZeroError                    a shard of Zero cannot be told of its tables' changes
    │   ├── MisfitError              a value does not fit the column that it is for
    │   ├── DocumentUnknownError     a row is there, and its document is not known
    │   └── ResetError               its tables cannot be followed any further; it begins anew
    └── ProgressError                a reader's marker cannot be resumed from
        ├── TrimmedError             retention removed what follows it
        ├── StreamChangedError       it belongs to another log, or to one since restored
        ├── AheadError               it is ahead of this log
        ├── MalformedProgressError   it is not a marker
        ├── GapError                 changes were lost, and the reader did not ask to be told so
        └── RenamedError             the name that is followed means something else from here on

`code` is stable: metrics, wire status, exit codes and docs share it. The retry loop reads
`transient`, never the message. A message says what happened, what is safe and what to do next.
"""

from typing import ClassVar


class PenstockError(Exception):
    """The root. Raised only through its subclasses."""

    code: ClassVar[str] = "penstock"
    transient: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class ConfigError(PenstockError):
    """The configuration says something impossible; nothing was started."""

    code = "config"
    exit_code = 2


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


class LogError(PenstockError):
    """The log failed. What it acknowledged before is safe."""

    code = "log"
    exit_code = 4


class LogFullError(LogError):
    """No space for an append; nothing of the append was kept (P5)."""

    code = "log.full"
    transient = True


class LogLockedError(LogError):
    """Another process writes this log."""

    code = "log.locked"


class LogFormatError(LogError):
    """The log is of a format that this Penstock does not read; nothing was changed."""

    code = "log.format"


class OutdatedFormatError(LogError):
    """The log is of an older format; `penstock run` upgrades it when it starts."""

    code = "log.outdated_format"


class LogCorruptError(LogError):
    """The log does not say what it must."""

    code = "log.corrupt"


class CheckpointError(PenstockError):
    """The published copy failed. The positions beside the events, in the log, are safe."""

    code = "checkpoint"
    exit_code = 8


class CheckpointUnavailableError(CheckpointError):
    """The store of published copies does not answer; capture goes on, and asks again."""

    code = "checkpoint.unavailable"
    transient = True


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
        "certificate",
    ) -> None:
        super().__init__(
            f"the store of published copies cannot be asked: {why}. Nothing was published, and "
            f"the positions in the log are safe. {remedy}."
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


class ArchiveError(PenstockError):
    """The archive cannot be written or read. Capture goes on, and what it holds is safe."""

    code = "archive"
    exit_code = 4


class ArchiveUnavailableError(ArchiveError):
    """The folder or bucket of the archive does not answer, or refuses."""

    code = "archive.unavailable"
    transient = True

    def __init__(self, where: str, error: BaseException) -> None:
        super().__init__(
            f"the archive at {where} cannot be reached ({type(error).__name__}: {error}). Nothing "
            f"that it holds was changed. Check the path, the rights on it and what serves it."
        )


class ArchiveDamagedError(ArchiveError):
    """A file of the archive is missing, or not what was written."""

    code = "archive.damaged"

    def __init__(self, where: str, what: str) -> None:
        super().__init__(
            f"the archive is damaged at {where}: {what}. Nothing was skipped, and nothing of it "
            f"was changed. Bring that file back from a copy of the archive."
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


class DocumentMisfitError(PenstockError):
    """A document does not fit the columns that a reader declared; nothing was made null for it."""

    code = "document.misfit"

    def __init__(self, *, sequence: int, path: str, reason: str) -> None:
        super().__init__(
            f"the document at sequence {sequence} does not fit documentSchema: {path}: {reason}. "
            f"Nothing was written for this batch. Widen the type in documentSchema, or read the "
            f"column `rejected` too: it then holds what does not fit."
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
    """What a document was at a place cannot be told from what is kept."""

    code = "history.unknown"

    def __init__(self, *, why: str) -> None:
        super().__init__(
            f"what the document was there is not known: {why}. Nothing was sent. Ask for a later "
            f"place; `penstock snapshot` copies what the log does not have, for the future."
        )


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

    def __init__(self, *, pipeline: str, sequence: int, description: str) -> None:
        self.sequence = sequence
        super().__init__(
            f"pipeline {pipeline}: at sequence {sequence} the log says that changes are missing: "
            f"{description}. Nothing from there on was written. Copy the data again with `penstock "
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

    def __init__(self, *, pipeline: str, entries: int, size: int, size_max: int) -> None:
        super().__init__(
            f"pipeline {pipeline}: a batch of {entries} entries comes to {size} bytes in the "
            f"driver, and {size_max} are allowed. Nothing of it was written. Lower "
            f"max_events_per_batch; if it is one commit, which is never cut, raise "
            f"max_bytes_per_batch on a machine with some four times as much memory."
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
            f"the stream's retention removed records of {shard} before they were handled. What was "
            f"handled is safe, nothing was skipped silently, and the trigger has stopped. Make "
            f"good what is missing from the table, then start with --on-trimmed horizon, which "
            f"goes on with the oldest record that is left."
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


class ZeroError(PenstockError):
    """A shard of Zero cannot be told what changed; nothing was sent of it."""

    code = "zero"


class MisfitError(ZeroError):
    """A value does not fit the column that it is for; nothing was made null, or rounded."""

    code = "zero.misfit"

    def __init__(
        self, *, table: str, column: str, came: str, want: str, remedy: str, inferred: bool = False
    ) -> None:
        self.table = table
        self.column = column
        self.inferred = inferred
        """Whether the column's type was inferred: from the rows that are there now, it would be
        another one."""
        super().__init__(
            f"table {table}, column {column}: {came} came, and it is declared as {want}. Nothing "
            f"was sent of the change, and the log keeps it. {remedy}"
        )


class DocumentUnknownError(ZeroError):
    """A row is there, and its document is not known: its source did not send it with an update."""

    code = "zero.document_unknown"

    def __init__(self, *, source: str, collection: str) -> None:
        super().__init__(
            f"{source}/{collection}: a row is there whose document is not known, for its source "
            f"did not send it with an update. Nothing was sent of it, and nothing is wrong in the "
            f"log. Have the source look documents up, then run `penstock snapshot {source}`."
        )


class ResetError(ZeroError):
    """A shard's tables cannot be followed any further: it has to begin anew."""

    code = "zero.reset"


class ProgressError(PenstockError):
    """A reader's marker cannot be resumed from."""

    code = "progress"
    exit_code = 5


class TrimmedError(ProgressError):
    """Retention removed an entry that the reader has not seen (P7)."""

    code = "TRIMMED"

    def __init__(self, *, oldest: str) -> None:
        self.oldest = oldest
        super().__init__(
            f"the entries after this marker were removed by retention. What you processed is safe, "
            f"but what came next is no longer here. Rebuild from the source, then follow from the "
            f"oldest marker: {oldest}"
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
