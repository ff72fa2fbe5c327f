"""Which fields of a key a step would take: the key tells rows apart, so none changes it. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence

from penstock.spark.transform.config import TransformConfig


def first_taken(transforms: Sequence[TransformConfig], key: Sequence[str]) -> str | None:
    """The first of the steps that takes a field of `key`, in words; None if none does."""
    for number, step in enumerate(transforms):
        before = transforms[:number]
        for field in of_key(tuple(taken(step, before)), kept(step, before), key):
            return f"{step.called(number + 1)} changes or leaves out {field}"
    return None


def of_key(taken: Sequence[str], kept: Sequence[str] | None, key: Iterable[str]) -> Iterator[str]:
    """The fields of `key`, or the parts of them, that a step takes."""
    names = tuple(key)
    for field in taken:
        if any(field == name or field.startswith(f"{name}.") for name in names):
            yield field
    if kept is not None:
        yield from (name for name in names if name not in kept)


def taken(config: TransformConfig, before: Sequence[TransformConfig]) -> Iterator[str]:
    """The fields that a step takes away, by the names that they have and had in the source."""
    names = [*config.mask, *config.hash, *config.drop, *config.rename]
    yield from names
    for step in reversed(before):
        renamed = {new: old for old, new in step.rename.items()}
        for name in list(names):
            top, dot, rest = name.partition(".")
            earlier = renamed.get(name) or (top in renamed and renamed[top] + dot + rest)
            if earlier:
                names.append(earlier)
                yield earlier
            if step.flatten:
                # What is flattened may have been part of a field of the key.
                parts = re.split(re.escape(step.separator), name)
                joined = [step.separator.join(parts[:count]) for count in range(1, len(parts))]
                names += joined
                yield from joined


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
