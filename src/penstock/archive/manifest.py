"""What an archive says of itself. Pure: bytes in, bytes out, and every contradiction refused."""

from bisect import bisect_left
from typing import Final

import msgspec
from msgspec import Struct

from penstock.errors import ArchiveDamagedError, ArchiveForeignError
from penstock.ports import Ancestor, Bounds, SourceState

FORMAT: Final = 1


class Range(Struct, frozen=True, kw_only=True):
    """The entries of (after, until], whole commits, in one file."""

    after: int
    after_check: int
    """The 32-bit check of the place `after`; 0 at sequence 0."""
    chained_after: int | None = None
    """Markers of entries after this one prove what is before their entry too (`wire.layout`);
    None: those of none do."""
    until: int
    until_check: int
    commits: int
    bytes: int
    """Of the file."""
    digest: str
    """SHA-256 of the file, in hex."""
    groups: tuple[int, ...]
    """The last sequence of each row group."""
    first_timestamp: int
    """The earliest of its entries by the sources' clocks, in Unix milliseconds;"""
    last_timestamp: int
    """and the latest."""
    schema_version: int
    """Of the files' columns."""

    @property
    def rows(self) -> int:
        return self.until - self.after

    @property
    def name(self) -> str:
        """Where the file is in the archive."""
        return f"data/{self.after + 1:020d}-{self.until:020d}.parquet"


class Lost(Struct, frozen=True, kw_only=True):
    """Entries that retention removed before they were archived."""

    after: int
    until: int
    until_check: int
    found_at: int
    """Unix milliseconds."""


class Standing(Struct, frozen=True, kw_only=True):
    """Where the sources stood when the log ended at `sequence`."""

    sequence: int = 0
    sources: tuple[SourceState, ...] = ()


class Manifest(Struct, frozen=True, kw_only=True):
    """An archive. It is of one log: its ranges follow each other, but for what was lost."""

    log_id: int
    begin: int
    """It begins after this sequence."""
    begin_check: int
    head_commit: int = 0
    """The commit that the last range ends with."""
    format: int = FORMAT
    ancestors: tuple[Ancestor, ...] = ()
    base: int = 0
    """As in Bounds."""
    ranges: tuple[Range, ...] = ()
    lost: tuple[Lost, ...] = ()
    standing: Standing = Standing()
    updated_at: int = 0
    """Unix milliseconds when it was written."""

    @property
    def until(self) -> int:
        """The last sequence of the archive, or of what it lost."""
        sealed = self.ranges[-1].until if self.ranges else self.begin
        return max(sealed, self.lost[-1].until) if self.lost else sealed

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(one.bytes for one in self.ranges)

    def readable(self) -> "Manifest":
        """What follows the last loss: in it, every entry is there."""
        if not self.lost:
            return self
        last = self.lost[-1]
        return msgspec.structs.replace(
            self,
            begin=last.until,
            begin_check=last.until_check,
            ranges=tuple(one for one in self.ranges if one.after >= last.until),
            lost=(),
        )

    def holding(self, sequence: int) -> Range:
        """The range that holds the entry; one must."""
        return self.ranges[bisect_left(self.ranges, sequence, key=lambda one: one.until)]

    def check_after(self, sequence: int) -> int | None:
        """The check at the end of a range, or where the archive begins; None elsewhere."""
        if sequence == self.begin:
            return self.begin_check
        at = bisect_left(self.ranges, sequence, key=lambda one: one.until)
        found = at < len(self.ranges) and self.ranges[at].until == sequence
        return self.ranges[at].until_check if found else None

    @property
    def until_check(self) -> int:
        """The check at its end."""
        if self.lost and self.lost[-1].until == self.until:
            return self.lost[-1].until_check
        return self.ranges[-1].until_check if self.ranges else self.begin_check

    def with_range(self, made: Range, *, standing: Standing | None, head_commit: int) -> "Manifest":
        """One more; `standing` if the sources are known to stand at its end."""
        return msgspec.structs.replace(
            self,
            ranges=(*self.ranges, made),
            standing=standing or self.standing,
            head_commit=head_commit,
        )


def pack(manifest: Manifest) -> bytes:
    """The manifest as JSON, in one line: it is written, and read back, whole for each range."""
    return msgspec.json.encode(manifest)


def unpack(data: bytes, where: str) -> Manifest:
    """What `pack` wrote. Raises ArchiveDamagedError for anything else, and for ranges that
    overlap or leave holes which it does not name."""
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format != FORMAT:
            raise ArchiveDamagedError(
                where, f"it is of format {head.format}, and this Penstock reads {FORMAT}"
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArchiveDamagedError(where, f"it is no manifest ({error})") from None
    _require_dense(manifest, where)
    return manifest


class _Head(Struct):
    format: int


def _require_dense(manifest: Manifest, where: str) -> None:
    at, check = manifest.begin, manifest.begin_check
    lost = {one.after: one for one in manifest.lost}
    for one in manifest.ranges:
        while at in lost:
            gone = lost.pop(at)
            at, check = gone.until, gone.until_check
        if (one.after, one.after_check) != (at, check) or one.until <= one.after:
            raise ArchiveDamagedError(
                where, f"{one.name} follows entry {one.after}, where {at} was due"
            )
        if (
            not one.groups
            or list(one.groups) != sorted({*one.groups})
            or (one.groups[0] <= one.after or one.groups[-1] != one.until)
        ):
            raise ArchiveDamagedError(where, f"the row groups of {one.name} are not its rows")
        at, check = one.until, one.until_check


def require_same_log(manifest: Manifest, bounds: Bounds, where: str) -> None:
    """Raise ArchiveForeignError unless all that the archive holds is of the log's own history."""
    if manifest.log_id == bounds.log_id:
        shared = bounds.head
    else:
        known = (one.head for one in bounds.ancestors if one.log_id == manifest.log_id)
        found = next(known, None)
        if found is None:
            raise ArchiveForeignError(
                where, f"it is of log {manifest.log_id:016x}, and this one is {bounds.log_id:016x}"
            )
        shared = min(found, bounds.head)
    if manifest.until > shared:
        raise ArchiveForeignError(
            where,
            f"it goes to entry {manifest.until}, and this log shares its entries up to {shared} "
            f"only, as a log that was restored from an older copy does",
        )
