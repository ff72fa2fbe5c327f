"""Where a source stands: behind which commit of which replica, and what its tables are there."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from penstock.errors import ConfigError
from penstock.sources.zero.scope import Scope
from penstock.zero.messages import ColumnSpec

Tables = Mapping[str, Mapping[str, ColumnSpec]]
"""The columns of each table, by name; a table is `schema.table`."""


class ZeroPosition(Struct, frozen=True, omit_defaults=True):
    """Where a source stands."""

    scope: Scope
    watermark: str | None = None
    """Of the last commit that is behind it, which is what the server is asked to go on from. None:
    nothing is, and the server is asked for everything."""
    replica: str = ""
    """The watermark of the copy that it all began with."""
    generation: int = 0
    """How many copies came before that one: watermarks may begin again with each."""
    at: int = 0
    """Unix milliseconds of that commit, or of the last one that said its time."""
    status: str = ""
    """The last watermark up to which the server said that nothing changed."""
    gap_said: bool = False
    """Whether the log has a gap that begins here; capture stopped at it."""
    tables: Raw = Raw(b"{}")
    """What was announced up to here, of all tables, as JSON: without it no row can be read."""
    version: int = field(default=1, name="v")

    def text(self) -> str:
        """As it is kept in the log."""
        return _ENCODER.encode(self).decode()

    @property
    def place(self) -> str:
        """The place alone, for people."""
        return self.watermark or "the beginning"


def parse_position(text: str) -> ZeroPosition:
    """The place that `text` says. Raises ConfigError for what this version did not write."""
    try:
        position = _DECODER.decode(text)
        tables_of(position)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"not a position of a Zero source ({error}). Nothing was captured. If the source's "
            f"name belonged to another kind of source before, give this one a name of its own."
        ) from error
    if position.version != 1:
        raise ConfigError(
            f"this position is of version {position.version}, written by a newer Penstock; "
            f"nothing was captured. Run that version."
        )
    return position


def tables_of(position: ZeroPosition) -> dict[str, dict[str, ColumnSpec]]:
    """The tables that were announced up to a position."""
    return _TABLES.decode(position.tables)


def tables_text(tables: Tables) -> Raw:
    """Tables as a position keeps them."""
    return Raw(_ENCODER.encode(tables))


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(ZeroPosition)
_TABLES: Final = msgspec.json.Decoder(dict[str, dict[str, ColumnSpec]])
