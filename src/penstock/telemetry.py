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

EVENTS_APPENDED = Counter(
    "penstock_events_ingested_total", "Events made durable.", ["source"], registry=REGISTRY
)
COMMITS_APPENDED = Counter(
    "penstock_commits_ingested_total", "Commits made durable.", ["source"], registry=REGISTRY
)
APPEND_SECONDS = Histogram(
    "penstock_append_seconds", "From append to durable, per group commit.", registry=REGISTRY
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
SOURCE_LAG_SECONDS = Gauge(
    "penstock_source_lag_seconds",
    "Source time of the last captured commit, subtracted from now.",
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
LOG_HEAD_SEQUENCE = Gauge(
    "penstock_log_head_sequence", "Sequence of the newest entry.", registry=REGISTRY
)
LOG_TRIMMED_SEQUENCE = Gauge(
    "penstock_log_trimmed_sequence", "Sequence of the last trimmed entry.", registry=REGISTRY
)
LOG_BYTES = Gauge("penstock_log_bytes", "Bytes of the log's live pages.", registry=REGISTRY)
EVENTS_PUBLISHED = Counter(
    "penstock_events_published_total",
    "Events sent to readers.",
    ["protocol"],
    registry=SERVE_REGISTRY,
)
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


def exposition(registry: CollectorRegistry) -> bytes:
    """All metrics of a registry, in the text format of Prometheus."""
    return generate_latest(registry)


def count_process(process: str, registry: CollectorRegistry) -> None:
    """Also tell this process's memory, processor time and open files, as penstock_<process>_*."""
    ProcessCollector(namespace=f"penstock_{process}", registry=registry)
