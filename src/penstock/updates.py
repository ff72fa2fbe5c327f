"""What an update's description makes of the document before it, exactly or not at all. Pure.

Source: https://www.mongodb.com/docs/manual/reference/change-events/update/
"""

# A document's values may be anything, and isinstance says no more than "a dict".
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from copy import deepcopy
from typing import Any

Document = dict[str, Any]


class InexactError(ValueError):
    """The change cannot be applied to this document exactly; the message says why."""


def apply_update(document: Document, update: dict[str, Any]) -> Document:
    """`document` after a MongoDB updateDescription.

    Raises InexactError where the description can mean more than one thing for this document.
    Source: https://www.mongodb.com/docs/manual/reference/change-events/update/
    """
    result = deepcopy(document)
    for cut in update.get("truncatedArrays") or ():
        array: Any = _get(result, cut["field"])
        said: Any = cut["newSize"]
        size = int(said["$numberLong"]) if isinstance(said, dict) else int(said)
        if not isinstance(array, list) or len(array) < size:
            raise InexactError(f"the array {cut['field']} is not as it was before the update")
        del array[size:]
    for path, value in (update.get("updatedFields") or {}).items():
        _set(result, path, value)
    for path in update.get("removedFields") or ():
        _remove(result, path)
    return result


def _steps(path: str) -> list[str]:
    if not path or path.startswith("$") or ".." in path or path.endswith("."):
        raise InexactError(f"the path {path!r} is ambiguous")
    return path.split(".")


def _walk(document: Document, path: str) -> tuple[Any, str]:
    """The container of the last step of `path`, and that step."""
    steps = _steps(path)
    at: Any = document
    for number, step in enumerate(steps[:-1]):
        _unambiguous(at, steps[number:], path)
        at = _child(at, step, path)
    if not isinstance(at, dict | list):
        raise InexactError(f"the row has nothing at the path {path} before its last step")
    if isinstance(at, dict) and next(iter(at), "").startswith("$"):
        raise InexactError(f"the path {path} leads into a value")
    return at, steps[-1]


def _unambiguous(at: Any, steps: list[str], path: str) -> None:
    """A field whose own name holds a dot reads like a path into an object."""
    if isinstance(at, dict) and any(
        ".".join(steps[:count]) in at for count in range(2, len(steps) + 1)
    ):
        raise InexactError(f"the path {path} is ambiguous: a field's own name holds a dot")


def _child(at: Any, step: str, path: str) -> Any:
    if isinstance(at, dict) and step in at:
        return at[step]
    if isinstance(at, list) and step.isdecimal() and int(step) < len(at):
        return at[int(step)]
    raise InexactError(f"the row has nothing at the path {path} before its last step")


def _get(document: Document, path: str) -> Any:
    at, step = _walk(document, path)
    return _child(at, step, path)


def _set(document: Document, path: str, value: Any) -> None:
    at, step = _walk(document, path)
    if isinstance(at, dict):
        at[step] = value
    elif step.isdecimal() and int(step) < len(at):
        at[int(step)] = value
    elif step.isdecimal() and int(step) == len(at):
        at.append(value)
    else:
        raise InexactError(f"the path {path} is beyond the end of its array")


def _remove(document: Document, path: str) -> None:
    at, step = _walk(document, path)
    if isinstance(at, list):
        raise InexactError(f"the path {path} removes an element of an array")
    at.pop(step, None)
