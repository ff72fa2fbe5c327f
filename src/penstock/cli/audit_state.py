"""What the full screen of `penstock audit view` shows, and what a key does to it. Pure."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from msgspec import Struct, field

Record = dict[str, Any]
ROWS_MAX: Final = 500
"""So many of the newest records are there to be scrolled through; `query` has the others."""
FIELDS: Final = (
    "table",
    "db",
    "op",
    "pk",
    "pk_text",
    "since",
    "until",
    "transaction",
    "actor",
)
HELP: Final = (
    ("F1 or f", "filters: the same as the options of `penstock audit query`"),
    ("F5 or r", "read everything again"),
    ("F9 or e", "export all records that match, to .csv or .jsonl"),
    ("F10 or a", "look for new records every second, or do not"),
    ("Enter", "everything that is known of the record"),
    ("arrows, page up and down, home, end", "move"),
    ("g", "activity of 30 minutes, or of 60"),
    ("Escape", "back"),
    ("q", "quit"),
)


class Mode(Enum):
    """What has the keys."""

    TABLE = "table"
    FILTERS = "filters"
    DETAIL = "detail"
    EXPORT = "export"
    HELP = "help"


class Effect(Enum):
    """What is to be done outside."""

    QUIT = "quit"
    RELOAD = "reload"
    APPLY = "apply"
    """Take `form` as the filters."""
    DETAIL = "detail"
    """Load the selected record whole."""
    EXPORT = "export"
    """Write to `path`."""
    STOP_EXPORT = "stop export"


Counts = dict[int, dict[str, int]]
"""By the minute since 1970, how many records of each operation."""


class State(Struct, kw_only=True):
    """The screen. What has been read is put in from outside."""

    name: str
    tz: str
    written: dict[str, str]
    """The filters, as they were written."""
    rows: list[Record] = field(default_factory=list[Record])
    """The newest first."""
    head: int = 0
    loaded: bool = False
    """Whether the rows are those of the filters."""
    selected: int = 0
    top: int = 0
    """The first row that is on the screen."""
    height: int = 10
    """How many rows are."""
    counts: Counts = field(default_factory=dict[int, dict[str, int]])
    counted: bool = False
    minutes: int = 30
    auto: bool = True
    mode: Mode = Mode.TABLE
    form: dict[str, str] = field(default_factory=dict[str, str])
    focus: int = 0
    detail: Record | None = None
    scroll: int = 0
    path: str = ""
    exporting: bool = False
    message: str = ""
    wrong: bool = False
    """Whether the message is about something that went wrong."""

    def say(self, message: str, *, wrong: bool = False) -> None:
        self.message, self.wrong = message, wrong

    @property
    def chosen(self) -> Record | None:
        """The record that is selected."""
        return self.rows[self.selected] if self.rows else None

    # --- what was read ---------------------------------------------------------------------------

    def load(self, rows: Sequence[Record], *, head: int, counts: Counts | None) -> None:
        """Everything was read anew; `counts` is None where there was too much to count."""
        self.rows, self.head = list(rows[:ROWS_MAX]), head
        self.selected = self.top = 0
        self.loaded = True
        self.counts, self.counted = counts or {}, counts is not None

    def add(self, rows: Sequence[Record], *, head: int, counts: Counts | None) -> None:
        """Records were added, the newest first; whoever looks at an older one stays there."""
        self.rows = [*rows, *self.rows][:ROWS_MAX]
        self.head = head
        if self.selected or self.mode is Mode.DETAIL:
            self.selected = min(self.selected + len(rows), len(self.rows) - 1)
        if counts is None:
            self.counted = False
        for minute, by_operation in (counts or {}).items():
            there = self.counts.setdefault(minute, {})
            for operation, count in by_operation.items():
                there[operation] = there.get(operation, 0) + count
        self._show_selected()

    def forget_before(self, minute: int) -> None:
        """Counts of earlier minutes are shown no more."""
        self.counts = {one: count for one, count in self.counts.items() if one >= minute}

    # --- keys ------------------------------------------------------------------------------------

    def press(self, key: str) -> Effect | None:
        """What a key does."""
        by_mode = {
            Mode.TABLE: self._in_table,
            Mode.FILTERS: self._in_filters,
            Mode.DETAIL: self._in_detail,
            Mode.EXPORT: self._in_export,
            Mode.HELP: self._in_help,
        }
        return by_mode[self.mode](key)

    def _in_table(self, key: str) -> Effect | None:
        if key == "q":
            return Effect.QUIT
        if key in ("f1", "f"):
            self.mode, self.form, self.focus = Mode.FILTERS, dict(self.written), 0
            self.say("")
        elif key in ("f5", "r"):
            return Effect.RELOAD
        elif key in ("f9", "e"):
            self.mode, self.path = Mode.EXPORT, f"{self.name}.csv"
            self.say("")
        elif key in ("f10", "a"):
            self.auto = not self.auto
        elif key == "g":
            self.minutes = 60 if self.minutes == 30 else 30
        elif key == "?":
            self.mode = Mode.HELP
        elif key == "escape":
            self.say("")
            return Effect.STOP_EXPORT if self.exporting else None
        elif key == "enter" and self.rows:
            self.mode, self.detail, self.scroll = Mode.DETAIL, None, 0
            return Effect.DETAIL
        else:
            self._move(key)
        return None

    def _move(self, key: str) -> None:
        steps = {
            "up": -1,
            "down": 1,
            "page up": -self.height,
            "page down": self.height,
            "home": -ROWS_MAX,
            "end": ROWS_MAX,
        }
        wanted = self.selected + steps.get(key, 0)
        self.selected = max(0, min(wanted, len(self.rows) - 1))
        self._show_selected()

    def fit(self, height: int) -> None:
        """There is room for so many rows."""
        self.height = max(1, height)
        self._show_selected()

    def _show_selected(self) -> None:
        self.top = max(0, min(self.top, self.selected, len(self.rows) - self.height))
        self.top = max(self.top, self.selected - self.height + 1)

    def _in_filters(self, key: str) -> Effect | None:
        if key == "escape":
            self.mode = Mode.TABLE
            self.say("")
        elif key == "enter":
            return Effect.APPLY
        elif key in ("up", "down"):
            self.focus = (self.focus + (1 if key == "down" else -1)) % len(FIELDS)
        else:
            name = FIELDS[self.focus]
            self.form[name] = edited(self.form.get(name, ""), key)
        return None

    def _in_detail(self, key: str) -> Effect | None:
        steps = {"up": -1, "down": 1, "page up": -10, "page down": 10, "home": -1_000_000}
        if key in ("escape", "enter", "q"):
            self.mode, self.detail = Mode.TABLE, None
        self.scroll = max(0, self.scroll + steps.get(key, 0))
        return None

    def _in_export(self, key: str) -> Effect | None:
        if key == "escape":
            self.mode = Mode.TABLE
        elif key == "enter":
            self.mode = Mode.TABLE
            return Effect.EXPORT
        else:
            self.path = edited(self.path, key)
        return None

    def _in_help(self, key: str) -> Effect | None:
        self.mode = Mode.TABLE
        return Effect.QUIT if key == "q" else None


def edited(text: str, key: str) -> str:
    """A line of text after a key."""
    if key == "delete":
        return text[:-1]
    if key == "clear":
        return ""
    return text + key if len(key) == 1 else text
