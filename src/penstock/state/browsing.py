"""Current rows for somebody who looks around, whether the service runs or not.

Unlike a reading, they are not of one moment, and nothing waits for whoever looks.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.kv import Env
from penstock.state.layout import ROWS, Name, key_in, number_key, unpack_row
from penstock.state.looking import current_row
from penstock.state.tables import find_state, read_collections, state_path
from penstock.subscribe.current import CurrentRow

_ROWS_AT_ONCE: Final = 1000


def browse(log: Path, source: str, *, rows_max: int) -> Iterator[CurrentRow]:
    """The rows of a source beside the log at `log`, at most `rows_max` of each collection that is
    still captured.

    None where nobody has kept any. A transaction is held for a thousand rows at a time, so that
    looking for long does not make the file grow. Raises LogFormatError for rows of another version.
    """
    env = find_state(state_path(log))
    if env is None:
        return
    with env:
        with env.read() as txn:
            found = read_collections(txn, env, source)
        for name, facts in found.items():
            if facts.left:
                continue
            yield from _rows(env, name, facts.number, rows_max)


def _rows(env: Env, name: Name, number: int, rows_max: int) -> Iterator[CurrentRow]:
    prefix = number_key(number)
    start, left = prefix, rows_max
    while left > 0:
        rows: list[CurrentRow] = []
        with env.read() as txn, txn.cursor(env[ROWS]) as cursor:
            there = cursor.set_range(start)
            while there and cursor.key().startswith(prefix) and len(rows) < _ROWS_AT_ONCE:
                place, value = bytes(cursor.key()), bytes(cursor.value())
                row = unpack_row(value)
                rows.append(current_row(name, key_in(place, row), row, value))
                start = place + b"\0"
                there = cursor.next()
        yield from rows[:left]
        left = left - len(rows) if len(rows) == _ROWS_AT_ONCE else 0
