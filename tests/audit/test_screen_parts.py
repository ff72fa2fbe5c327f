"""What the full screen decides, without a screen."""

import unicodedata
from typing import Any

from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from penstock.audit.shown import changes_text, value_text
from penstock.cli.audit_drawing import BARS, bar, facts
from penstock.cli.audit_keys import Keys
from penstock.cli.audit_lines import Lines, fitted
from penstock.cli.audit_state import ROWS_MAX, Effect, Mode, State

SENT = "aé\x1bOP\x1b[15~\x1b[[A\x1b[A\r\t\x7f\x15\x1b[20~\x1b[99;5~漢q".encode()
TURNS = "\u202e\u2066\u200f"
NAMED = [
    *("a", "é", "f1", "f5", "f1", "up", "enter", "down", "delete", "clear", "f9", "漢", "q"),
]


@given(st.lists(st.integers(1, len(SENT)), max_size=10))
def test_keys_are_the_same_however_they_arrive(cuts: list[int]) -> None:
    keys, found, begin = Keys(), list[str](), 0
    for cut in [*sorted(cuts), len(SENT)]:
        found += keys.feed(SENT[begin:cut])
        begin = max(begin, cut)
    assert found == NAMED
    assert not keys.pending


def test_an_escape_that_nothing_follows_is_the_key() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert keys.pending
    assert keys.settle() == ["escape"]
    assert keys.feed(b"\x1bx") == ["escape", "x"]


@given(st.binary())
def test_whatever_a_terminal_sends_is_survived(data: bytes) -> None:
    keys = Keys()
    for one in [*keys.feed(data), *keys.settle()]:
        assert one.isprintable()


def rows(*places: int) -> list[dict[str, Any]]:
    return [{"at": place} for place in places]


def state(count: int = 0) -> State:
    made = State(name="trail", tz="UTC", written={})
    made.load(rows(*range(count, 0, -1)), head=count, counts={})
    return made


def test_a_record_shows_its_own_id_and_that_of_its_event() -> None:
    """Which an erasure takes, and trails of before do not have apart."""
    record = {
        "_id": "made",
        "at": 1,
        "seq": 0,
        "op": "insert",
        "ts": DatetimeMS(0),
        "meta": {"pk_text": "1"},
        "txn": {"id": "t", "size": 1},
        "src": {"source": "shop", "event": "its\nown"},
    }
    assert dict(facts(record, "UTC")).items() >= {"_id": "made", "event": "its\\nown"}.items()
    assert "event" not in dict(facts({**record, "src": {"source": "shop"}}, "UTC"))
    masked = {**record, "masked": ["phone", "a\nb"]}
    assert dict(facts(masked, "UTC"))["masked, changed"] == "phone, a\\nb"


def test_whoever_looks_at_an_older_record_stays_there_while_others_come() -> None:
    shown = state(20)
    shown.press("down")
    assert shown.chosen == {"at": 19}
    shown.add(rows(22, 21), head=22, counts={})
    assert shown.chosen == {"at": 19}
    shown.press("home")
    shown.add(rows(23), head=23, counts={})
    assert shown.chosen == {"at": 23}, "whoever is at the newest follows"


@given(st.lists(st.sampled_from(["up", "down", "page up", "page down", "home", "end", "+"])))
def test_the_selected_row_is_always_on_the_screen(keys: list[str]) -> None:
    shown = state(30)
    shown.fit(7)
    for number, key in enumerate(keys):
        if key == "+":
            shown.add(rows(31 + number), head=31 + number, counts={})
        else:
            shown.press(key)
        assert shown.top <= shown.selected < shown.top + 7
        assert 0 <= shown.selected < len(shown.rows)


def test_rows_and_counts_that_are_kept_have_a_bound() -> None:
    shown = state(ROWS_MAX)
    shown.add(rows(*range(2 * ROWS_MAX, ROWS_MAX, -1)), head=2 * ROWS_MAX, counts={5: {"i": 1}})
    assert len(shown.rows) == ROWS_MAX
    shown.add([], head=2 * ROWS_MAX, counts={5: {"i": 2, "d": 1}, 6: {"u": 1}})
    assert shown.counts == {5: {"i": 3, "d": 1}, 6: {"u": 1}}
    shown.forget_before(6)
    assert shown.counts == {6: {"u": 1}}


def test_keys_go_to_what_has_them() -> None:
    shown = state(3)
    assert shown.press("q") is Effect.QUIT
    shown.press("f1")
    assert shown.press("q") is None
    assert shown.form == {"table": "q"}
    shown.press("escape")
    assert (shown.mode, shown.written) == (Mode.TABLE, {})
    assert shown.press("enter") is Effect.DETAIL
    shown.press("q")
    assert shown.mode is Mode.TABLE


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_bar_is_as_high_as_its_count_and_never_invisible(count: int, more: int) -> None:
    most = count + more
    drawn = "".join(bar(count, most, level) for level in range(4))
    filled = [BARS.index(piece) for piece in drawn]
    assert filled == sorted(filled, reverse=True)
    assert (sum(filled) > 0) == (count > 0)
    assert (sum(filled) == 32) == (count > 0 and -(-count * 32 // most) == 32)


@given(st.lists(st.integers(0, 300), min_size=8, max_size=8), st.integers(60, 400))
def test_columns_fit_the_terminal(widths: list[int], width: int) -> None:
    given_ = fitted([max(3, one) for one in widths], width)
    assert all(one > 0 for one in given_)
    assert sum(given_) + 2 * 7 <= max(width, 19 + 3 + 5 * 6 + 1 + 2 * 7)


@given(st.text() | st.text(alphabet=f"a\x1b[2J\x9b\n\x00{TURNS}"), st.integers(1, 200))
def test_no_line_is_wider_than_the_terminal_or_steers_it(value: str, width: int) -> None:
    record = {
        "ts": DatetimeMS(0),
        "op": "u",
        "meta": {"db": value, "tbl": value, "pk_text": value},
        "src": {"gtid": value},
        "chg": {value: {"f": value, "t": None}},
    }

    line = Lines([record], tz="UTC", width=width).line(record)
    assert cell_len(line.plain) <= width
    assert not any(unicodedata.category(one) == "Cc" or one in TURNS for one in line.plain)


def test_changes_are_told_with_their_types() -> None:
    """A14: NULL, an empty text and what is not there are three."""
    chg = {
        "name": {"f": "a", "t": "b"},
        "gone": {"f": None},
        "new": {"t": ""},
        "list": {"size": 2},
        "raw": {"f": b"\x00\xff", "t": 5},
    }
    assert changes_text({"chg": chg}) == (
        'name:"a"→"b" | gone:∅→ | new:→"" | list:→(cut to 2) | raw:0x00ff→5'
    )
    assert value_text("\x1b[2J") == '"\\\\x1b[2J"'
