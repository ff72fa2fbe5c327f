"""What an update's description makes of the document before it, exactly or not at all. Pure.

Source: https://www.mongodb.com/docs/manual/reference/change-events/update/
"""

# A document's values may be anything, and isinstance says no more than "a dict".
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

Document = dict[str, Any]
Paths = Mapping[str, Sequence[Any]]
"""`disambiguatedPaths`: of paths that can be read in several ways, their steps. A text is a field's
name, which may hold dots; a number is an element's place."""


class InexactError(ValueError):
    """The change cannot be applied to this document exactly; the message says why."""


def apply_update(
    document: Document, update: dict[str, Any], paths: Paths | None = None
) -> Document:
    """`document` after a MongoDB updateDescription, of which `paths` says how some are meant.

    Raises InexactError where the description can mean more than one thing for this document.
    Source: https://www.mongodb.com/docs/manual/reference/change-events/update/
    """
    result, paths = deepcopy(document), paths or {}
    for cut in update.get("truncatedArrays") or ():
        array: Any = _get(result, cut["field"], paths)
        said: Any = cut["newSize"]
        size = int(said["$numberLong"]) if isinstance(said, dict) else int(said)
        if not isinstance(array, list) or len(array) < size:
            raise InexactError(f"the array {cut['field']} is not as it was before the update")
        del array[size:]
    for path, value in (update.get("updatedFields") or {}).items():
        _set(result, path, value, paths)
    for path in update.get("removedFields") or ():
        _remove(result, path, paths)
    return result


def _walk(document: Document, path: str, paths: Paths) -> tuple[Any, Any]:
    """The container of the last step of `path`, and that step: an object and a name, or an array
    and a place in it."""
    stated = _stated(path, paths)
    steps = _steps(path) if stated is None else stated
    at: Any = document
    for number, step in enumerate(steps[:-1]):
        if stated is None:
            _unambiguous(at, steps[number:], path)
        at = _child(at, _own(at, step, stated is not None), path)
    if not isinstance(at, dict | list):
        raise InexactError(f"the row has nothing at the path {path} before its last step")
    if isinstance(at, dict) and next(iter(at), "").startswith("$"):
        raise InexactError(f"the path {path} leads into a value")
    last = _own(at, steps[-1], stated is not None)
    if isinstance(at, dict) is isinstance(last, int):
        raise InexactError(f"the row is not as the update's path {path} says")
    return at, last


def _stated(path: str, paths: Paths) -> list[Any] | None:
    """The steps that were told of `path`; None if none were."""
    if path not in paths:
        return None
    steps = [int(one["$numberLong"]) if isinstance(one, dict) else one for one in paths[path]]
    if ".".join(map(str, steps)) != path:
        # It is the name of a field of a flattened document, and its steps those of the one before.
        raise InexactError(f"the path {path!r} is ambiguous")
    return steps


def _steps(path: str) -> list[Any]:
    if not path or path.startswith("$") or ".." in path or path.endswith("."):
        raise InexactError(f"the path {path!r} is ambiguous")
    return path.split(".")


def _own(at: Any, step: Any, stated: bool) -> Any:
    """`step` as a place, where digits lead into an array and nobody says what they are."""
    if not stated and isinstance(at, list) and step.isdecimal():
        return int(step)
    return step


def _unambiguous(at: Any, steps: list[Any], path: str) -> None:
    """A field whose own name holds a dot reads like a path into an object."""
    if isinstance(at, dict) and any(
        ".".join(steps[:count]) in at for count in range(2, len(steps) + 1)
    ):
        raise InexactError(f"the path {path} is ambiguous: a field's own name holds a dot")


def _child(at: Any, step: str | int, path: str) -> Any:
    if isinstance(at, dict) and isinstance(step, str) and step in at:
        return at[step]
    if isinstance(at, list) and isinstance(step, int) and step < len(at):
        return at[step]
    raise InexactError(f"the row has nothing at the path {path} before its last step")


def _get(document: Document, path: str, paths: Paths) -> Any:
    at, step = _walk(document, path, paths)
    return _child(at, step, path)


def _set(document: Document, path: str, value: Any, paths: Paths) -> None:
    at, step = _walk(document, path, paths)
    if isinstance(at, dict) or step < len(at):
        at[step] = value
    elif step == len(at):
        at.append(value)
    else:
        raise InexactError(f"the path {path} is beyond the end of its array")


def _remove(document: Document, path: str, paths: Paths) -> None:
    at, step = _walk(document, path, paths)
    if isinstance(at, list):
        raise InexactError(f"the path {path} removes an element of an array")
    at.pop(step, None)
