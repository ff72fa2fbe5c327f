"""How one shard is, for people: in /health and `penstock status`."""

from msgspec import Struct


class ShardStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """How one shard is."""

    shard: str
    """What it calls itself: `app/number`, or its id."""
    who: str = ""
    """Its principal; empty where nobody is asked."""
    publications: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    """Those that its tables are made of."""
    state: str
    """`away`, `waiting` for complete rows, `copying`, `streaming`, or `stopped` by what it met."""
    watermark: str = ""
    """Up to where it was told on this connection."""
    acknowledged: str = ""
    """Up to where it has everything, as it said; empty before it began."""
    commit: int = 0
    """The same, as the number of the log's commit."""
    rows: int = 0
    """That were copied to it on this connection."""
    seen_at: int
    """Unix milliseconds: when it began, or said something."""
    code: str = ""
    """Of what stopped it, or what it waits for."""
    message: str = ""
    """That error's sentence, which names tables and columns and never a value."""
