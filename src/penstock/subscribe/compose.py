"""What several changes of one document say together. Pure, on encoded JSON, no value decoded.

A composition of `updateDescription`s is one that, applied to the document before the first, gives
what all of them give in their order; equal but for the order of fields. Like one that MongoDB
itself writes, it means the same in whichever order its three parts are applied, because no path in
it lies within another that it sets, removes or cuts off. Where that is not possible the composition
does not exist, and `InexactError` says so: the caller sends the whole document instead.

A document's values stay the bytes that they were: only what leads to a changed path is opened.
Source of the format: MongoDB manual, Change Events, `update`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from penstock.updates import may_name_dots

Container = dict[str, Any] | list[Any]
Node = Raw | Container
"""A value: Raw while nothing in it changed, else opened, with nodes in it."""


class InexactError(ValueError):
    """There is no composition that surely says the same."""


class _Cut(Struct, rename="camel", forbid_unknown_fields=True):
    field: str
    new_size: Raw


class _Description(Struct, rename="camel", forbid_unknown_fields=True):
    updated_fields: dict[str, Raw] | None = None
    removed_fields: list[str] | None = None
    truncated_arrays: list[_Cut] | None = None

    def named(self) -> Iterator[str]:
        """Every path in it."""
        yield from self.updated_fields or ()
        yield from self.removed_fields or ()
        yield from (cut.field for cut in self.truncated_arrays or ())


class _Size(NamedTuple):
    """The length that an array was cut to, as a number and as it was written."""

    elements: int
    written: Raw


_decode = msgspec.json.Decoder(_Description).decode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_elements = msgspec.json.Decoder(list[Raw]).decode
_paths = msgspec.json.Decoder(dict[str, Raw]).decode
_size = msgspec.json.Decoder(int | dict[str, str]).decode


class Composition:
    """The updateDescriptions added so far, as one.

    `add` may raise InexactError; what it holds is of no use after that.
    """

    def __init__(self) -> None:
        self._updated: dict[str, Node] = {}
        self._removed: dict[str, None] = {}
        self._cuts: dict[str, _Size] = {}
        self._below: dict[str, int] = {}
        """How many of the paths that the three hold lie below a path."""

    def add(self, description: bytes, *, paths: bytes) -> None:
        """Compose `description`, with its `disambiguatedPaths`, behind what was added before."""
        try:
            said = _decode(description)
        except msgspec.DecodeError as error:
            raise InexactError("not a description that is known here") from error
        if may_name_dots(said.named(), _paths(paths) if paths else None):
            # What its paths mean stands beside it, and cannot be said of a composition.
            raise InexactError("a field's own name may hold a dot")
        for cut in said.truncated_arrays or ():
            self._cut(cut.field, _size_of(cut.new_size))
        for path, value in (said.updated_fields or {}).items():
            self._set(path, value)
        for path in said.removed_fields or ():
            self._remove(path)

    def encoded(self) -> bytes:
        """The composition as an updateDescription."""
        cuts = [{"field": path, "newSize": size.written} for path, size in self._cuts.items()]
        return msgspec.json.encode(
            {
                "updatedFields": self._updated,
                "removedFields": list(self._removed),
                "truncatedArrays": cuts,
            }
        )

    # --- the three parts ------------------------------------------------------------------------

    def _set(self, path: str, value: Raw) -> None:
        holder = self._holder(path)
        if holder is not None:
            container, step = self._within(holder, path)
            _put(container, step, value)
            return
        self._forget_below(path)
        self._forget(self._removed, path)
        self._forget(self._cuts, path)
        if path not in self._updated:
            self._count(path, 1)
        self._updated[path] = value

    def _remove(self, path: str) -> None:
        holder = self._holder(path)
        if holder is not None:
            container, step = self._within(holder, path)
            if not isinstance(container, dict):
                raise InexactError("an element of an array is removed")
            container.pop(step, None)
            return
        self._forget_below(path)
        self._forget(self._updated, path)
        self._forget(self._cuts, path)
        if path not in self._removed:
            self._count(path, 1)
        # Harmless where the window itself has created it.
        self._removed[path] = None

    def _cut(self, path: str, size: _Size) -> None:
        holder = path if path in self._updated else self._holder(path)
        if holder is not None:
            self._cut_within(holder, path, size.elements)
            return
        known = self._cuts.get(path)
        if path in self._removed or (known is not None and known.elements <= size.elements):
            raise InexactError("an array is cut that is not longer")
        cut_off = self._forget_beyond(path, size.elements)
        if cut_off and f"{path}.{size.elements - 1}" in self._updated:
            # It may have grown in the window from less than it was cut to.
            raise InexactError("the length before is not known")
        if known is None:
            self._count(path, 1)
        self._cuts[path] = size

    def _cut_within(self, holder: str, path: str, elements: int) -> None:
        if holder == path:
            array = self._updated[path] = _opened(self._updated[path])
        else:
            container, step = self._within(holder, path)
            array = _opened(_child(container, step))
            _put(container, step, array)
        if not isinstance(array, list) or len(array) < elements:
            raise InexactError("an array is cut that is not longer")
        del array[elements:]

    # --- places ---------------------------------------------------------------------------------

    def _holder(self, path: str) -> str | None:
        """The path above `path` that the composition sets: what `path` says belongs into its value.

        Raises InexactError where `path` cannot be changed after what was added before.
        """
        _require_plain(path)
        for above in _above(path):
            if above in self._updated:
                return above
            if above in self._removed:
                raise InexactError("a field is changed inside one that was removed")
            cut = self._cuts.get(above)
            if cut is not None and _index(path[len(above) + 1 :].split(".", 1)[0]) >= cut.elements:
                # Applied before the cut, it would be lost.
                raise InexactError("an array grows again after it was cut")
        return None

    def _within(self, holder: str, path: str) -> tuple[Container, str]:
        """The opened container of the last step of `path`, inside the value set at `holder`."""
        node = self._updated[holder] = _opened(self._updated[holder])
        steps = path[len(holder) + 1 :].split(".")
        for step in steps[:-1]:
            child = _opened(_child(node, step))
            _put(node, step, child)
            node = child
        return node, steps[-1]

    def _forget_below(self, path: str) -> None:
        if self._below.get(path):
            start = f"{path}."
            for part in (self._updated, self._removed, self._cuts):
                for one in [one for one in part if one.startswith(start)]:
                    self._forget(part, one)

    def _forget_beyond(self, path: str, elements: int) -> bool:
        """Forget what was said of the elements from `elements` on; whether anything was."""
        if not self._below.get(path):
            return False
        start, found = f"{path}.", False
        for part in (self._updated, self._removed, self._cuts):
            for one in [one for one in part if one.startswith(start)]:
                if _index(one[len(start) :].split(".", 1)[0]) >= elements:
                    found = True
                    self._forget(part, one)
        return found

    def _forget(self, part: dict[str, Any], path: str) -> None:
        if path in part:
            del part[path]
            self._count(path, -1)

    def _count(self, path: str, more: int) -> None:
        for above in _above(path):
            self._below[above] = self._below.get(above, 0) + more


def completed(
    document: bytes, unchanged: Sequence[str], *, earlier: bytes, earlier_unchanged: Sequence[str]
) -> tuple[bytes, tuple[str, ...]]:
    """`document` with its `unchanged` fields as the document before it has them.

    Also those that stay unchanged, because the earlier one lacks them for the same reason.
    """
    before, after = _fields(earlier), _fields(document)
    kept = {name: before[name] for name in unchanged if name in before}
    left = tuple(name for name in unchanged if name in earlier_unchanged and name not in kept)
    # In the order of the document before: a row keeps the order of its columns.
    said = kept | after
    ordered = {name: said.pop(name) for name in before if name in said}
    return msgspec.json.encode(ordered | said), left


# --- paths and values ---------------------------------------------------------------------------


def _require_plain(path: str) -> None:
    """Refuse a path that may mean something else than its steps: our own escapes, empty names."""
    if "\\" in path or "$" in path or not path or ".." in path or path[0] == "." or path[-1] == ".":
        raise InexactError("a path that can mean more than one thing")


def _above(path: str) -> Iterator[str]:
    """The paths above `path`, the longest last."""
    at = path.find(".")
    while at >= 0:
        yield path[:at]
        at = path.find(".", at + 1)


def _index(step: str) -> int:
    """The element that a step names. Raises InexactError if it is the name of a field."""
    if not (step.isascii() and step.isdecimal()) or (step[0] == "0" and step != "0"):
        raise InexactError("a name inside an array")
    return int(step)


def _size_of(written: Raw) -> _Size:
    try:
        said = _size(written)
        return _Size(said if isinstance(said, int) else int(said["$numberLong"]), written)
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise InexactError("a length that is no integer") from error


def _opened(node: Node) -> Container:
    """A document or an array as a container of its values. Raises InexactError for all else."""
    if not isinstance(node, Raw):
        return node
    start = bytes(memoryview(node)[:1])
    if start == b"[":
        return _elements(node)
    if start != b"{":
        raise InexactError("a path leads into a plain value")
    fields: dict[str, Any] = _fields(node)
    if next(iter(fields), "").startswith("$"):
        raise InexactError("a path leads into a value of its own type")
    return fields


def _child(container: Container, step: str) -> Node:
    child: Node | None = None
    if isinstance(container, dict):
        child = container.get(step)
    elif _index(step) < len(container):
        child = container[int(step)]
    if child is None:
        raise InexactError("a path leads through what is not there")
    return child


def _put(container: Container, step: str, value: Node) -> None:
    if isinstance(container, dict):
        container[step] = value
    elif _index(step) < len(container):
        container[int(step)] = value
    elif int(step) == len(container):
        container.append(value)
    else:
        raise InexactError("an element beyond the end of its array")
