"""What an update's description makes of the document before it, exactly or not at all. Pure.

Source: https://www.mongodb.com/docs/manual/reference/change-events/update/
"""

# A document's values may be anything, and isinstance says no more than "a dict".
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from penstock.extjson import is_wrapper

Document = dict[str, Any]
Paths = Mapping[str, Sequence[Any]]
"""`disambiguatedPaths`: of paths that can be read in several ways, their steps. A text is a field's
name, which may hold dots; a number is an element's place. A path that is not in it is one of plain
names and of places in arrays. Where a source says no `Paths` at all, a path with a dot can also be
the name of a field, which the update may just have added."""


class InexactError(ValueError):
    """The change cannot be applied to this document exactly; the message says why."""


def apply_update(document: Document, update: dict[str, Any], paths: Paths | None) -> Document:
    """`document` after a MongoDB updateDescription, of which `paths` says how it is meant.

    Raises InexactError where the description can mean more than one thing for this document.
    Source: https://www.mongodb.com/docs/manual/reference/change-events/update/
    """
    result = deepcopy(document)
    changed: list[Document] = []
    for cut in update.get("truncatedArrays") or ():
        at, step = _walk(result, cut["field"], paths)
        array: Any = _child(at, step, cut["field"])
        said: Any = cut["newSize"]
        size = int(said["$numberLong"]) if isinstance(said, dict) else int(said)
        if not isinstance(array, list) or len(array) < size:
            raise InexactError(f"the array {cut['field']} is not as it was before the update")
        del array[size:]
    for path, value in (update.get("updatedFields") or {}).items():
        at, step = _walk(result, path, paths)
        _set(at, step, value, path)
        changed.append(at)
    for path in update.get("removedFields") or ():
        at, step = _walk(result, path, paths)
        if isinstance(at, list):
            raise InexactError(f"the path {path} removes an element of an array")
        at.pop(step, None)
        changed.append(at)
    if any(is_wrapper(one) for one in changed):
        raise InexactError("an object of the row would read as a value of another type")
    return result


def paths_of_columns(names: Iterable[str]) -> dict[str, list[str]]:
    """`Paths` of an update whose names are columns' own, also those that read like paths."""
    return {name: [name] for name in names if "." in name or name.isdecimal()}


def may_name_dots(named: Iterable[str], paths: Mapping[str, object] | None) -> bool:
    """Whether one of the paths that an update names may be another than that of the names, and
    the places in arrays, between its dots."""
    return any("." in path for path in named) if paths is None else bool(paths)


def _walk(document: Document, path: str, paths: Paths | None) -> tuple[Any, Any]:
    """The container of the last step of `path`, and that step: an object and a name, or an array
    and a place in it."""
    stated = paths is not None and path in paths
    steps = _steps(path, paths)
    if paths is None and any(name.startswith(f"{path}.") for name in document):
        raise InexactError(f"the row has fields that may be of what was at {path}, or of their own")
    at: Any = document
    for step in steps[:-1]:
        at = _child(at, _own(at, step, stated), path)
    if not isinstance(at, dict | list):
        raise InexactError(f"the row has nothing at the path {path} before its last step")
    if is_wrapper(at):
        raise InexactError(f"the path {path} leads into a value")
    last = _own(at, steps[-1], stated)
    if isinstance(at, dict) is isinstance(last, int):
        raise InexactError(f"the row is not as the update's path {path} says")
    return at, last


def _steps(path: str, paths: Paths | None) -> list[Any]:
    if paths is None:
        if "." in path:
            raise InexactError(f"the path {path!r} may be the name of a field: the source says not")
        return [path]
    if path not in paths:
        return path.split(".")
    steps = [int(one["$numberLong"]) if isinstance(one, dict) else one for one in paths[path]]
    if ".".join(map(str, steps)) != path:
        # It is the name of a field of a flattened document, and its steps those of the one before.
        raise InexactError(f"the path {path!r} is ambiguous")
    return steps


def _own(at: Any, step: Any, stated: bool) -> Any:
    """`step` as a place, where digits lead into an array and nobody says what they are."""
    if not stated and isinstance(at, list) and step.isdecimal():
        return int(step)
    return step


def _child(at: Any, step: str | int, path: str) -> Any:
    if isinstance(at, dict) and isinstance(step, str) and step in at:
        return at[step]
    if isinstance(at, list) and isinstance(step, int) and step < len(at):
        return at[step]
    raise InexactError(f"the row has nothing at the path {path} before its last step")


def _set(at: Any, step: Any, value: Any, path: str) -> None:
    if isinstance(at, dict) or step < len(at):
        at[step] = value
    elif step == len(at):
        at.append(value)
    else:
        raise InexactError(f"the path {path} is beyond the end of its array")
