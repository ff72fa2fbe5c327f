"""Which changes of a batch a user's own code fails on, found by halves.

Code that fails on all that it is asked of says nothing of these changes: what it asks may be away,
or it is wrong. Only where Spark, or Python in the code, says that values are to blame is it the
changes.
"""

# The stubs of Spark leave types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.errors import TransformError
from penstock.event import Kind
from penstock.spark.causes import RAISED_IN_SQL, condition_of, of_values
from penstock.spark.finding import failing
from penstock.spark.raised import inner_kind, kind_of, known_error, own_error
from penstock.spark.storage import trouble_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POISON_MAX: Final = 20
"""Code that fails on more changes of a batch is wrong, and not the changes."""
_RAISED_ON_VALUES: Final = frozenset(
    {
        *("ArithmeticError", "AssertionError", "AttributeError", "IndexError", "KeyError"),
        *("LookupError", "OverflowError", "TypeError", "UnicodeDecodeError", "UnicodeEncodeError"),
        *("ValueError", "ZeroDivisionError"),
    }
)
"""What Python raises in a function that a document is not made for."""


class Failure(Struct, frozen=True, kw_only=True):
    """What a part of a batch fails with."""

    why: str
    of_values: bool
    """Values are to blame, by what Spark or Python says, and not what they were given to."""


def find_poison(
    batch: "DataFrame", tried: "Callable[[DataFrame], None]", *, pipeline: str
) -> dict[int, Failure]:
    """By sequence: what changes fail with. `tried` computes a part of the batch, or raises.

    The whole batch is known to fail. Raises TransformError where single changes do not explain it.
    """
    sequences = _changed_in(batch)

    @cache
    def asked(start: int, stop: int) -> Failure | None:
        from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages call it

        part = F.col("sequence").between(sequences[start], sequences[stop - 1])
        return failure(tried, batch.where(part), pipeline)

    def fails(start: int, stop: int, _found: Mapping[int, str]) -> str | None:
        failed = asked(start, stop)
        return failed.why if failed else None

    poison: dict[int, Failure] = {}
    for at, _ in failing(len(sequences), fails, together=False):
        failed = asked(at, at + 1)
        if failed is None:
            # It fails only beside others.
            break
        poison[sequences[at]] = failed
        if len(poison) > POISON_MAX:
            raise TransformError(
                f"pipeline {pipeline}: its transforms fail on more than {POISON_MAX} changes of a "
                f"batch, first at sequence {min(poison)}: {failed.why}. Nothing of the batch was "
                f"written, and no change is to blame. See that what the step asks can be reached, "
                f"or correct the step; Spark's log has the error's text."
            )
    if not poison:
        raise TransformError(
            f"pipeline {pipeline}: its transforms fail on a batch as a whole, and on none of its "
            f"changes alone. Nothing of the batch was written. Correct the step, or lower "
            f"max_events_per_batch; Spark's log has the error's text."
        )
    return poison


def _changed_in(batch: "DataFrame") -> list[int]:
    """The sequences of the changes that code can fail on, ascending."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages call it

    # A delete has no document that code could fail on, and is never refused.
    changed = (F.col("kind") == int(Kind.DATA)) & (F.col("operation_type") != "delete")
    data = batch.where(changed).select("sequence").orderBy("sequence")
    return [int(row["sequence"]) for row in data.collect()]


def unexplained(poison: Mapping[int, Failure], asked: Collection[int]) -> list[int]:
    """Of the changes that code is asked about: those on which it fails for what is no value of
    theirs, if these are all for which values do not explain it; else none. Pure."""
    others = [at for at in asked if at not in poison or not poison[at].of_values]
    return others if all(at in poison for at in others) else []


def failure(
    tried: "Callable[[DataFrame], None]", part: "DataFrame", pipeline: str
) -> Failure | None:
    """What `tried` fails with on `part`; None if it does not. Raises what is an error of ours, or
    of a disk that is full."""
    try:
        tried(part)
    except Exception as error:
        known = known_error(error, pipeline=pipeline)
        if known is not None:
            raise known from error
        by_values = (
            of_values(error) is not None
            or condition_of(error) == RAISED_IN_SQL
            or inner_kind(error) in _RAISED_ON_VALUES
        )
        if not by_values and trouble_of(error) is not None:
            raise own_error(error, pipeline=pipeline) from error
        return Failure(why=kind_of(error), of_values=by_values)
    return None
