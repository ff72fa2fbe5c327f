"""The steps that look at documents alone, one change at a time. Pure.

What a step does to a document it does to the image before it, to the description of an update and
to the names of `unchanged` fields. Where it cannot say what an update does to its outcome, the
description is left out of a change that has its document; one that has none is refused: it does
not say enough. A step that cannot be done to the image before leaves that out.

| step | refuses a document | refuses an update without one, if it |
|---|---|---|
| select, mask | never | never |
| drop | with an object that would begin as a value of another type does | sets such an object |
| rename | that has a field of a new name already | names such a field |
| cast | with a value that cannot be that kind | sets one, or leads into a field that is cast |
| flatten | of which two fields come to one name | names what may be an object, or its parts |
| explode | whose field is there and no array | never |
| hash | never | leads into a field that is hashed |

Besides, whatever the step, a document is refused that would come out of it with a first field as a
value of another type has it, as `$oid`.
"""

# A document's values may be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import hashlib
import hmac
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from penstock.extjson import is_wrapper
from penstock.spark.transform.casts import CastError, cast_value
from penstock.spark.transform.config import TransformConfig
from penstock.spark.transform.paths import (
    GONE,
    Change,
    Document,
    RefusedError,
    below,
    change_at,
    change_within,
    is_inside,
    named,
    refuse_wrapper,
    top_of,
)

MASKED: Final = "****"

_encode = msgspec.json.Encoder().encode


class Changed(Struct, kw_only=True):
    """What a change says of its document, decoded."""

    document: Document | None = None
    before: Document | None = None
    update: Document | None = None
    unchanged: list[str] = []


class Step(Protocol):
    """Does one thing to documents, and the same to updates of them."""

    def document(self, document: Document) -> Document:
        """Raises RefusedError."""
        ...

    def update(self, update: Document) -> Document:
        """Raises RefusedError where it cannot be said what it does to the outcome."""
        ...

    def unchanged(self, names: list[str]) -> list[str]:
        """The fields of the outcome that are as they were. Raises RefusedError."""
        ...


def apply_step(step: Step, changed: Changed) -> None:
    """Do `step` to all that a change says. Raises RefusedError."""
    if changed.document is not None:
        changed.document = _made(step, changed.document)
        changed.unchanged = step.unchanged(changed.unchanged)
    if changed.before is not None:
        try:
            changed.before = _made(step, changed.before)
        except RefusedError:
            changed.before = None
    if changed.update is not None:
        try:
            changed.update = step.update(changed.update)
        except RefusedError:
            if changed.document is None:
                raise
            changed.update = None


def _made(step: Step, document: Document) -> Document:
    made = step.document(document)
    refuse_wrapper(made)
    return made


def step_of(config: TransformConfig) -> Step:
    """The step that a transform of a kind without Spark is."""
    match config.kind:
        case "select":
            return _Select(config.select)
        case "drop":
            return _AtPaths(dict.fromkeys(config.drop, _gone), inside=False, gone=True)
        case "rename":
            return _Rename(config.rename)
        case "cast":
            casts: dict[str, Change] = {
                path: partial(_cast, path=path, to=to) for path, to in config.cast.items()
            }
            return _AtPaths(casts, inside=True)
        case "flatten":
            only = config.flatten if isinstance(config.flatten, tuple) else None
            return _Flatten(only, config.separator)
        case "explode":
            return _Arrays(config.explode)
        case "mask":
            return _AtPaths(dict.fromkeys(config.mask, _mask), inside=False)
        case _:
            assert config.salt is not None
            hashed = partial(_hash, salt=config.salt.get_secret_value().encode())
            return _AtPaths(dict.fromkeys(config.hash, hashed), inside=True)


class _AtPaths:
    """A change of the values at some paths."""

    def __init__(self, changes: dict[str, Change], *, inside: bool, gone: bool = False) -> None:
        """`inside`: what is inside a value decides what it becomes, so an update of a part of it
        cannot be followed; otherwise it changes nothing. `gone`: the fields are not there after.
        """
        self._changes = changes
        self._inside = inside
        self._gone = gone

    def document(self, document: Document) -> Document:
        for path, change in self._changes.items():
            document = change_at(document, path, change)
        return document

    def update(self, update: Document) -> Document:
        if self._inside:
            cut = [one["field"] for one in update.get("truncatedArrays") or ()]
            for updated in named(update):
                if self._entered(updated) is not None or (updated in cut and self._exact(updated)):
                    raise RefusedError(f"the update changes {updated} within a value that it needs")
        return _description(
            update,
            leads=lambda updated: None if self._is_over(updated) else updated,
            value=self._value,
            cuts=lambda updated: self._entered(updated) is None and not self._exact(updated),
        )

    def unchanged(self, names: list[str]) -> list[str]:
        return [name for name in names if not (self._gone and name in self._changes)]

    def _is_over(self, updated: str) -> bool:
        """Whether nothing of what an update names there is in the outcome."""
        return self._entered(updated) is not None or (self._gone and self._exact(updated))

    def _entered(self, updated: str) -> str | None:
        return next((path for path in self._changes if is_inside(updated, path)), None)

    def _exact(self, updated: str) -> bool:
        return any(below(updated, path) == "" for path in self._changes)

    def _value(self, updated: str, value: Any) -> Any:
        for path, change in self._changes.items():
            rest = below(updated, path)
            if rest is not None:
                value = change_within(value, rest, change) if rest else change(value)
        return value


def _description(
    update: Document,
    *,
    leads: Callable[[str], str | None],
    value: Callable[[str, Any], Any],
    cuts: Callable[[str], bool] = lambda _: True,
) -> Document:
    """An update's description whose paths are those that `leads` says, None leaving one out."""
    result = dict(update)
    fields: Document = update.get("updatedFields") or {}
    if "updatedFields" in update:
        result["updatedFields"] = {
            to: value(path, one) for path, one in fields.items() if (to := leads(path)) is not None
        }
    if "removedFields" in update:
        removed: list[str] = update["removedFields"] or []
        result["removedFields"] = [to for path in removed if (to := leads(path)) is not None]
    if "truncatedArrays" in update:
        result["truncatedArrays"] = [
            {**cut, "field": to}
            for cut in update["truncatedArrays"] or []
            if cuts(cut["field"]) and (to := leads(cut["field"])) is not None
        ]
    return result


class _Select:
    """Some of the fields of a document."""

    def __init__(self, fields: Iterable[str]) -> None:
        self._fields = frozenset(fields)

    def document(self, document: Document) -> Document:
        return {name: value for name, value in document.items() if name in self._fields}

    def update(self, update: Document) -> Document:
        return _description(
            update,
            leads=lambda path: path if self._has(path) else None,
            value=lambda _, value: value,
        )

    def unchanged(self, names: list[str]) -> list[str]:
        return [name for name in names if name in self._fields]

    def _has(self, path: str) -> bool:
        return top_of(path) in self._fields


class _Rename:
    """Fields by other names."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names
        self._taken = frozenset(names.values()) - names.keys()

    def document(self, document: Document) -> Document:
        self._refuse(document)
        return {self._names.get(name, name): value for name, value in document.items()}

    def update(self, update: Document) -> Document:
        self._refuse(top_of(path) for path in named(update))
        return _description(update, leads=self._renamed, value=lambda _, value: value)

    def unchanged(self, names: list[str]) -> list[str]:
        self._refuse(names)
        return [self._names.get(name, name) for name in names]

    def _refuse(self, names: Iterable[str]) -> None:
        # Always, not only where it has both: an update does not say what else the document has.
        for name in names:
            if name in self._taken:
                raise RefusedError(f"it has a field {name} already, the new name of another")

    def _renamed(self, path: str) -> str:
        top, dot, rest = path.partition(".")
        return self._names.get(top, top) + dot + rest


class _Flatten:
    """Fields of objects as fields of the document."""

    def __init__(self, only: tuple[str, ...] | None, separator: str) -> None:
        self._only = only
        self._separator = separator

    def document(self, document: Document) -> Document:
        flat: Document = {}
        for name, value in document.items():
            for key, inner in self._leaves(name, value):
                if key in flat:
                    raise RefusedError(f"two of its fields come to the name {key}")
                flat[key] = inner
        return flat

    def update(self, update: Document) -> Document:
        for path in named(update):
            self._refuse(top_of(path))
        return update

    def unchanged(self, names: list[str]) -> list[str]:
        for name in names:
            self._refuse(name)
        return names

    def _leaves(self, name: str, value: Any) -> Iterable[tuple[str, Any]]:
        if self._only is not None and name not in self._only:
            yield name, value
            return
        yield from self._within(name, value)

    def _within(self, name: str, value: Any) -> Iterable[tuple[str, Any]]:
        if type(value) is not dict or not value or is_wrapper(value):
            yield name, value
            return
        for inner, one in value.items():
            yield from self._within(f"{name}{self._separator}{inner}", one)

    def _refuse(self, name: str) -> None:
        """Refuse what may stand for fields that an object had before, or may have now."""
        if self._only is None or any(
            name == one or name.startswith(f"{one}{self._separator}") for one in self._only
        ):
            raise RefusedError(f"it does not say all of {name}, which may be an object")


class _Arrays:
    """A field that is an array, for who makes rows of its elements."""

    def __init__(self, field: str) -> None:
        self._field = field

    def document(self, document: Document) -> Document:
        value = document.get(self._field)
        if value is not None and type(value) is not list:
            raise RefusedError(f"the field {self._field} is no array")
        return document

    def update(self, update: Document) -> Document:
        return update

    def unchanged(self, names: list[str]) -> list[str]:
        return names


# --- values -------------------------------------------------------------------------------------


def _gone(_: Any) -> Any:
    return GONE


def _mask(value: Any) -> Any:
    return None if value is None else MASKED


def _hash(value: Any, *, salt: bytes) -> Any:
    return None if value is None else hmac.digest(salt, _hashed(value), hashlib.sha256).hex()


def _hashed(value: Any) -> bytes:
    """What of a value is hashed: of a text its UTF-8, as capture does, so that others who have the
    salt find the same; of a whole number its digits, whatever its width; of all else what the log
    has of it."""
    match value:
        case str():
            return value.encode()
        case {"$numberLong": str(digits)} if len(value) == 1:
            return digits.encode()
        case _:
            return _encode(value)


def _cast(value: Any, *, path: str, to: str) -> Any:
    try:
        return cast_value(value, to)
    except CastError as error:
        raise RefusedError(f"the field {path} as {to}: {error}") from None
