"""What a pipeline says that retention has overtaken: entries that it had not read are gone."""

from penstock.errors import TrimmedError
from penstock.spark.config import (
    AuditPipelineConfig,
    ChangelogPipelineConfig,
    PipelineConfig,
    TablePipelineConfig,
)


def overtaken(pipeline: str, config: PipelineConfig, error: TrimmedError) -> TrimmedError:
    """`error`, as one of this pipeline: it says how the pipeline comes to all rows again."""
    return TrimmedError(
        oldest=getattr(error, "oldest", "unknown"),
        pipeline=pipeline,
        remedy=way_back(pipeline, config),
    )


def way_back(pipeline: str, config: PipelineConfig) -> str:
    """What to do where entries are gone that the destination needs, as sentences."""
    if isinstance(config, ChangelogPipelineConfig | AuditPipelineConfig):
        return "Set on_gap = 'record' to have a gap written down in their place, and go on."
    copied = f"have the rows copied again (`penstock snapshot {config.source}`)"
    if not isinstance(config, TablePipelineConfig):
        return (
            f"To build it anew, {copied}, then give the pipeline a new name and a new place to "
            f"write to, with start = 'oldest'."
        )
    place = config.place_setting
    if config.first_load == "source":
        return (
            f"To go on in its tables, run `penstock pipeline reset {pipeline} --to oldest`, then "
            f"`penstock pipeline backfill {pipeline}`: rows that were deleted meanwhile stay, "
            f"until `penstock pipeline verify {pipeline} --against source --repair`. Or give the "
            f"pipeline a new {place}, which is loaded anew."
        )
    return (
        f"To build it anew, {copied}, then give the pipeline a new {place}, with start = 'oldest'. "
        f"Or go on in its tables with `penstock pipeline reset {pipeline} --to oldest`: what was "
        f"inserted, changed or deleted in the missing entries stays as it was, unless you have the "
        f"rows copied again first (`penstock snapshot {config.source}`); rows that were deleted "
        f"stay all the same."
    )
