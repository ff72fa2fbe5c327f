"""What a head says of who may write, and where. Pure."""

from bson.binary import Binary
from bson.int64 import Int64

from penstock.audit.trail import Document, Head, Staged
from penstock.errors import TrailTakenError


def refuse_others(head: Head, wanted: Head) -> None:
    """Raise TrailTakenError if a trail is another one than a pipeline wants to write."""
    if head.pipeline != wanted.pipeline:
        raise TrailTakenError(
            trail=head.source,
            why=f"it is written by pipeline {head.pipeline}, not {wanted.pipeline}",
            remedy="Give this pipeline another database or other collections, or its old name.",
        )
    if head.collections and not set(wanted.collections or ("",)) <= set(head.collections):
        raise TrailTakenError(
            trail=head.source,
            why=f"it keeps the changes of {', '.join(head.collections)}, and the pipeline has more",
            remedy="What others changed before would be missing, or come out of its order: give "
            "them a pipeline and a trail of their own.",
        )
    if head.sealed != wanted.sealed:
        raise TrailTakenError(
            trail=head.source,
            why="its chain is made with a seal_key, and there is none now"
            if head.sealed
            else "its chain was begun without a seal_key, and there is one now",
            remedy="Give the pipeline the key with which the trail was begun, or a new trail.",
        )


def unmoved(head: Head) -> Document:
    """Finds the stored head if it is still `head`, and nothing is staged or was recalled."""
    return {
        "_id": head.source,
        "at": Int64(head.at),
        "batch": Int64(head.batch),
        "hash": Binary(head.hash),
        "epoch": Int64(head.epoch),
        "recalled": Int64(head.recalled),
        "staged": {"$exists": False},
    }


def place_of(head: Head) -> tuple[int, int, bytes, int, Staged | None]:
    """What of a head says where it is: all but how far the log was read."""
    return head.at, head.batch, head.hash, head.epoch, head.staged
