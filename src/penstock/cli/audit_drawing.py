"""The full screen of `penstock audit view`, as lines. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from penstock.audit import shown
from penstock.cli.audit_lines import STYLES, Lines
from penstock.cli.audit_state import FIELDS, HELP, Mode, Record, State
from penstock.harmless import harmless

BARS: Final = " ▁▂▃▄▅▆▇█"
_GRAPH_LINES: Final = 4
_FRAME: Final = _GRAPH_LINES + 5
"""Lines of the screen that are no row: title, filters, graph with its heading, columns, footer."""
_KEYS: Final = {
    Mode.TABLE: "F1 filters  F5 refresh  F9 export  F10 auto  Enter detail  g 30/60 min  ? help  "
    "q quit",
    Mode.FILTERS: "Enter applies  Tab and arrows move  Ctrl-U clears  Escape leaves all as it was",
    Mode.DETAIL: "arrows and page keys scroll  Escape back",
    Mode.EXPORT: "Enter begins  Escape leaves it",
    Mode.HELP: "any key goes back",
}


def draw(state: State, *, width: int, height: int, now_minute: int) -> RenderableType:
    """The screen, `height` lines of at most `width`; says in `state` how many rows there are."""
    state.fit(height - _FRAME)
    body = {
        Mode.FILTERS: _filters,
        Mode.DETAIL: _detail,
        Mode.EXPORT: _export,
        Mode.HELP: _help,
    }.get(state.mode)
    lines = [_title(state)]
    if body is None:
        lines += [_written(state), *graph(state, width=width, now_minute=now_minute)]
        lines += _table(state, width)
    else:
        lines += body(state)
        if state.mode is Mode.DETAIL:
            state.scroll = max(0, min(state.scroll, len(lines) - (height - 1)))
            lines[1:] = lines[1 + state.scroll :]
    lines = lines[: height - 1]
    lines += [Text()] * (height - 1 - len(lines))
    lines.append(_footer(state))
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines)


def _title(state: State) -> Text:
    title = Text()
    title.append(f" {state.name} ", "bold reverse")
    title.append(f"  {state.head:,} records")
    title.append(
        f"  auto refresh {'on' if state.auto else 'off'}", "green" if state.auto else "dim"
    )
    if state.exporting:
        title.append("  exporting; Escape stops it", "bold yellow")
    return title


def _written(state: State) -> Text:
    said = "  ".join(
        f"{name}={harmless(state.written[name])}" for name in FIELDS if name in state.written
    )
    return Text(f" {said}" if said else " all records", "cyan" if said else "dim")


def _footer(state: State) -> Text:
    if state.message:
        return Text(f" {harmless(state.message)}", "bold red" if state.wrong else "green")
    return Text(f" {_KEYS[state.mode]}", "dim")


# --- the table --------------------------------------------------------------------------------


def _table(state: State, width: int) -> Iterator[Text]:
    rows = state.rows[state.top : state.top + state.height]
    lines = Lines(rows, tz=state.tz, width=width)
    yield lines.header()
    for number, record in enumerate(rows, state.top):
        line = lines.line(record)
        if number == state.selected:
            line.pad_right(max(0, width - line.cell_len))
            line.stylize("reverse")
        yield line
    if not rows:
        yield Text(" no record matches" if state.loaded else " reading", "dim")


# --- activity ---------------------------------------------------------------------------------


def graph(state: State, *, width: int, now_minute: int) -> list[Text]:
    """Records per minute, the last one at the right, and how many there were of each kind."""
    first = now_minute - state.minutes + 1
    by_minute = [state.counts.get(minute, {}) for minute in range(first, now_minute + 1)]
    sums = [sum(one.values()) for one in by_minute]
    title = Text(f" {state.minutes} minutes: ", "bold")
    if not state.loaded:
        title.append("reading", "dim")
    elif not state.counted:
        title.append("more than can be counted in time", "yellow")
    else:
        title.append(f"{sum(sums):,} records", "bold")
        for operation, style in STYLES.items():
            count = sum(one.get(operation, 0) for one in by_minute)
            if count:
                title.append(f"  {operation} {count:,}", style)
    most = max(sums, default=0)
    label = f"{most:,}"
    wide = max(1, min(3, (width - len(label) - 3) // state.minutes))
    lines = [title]
    for level in range(_GRAPH_LINES - 1, -1, -1):
        line = Text(f" {label if level == _GRAPH_LINES - 1 else '':>{len(label)}} ", "dim")
        line.append("".join(bar(count, most, level) * wide for count in sums), "cyan")
        lines.append(line)
    return lines


def bar(count: int, most: int, level: int) -> str:
    """The piece of a bar on a line, 0 being the lowest; a count that is none is never invisible."""
    steps = len(BARS) - 1
    filled = -(-count * steps * _GRAPH_LINES // most) if most else 0
    return BARS[max(0, min(steps, filled - level * steps))]


# --- what covers the table --------------------------------------------------------------------


def _filters(state: State) -> Iterator[Text]:
    yield Text()
    for number, name in enumerate(FIELDS):
        line = Text(f" {name.replace('_', '-'):>12}  ")
        chosen = number == state.focus
        line.append(f"{harmless(state.form.get(name, ''))}", "bold" if chosen else "")
        if chosen:
            line.append(" ", "reverse")
        yield line


def _export(state: State) -> Iterator[Text]:
    yield Text()
    line = Text(" Export all records that match to (.csv or .jsonl): ")
    line.append(harmless(state.path), "bold")
    line.append(" ", "reverse")
    yield line


def _help(_state: State) -> Iterator[Text]:
    yield Text()
    for keys, what in HELP:
        yield Text.assemble((f" {keys:>36}  ", "bold"), what)


def _detail(state: State) -> Iterator[Text]:
    if state.detail is None:
        yield Text(" reading", "dim")
        return
    for name, value in facts(state.detail, state.tz):
        yield Text.assemble((f" {name:>14}  ", "dim"), value)
    changes: Mapping[str, Any] = state.detail.get("chg") or {}
    if changes:
        yield Text()
    for name, change in changes.items():
        yield Text(f" {harmless(name)}", "bold")
        for side, style in (("f", "red"), ("t", "green")):
            if side in change:
                told = "from" if side == "f" else "to"
                value = shown.value_text(change[side])
                yield Text.assemble((f" {told:>14}  ", "dim"), (value, style))


def facts(record: Record, tz: str) -> Iterator[tuple[str, str]]:
    """What is known of a record, but for its columns."""
    meta, src, txn = record["meta"], shown.source_of(record), record["txn"]
    yield "place", str(record["at"])
    yield "_id", harmless(str(record["_id"]))
    if "event" in src:
        yield "event", harmless(str(src["event"]))
    yield "operation", str(record["op"])
    yield "table", harmless(f"{meta.get('db') or ''}.{meta.get('tbl') or ''}")
    yield "key", shown.key_text(record)
    for name in ("pk", "moved_to", "moved_from"):
        if name in meta:
            yield f"key ({name})", harmless(shown.json_text(meta[name]))
    yield "UTC", shown.utc(record["ts"])
    yield shown.zone_name(tz), shown.local(record["ts"], tz, unit="milliseconds")
    yield (
        "transaction",
        harmless(f"{txn.get('id')}, {record['seq'] + 1} of {txn.get('size')}"),
    )
    yield "source", harmless(str(src.get("source")))
    if "binlog" in src:
        yield "binlog", shown.place_text(record)
    for name in ("thread", "actor", "sql"):
        if name in src:
            yield {"sql": "statement"}.get(name, name), harmless(str(src[name]))
    if record.get("flags"):
        yield "flags", ", ".join(record["flags"])
    if "masked" in record:
        yield "masked, changed", ", ".join(map(harmless, record["masked"]))
    if "said" in record:
        yield "said", harmless(shown.json_text(record["said"]))
    if "erased" in record:
        yield "erased", harmless(shown.json_text(record["erased"]))
