"""Which changes of a batch a user's own code fails on, found by halves."""

# The stubs of Spark leave types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.errors import TransformError
from penstock.event import Kind
from penstock.spark.finding import failing
from penstock.spark.raised import kind_of, known_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POISON_MAX: Final = 20
"""Code that fails on more changes of a batch is wrong, and not the changes."""


def find_poison(
    batch: "DataFrame", tried: "Callable[[DataFrame], None]", *, pipeline: str
) -> dict[int, str]:
    """By sequence: why the change is refused. `tried` computes a part of the batch, or raises.

    The whole batch is known to fail. Raises TransformError where single changes do not explain it.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages call it

    # A delete has no document that code could fail on, and is never refused.
    changed = (F.col("kind") == int(Kind.DATA)) & (F.col("operation_type") != "delete")
    data = batch.where(changed).select("sequence").orderBy("sequence")
    sequences = [int(row["sequence"]) for row in data.collect()]

    @cache
    def asked(start: int, stop: int) -> str | None:
        part = F.col("sequence").between(sequences[start], sequences[stop - 1])
        return failure(tried, batch.where(part), pipeline)

    def fails(start: int, stop: int, _found: Mapping[int, str]) -> str | None:
        return asked(start, stop)

    poison: dict[int, str] = {}
    for at, _ in failing(len(sequences), fails, together=False):
        why = asked(at, at + 1)
        if why is None:
            # It fails only beside others.
            break
        poison[sequences[at]] = f"the transforms fail on it: {why}"
        if len(poison) > POISON_MAX:
            raise TransformError(
                f"pipeline {pipeline}: its transforms fail on more than {POISON_MAX} changes of a "
                f"batch, first at sequence {min(poison)}: {why}. Nothing of the batch was written, "
                f"and no change is to blame. Correct the step; Spark's log has the error's text."
            )
    if not poison:
        raise TransformError(
            f"pipeline {pipeline}: its transforms fail on a batch as a whole, and on none of its "
            f"changes alone. Nothing of the batch was written. Correct the step, or lower "
            f"max_events_per_batch; Spark's log has the error's text."
        )
    return poison


def failure(tried: "Callable[[DataFrame], None]", part: "DataFrame", pipeline: str) -> str | None:
    """What `tried` fails with on `part`; None if it does not. Raises what is an error of ours."""
    try:
        tried(part)
    except Exception as error:
        known = known_error(error, pipeline=pipeline)
        if known is not None:
            raise known from error
        return kind_of(error)
    return None
