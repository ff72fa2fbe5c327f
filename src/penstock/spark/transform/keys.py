"""Which fields of a key a step would take: the key tells rows apart, so none changes it. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from penstock.extjson import is_wrapper
from penstock.spark.transform.config import TransformConfig


class Taken(Struct, frozen=True):
    """The fields that a step takes away, by the names that they have and had in the source."""

    fields: tuple[str, ...] = ()
    flattened: tuple[str, ...] = ()
    """Those of which it takes what an earlier step has flattened: only objects have such parts."""


def first_taken(transforms: Sequence[TransformConfig], key: Sequence[str]) -> str | None:
    """The first of the steps that takes a field of `key`, which may be an object; in words. None if
    none does."""
    objects: dict[str, Any] = {name: {} for name in key}
    for number, step in enumerate(transforms):
        before = transforms[:number]
        for field in of_key(taken(step, before), kept(step, before), objects):
            return f"{step.called(number + 1)} changes or leaves out {field}"
    return None


def of_key(taken: Taken, kept: Sequence[str] | None, key: Mapping[str, Any]) -> Iterator[str]:
    """The fields of `key`, or the parts of them, that a step takes."""
    objects = [name for name, one in key.items() if isinstance(one, dict) and not is_wrapper(one)]
    for fields, names in ((taken.fields, [*key]), (taken.flattened, objects)):
        for field in fields:
            if any(field == name or field.startswith(f"{name}.") for name in names):
                yield field
    if kept is not None:
        yield from (name for name in key if name not in kept)


def taken(config: TransformConfig, before: Sequence[TransformConfig]) -> Taken:
    """What a step takes away behind those `before` it."""
    fields = [*config.mask, *config.hash, *config.drop, *config.rename]
    flattened: list[str] = []
    for step in reversed(before):
        renamed = {new: old for old, new in step.rename.items()}
        fields += _earlier(fields, renamed)
        flattened += _earlier(flattened, renamed)
        if step.flatten:
            # What is flattened may have been part of a field of the key.
            for name in (*fields, *flattened):
                parts = re.split(re.escape(step.separator), name)
                flattened += [step.separator.join(parts[:count]) for count in range(1, len(parts))]
    return Taken(tuple(fields), tuple(flattened))


def _earlier(names: Sequence[str], renamed: Mapping[str, str]) -> list[str]:
    """What those of `names` were called that a step renamed."""
    found: list[str] = []
    for name in names:
        top, dot, rest = name.partition(".")
        if name in renamed:
            found.append(renamed[name])
        elif top in renamed:
            found.append(renamed[top] + dot + rest)
    return found


def kept(config: TransformConfig, before: Sequence[TransformConfig]) -> tuple[str, ...] | None:
    """The fields that a step keeps, with those of the source that they are parts of."""
    if config.kind != "select" or any(step.kind in {"sql", "function"} for step in before):
        # What is behind these is a new document, which need not have the key's fields.
        return None
    names = list(config.select)
    for step in before:
        if step.flatten:
            names += [name.partition(step.separator)[0] for name in config.select]
    return tuple(names)
