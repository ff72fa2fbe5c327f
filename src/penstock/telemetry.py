"""Metric and log-field names, declared once.

Counters count successes and failures; a log line tells a story. No label or field ever holds a
document, a key, a URI or a secret.
"""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

REGISTRY = CollectorRegistry()
"""What the capture process counts."""
SERVE_REGISTRY = CollectorRegistry()
"""What the serve process counts. No name is in both, so that one page can show them."""
PIPELINE_REGISTRY = CollectorRegistry()
"""What a pipeline's process counts; a page of its own."""

_LATENCY = (*(n / 1000 for n in (1, 2.5, 5, 10, 25, 50, 100, 250, 500)), 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of the buckets of what takes time, in seconds."""

EVENTS_APPENDED = Counter(
    "penstock_events_ingested_total", "Events made durable.", ["source"], registry=REGISTRY
)
COMMITS_APPENDED = Counter(
    "penstock_commits_ingested_total", "Commits made durable.", ["source"], registry=REGISTRY
)
APPEND_SECONDS = Histogram(
    "penstock_append_seconds", "From append to durable, per group commit.", registry=REGISTRY
)
INGESTION_LATENCY_SECONDS = Histogram(
    "penstock_ingestion_latency_seconds",
    "From a source's saying a change to its being durable: the longest of each append.",
    ["source"],
    buckets=_LATENCY,
    registry=REGISTRY,
)
BATCH_SIZE = Histogram(
    "penstock_batch_size",
    "Events that one append of a source made durable.",
    ["source"],
    buckets=(1, 5, 10, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000),
    registry=REGISTRY,
)
QUEUE_DEPTH = Gauge(
    "penstock_queue_depth",
    "Events between a source and the log: handed over and waiting (hand_over), or in the append "
    "under way (append). An empty commit counts as one.",
    ["source", "component"],
    registry=REGISTRY,
)
BACKPRESSURE_EVENTS = Counter(
    "penstock_backpressure_events_total",
    "Times that a source was not asked for more because its hand-over was full: all of them "
    "(waited), those of 100 ms and more (slow), those of 500 ms and more (critical).",
    ["source", "level"],
    registry=REGISTRY,
)
SOURCE_ERRORS = Counter(
    "penstock_source_errors_total", "Errors of a source.", ["source", "code"], registry=REGISTRY
)
SOURCE_RECONNECTS = Counter(
    "penstock_source_reconnects_total", "Times a source reconnected.", ["source"], registry=REGISTRY
)
GAPS_DETECTED = Counter(
    "penstock_gaps_detected_total", "Gap entries written.", ["source"], registry=REGISTRY
)
GAPS_OPEN = Gauge(
    "penstock_gaps_open",
    "Gaps in the log whose data was not copied since. All undecodable changes count as one.",
    ["source"],
    registry=REGISTRY,
)
SOURCE_STATE = Gauge(
    "penstock_source_state",
    "1 for the state that the capture of a source is in, 0 for each other state.",
    ["source", "state"],
    registry=REGISTRY,
)
SOURCE_NEAR_LOSS = Gauge(
    "penstock_source_near_loss",
    "1 while a source is nearer to loss than time_to_loss_min.",
    ["source"],
    registry=REGISTRY,
)
SOURCE_LAG_SECONDS = Gauge(
    "penstock_source_lag_seconds",
    "For how long the source may have had what is not captured yet.",
    ["source"],
    registry=REGISTRY,
)
SOURCE_SINCE_CHANGE_SECONDS = Gauge(
    "penstock_source_since_change_seconds",
    "Source time of the last captured change, subtracted from now.",
    ["source"],
    registry=REGISTRY,
)
CHECKPOINTS_SAVED = Counter(
    "penstock_checkpoints_saved_total",
    "Published copies that were written with the source's position.",
    ["source"],
    registry=REGISTRY,
)
CHECKPOINT_ERRORS = Counter(
    "penstock_checkpoint_errors_total",
    "Published copies that could not be written.",
    ["source"],
    registry=REGISTRY,
)
CHECKPOINT_FAILURES = Gauge(
    "penstock_checkpoint_failures",
    "Published copies that could not be written, in a row; 0 after one that was.",
    registry=REGISTRY,
)
CHECKPOINT_LATENCY_SECONDS = Histogram(
    "penstock_checkpoint_latency_seconds",
    "Time that a published copy took to write, failures included.",
    buckets=_LATENCY,
    registry=REGISTRY,
)
LOG_HEAD_SEQUENCE = Gauge(
    "penstock_log_head_sequence", "Sequence of the newest entry.", registry=REGISTRY
)
LOG_TRIMMED_SEQUENCE = Gauge(
    "penstock_log_trimmed_sequence", "Sequence of the last trimmed entry.", registry=REGISTRY
)
ARCHIVE_SEQUENCE = Gauge(
    "penstock_archive_sequence", "The last entry in the archive.", registry=REGISTRY
)
ARCHIVE_BYTES = Gauge("penstock_archive_bytes", "Bytes of the archive.", registry=REGISTRY)
ARCHIVE_LOST_ENTRIES = Gauge(
    "penstock_archive_lost_entries",
    "Entries that retention removed before they were archived.",
    registry=REGISTRY,
)
ARCHIVE_ERRORS = Counter(
    "penstock_archive_errors_total",
    "Times that archiving failed; it is tried again.",
    ["code"],
    registry=REGISTRY,
)
LOG_BYTES = Gauge("penstock_log_bytes", "Bytes of the log's live pages.", registry=REGISTRY)
EVENTS_PUBLISHED = Counter(
    "penstock_events_published_total",
    "Events sent to readers.",
    ["protocol"],
    registry=SERVE_REGISTRY,
)
PUBLISH_LATENCY_SECONDS = Histogram(
    "penstock_publish_latency_seconds",
    "From durable to handed to the reader's connection: the newest event of each delivery.",
    ["protocol"],
    buckets=_LATENCY,
    registry=SERVE_REGISTRY,
)
PUBLISH_ERRORS = Counter(
    "penstock_publish_errors_total",
    "Answers to readers that ended with an error; `broken` is one that ended without an answer.",
    ["protocol", "code"],
    registry=SERVE_REGISTRY,
)
FILES_UNUSED = Gauge(
    "penstock_files_unused",
    "Whether the files that a setting names cannot be used as they are now, and what was read "
    "before is in force.",
    ["setting"],
    registry=SERVE_REGISTRY,
)
for _setting in ("access.jwks", "serve.tls"):
    FILES_UNUSED.labels(_setting)
ACCESS_REFUSALS = Counter(
    "penstock_access_refusals_total",
    "Calls that the door refused, written down or only counted.",
    ["code"],
    registry=SERVE_REGISTRY,
)
for _code in ("access.unauthenticated", "access.forbidden", "service.limited"):
    ACCESS_REFUSALS.labels(_code)
CONNECTIONS = Gauge(
    "penstock_connections", "Connections that a port has.", ["port"], registry=SERVE_REGISTRY
)
CONNECTIONS_REFUSED = Counter(
    "penstock_connections_refused_total",
    "Connections that were closed because there were too many (in_all, of_one_address), or because "
    "without a call that was let in they were too many (waiting), too old (late), or sent too much "
    "(large).",
    ["port", "reason"],
    registry=SERVE_REGISTRY,
)
for _port in ("grpc", "flight", "http", "dynamodb"):
    CONNECTIONS.labels(_port)
    for _reason in ("in_all", "of_one_address", "waiting", "late", "large"):
        CONNECTIONS_REFUSED.labels(_port, _reason)
CHANGES_COALESCED = Counter(
    "penstock_changes_coalesced_total",
    "Changes that readers far behind got merged into a later one.",
    registry=SERVE_REGISTRY,
)
INSERTS_REPEATED = Counter(
    "penstock_inserts_repeated_total",
    "Inserts of a document that was there already, seen while coalescing: no source should say so.",
    ["source"],
    registry=SERVE_REGISTRY,
)
READERS = Gauge("penstock_readers", "Readers connected.", ["protocol"], registry=SERVE_REGISTRY)
CONSUMERS_BY_SHARD_CONFIG = Gauge(
    "penstock_consumers_by_shard_config",
    "Readers connected that take some shards, by how many shards they count.",
    ["shard_count"],
    registry=SERVE_REGISTRY,
)
EVENTS_BY_SHARD = Counter(
    "penstock_events_by_shard_total",
    "Events sent to readers of shards; shard_id is `several` for a reader of more than one.",
    ["shard_count", "shard_id"],
    registry=SERVE_REGISTRY,
)
SHARD_FILTER_RATIO = Gauge(
    "penstock_shard_filter_ratio",
    "Of the entries that readers of shards passed lately, the part that was not sent to them.",
    registry=SERVE_REGISTRY,
)
STATE_LAG_EVENTS = Gauge(
    "penstock_state_lag_events",
    "Entries of the log that the current rows do not have yet.",
    registry=SERVE_REGISTRY,
)
STATE_FAILED = Gauge(
    "penstock_state_failed",
    "1 while an error keeps the current rows from going on.",
    registry=SERVE_REGISTRY,
)
DEAD_LETTERS = Counter(
    "penstock_dead_letters_total",
    "Changes that could not be decoded, made durable as dead letters.",
    ["source"],
    registry=REGISTRY,
)
DEAD_LETTERS_OUTSTANDING = Gauge(
    "penstock_dead_letters_outstanding",
    "Dead letters that were neither replayed nor settled.",
    ["source"],
    registry=REGISTRY,
)
SOURCE_TIME_TO_LOSS_SECONDS = Gauge(
    "penstock_source_time_to_loss_seconds",
    "From the oldest change that the source still holds to our position, by its clock. Absent for "
    "a source that cannot tell or has discarded nothing yet.",
    ["source"],
    registry=REGISTRY,
)
SOURCE_SILENT = Gauge(
    "penstock_source_silent",
    "1 while a source has had no change for silent_after.",
    ["source"],
    registry=REGISTRY,
)
ALERTS_SENT = Counter(
    "penstock_alerts_sent_total", "Alerts delivered.", ["alert"], registry=REGISTRY
)
ALERTS_FAILED = Counter(
    "penstock_alerts_failed_total",
    "Alerts that were given up after all attempts.",
    ["alert"],
    registry=REGISTRY,
)
SOURCE_OVER_QUOTA = Gauge(
    "penstock_source_over_quota",
    "1 while a source has written its quota of the log and waits.",
    ["source"],
    registry=REGISTRY,
)

ZERO_SHARDS = Gauge(
    "penstock_zero_shards",
    "Shards of Zero that are remembered, by what they are doing.",
    ["state"],
    registry=SERVE_REGISTRY,
)
ZERO_LAG_COMMITS = Gauge(
    "penstock_zero_lag_commits",
    "Commits of the log behind what the shard of Zero that lags most has acknowledged.",
    registry=SERVE_REGISTRY,
)
ZERO_ROWS = Counter(
    "penstock_zero_rows_total",
    "Current rows that were sent to shards of Zero when they began.",
    registry=SERVE_REGISTRY,
)
ZERO_MESSAGES = Counter(
    "penstock_zero_messages_total",
    "Messages of changes that were sent to shards of Zero.",
    registry=SERVE_REGISTRY,
)
ZERO_RESETS = Counter(
    "penstock_zero_resets_total",
    "Shards of Zero that were told to begin anew.",
    registry=SERVE_REGISTRY,
)

QUERY_RUNNING = Gauge(
    "penstock_query_running",
    "1 while a pipeline's driver runs and says so, else 0.",
    ["pipeline"],
    registry=SERVE_REGISTRY,
)
QUERY_LAG_ENTRIES = Gauge(
    "penstock_query_lag_entries",
    "Entries of the log that follow a pipeline's place.",
    ["pipeline"],
    registry=SERVE_REGISTRY,
)
QUERY_LAG_SECONDS = Gauge(
    "penstock_query_lag_seconds",
    "Since when the first entry that follows a pipeline's place is in the log; 0 if there is none.",
    ["pipeline"],
    registry=SERVE_REGISTRY,
)
QUERY_HELD_BYTES = Gauge(
    "penstock_query_held_bytes",
    "About what of the log follows a pipeline's place.",
    ["pipeline"],
    registry=SERVE_REGISTRY,
)
QUERY_ENTRIES = Gauge(
    "penstock_query_entries",
    "Entries that a pipeline's run has applied, as its driver says.",
    ["pipeline"],
    registry=SERVE_REGISTRY,
)
QUERY_ROWS = Gauge(
    "penstock_query_rows",
    "Rows or records that a pipeline's run has written, as its driver says.",
    ["pipeline"],
    registry=SERVE_REGISTRY,
)
QUERY_REJECTED = Gauge(
    "penstock_query_rejected",
    "Changes that a pipeline's run has rejected, as its driver says.",
    ["pipeline"],
    registry=SERVE_REGISTRY,
)
QUERY_LOST_ENTRIES = Gauge(
    "penstock_query_lost_entries",
    "Entries that retention removed before a pipeline's run read them; a gap stands for them.",
    ["pipeline"],
    registry=SERVE_REGISTRY,
)
QUERY_BATCH_SECONDS = Gauge(
    "penstock_query_batch_seconds",
    "What the last batch of a pipeline took, as its driver says.",
    ["pipeline"],
    registry=SERVE_REGISTRY,
)
QUERY_ENTRIES_PER_SECOND = Gauge(
    "penstock_query_entries_per_second",
    "Of the last batch of a pipeline, as its driver says.",
    ["pipeline"],
    registry=SERVE_REGISTRY,
)

QUERY_DIFFERENCES = Gauge(
    "penstock_query_differences",
    "Rows of a pipeline's tables that were not what the log says, when they were last compared.",
    ["pipeline"],
    registry=SERVE_REGISTRY,
)
QUERY_UNTIDIED = Gauge(
    "penstock_query_untidied_tables",
    "Tables of a pipeline of which not all was tidied when that was due last.",
    ["pipeline"],
    registry=SERVE_REGISTRY,
)
QUERY_VERIFIED = Gauge(
    "penstock_query_verified_timestamp_seconds",
    "When a pipeline's tables were last compared with the log, in Unix seconds; 0 for never.",
    ["pipeline"],
    registry=SERVE_REGISTRY,
)

PIPELINE_ENTRIES = Counter(
    "penstock_pipeline_entries_total",
    "Entries of the log that a pipeline has applied.",
    ["pipeline"],
    registry=PIPELINE_REGISTRY,
)
PIPELINE_ROWS = Counter(
    "penstock_pipeline_rows_total",
    "Rows or records that a pipeline has written.",
    ["pipeline"],
    registry=PIPELINE_REGISTRY,
)
PIPELINE_REJECTED = Counter(
    "penstock_pipeline_rejected_total",
    "Changes that fitted no column, or that a step or an expectation refused.",
    ["pipeline"],
    registry=PIPELINE_REGISTRY,
)
PIPELINE_LOST = Counter(
    "penstock_pipeline_lost_entries_total",
    "Entries that retention removed before the pipeline read them; a gap stands for them.",
    ["pipeline"],
    registry=PIPELINE_REGISTRY,
)
PIPELINE_UNMET = Counter(
    "penstock_pipeline_unmet_total",
    "Changes that did not meet an expectation of the pipeline.",
    ["pipeline", "expectation"],
    registry=PIPELINE_REGISTRY,
)
PIPELINE_BATCH_SECONDS = Histogram(
    "penstock_pipeline_batch_seconds",
    "From a batch's plan to its last commit.",
    ["pipeline"],
    buckets=_LATENCY,
    registry=PIPELINE_REGISTRY,
)
AUDIT_RECORDS = Counter(
    "penstock_audit_records_total",
    "Records added to a trail.",
    ["source"],
    registry=PIPELINE_REGISTRY,
)
AUDIT_KNOWN = Counter(
    "penstock_audit_known_total",
    "Changes that were read again and are in the trail already.",
    ["source"],
    registry=PIPELINE_REGISTRY,
)
AUDIT_RETRIES = Counter(
    "penstock_audit_retries_total",
    "Calls of a trail's MongoDB that failed and were made again.",
    ["source"],
    registry=PIPELINE_REGISTRY,
)
AUDIT_CIRCUIT_OPEN = Gauge(
    "penstock_audit_circuit_open",
    "1 while a trail's MongoDB is left alone for a while, because it does not answer.",
    ["source"],
    registry=PIPELINE_REGISTRY,
)
AUDIT_PENDING_PARTS = Gauge(
    "penstock_audit_pending_parts",
    "Staged parts of a commit that has not come to its end.",
    ["source"],
    registry=PIPELINE_REGISTRY,
)


def exposition(registry: CollectorRegistry) -> bytes:
    """All metrics of a registry, in the text format of Prometheus."""
    return generate_latest(registry)


def count_process(process: str, registry: CollectorRegistry) -> None:
    """Also tell this process's memory, processor time and open files, as penstock_<process>_*."""
    ProcessCollector(namespace=f"penstock_{process}", registry=registry)
