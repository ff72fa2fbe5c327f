"""Whether what a step asks of Spark is about each document by itself.

A step is done to a batch, and where batches end is nobody's business: a LIMIT would delete rows, a
window would count those that came together. A batch is also computed again after a crash, and must
come to the same. So what looks beyond its own document, or is chance, or the present time, is
refused, by what Spark itself has understood.
"""

# Spark's plans have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BEYOND: Final = {
    "GlobalLimit": "LIMIT",
    "LocalLimit": "LIMIT",
    "Offset": "OFFSET",
    "Sample": "TABLESAMPLE",
    "Window": "a window (OVER)",
    "WindowGroupLimit": "a window (OVER)",
    "Aggregate": "GROUP BY or an aggregate",
    "Distinct": "DISTINCT",
    "Deduplicate": "DISTINCT",
    "CTERelationDef": "WITH",
}
"""By Spark's name of a part of a plan: what was written. All of them are about many rows, but for
the last: what is named there may be read again elsewhere."""
_CHANCE: Final = "a value that is another one each time"

_BY_RUN: Final = {
    "CurrentUser": "current_user()",
    "CurrentCatalog": "current_catalog()",
    "CurrentDatabase": "current_database()",
}
"""By Spark's name: what is another value for whoever runs it."""
_TIMED: Final = {
    "CurrentTimestamp": "current_timestamp()",
    "Now": "now()",
    "CurrentDate": "current_date()",
    "LocalTimestamp": "localtimestamp()",
    "CurrentTime": "current_time()",
    "CurrentTimeZone": "current_timezone()",
}
"""By Spark's name: what its optimizer replaces by the present time, or by what its session says."""
_SPECIAL: Final = "a text that means the present time ('now', 'today', ...)"
_TYPED: Final = re.compile(
    r"""\b(?:DATE|TIMESTAMP(?:_NTZ|_LTZ)?)(?:\s|/\*.*?\*/|--[^\n]*\n)*
    R?(['"])\s*(?:now|today|tomorrow|yesterday)[^'"]*\1""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
"""As in TIMESTAMP 'now', which Spark's parser makes a moment of."""

Plan = Any
"""Of Spark's analyzer, in its JVM: whatever is asked of it is a call there, and there are many."""
IsDocuments = Callable[[Plan], bool]
"""Whether a part of a plan is the documents that a step is done to, which are not the step's."""


def require_rowwise(frame: "DataFrame", name: str, text: str, *, documents: str) -> None:
    """Raise ConfigError if `frame`, made of `text` by the step `name`, does to the documents of the
    view `documents` what is not about one row, or about another time."""
    _require_all(frame, name, text, lambda plan: _is_view(plan, documents))


def require_condition(frame: "DataFrame", name: str, text: str, *, of: "DataFrame") -> None:
    """As `require_rowwise`, of a `frame` that is a condition of `of`."""
    base = _plan(of)
    _require_all(frame, name, text, lambda plan: bool(plan.fastEquals(base)))


def _require_all(frame: "DataFrame", name: str, text: str, is_documents: IsDocuments) -> None:
    _require_timeless(frame, name, text, is_documents)
    _require(_plan(frame), name, is_documents)


def _require_timeless(frame: "DataFrame", name: str, text: str, is_documents: IsDocuments) -> None:
    """Raise ConfigError for what comes to something else at another time, or for somebody else."""
    said = _SPECIAL if _TYPED.search(text) else _replaced(frame, is_documents)
    if said:
        raise ConfigError(
            f"{name}: {said} is another value each time, or for whoever runs it, and a batch that "
            f"is computed again, or compared, must come to the same. Nothing was written. Compare "
            f"with a field of the document, or with a moment that is written out."
        )


def _replaced(frame: "DataFrame", is_documents: IsDocuments) -> str | None:
    """What of `frame` Spark's optimizer puts the present in the place of, which it does after what
    stands for other expressions is replaced by them."""
    plan = _plan(frame)
    kinds = list(_kinds(plan, is_documents))
    named = [_BY_RUN[kind] for kind in kinds if kind in _BY_RUN]
    if named:
        return named[0]
    jvm: Any = frame.sparkSession._jvm
    # By their whole names: step by step each would be sought in all jars.
    replace, compute, special = (
        getattr(jvm, f"org.apache.spark.sql.catalyst.optimizer.{name}")
        for name in ("ReplaceExpressions", "ComputeCurrentTime", "SpecialDatetimeValues")
    )
    before = replace.apply(plan)
    after = special.apply(compute.apply(before))
    if after.fastEquals(before):
        return None
    timed = [_TIMED[kind] for kind in kinds if kind in _TIMED]
    return timed[0] if timed else _SPECIAL


def _kinds(plan: Plan, is_documents: IsDocuments) -> Iterator[str]:
    """Spark's names of all expressions of a plan, and of what is below it down to the documents."""
    if is_documents(plan):
        return
    for one in _listed(plan.expressions()):
        yield from _expression_kinds(one)
    for below in (*_listed(plan.children()), *_listed(plan.subqueries())):
        yield from _kinds(below, is_documents)


def _expression_kinds(expression: Any) -> Iterator[str]:
    yield str(expression.getClass().getSimpleName())
    for below in _listed(expression.children()):
        yield from _expression_kinds(below)


def _require(plan: Plan, name: str, is_documents: IsDocuments) -> None:
    paths = list(_paths(plan, is_documents))
    named = [said for path in paths for one in path if (said := _beyond(one))]
    said = named[0] if named else "documents a second time" if len(paths) > 1 else ""
    if said:
        raise ConfigError(
            f"{name}: {said} looks beyond the document itself, and what came with it in one batch "
            f"is chance. Nothing was written. Say of each document what becomes of it, and leave "
            f"the rest to whoever reads the destination, or to a view."
        )


def _beyond(plan: Plan) -> str | None:
    said = _BEYOND.get(str(plan.nodeName()))
    by_chance = any(not one.deterministic() for one in _listed(plan.expressions()))
    return said or (_CHANCE if by_chance else None)


def _paths(plan: Plan, is_documents: IsDocuments) -> Iterator[tuple[Plan, ...]]:
    """The ways from the top to the documents: the parts on each."""
    if is_documents(plan):
        yield ()
        return
    for below in (*_listed(plan.children()), *_listed(plan.subqueries())):
        for path in _paths(below, is_documents):
            yield (plan, *path)


def _listed(found: Any) -> list[Any]:
    return [found.apply(place) for place in range(found.size())]


def _is_view(plan: Plan, name: str) -> bool:
    """Whether it is that temporary view, and no table or query of the same name."""
    if str(plan.nodeName()) != "SubqueryAlias" or str(plan.alias()) != name:
        return False
    below = plan.child()
    return str(below.nodeName()) == "View" and bool(below.isTempView())


def _plan(frame: Any) -> Plan:
    return frame._jdf.queryExecution().analyzed()
