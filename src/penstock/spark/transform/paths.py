"""Fields of documents, and the same fields where an update names them. Pure.

A path is names joined by dots. It leads through arrays into each of their elements, and through a
field below the first that has a number as its name, which an update could not tell from a place in
an array. A field whose own name holds dots is at the path that reads the same. So what a path
reaches in a document, it reaches in every update of it.
"""

# Documents are what JSON says they are: Any all the way down.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Iterator
from typing import Any

from penstock.extjson import is_wrapper

Document = dict[str, Any]
Change = Callable[[Any], Any]
"""A value of a field to what it becomes; GONE takes the field away."""

GONE: Any = object()


class RefusedError(Exception):
    """A step cannot take a change. Says why, and names fields; never a value."""


def refuse_wrapper(made: Document) -> None:
    """Raise RefusedError if an object that a step has made reads as a value of another type."""
    if is_wrapper(made):
        raise RefusedError(
            f"an object would begin with a field {next(iter(made))}, as values of other types do"
        )


def change_at(document: Document, path: str, change: Change) -> Document:
    """`document` with `change` of each value at `path`; it is not altered itself.

    Raises RefusedError.
    """
    changed: Document = _changed(document, path.split("."), change, top=True)
    return changed


def _changed(value: Any, steps: list[str], change: Change, *, top: bool) -> Any:
    if type(value) is list:
        return [_changed(one, steps, change, top=False) for one in value]
    if type(value) is not dict or is_wrapper(value):
        return value
    result: Document = {}
    for name, inner in value.items():
        rest = _rest(name, steps)
        if rest is None:
            numbered = not top and name.isdecimal()
            result[name] = _changed(inner, steps, change, top=False) if numbered else inner
        elif rest:
            result[name] = _changed(inner, rest, change, top=False)
        else:
            changed = change(inner)
            if changed is not GONE:
                result[name] = changed
    refuse_wrapper(result)
    return result


def _rest(name: str, steps: list[str]) -> list[str] | None:
    """The steps behind `name`, which may be several of them; None where it is another field."""
    own = name.split(".")
    return steps[len(own) :] if steps[: len(own)] == own else None


def change_within(value: Any, rest: str, change: Change) -> Any:
    """`value`, to which a part of a path has led already, with `change` at the rest of it.

    Raises RefusedError.
    """
    return _changed(value, rest.split("."), change, top=False)


def below(updated: str, path: str) -> str | None:
    """What a path of an update is to `path`.

    "": the very place. More: what is left of `path` below the updated place. None: another place,
    or one inside of what is at `path`, which `is_inside` tells.
    """
    found = _match(updated, path)
    return ".".join(found[1]) if found is not None and not found[0] else None


def is_inside(updated: str, path: str) -> bool:
    """Whether a path of an update leads into what is at `path`."""
    found = _match(updated, path)
    return found is not None and bool(found[0])


def _match(updated: str, path: str) -> tuple[list[str], list[str]] | None:
    """What is left of both, one of them nothing, where they go the same way."""
    ours, theirs = path.split("."), updated.split(".")
    at = place = 0
    while at < len(ours) and place < len(theirs):
        if theirs[place] == ours[at]:
            at += 1
        elif place == 0 or not theirs[place].isdecimal():
            return None
        place += 1
    left = theirs[place:]
    if at < len(ours):
        return [], ours[at:]
    return left, []


def named(update: Document) -> Iterator[str]:
    """Every path that an update's description names."""
    yield from update.get("updatedFields") or ()
    yield from update.get("removedFields") or ()
    for cut in update.get("truncatedArrays") or ():
        yield cut["field"]


def top_of(path: str) -> str:
    """The field of the document in which a path begins."""
    return path.partition(".")[0]
