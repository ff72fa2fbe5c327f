"""Who compares what a pipeline keeps with its log, by destination."""

from collections.abc import Callable, Mapping
from typing import Final

from penstock.spark.replica.verifying import verify_replica
from penstock.spark.verifying import Verified, verify_tables
from penstock.spark.verifying_changelog import verify_changelog
from penstock.spark.verifying_view import verify_view

WITH_LOG: Final[Mapping[str, Callable[..., Verified]]] = {
    "table": verify_tables,
    "history": verify_tables,
    "changelog": verify_changelog,
    "view": verify_view,
    "replicate": verify_replica,
}
