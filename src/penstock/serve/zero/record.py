"""What is kept of a shard: where its replica began, what it has, and what it was told. Pure.

Whoever resumes names the last commit that it stored, which may be older than what it acknowledged
last: a status moves only the latter (Z4). So the record says both, and between the two nothing
concerned the shard.
"""

import msgspec
from msgspec import Raw, Struct, structs


class Mark(Struct, frozen=True, array_like=True):
    """The end of a commit."""

    commit: int
    sequence: int
    """Of its last entry."""
    check: int
    """The 32-bit check of that entry."""


class Version(Struct, frozen=True):
    """The tables of a shard from some commit on."""

    commit: int
    tables: Raw


class ShardRecord(Struct, frozen=True, kw_only=True):
    """A shard, as it is written down *before* what it describes is sent: after a crash it may say
    more than the client has, and never less."""

    who: str
    """The principal."""
    name: str
    """What the shard calls itself."""
    publications: tuple[str, ...]
    sources: tuple[str, ...]
    """Those that its tables are made of."""
    fingerprint: str
    """Of what its tables are made from: the configuration, and what its principal may see."""
    log_id: int
    snapshot: Mark
    """What its replica began with."""
    floor: Mark
    """All of its client's changes up to here are durable there, as it said."""
    changed: int
    """The last commit up to the floor that had a change for it."""
    versions: tuple[Version, ...]
    """Its tables: the newest that began at or before the floor, and those after it."""
    seen_at: int
    """Unix milliseconds: it began, or said something, for the last time."""


def acknowledged(record: ShardRecord, floor: Mark, changed: int, *, now_ms: int) -> ShardRecord:
    """The record once the client has everything up to `floor`. It never moves back."""
    if floor.commit < record.floor.commit:
        return structs.replace(record, seen_at=now_ms)
    versions = record.versions
    while len(versions) > 1 and versions[1].commit <= floor.commit:
        versions = versions[1:]
    return structs.replace(
        record,
        floor=floor,
        changed=max(changed, record.changed),
        versions=versions,
        seen_at=now_ms,
    )


def announced(record: ShardRecord, commit: int, tables: Raw) -> ShardRecord:
    """The record once the client is told, in `commit`, of other tables."""
    before = tuple(one for one in record.versions if one.commit < commit)
    return structs.replace(record, versions=(*before, Version(commit, tables)))


def tables_at(record: ShardRecord, commit: int) -> Raw:
    """What a client that has everything up to `commit` was told of tables."""
    first, *later = record.versions
    found = first
    for one in later:
        if one.commit <= commit:
            found = one
    return found.tables


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ShardRecord)


def packed(record: ShardRecord) -> bytes:
    """A record as it is stored."""
    return _encoder.encode(record)


def unpacked(stored: bytes) -> ShardRecord:
    """The record that was stored. Raises msgspec.DecodeError for what another Penstock wrote."""
    return _decoder.decode(stored)
