"""The audit trail of a pipeline, for the commands that look at one."""

import json
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.config import Settings, load, missing_extra, near
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.audit.config import TrailConfig
    from penstock.audit.outages import Patience
    from penstock.audit.trail import Trail


def trail_config(settings: Settings, name: str) -> "tuple[str, TrailConfig]":
    """The source of the pipeline, and where its trail is. Raises ConfigError if it keeps none."""
    trails = settings.audit_pipelines
    pipeline = trails.get(name)
    if pipeline is None:
        there = settings.pipelines.get(name)
        if there is not None:
            raise ConfigError(
                f"{settings.path}: pipelines.{name} goes to {there.to!r}, and only one that goes "
                f"to 'audit' keeps a trail. Nothing was done."
            )
        raise ConfigError(
            f"{settings.path}: there is no [pipelines.{name}]{near(name, trails)}. "
            f"Nothing was done."
        )
    return pipeline.source, pipeline


def say_unmatched(
    trail: "Trail",
    asked: Iterable[tuple[str | None, str | None]],
    patience: "Patience | None" = None,
    *,
    as_json: bool = False,
) -> None:
    """Tell on stderr of each database and table (None: any) that the trail has no record of; as a
    line of JSON each where others of those stand there."""
    from penstock.audit.names import unmatched

    look = partial(unmatched, trail, list(asked))
    for sentence in look() if patience is None else patience.call(look):
        if as_json:
            sys.stderr.write(f"{json.dumps({'unmatched': sentence})}\n")
        else:
            output.stderr().print(sentence, style="yellow", markup=False)


@contextmanager
def open_trail(config: Path, name: str) -> "Generator[Trail]":
    """The trail of the pipeline of that name, for the time of the block."""
    source, where = trail_config(load(config), name)
    try:
        from penstock.audit.trail import Trail
    except ImportError as error:
        raise missing_extra("an audit trail", "mongodb", error) from error
    trail = Trail(source, where)
    try:
        yield trail
    finally:
        trail.close()
