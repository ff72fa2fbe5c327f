"""Whether a view is what the log says it is, and how to make it so.

Two questions, as a view is kept in two steps. Its current rows are tables, and are compared with
the log as tables are (`penstock.spark.verifying`). The view is compared with its query over the
rows of the versions that it says it equals, group by group. Both may be asked beside the pipeline:
neither needs that the view has the newest rows.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from msgspec import structs

from penstock.client.credentials import NOBODY, Credentials
from penstock.spark.config import ViewPipelineConfig
from penstock.spark.progress import VerifyProgress, step_teller
from penstock.spark.verifying import Verified, verify_tables
from penstock.spark.views import ViewTarget, tables_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify_view(
    name: str,
    config: ViewPipelineConfig,
    endpoint: str,
    *,
    spark: "SparkSession",
    scratch: str | None = None,
    ranges: int = 256,
    listed_max: int = 1000,
    repair: bool = False,
    credentials: Credentials = NOBODY,
    archive: str = "",
    between: AbstractContextManager[Any] | None = None,
    on_progress: Callable[[VerifyProgress], None] | None = None,
) -> Verified:
    """Compare the current rows of a view with its log, and the view with its query of them; with
    `repair`, make them equal.

    The arguments are as for `verify_tables`. The view comes last, with no collection: `key` of its
    differences is a group, as a JSON array of texts. All its rows pass through this process.

    Raises as `verify_tables` and `ViewTarget.judged`.
    """
    found = verify_tables(
        name,
        tables_of(config),
        endpoint,
        spark=spark,
        scratch=scratch,
        ranges=ranges,
        listed_max=listed_max,
        repair=repair,
        credentials=credentials,
        archive=archive,
        between=between,
        on_progress=on_progress,
    )
    with step_teller(name, on_progress) as tell:
        tell("comparing", done=0, total=1)
        view = ViewTarget(name, config, spark).judged(listed_max=listed_max, repair=repair)
        tell("comparing", done=1, total=1)
    return structs.replace(found, tables=(*found.tables, view))
