"""What a subscription says, in the order in which it says it."""

from collections.abc import Mapping

from msgspec import Struct

from penstock.errors import PenstockError
from penstock.progress import Progress
from penstock.wire import Block, Mask, shown


class Confirmed(Struct, frozen=True, kw_only=True):
    """A request was taken. Everything it gets lies behind `after`, and comes after this (E9)."""

    id: str
    after: Progress
    version: int
    """The newest commit of the log when it was taken."""
    waiting: bool = False
    """What it begins with is ahead of the log."""


class Captured(Struct, frozen=True, kw_only=True):
    """An entry of the log, for some requests."""

    ids: tuple[str, ...]
    block: Block
    i: int
    body: bool
    before: bool
    mask: Mask | None = None
    """What of it the reader may not see; None: all may be seen."""
    ends: bool = False
    """The end of its transaction comes next, and has the same marker: who saves that of this one
    alone skips the end."""

    @property
    def progress(self) -> str:
        return self.block.progress(self.i)

    @property
    def message(self) -> bytes:
        """The complete Event, as far as the reader may see it."""
        message = self.block.message(self.i)
        return message if self.mask is None else shown(message, self.mask)


class Boundary(Struct, frozen=True, kw_only=True):
    """A transaction begins (index 0), or ends (index `rows` + 1)."""

    ids: tuple[str, ...]
    begins: bool
    progress: str
    """Before the first of its entries, or behind the last."""
    source: str
    transaction: str | None
    """The source's own name of it."""
    version: int
    timestamp: int
    """Of its first entry, or its last."""
    rows: int
    """How many entries it has that the reader may see, whatever its requests match."""
    digest: int | None
    """Of the commit; None for who does not see all of the source."""
    matched: Mapping[str, int]
    """How many of them each of `ids` matches (E11)."""


class Maintained(Struct, frozen=True, kw_only=True):
    """What is safe to save: all that came before this was sent to this subscription (E2)."""

    progress: Progress | None
    """For all requests; None while none stands anywhere."""
    positions: Mapping[str, Progress]
    """Each request's own."""
    at: int
    """Unix milliseconds of the server's clock."""
    interval_ms: int
    """Until the next one."""


class Finished(Struct, frozen=True, kw_only=True):
    """A request is over: nothing comes for it any more (E14)."""

    id: str
    error: PenstockError | None = None
    """None: it was removed, or got all it asked for."""


Output = Confirmed | Captured | Boundary | Maintained | Finished
