r"""Nested documents as one level of dotted keys, and back, exactly (P32).

| document | flattened |
|---|---|
| `{a: {b: 1, c: {d: 2}}}` | `{"a.b": 1, "a.c.d": 2}` |
| a field called `a.b` | `a\.b`: the dot of a name is written `\.`, and `\` is written `\\` |
| `{a: {}}` | the same: an empty document is a value |
| `{a: [{b: 1}]}` | the same: an array is a value, with all that is in it |
| `{a: null}` | the same |

No two documents have the same flattened form, and the order of fields is kept.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from penstock.extjson import refuse_mimic

_SPECIAL = re.compile(r"[.\\]")
_PIECE = re.compile(r"\\([.\\])|(\.)|([^.\\]+)")


def flatten(document: Mapping[str, Any]) -> dict[str, Any]:
    """`document` with one level of keys. Only a `dict` is a nested document; all else is a value.

    Raises AmbiguousDocumentError for a nested document that looks like a wrapper of Extended JSON:
    unflattened, it would become one.
    """
    flat: dict[str, Any] = {}
    _flatten(document, "", flat)
    return flat


def _flatten(document: Mapping[str, Any], prefix: str, flat: dict[str, Any]) -> None:
    refuse_mimic(document)
    for name, value in document.items():
        key = prefix + (spelled((name,)) if "." in name or "\\" in name else name)
        if type(value) is dict and value:
            _flatten(cast("dict[str, Any]", value), f"{key}.", flat)
        else:
            flat[key] = value


def unflatten(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document that `flatten` made `document` of. Values are not looked into.

    Raises ValueError for what no document flattens to.
    """
    places: dict[tuple[str, ...], dict[str, Any]] = {(): {}}
    for key, value in document.items():
        *parents, name = names(key)
        place = _place(places, tuple(parents), key)
        if name in place:
            raise ValueError(f"not a flattened document: {key!r} is said twice")
        place[name] = value
    return places[()]


def _place(
    places: dict[tuple[str, ...], dict[str, Any]], parents: tuple[str, ...], key: str
) -> dict[str, Any]:
    """The nested document that a key's last name belongs in, made where it is not here yet."""
    found = places.get(parents)
    if found is None:
        outer = _place(places, parents[:-1], key)
        if parents[-1] in outer:
            raise ValueError(f"not a flattened document: {key!r} lies within another value")
        found = outer[parents[-1]] = places[parents] = {}
    return found


def spelled(path: Sequence[str]) -> str:
    """The key of the field at `path`, whose names may hold dots."""
    return ".".join(_SPECIAL.sub(r"\\\g<0>", name) for name in path)


def names(key: str) -> list[str]:
    """The path that `spelled` wrote. Raises ValueError for a backslash that escapes nothing."""
    if "\\" not in key:
        return key.split(".")
    found, at = [""], 0
    while at < len(key):
        piece = _PIECE.match(key, at)
        if piece is None:
            raise ValueError(f"not a flattened key: {key!r} has a backslash that escapes nothing")
        at = piece.end()
        if piece[2]:
            found.append("")
        else:
            found[-1] += piece[1] or piece[3]
    return found


def respelled(
    update: Mapping[str, Any], paths: Mapping[str, Sequence[object]] | None = None
) -> dict[str, Any]:
    """An `updateDescription` whose paths are spelled as the keys of flattened documents.

    `paths` (`disambiguatedPaths`) says which of them hold names with dots. A value that is a
    document stays nested: it replaces whatever was at its path and below. Other facts are kept.
    """
    known = paths or {}

    def spell(path: str) -> str:
        parts = known.get(path)
        return spelled(path.split(".") if parts is None else [str(part) for part in parts])

    written = dict(update)
    if "updatedFields" in update:
        written["updatedFields"] = {
            spell(path): value for path, value in update["updatedFields"].items()
        }
    if "removedFields" in update:
        written["removedFields"] = [spell(path) for path in update["removedFields"]]
    if "truncatedArrays" in update:
        written["truncatedArrays"] = [
            {**cut, "field": spell(cut["field"])} for cut in update["truncatedArrays"]
        ]
    return written
