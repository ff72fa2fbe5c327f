"""Which gaps of the log nobody has made good, read from the log itself.

Who wrote a gap does not matter: a source, a command, a new log that begins above a published copy,
or a process that is gone since. So none is missed for want of somebody who watched.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from msgspec import Struct, field, json

from penstock.errors import TrimmedError
from penstock.event import Kind, SystemEvent
from penstock.ports import LogReader
from penstock.wire import Block, decode_message

GAPS_MAX = 32
"""So many open gaps of one source are told apart, and so many letters; later ones are then no news
any more."""
LETTERS = "letters"
"""What stands for all changes of a source that could not be decoded: one of them rarely comes
alone."""


class Gap(Struct, frozen=True, kw_only=True):
    """A gap that is open: changes were lost, and the data was not copied since."""

    sequence: int
    """Where the log says so."""
    since_ms: int
    """Unix milliseconds when the log was told."""


class OpenGaps(Struct, kw_only=True):
    """The open gaps of every source. Pure: it is told what the log says, in order."""

    open: dict[str, dict[str, Gap]] = field(default_factory=dict[str, dict[str, Gap]])
    """By source, then by sequence as text; or `LETTERS`, of which the first is kept."""
    letters: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """By source: the letters that were neither replayed nor settled. An empty one at the end stands
    for more than are told apart, which only a copy makes good."""
    copies: dict[str, str] = field(default_factory=dict[str, str])
    """By source: the copy under way, if nothing was lost since it began."""

    def take(self, event: SystemEvent, *, sequence: int, at_ms: int) -> None:
        """What the log says at `sequence`, since `at_ms` in Unix milliseconds."""
        source, said = event.source, _said(event)
        match event.operation:
            case "gap" | "gap_ended":
                self._lost(source, said, Gap(sequence=sequence, since_ms=at_ms))
            case "snapshot_started":
                # One that goes on after a loss proves nothing of what came before it.
                if not said.get("again"):
                    self.copies[source] = str(said.get("snapshot"))
            case "snapshot_completed":
                under_way = self.copies.pop(source, None)
                if said.get("whole") and under_way == str(said.get("snapshot")):
                    self.open.pop(source, None)
                    self.letters.pop(source, None)
            case "gap_closed":
                letters = self.open.pop(source, {}).get(LETTERS)
                if letters is not None:
                    self.open[source] = {LETTERS: letters}
            case "dead_letter_replayed" | "dead_letter_settled":
                self._dealt_with(source, str(said.get("deadLetter")))
            case _:
                pass

    def _lost(self, source: str, said: dict[str, object], gap: Gap) -> None:
        # A collection that is left out on purpose is no loss to be woken for.
        if said.get("reason") == "scope":
            return
        self.copies.pop(source, None)
        of_source = self.open.setdefault(source, {})
        letter = said.get("deadLetter")
        if letter is not None:
            of_source.setdefault(LETTERS, gap)
            letters = self.letters.setdefault(source, [])
            if len(letters) <= GAPS_MAX:
                letters.append(str(letter) if len(letters) < GAPS_MAX else "")
            return
        if len(of_source) < GAPS_MAX:
            of_source[str(gap.sequence)] = gap

    def _dealt_with(self, source: str, letter: str) -> None:
        left = [one for one in self.letters.get(source, ()) if one != letter]
        if left:
            self.letters[source] = left
            return
        self.letters.pop(source, None)
        of_source = self.open.get(source, {})
        of_source.pop(LETTERS, None)
        if not of_source:
            self.open.pop(source, None)


def _said(event: SystemEvent) -> dict[str, Any]:
    """What the event says of itself; nothing where a source of another's wrote no object."""
    said = json.decode(event.description)
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


class Scanned(Struct, kw_only=True):
    """How far a log was read for gaps, and what was found."""

    log_id: int = 0
    sequence: int = 0
    gaps: OpenGaps = field(default_factory=OpenGaps)


class GapWatch:
    """Reads a log for gaps, from where it was read before."""

    def __init__(
        self,
        log: LogReader,
        scanned: Scanned | None = None,
        *,
        on_forgotten: Callable[[], None] = lambda: None,
    ) -> None:
        """`scanned` is what was kept of an earlier process; what is of another log is forgotten,
        and that is told to `on_forgotten`."""
        self._log = log
        self._on_forgotten = on_forgotten
        self.scanned = scanned or Scanned()
        self.complete = False
        """Whether the log was read up to its end since this watch began, or forgot: before that,
        nothing is known of a gap that is not among those found."""

    async def step(self) -> None:
        """Read up to the log's end."""
        bounds = await self._log.bounds()
        if self.scanned.log_id != bounds.log_id or self.scanned.sequence > bounds.head:
            self.scanned = Scanned(log_id=bounds.log_id, sequence=bounds.trimmed)
            self.complete = False
            self._on_forgotten()
        while self.scanned.sequence < bounds.head:
            try:
                blocks = await self._log.read(after=self.scanned.sequence, until=bounds.head)
            except TrimmedError:
                # What was removed before it was read here, nobody can read any more.
                self.scanned.sequence = (await self._log.bounds()).trimmed
                continue
            for block in blocks:
                self._take(block)
        self.complete = True

    def _take(self, block: Block) -> None:
        kinds = block.kinds()[block.start : block.stop]
        for i in np.flatnonzero((kinds == Kind.GAP) | (kinds == Kind.SYSTEM)):
            place = block.start + int(i)
            event = decode_message(block.message(place)).event
            if isinstance(event, SystemEvent):
                sequence = block.first_sequence + place
                self.scanned.gaps.take(event, sequence=sequence, at_ms=block.ingested_at)
        self.scanned.sequence = block.last_sequence
