"""Which collections a reading is of, and whether every row of them is known. Pure."""

from collections.abc import Iterable, Sequence

from penstock.errors import StateIncompleteError
from penstock.state.facts import Facts
from penstock.state.layout import Name
from penstock.subscribe.criteria import Criteria
from penstock.wire import Stream


def require_complete(facts: Facts, sources: Iterable[str], criteria: Criteria) -> list[Name]:
    """The collections that `criteria` wants, of the `sources` of a log.

    Raises StateIncompleteError where rows of one may be missing: a collection of which not all is
    known, a source that may have collections which nobody has heard of, or a source that is named
    and was never captured: no rows would look like an empty one.
    """
    known = {*sources, *facts.sources, *(name.source for name in facts.collections)}
    # What the reader may not see is as if nobody had heard of it.
    known = {source for source in known if criteria.scope.allows_source(source)}
    for unknown in sorted(_named_sources(facts, criteria) - known):
        raise StateIncompleteError(source=unknown, what=unknown, under_way=False)
    if criteria.sources:
        known &= criteria.sources
    wanted = [name for name in facts.collections if _wants(criteria, name)]
    for source in sorted(known):
        of_source = [name for name in wanted if name.source == source]
        for name in of_source:
            found = facts.collections[name]
            if not found.whole and _asked_for(facts, criteria, name):
                raise StateIncompleteError(
                    source=source,
                    what=str(name),
                    under_way=_under_way(facts, source, name),
                    undecoded=found.complete and all(one.letter for one in found.doubts),
                )
        if not facts.source(source).whole_since and not _all_named(of_source, source, criteria):
            under_way = facts.source(source).copy is not None
            raise StateIncompleteError(source=source, what=source, under_way=under_way)
    return sorted(name for name in wanted if facts.collections[name].whole)


def _named_sources(facts: Facts, criteria: Criteria) -> set[str]:
    """The sources that are asked for by name."""
    heard = {name.collection for name in facts.collections if _wants(criteria, name)}
    named = {
        spec.partition("/")[0] for spec in criteria.collections if "/" in spec and spec not in heard
    }
    return named | criteria.sources


def _wants(criteria: Criteria, name: Name) -> bool:
    stream = Stream(name.source, name.database, name.database, name.collection)
    # A collection may have rows of several tenants, so the scope is held against each row too.
    return criteria.names(stream) and criteria.scope.allows_collection(name.source, name.collection)


def _asked_for(facts: Facts, criteria: Criteria, name: Name) -> bool:
    """A collection that is captured no more is missing only to who asks for it by its name."""
    return bool(criteria.collections) or not facts.collections[name].left


def _all_named(of_source: Sequence[Name], source: str, criteria: Criteria) -> bool:
    """Whether what is asked of this source is all known by name."""
    heard = {name.collection for name in of_source}
    asked = {
        spec.removeprefix(f"{source}/")
        for spec in criteria.collections
        if "/" not in spec or spec.startswith(f"{source}/")
    }
    return bool(criteria.collections) and asked <= heard


def _under_way(facts: Facts, source: str, name: Name) -> bool:
    return facts.collections[name].snapshot is not None or facts.source(source).copy is not None
