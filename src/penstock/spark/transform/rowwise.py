"""Whether what a step asks of Spark is about each document by itself.

A step is done to a batch, and where batches end is nobody's business: a LIMIT would delete rows, a
window would count those that came together. A batch is also computed again after a crash, and must
come to the same. So what looks beyond its own document, or is chance, is refused, by what Spark
itself has understood.
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
    "CTERelationDef": "WITH",
}
"""By Spark's name of a part of a plan: what was written. All of them are about many rows, but for
the last: what is named there may be read again elsewhere."""
_CHANCE: Final = "a value that is another one each time"

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


def _paths(plan: Plan, is_documents: Callable[[Plan], bool]) -> Iterator[tuple[Plan, ...]]:
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
