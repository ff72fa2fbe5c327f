"""Whether what a step asks of Spark is about each document by itself.

A step is done to a batch, and where batches end is nobody's business: a LIMIT would delete rows, a
window would count those that came together. So what looks beyond its own document is refused, by
what Spark itself has understood.
"""

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
}
"""By Spark's name of a part of a plan: what was written. All of them are about many rows."""

Plan = Any
"""Of Spark's analyzer, in its JVM."""


def require_rowwise(frame: "DataFrame", name: str, *, documents: str) -> None:
    """Raise ConfigError if `frame`, made by the step `name`, does to the documents of the view
    `documents` what is not about one row."""
    _require(_plan(frame), name, lambda plan: _is_view(plan, documents))


def require_condition(frame: "DataFrame", name: str, *, of: "DataFrame") -> None:
    """As `require_rowwise`, of a `frame` that is a condition of `of`."""
    base = _plan(of)
    _require(_plan(frame), name, lambda plan: bool(plan.fastEquals(base)))


def _require(plan: Plan, name: str, is_documents: Callable[[Plan], bool]) -> None:
    paths = list(_paths(plan, is_documents))
    named = [said for path in paths for kind in path if (said := _BEYOND.get(kind))]
    said = named[0] if named else "documents a second time" if len(paths) > 1 else ""
    if said:
        raise ConfigError(
            f"{name}: {said} looks beyond the document itself, and what came with it in one batch "
            f"is chance. Nothing was written. Say of each document what becomes of it, and leave "
            f"the rest to whoever reads the destination, or to a view."
        )


def _paths(plan: Plan, is_documents: Callable[[Plan], bool]) -> Iterator[tuple[str, ...]]:
    """The ways from the top to the documents: the names of the parts on each."""
    if is_documents(plan):
        yield ()
        return
    for below in (*_listed(plan.children()), *_listed(plan.subqueries())):
        for path in _paths(below, is_documents):
            yield (str(plan.nodeName()), *path)


def _listed(found: Any) -> list[Plan]:
    return [found.apply(place) for place in range(found.size())]


def _is_view(plan: Plan, name: str) -> bool:
    return str(plan.nodeName()) == "SubqueryAlias" and str(plan.alias()) == name


def _plan(frame: Any) -> Plan:
    return frame._jdf.queryExecution().analyzed()
