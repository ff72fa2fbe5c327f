"""Parts of an item: what is at some paths, in the shape that it has in the item.

Semantics: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/
Expressions.ProjectionExpressions.html. The chosen elements of a list stand one behind the other, in
the list's order; a map or list in which nothing was found is left out.
"""

from collections.abc import Collection, Iterable
from typing import TypeAlias

from penstock.store.paths import ABSENT, Absent, Path, PathLike, parse_path, refuse_overlaps
from penstock.store.values import Item, Value

Projection: TypeAlias = tuple[Path, ...]

_Tree: TypeAlias = "dict[str | int, _Tree]"


def projection(*paths: PathLike) -> Projection:
    """The projection of paths as they are written, or of their elements.

    Raises InvalidConditionError for what is no path, or for paths that overlap.
    """
    parsed = tuple(parse_path(path) for path in paths)
    refuse_overlaps(parsed)
    return parsed


def project(item: Item, paths: Iterable[Path], keep: Collection[str] = ()) -> Item:
    """What the item has at paths that do not overlap, and all of the attributes in `keep`.

    The result shares values with the item: change neither in place.
    """
    tree: _Tree = {}
    for path in paths:
        branch = tree
        for element in path:
            branch = branch.setdefault(element, {})
    tree.update({name: {} for name in keep})
    return _members(item, tree)


def _members(mapping: Item, tree: _Tree) -> Item:
    return {
        name: found
        for name, branch in tree.items()
        if isinstance(name, str)
        and name in mapping
        and not isinstance(found := _chosen(mapping[name], branch), Absent)
    }


def _chosen(value: Value, tree: _Tree) -> Value | Absent:
    if not tree:
        return value
    if isinstance(value, dict):
        return _members(value, tree) or ABSENT
    if isinstance(value, list):
        elements = list[Value]()
        for index in sorted(element for element in tree if isinstance(element, int)):
            if index < len(value):
                found = _chosen(value[index], tree[index])
                if not isinstance(found, Absent):
                    elements.append(found)
        return elements or ABSENT
    return ABSENT
