"""A client of a log, with its archive where there is one."""

from penstock.client.credentials import NOBODY, Credentials
from penstock.client.flight import LogClient


def log_client(
    endpoint: str,
    *,
    archive: str = "",
    patience_seconds: float = 30.0,
    credentials: Credentials = NOBODY,
) -> LogClient:
    """A client of the log at `endpoint`, and of its archive, if one is named."""
    if not archive:
        return LogClient(endpoint, patience_seconds=patience_seconds, credentials=credentials)
    # Parquet and file systems take time to load, in every worker of Spark.
    from penstock.archive.tiered import TieredClient

    return TieredClient(
        endpoint, archive, patience_seconds=patience_seconds, credentials=credentials
    )
