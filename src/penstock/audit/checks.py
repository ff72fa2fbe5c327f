"""Whether a stored record or batch is what it was when it was written. Pure."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import bson
from bson.errors import BSONError
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from penstock.audit.chain import (
    ERASED_SALT,
    HASH_BYTES,
    SALT_BYTES,
    batch_hash,
    content_digest,
    cut,
    leaf,
    root_of,
)
from penstock.audit.records import Parts, parts_of
from penstock.audit.trail import RAW

_UNREADABLE: Final = (KeyError, TypeError, ValueError, AttributeError, BSONError)


class State(Enum):
    """What a stored record is."""

    WHOLE = auto()
    ERASED = auto()
    """Its content is gone, and what stands for it is kept."""
    UNREADABLE = auto()
    """Nothing that Penstock writes."""


class Erased(NamedTuple):
    """What an erased record says of its erasure."""

    at: int
    """The place of the erasure's record,"""
    digest: bytes
    by: str
    """and its id."""


class Seen(NamedTuple):
    """A stored record, read without believing it."""

    state: State
    parts: Parts | None
    erased: Erased | None = None


def seen(record: RawBSONDocument) -> Seen:
    """What is to be proved of a record as it is stored."""
    try:
        found: dict[str, Any] = dict(record.items())
        if not _written_once(record, found):
            return Seen(State.UNREADABLE, None)
        parts = parts_of(found)
        if "erased" not in found:
            return Seen(State.WHOLE, parts)
        said = found["erased"]
        fields: dict[str, Any] = dict(said.items())
        erased = Erased(fields["at"], bytes(fields["digest"]), fields["by"])
        fits = (
            type(fields["at"]) is Int64
            and type(fields["by"]) is str
            and len(erased.digest) == HASH_BYTES
            and bson.encode(fields) == said.raw
            and len(fields) == len(Erased._fields)
            and _empty(parts.content)
        )
    except _UNREADABLE:
        return Seen(State.UNREADABLE, None)
    return Seen(State.ERASED, parts, erased) if fits else Seen(State.UNREADABLE, None)


def _written_once(record: RawBSONDocument, fields: dict[str, Any]) -> bool:
    """Whether no field is there twice, or of a type that reads as another one.

    Only where a record is taken apart for its leaf; all else goes into it byte by byte.
    """
    if bson.encode(fields) != record.raw:
        return False
    inner: list[Any] = [fields[name] for name in ("meta", "src") if name in fields]
    return all(
        isinstance(one, RawBSONDocument) and bson.encode(dict(one.items())) == one.raw
        for one in inner
    )


def _empty(content: bytes) -> bool:
    left: dict[str, Any] = dict(RawBSONDocument(content, RAW))
    return all(name in {"meta", "src"} and dict(value) == {} for name, value in left.items())


def leaf_seen(record: Seen, salt: bytes) -> bytes | None:
    """The leaf of a record as it is stored; None where it has none."""
    if record.parts is None:
        return None
    if record.erased is not None:
        return leaf(record.parts.head, record.erased.digest)
    if salt == ERASED_SALT:
        return None
    return leaf(record.parts.head, content_digest(record.parts.content, salt))


class Facts(NamedTuple):
    """By what people find a record; what cannot be read is None."""

    id: str | None = None
    db: str | None = None
    tbl: str | None = None
    pk: str | None = None


def facts_of(record: Mapping[str, Any] | None) -> Facts:
    """What a record says of itself, however broken it is."""
    if record is None:
        return Facts()
    meta = _field(record, "meta")
    name = _field(record, "_id")
    return Facts(
        id=None if name is None else str(name)[:128],
        db=_text(meta, "db"),
        tbl=_text(meta, "tbl"),
        pk=_text(meta, "pk_text"),
    )


def _field(document: Any, name: str) -> Any:
    try:
        return document[name]
    except (*_UNREADABLE, IndexError):
        return None


def _text(document: Any, name: str) -> str | None:
    found = _field(document, name) if isinstance(document, Mapping) else None
    return found if isinstance(found, str) else None


def spilled_of(record: Mapping[str, Any]) -> tuple[int, bytes] | None:
    """How many bytes of a record's values lie beside it, and their SHA-256."""
    said = _field(record, "spilled")
    size, digest = _field(said, "bytes"), _field(said, "sha256")
    if isinstance(size, int) and isinstance(digest, bytes):
        return size, digest
    return None


def pieces_fit(spilled: tuple[int, bytes], pieces: Iterator[bytes]) -> bool:
    """Whether pieces, one after the other, are the values that were spilled."""
    size, digest = 0, hashlib.sha256()
    for piece in pieces:
        size += len(piece)
        digest.update(piece)
    return (size, digest.digest()) == spilled


# --- batches ----------------------------------------------------------------------------------


class Link(NamedTuple):
    """Where the chain has come to."""

    number: int
    last: int
    hash: bytes


class Proved(NamedTuple):
    """A batch, and what of it is wrong."""

    first: int
    last: int
    leaves: list[bytes]
    salts: list[bytes]
    """Of each place; none, where the batch has not one for each."""
    wrong: list[str]
    """Names of its fields; empty: it is as it was written."""
    root: bytes
    """The root to believe, so far as that can be told."""
    kept: bool
    """Whether the hash that it must have is kept: in it, or in what follows it."""
    after: Link
    """What the next one must follow."""


def proved(
    batch: Mapping[str, Any],
    before: Link,
    *,
    source: str,
    key: bytes | None,
    next_before: bytes | None,
    chained: bool = True,
) -> Proved:
    """A batch behind `before`; `next_before` is what the next one, or the head, says to follow.

    With `chained` False its own hash is believed, for the key of its seal is not known.
    """
    number, first = before.number + 1, before.last + 1
    leaves = cut_of(batch, "leaves", HASH_BYTES)
    salts = cut_of(batch, "salts", SALT_BYTES)
    stored = {name: _bytes(batch, name) for name in ("root", "before", "hash")}
    said_last = _field(batch, "last")
    count = len(leaves) or (
        said_last - first + 1 if isinstance(said_last, int) and said_last >= first else 0
    )
    last = first + count - 1

    def hash_of(root: bytes) -> bytes:
        if not chained:
            return stored["hash"] or bytes(HASH_BYTES)
        return batch_hash(
            before=before.hash, root=root, number=number, first=first, last=last, key=key
        )

    root = root_of(leaves) if leaves else bytes(HASH_BYTES)
    kept = stored["root"]
    anchors = {one for one in (stored["hash"], next_before) if one is not None}
    by_root = hash_of(root) not in anchors and kept is not None and hash_of(kept) in anchors
    believed = kept if by_root and kept is not None else root
    wanted: dict[str, Any] = {
        "_id": Int64(number),
        "source": source,
        "first": Int64(first),
        "last": Int64(last),
        "root": believed,
        "before": before.hash,
        "hash": hash_of(believed),
    }
    wrong = [name for name, value in wanted.items() if not _same(_field(batch, name), value)]
    if root != believed or not leaves:
        wrong.append("leaves")
    if len(salts) != count:
        wrong.append("salts")
        salts = []
    hash_after = hash_of(believed)
    if wrong and hash_after not in anchors and anchors:
        # Nothing fits it: what follows is proved from what it says to follow.
        hash_after = next_before or stored["hash"] or hash_after
    after = Link(number, last, hash_after)
    return Proved(first, last, leaves, salts, wrong, believed, hash_of(believed) in anchors, after)


def _same(stored: Any, wanted: Any) -> bool:
    return type(stored) is type(wanted) and bool(stored == wanted)


def _bytes(batch: Mapping[str, Any], name: str) -> bytes | None:
    found = _field(batch, name)
    return found if isinstance(found, bytes) and len(found) == HASH_BYTES else None


def cut_of(batch: Mapping[str, Any], name: str, size: int) -> list[bytes]:
    """What a field of a batch holds one after the other; none where it is of another size."""
    found = _field(batch, name)
    if not isinstance(found, bytes) or len(found) % size:
        return []
    return cut(found, size)


def belongs_at(record: Seen, leaves: Sequence[bytes], salts: Sequence[bytes]) -> int | None:
    """Which leaf of a batch a record has; None for one of no place in it."""
    for number, (one, salt) in enumerate(zip(leaves, salts, strict=False)):
        if leaf_seen(record, salt) == one:
            return number
    return None


# --- a place ----------------------------------------------------------------------------------


class Erasure(NamedTuple):
    """An erasure that names a place."""

    at: int
    id: str
    digest: bytes | None


class Verdict(NamedTuple):
    """What is to be said of one place."""

    state: State | None
    """None: no record is there."""
    leaf: bytes | None = None
    problem: str | None = None
    says: str = ""
    part: str | None = None


def judge(
    record: RawBSONDocument | None,
    *,
    leaf_kept: bytes,
    salt: bytes | None,
    erasures: Sequence[Erasure],
    retired: bool,
) -> Verdict:
    """Whether a place is as its batch says; `salt` is None where the batch lost it."""
    if record is None:
        if retired:
            return Verdict(None)
        return Verdict(None, None, "missing", "there is no record at this place")
    read = seen(record)
    made = None if salt is None else leaf_seen(read, salt)
    if read.state is State.UNREADABLE:
        return Verdict(read.state, None, "altered", "it is no record that Penstock writes")
    if type(record.get("at")) is not Int64:
        return Verdict(read.state, made, "altered", "its place is of another type", "at")
    if read.erased is not None:
        return _judge_erased(read, read.erased, leaf_kept, salt, erasures)
    if salt is None:
        return Verdict(
            read.state, None, "unprovable", "its salt is lost, so nothing proves its content"
        )
    if made != leaf_kept:
        if salt == ERASED_SALT:
            says = "its salt is erased, and its content is not"
            return Verdict(read.state, made, "altered", says, "salt, or the record")
        says = "it is not what was written: its head, its content or its salt was altered"
        return Verdict(read.state, made, "altered", says, "head, content or salt")
    if erasures:
        says = "it is told to be erased, and its content is still there"
        return Verdict(read.state, made, "unfinished", says)
    if retired:
        says = "it is told to be retired, and is still there"
        return Verdict(read.state, made, "unfinished", says)
    return Verdict(read.state, made)


def _judge_erased(
    read: Seen,
    erased: Erased,
    leaf_kept: bytes,
    salt: bytes | None,
    erasures: Sequence[Erasure],
) -> Verdict:
    assert read.parts is not None
    made = leaf(read.parts.head, erased.digest)
    told = [one for one in erasures if (one.at, one.id) == (erased.at, erased.by)]
    if made != leaf_kept:
        digests = [one.digest for one in erasures if one.digest is not None]
        if any(leaf(read.parts.head, digest) == leaf_kept for digest in digests):
            says, part = "what stands for its erased content was altered", "erased.digest"
        else:
            says, part = "it is erased, and what is left of it was altered", "head or erased.digest"
        return Verdict(read.state, made, "altered", says, part)
    if not told:
        says = "its content is gone, and no erasure in the trail tells it"
        return Verdict(read.state, made, "uncovered", says, "erased")
    if salt != ERASED_SALT:
        return Verdict(read.state, made, "unfinished", "it is erased, and its salt is still there")
    return Verdict(read.state, made)
