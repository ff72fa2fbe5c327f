"""The text of a published copy: the same in every store."""

import msgspec

from penstock.errors import CheckpointStoreError
from penstock.ports import Checkpoint

VERSION = 1


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    checkpoint: msgspec.Raw


def pack(checkpoint: Checkpoint) -> bytes:
    """As a store keeps it: JSON, so that people can read it there."""
    encoded = msgspec.Raw(msgspec.json.encode(checkpoint))
    return msgspec.json.encode(_Record(version=VERSION, checkpoint=encoded))


def unpack(value: bytes, *, where: str) -> Checkpoint:
    """What `pack` wrote. Raises CheckpointStoreError for anything else, of a newer version too."""
    try:
        record = msgspec.json.decode(value, type=_Record)
        if record.version == VERSION:
            return msgspec.json.decode(record.checkpoint, type=Checkpoint)
    except msgspec.DecodeError:
        detail = "it is not a published copy"
    else:
        detail = f"it is of version {record.version}, and this Penstock knows {VERSION}"
    raise CheckpointStoreError(
        f"what stands in {where} cannot be read: {detail}. Nothing was changed. Run the Penstock "
        f"that wrote it, or remove it by the store's own means if it is not one of ours."
    )
