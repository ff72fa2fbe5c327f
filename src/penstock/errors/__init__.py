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
    │   ├── ArchiveGoneError         it is not there any more
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
    │   ├── FieldTooLargeError       one field of a batch is more than any memory may hold
    │   ├── SparkMemoryError         a batch is more than Spark has memory for
    │   ├── ExpectationError         a change does not meet an expectation that stops
    │   ├── TransformError           a user's own code fails, and not on a change alone
    │   ├── TableRefusedError        a table was altered, and cannot be written
    │   ├── RejectsError             more changes were rejected than may be
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

# Not sorted, but as the tree has them: --help and the reference list errors as they were defined.
# isort: off
from penstock.errors.base import ConfigError, PenstockError
from penstock.errors.sources import (
    PositionLostError,
    SourceChangedError,
    SourceError,
    SourceSilentError,
    SourceUnavailableError,
    UndecodableError,
)
from penstock.errors.log import (
    LogCorruptError,
    LogError,
    LogFormatError,
    LogFullError,
    LogLockedError,
    OutdatedFormatError,
)
from penstock.errors.checkpoints import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointStoreError,
    CheckpointUnavailableError,
    CheckpointUntrustedError,
    ForeignCheckpointError,
    OutdatedLogError,
    SupersededError,
)
from penstock.errors.archive import (
    ArchiveBehindError,
    ArchiveDamagedError,
    ArchiveError,
    ArchiveForeignError,
    ArchiveGoneError,
    ArchiveUnavailableError,
)
from penstock.errors.readers import (
    AccessError,
    CapturesIncompleteError,
    DocumentMisfitError,
    ForbiddenError,
    HistoryUnknownError,
    ProgramError,
    RateLimitedError,
    RequestError,
    RowsOvertakenError,
    ServiceBusyError,
    ServiceUnavailableError,
    StateFailedError,
    StateIncompleteError,
    UnauthenticatedError,
)
from penstock.errors.pipelines import (
    BackfillRefusedError,
    BatchTooLargeError,
    ChangesLostError,
    DestinationError,
    ExpectationError,
    FieldTooLargeError,
    HistoryTrimmedError,
    IncompleteCommitError,
    PartialViewError,
    PipelineChangedError,
    PipelineError,
    PipelinesStoppedError,
    RejectsError,
    TableRefusedError,
    ResetRefusedError,
    SparkMemoryError,
    SupersededPipelineError,
    TransformError,
    WorkersUnavailableError,
)
from penstock.errors.audit import (
    AuditError,
    TrailBehindError,
    TrailBusyError,
    TrailConflictError,
    TrailHeadError,
    TrailMissingError,
    TrailMovedError,
    TrailSlowError,
    TrailTakenError,
    TrailUnavailableError,
)
from penstock.errors.trigger import (
    TriggerError,
    TriggerLockedError,
    TriggerStreamChangedError,
    TriggerStreamEndedError,
    TriggerStreamGoneError,
    TriggerTrimmedError,
)
from penstock.errors.zero import DocumentUnknownError, MisfitError, ResetError, ZeroError
from penstock.errors.progress import (
    AheadError,
    GapError,
    MalformedProgressError,
    ProgressError,
    RenamedError,
    StreamChangedError,
    TrimmedError,
)

# isort: on

__all__ = [
    "AccessError",
    "AheadError",
    "ArchiveBehindError",
    "ArchiveDamagedError",
    "ArchiveError",
    "ArchiveForeignError",
    "ArchiveGoneError",
    "ArchiveUnavailableError",
    "AuditError",
    "BackfillRefusedError",
    "BatchTooLargeError",
    "CapturesIncompleteError",
    "ChangesLostError",
    "CheckpointConflictError",
    "CheckpointError",
    "CheckpointStoreError",
    "CheckpointUnavailableError",
    "CheckpointUntrustedError",
    "ConfigError",
    "DestinationError",
    "DocumentMisfitError",
    "DocumentUnknownError",
    "ExpectationError",
    "FieldTooLargeError",
    "ForbiddenError",
    "ForeignCheckpointError",
    "GapError",
    "HistoryTrimmedError",
    "HistoryUnknownError",
    "IncompleteCommitError",
    "LogCorruptError",
    "LogError",
    "LogFormatError",
    "LogFullError",
    "LogLockedError",
    "MalformedProgressError",
    "MisfitError",
    "OutdatedFormatError",
    "OutdatedLogError",
    "PartialViewError",
    "PenstockError",
    "PipelineChangedError",
    "PipelineError",
    "PipelinesStoppedError",
    "PositionLostError",
    "ProgramError",
    "ProgressError",
    "RateLimitedError",
    "RejectsError",
    "RenamedError",
    "RequestError",
    "ResetError",
    "ResetRefusedError",
    "RowsOvertakenError",
    "ServiceBusyError",
    "ServiceUnavailableError",
    "SourceChangedError",
    "SourceError",
    "SourceSilentError",
    "SourceUnavailableError",
    "SparkMemoryError",
    "StateFailedError",
    "StateIncompleteError",
    "StreamChangedError",
    "SupersededError",
    "SupersededPipelineError",
    "TableRefusedError",
    "TrailBehindError",
    "TrailBusyError",
    "TrailConflictError",
    "TrailHeadError",
    "TrailMissingError",
    "TrailMovedError",
    "TrailSlowError",
    "TrailTakenError",
    "TrailUnavailableError",
    "TransformError",
    "TriggerError",
    "TriggerLockedError",
    "TriggerStreamChangedError",
    "TriggerStreamEndedError",
    "TriggerStreamGoneError",
    "TriggerTrimmedError",
    "TrimmedError",
    "UnauthenticatedError",
    "UndecodableError",
    "WorkersUnavailableError",
    "ZeroError",
]

# An error is named as it is imported. By that name it is found again in the text of a traceback,
# which is all that Spark hands on, and in what is pickled; where its class is written is our own
# affair.
for _name in __all__:
    globals()[_name].__module__ = __name__
