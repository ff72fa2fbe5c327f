"""Which fields a change touches. Pure.

An insert touches all fields of its document, a delete none (only its key is left); a replace those
that differ from the document before, or all of its own where that is not known; an update what its
description names. A path is touched by what lies above it and by what lies inside it.
"""

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from penstock.event import Operation
from penstock.wire import OPERATION_CODES, Block

_INSERT = OPERATION_CODES[Operation.INSERT]
_UPDATE = OPERATION_CODES[Operation.UPDATE]
_REPLACE = OPERATION_CODES[Operation.REPLACE]


def touched(block: Block, i: int) -> frozenset[str]:
    """The paths that entry `i`, a change of data, touches."""
    operation = int(block.index["operation"][i])
    if operation == _UPDATE:
        described = block.cell(i, "update_description")
        return frozenset(_described(msgspec.json.decode(described))) if described else frozenset()
    if operation not in {_INSERT, _REPLACE}:
        return frozenset()
    document = block.cell(i, "full_document")
    after: dict[str, Any] = msgspec.json.decode(document) if document else {}
    if operation == _REPLACE:
        image = block.cell(i, "full_document_before_change")
        if image:
            before: dict[str, Any] = msgspec.json.decode(image)
            return frozenset(
                name
                for name in before.keys() | after.keys()
                if (name in before) != (name in after) or before.get(name) != after.get(name)
            )
    return frozenset(after)


def _described(update: dict[str, Any]) -> Iterable[str]:
    yield from update.get("updatedFields") or ()
    yield from update.get("removedFields") or ()
    for cut in update.get("truncatedArrays") or ():
        yield cut["field"]


def meets(paths: Collection[str], wanted: frozenset[str]) -> bool:
    """Whether one of the `wanted` paths, or any where none is named, is touched by `paths`."""
    if not wanted:
        return bool(paths)
    return any(
        path == name or path.startswith(f"{name}.") or name.startswith(f"{path}.")
        for path in paths
        for name in wanted
    )
