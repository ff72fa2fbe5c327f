"""Where a store source stands: which store, which of its records, and how far a copy is.

A store counts its records over all tables, so one number says it all. Which life of the store wrote
that record says that it is the one that we read (`penstock.store.layout.Layout.begin_life`): a
backup that was restored has lives of its own from where it went on, whatever retention has removed
since.
"""

import re
from functools import cached_property

import msgspec
from msgspec import Struct, field

from penstock.errors import ConfigError


class Scope(Struct, frozen=True, omit_defaults=True, dict=True):
    """Which tables are captured: what the configuration said, so that a change is noticed."""

    database: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __contains__(self, table: str) -> bool:
        included, excluded = self._compiled
        if included:
            return any(pattern.fullmatch(table) for pattern in included)
        return not any(pattern.fullmatch(table) for pattern in excluded)

    @cached_property
    def _compiled(self) -> tuple[list[re.Pattern[str]], list[re.Pattern[str]]]:
        return [_pattern(one) for one in self.include], [_pattern(one) for one in self.exclude]


def _pattern(glob: str) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(one, re.escape(one)) for one in glob), re.DOTALL)


class Copying(Struct, frozen=True, omit_defaults=True):
    """How far a copy is."""

    snapshot: str
    """Tells this copy's rows from another's."""
    pending: tuple[str, ...]
    """The tables to copy, the one under way first."""
    begun_ms: int
    """The time of the rows, which must be the same whenever a row is told again (P26)."""
    announced: bool = False
    """Whether snapshot_started was said."""
    after: bytes | None = None
    """The last key copied of the first pending table, as the store has it."""
    copies: int = 0
    """How many tables were finished before."""
    documents: int = 0
    covers: tuple[str, ...] = ()
    """Every table that it copies, those that are finished too."""
    whole: bool = False
    """Whether it is of everything that is captured."""
    announcements: int = 0
    """How often snapshot_started was said: again when tables were added."""


class StorePosition(Struct, frozen=True, omit_defaults=True):
    """Where a source stands: behind the record `sequence`, which always ends a commit."""

    store: str
    sequence: int
    scope: Scope
    life: str = ""
    """Of that record; empty before the first."""
    known: dict[int, int] = {}
    """By stream: up to which sequence behind this place something is missing, and that was said
    (or, at a start from the beginning, is no loss)."""
    copying: Copying | None = None
    gap_said: tuple[str, ...] = ()
    """The tables of which the log has a gap that begins here; capture stopped at it."""
    whole: bool = False
    """Whether all that is captured was copied once: a table that was never told of is then taken
    for empty."""
    unfollowed: tuple[str, ...] = ()
    """The tables that were made without a stream, and of which a gap was said for that."""
    version: int = field(default=1, name="v")

    def text(self) -> str:
        """As it is kept in the log."""
        return _ENCODER.encode(self).decode()

    @property
    def place(self) -> str:
        """The place alone, for people."""
        return f"{self.store}:{self.sequence}"


def parse_position(text: str) -> StorePosition:
    """The place that `text` says. Raises ConfigError for what this version did not write."""
    try:
        position = _DECODER.decode(text)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"not a position of a store source ({error}). Nothing was captured. If the source's "
            f"name belonged to another kind of source before, give this one a name of its own."
        ) from error
    if position.version != 1:
        raise ConfigError(
            f"this position is of version {position.version}, written by a newer Penstock; "
            f"nothing was captured. Run that version."
        )
    return position


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(StorePosition)
