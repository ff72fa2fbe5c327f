"""Records as lines of a table, as wide as the terminal or as what they say. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.cells import cell_len
from rich.text import Text

from penstock.audit import shown
from penstock.harmless import harmless

STYLES: Final = {
    "i": "green",
    "u": "yellow",
    "d": "red",
    "ddl": "magenta",
    "gap": "bold white on red",
    "copy": "blue",
    "sys": "cyan",
}
_CHANGES: Final = 5
_CHANGES_MIN: Final = 24
_WIDTHS_MAX: Final = (19, 3, 16, 24, 24, 0, 24, 28)
_WIDTH_MIN: Final = 6
_FIXED: Final = (0, 1)
_GAP: Final = 2


def cells(record: Mapping[str, Any], *, tz: str, wide: bool = False) -> tuple[str, ...]:
    """What a record says, by column."""
    meta = record["meta"]
    return (
        shown.local(record["ts"], tz, unit="milliseconds" if wide else "seconds"),
        record["op"],
        harmless(str(meta.get("db") or "")),
        harmless(str(meta.get("tbl") or "")),
        shown.key_text(record),
        shown.changes_text(record),
        shown.gtid_text(record),
        shown.place_text(record),
    )


class Lines:
    """Lines of one width, fitted to the first records that are shown."""

    def __init__(self, records: Iterable[Mapping[str, Any]], *, tz: str, width: int | None) -> None:
        """`width` is the terminal's; None shows everything, however wide."""
        self._tz = tz
        self._width = width
        self._names = (
            f"TS({shown.zone_name(tz)})",
            *("OP", "DB", "TABLE", "PK", "CHANGES", "GTID", "FILE:POS"),
        )
        seen = [self._names, *(self._cells(record) for record in records)]
        self._widths = [max(map(cell_len, column)) for column in zip(*seen, strict=True)]
        if width is not None:
            self._widths = fitted(self._widths, width)

    def _cells(self, record: Mapping[str, Any]) -> tuple[str, ...]:
        return cells(record, tz=self._tz, wide=self._width is None)

    def header(self) -> Text:
        """What the columns are called."""
        return self._line([Text(name, "bold") for name in self._names])

    def line(self, record: Mapping[str, Any]) -> Text:
        """A record; what does not fit ends with an ellipsis."""
        style = "dim" if "erased" in record else ""
        said = [Text(text, style) for text in self._cells(record)]
        said[0].stylize("blue")
        said[1].stylize(STYLES.get(record["op"], ""))
        said[6].stylize("dim")
        said[7].stylize("dim")
        return self._line(said)

    def _line(self, columns: list[Text]) -> Text:
        line = Text(no_wrap=True)
        for number, (column, width) in enumerate(zip(columns, self._widths, strict=True)):
            if self._width is not None:
                column.truncate(width, overflow="ellipsis", pad=True)
            else:
                column.pad_right(max(0, width - cell_len(column.plain)))
            if number:
                line.append(" " * _GAP)
            line.append_text(column)
        line.rstrip()
        if self._width is not None:
            line.truncate(self._width, overflow="ellipsis")
        return line


def fitted(widths: list[int], width: int) -> list[int]:
    """Widths that come to at most `width`: what is left is for the changes, and the widest of the
    others give way until that is enough, or nothing more can."""
    given = [min(one, most) if most else one for one, most in zip(widths, _WIDTHS_MAX, strict=True)]
    while True:
        rest = sum(given) - given[_CHANGES] + _GAP * (len(given) - 1)
        left = width - rest
        wanted = min(_CHANGES_MIN, widths[_CHANGES])
        others = [n for n in range(len(given)) if n not in (*_FIXED, _CHANGES)]
        widest = max(others, key=lambda n: given[n])
        if left >= wanted or given[widest] <= _WIDTH_MIN:
            given[_CHANGES] = max(1, left)
            return given
        given[widest] -= 1
