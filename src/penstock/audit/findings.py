"""What a proof of a trail found."""

from typing import Any

from msgspec import Struct

FINDINGS_MAX = 100
"""So many findings are listed; the others are counted."""


class Finding(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One thing that is not as it must be."""

    what: str
    """record, piece, batch, chain, head, archive, erasure or retirement."""
    problem: str
    """missing, altered, misplaced, inserted, beyond, uncovered, spilled, sealed; unfinished."""
    says: str
    """A sentence for people, without values."""
    at: int | None = None
    """The place in the trail."""
    batch: int | None = None
    id: str | None = None
    db: str | None = None
    tbl: str | None = None
    pk: str | None = None
    part: str | None = None
    """Which part of it, as far as that can be told."""
    file: str | None = None
    """Of an archive."""

    def sentence(self) -> str:
        """With where it is."""
        where = [] if self.at is None else [f"at {self.at}"]
        if self.batch is not None and self.what == "batch":
            where = [f"number {self.batch}"]
        if self.tbl is not None:
            where.append(f"{self.db}.{self.tbl}")
        if self.pk is not None:
            where.append(f"key {self.pk}")
        if self.id is not None:
            where.append(f"_id {self.id}")
        if self.file is not None:
            where.append(self.file)
        return f"{' '.join([self.what, ', '.join(where)]).rstrip()}: {self.says}"


class Report(Struct, frozen=True, kw_only=True, rename="camel"):
    """What `penstock audit verify` found."""

    source: str
    database: str
    records: str
    first: int
    """The first place that was looked at,"""
    last: int
    """and the last: the head's."""
    batches: int
    hash: str
    """The head's, to be kept elsewhere and given to a later proof."""
    proved: int
    """Records whose every byte is proved."""
    erased: int
    """Of which the content is erased: their head is proved, and what stands for the content."""
    retired: int
    """Not in MongoDB any more, by retention;"""
    archived: int
    """of them, so many are proved in the archives that were named."""
    broken: int
    unfinished: int
    """Of erasures and retirements: run them again."""
    first_broken: Finding | None
    findings: list[Finding]
    unchecked: list[str]
    """What was not or cannot be proved, as sentences."""
    expected: str | None = None
    """Of the hash that was expected: which batch has it."""
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether nothing is broken, and nothing left unfinished."""
        return not self.broken and not self.unfinished


class Findings:
    """Collects findings in their order, the first of them for good."""

    def __init__(self, *, limit: int = FINDINGS_MAX) -> None:
        self._limit = limit
        self.broken = 0
        self.unfinished = 0
        self.first: Finding | None = None
        self.listed: list[Finding] = []

    def add(self, what: str, problem: str, says: str, *, count: int = 1, **facts: Any) -> None:
        """Take one; `count` if it stands for several."""
        finding = Finding(what=what, problem=problem, says=says, **facts)
        if problem == "unfinished":
            self.unfinished += count
        else:
            self.broken += count
            if self.first is None:
                self.first = finding
        if len(self.listed) < self._limit:
            self.listed.append(finding)

    def take(self, other: "Findings") -> None:
        """Those of another one, behind these."""
        self.broken += other.broken
        self.unfinished += other.unfinished
        self.first = self.first or other.first
        self.listed = [*self.listed, *other.listed][: self._limit]
