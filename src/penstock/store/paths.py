"""Paths into a document: an attribute's name, then names in maps and indexes in lists.

A path is a tuple, `("orders", 3, "price")`, and can be written `"orders[3].price"`. A name that
holds a dot or a bracket has no written form: give the tuple, `("the.price",)`.

Nothing here changes a document. What `rewrite` returns shares with the document what it did not
change, so neither must be changed in place afterwards.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias, cast

from penstock.store.errors import InvalidConditionError
from penstock.store.values import DEPTH_MAX, Item, Value

Path: TypeAlias = tuple[str | int, ...]
"""An attribute's name, then names in maps (str) and indexes in lists (int)."""
PathLike: TypeAlias = str | Path

INDEX_MAX: Final = 2**31 - 1
_WRITTEN: Final = re.compile(r"([^.\[\]]+)|\[([0-9]+)\]|\.([^.\[\]]+)")


class Absent:
    """What is read where nothing is; null is a value."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent()


def parse_path(path: PathLike) -> Path:
    """The path of its written form or its elements.

    Raises InvalidConditionError.
    """
    return _parsed(path) if isinstance(path, str) else _checked(tuple(path), path)


def _parsed(text: str) -> Path:
    elements, at = list[str | int](), 0
    while at < len(text):
        match = _WRITTEN.match(text, at)
        first, index, name = match.groups() if match else (None, None, None)
        if match is None or (first is None) == (not elements):
            break
        elements.append(_index(index) if index is not None else cast("str", first or name))
        at = match.end()
    if at < len(text):
        raise InvalidConditionError(
            f"{text!r} is no path from its character {at + 1} on. Write name.name[index], and give "
            f'a name that has a dot or a bracket in it as an element: ("the.name", 0).'
        )
    return _checked(tuple(elements), text)


def _index(digits: str) -> int:
    # Longer ones are refused by `_checked` too; they need not be read.
    return int(digits) if len(digits.lstrip("0")) <= 10 else INDEX_MAX + 1


def _checked(path: Path, given: object) -> Path:
    if not path or not isinstance(path[0], str):
        raise InvalidConditionError(f"{given!r} is no path: it must begin with an attribute's name")
    for element in path:
        if isinstance(element, str):
            if not element:
                raise InvalidConditionError(f"{given!r} is no path: it has an empty name")
        elif isinstance(element, bool) or not isinstance(element, int):
            raise InvalidConditionError(
                f"{given!r} is no path: an element is a name (str) or an index (int), not "
                f"{type(element).__name__}"
            )
        elif not 0 <= element <= INDEX_MAX:
            raise InvalidConditionError(
                f"List index is not within the allowable range; index: [{element}]"
            )
    if len(path) > DEPTH_MAX:
        raise InvalidConditionError(
            f"The document path has too many nesting levels; nesting levels: {len(path)}"
        )
    return path


def format_path(path: Path) -> str:
    """A path as people write it; `parse_path` reads it unless a name has a dot or a bracket."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]


def read(item: Item, path: Path) -> Value | Absent:
    """What the item has at a path; ABSENT if it has nothing there, which null is not."""
    if path[0] not in item:
        return ABSENT
    value: Value = item[path[0]]
    for element in path[1:]:
        if isinstance(element, str):
            if not isinstance(value, dict) or element not in value:
                return ABSENT
            value = value[element]
        else:
            if not isinstance(value, list) or element >= len(value):
                return ABSENT
            value = value[element]
    return value


def rewrite(item: Item, changes: Iterable[tuple[Path, Value | Absent]]) -> Item:
    """The item with a value at each path, and nothing where ABSENT is given.

    Indexes are those of the item as it is: removing two elements of a list removes these two. An
    index beyond a list's end appends, in the order of the indexes; removing what is not there does
    nothing. The paths must not overlap (`refuse_overlaps`).

    Raises KeyError, with the path, where no map or list is that could hold a path's last element.
    """
    tree: _Tree = {}
    for path, value in changes:
        branch = tree
        for element in path[:-1]:
            branch = cast("_Tree", branch.setdefault(element, {}))
        branch[path[-1]] = _Leaf(value)
    return cast("Item", _rewritten(item, tree, ()))


class _Leaf(NamedTuple):
    value: Value | Absent


_Tree: TypeAlias = "dict[str | int, _Tree | _Leaf]"


def _rewritten(container: Value | Absent, tree: _Tree, path: Path) -> Value:
    elements = [element for element in tree if isinstance(element, int)]
    if isinstance(container, dict) and not elements:
        mapping = dict(container)
        for name, change in cast("dict[str, _Tree | _Leaf]", tree).items():
            value = _changed(mapping.get(name, ABSENT), change, (*path, name))
            if isinstance(value, Absent):
                mapping.pop(name, None)
            else:
                mapping[name] = value
        return mapping
    if isinstance(container, list) and len(elements) == len(tree):
        changed = list[Value | Absent](container)
        for index in sorted(elements):
            below = container[index] if index < len(container) else ABSENT
            value = _changed(below, tree[index], (*path, index))
            if index < len(container):
                changed[index] = value
            else:
                changed.append(value)
        return [value for value in changed if not isinstance(value, Absent)]
    raise KeyError((*path, next(iter(tree))))


def _changed(value: Value | Absent, change: "_Tree | _Leaf", path: Path) -> Value | Absent:
    return change.value if isinstance(change, _Leaf) else _rewritten(value, change, path)


def refuse_overlaps(paths: Sequence[Path]) -> None:
    """Refuse paths of which one leads to or into another, or that need one value to be two things.

    Raises InvalidConditionError, with DynamoDB's text.
    """
    root: _Branch = {}
    for path in paths:
        branch = root
        for at, element in enumerate(path):
            if _END in branch:
                raise _clash("overlap", cast("Path", branch[_END]), path)
            below = branch.get(element)
            if below is None:
                # All that is in a branch is of one type: the first tells which.
                if branch and type(next(iter(branch))) is not type(element):
                    raise _clash("conflict", _any_path(branch), path)
                below = branch[element] = {}
            branch = cast("_Branch", below)
            if at == len(path) - 1 and branch:
                raise _clash("overlap", _any_path(branch), path)
        branch[_END] = path


_END: Final = None
_Branch: TypeAlias = "dict[str | int | None, _Branch | Path]"


def _any_path(branch: _Branch) -> Path:
    while _END not in branch:
        branch = cast("_Branch", next(iter(branch.values())))
    return cast("Path", branch[_END])


def path_text(path: Path) -> str:
    """A path as DynamoDB's messages write it: [a, [0], b]."""
    return "[" + ", ".join(f"[{part}]" if isinstance(part, int) else part for part in path) + "]"


def _clash(how: str, one: Path, two: Path) -> InvalidConditionError:
    return InvalidConditionError(
        f"Two document paths {how} with each other; must remove or rewrite one of these paths; "
        f"path one: {path_text(one)}, path two: {path_text(two)}"
    )
