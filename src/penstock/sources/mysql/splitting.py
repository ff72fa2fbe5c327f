"""Where a table is divided into ranges of its key, by the key's own index. Asks, and reads no row.

A range between two keys is halved as long as the server expects more rows in it than are wanted:
a place about in the middle of the two is made up, and the first key there is looked for. So every
edge is a key of the table, compared by the server alone: in its own order, in which keys that a
collation takes for equal are one. Where the middle is, is a guess, of whole numbers, decimals, text
and bytes; a wrong one makes ranges smaller or larger, and never wrong. Where guessing does not help
(other types, or a collation with an order of its own), the range is cut behind as many keys as are
wanted, which the server counts in the index.

What the server expects is an estimate from its index, as for the plan of a query.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from penstock.sources.mysql.connection import Connected
from penstock.sources.mysql.moments import is_mariadb
from penstock.sources.mysql.selecting import WHOLE, ColumnFacts, Key, Selection, Span

RANGES_MAX: Final = 10_000
_LOPSIDED: Final = 16
_LOPSIDED_TIMES_MAX: Final = 64
"""So often the smaller part of a range may be less than a 16th of it, before keys are counted:
between two numbers of 64 bits, whatever is between them is found by then."""
_AT_ODDS: Final = 4
_DIGITS: Final = 8
"""Behind what two texts have in common, so much of each tells where the middle is."""
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_NUMBERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"})
_TEXTS: Final = frozenset({"char", "varchar"})
_OF_ASCII: Final = frozenset({"ascii", "latin1", "utf8", "utf8mb3", "utf8mb4"})
_BYTES: Final = frozenset({"binary", "varbinary"})


class _Piece(NamedTuple):
    """Rows from a key on, up to another, which they do not reach."""

    first: Key
    last: Key
    """The last key of it."""
    stop: Key | None
    expected: int
    lopsided: int = 0
    """How often halving it came to little."""

    @property
    def span(self) -> Span:
        return Span(start=self.first, stop=self.stop)


class Splitter:
    """Divides one table."""

    def __init__(
        self,
        selection: Selection,
        *,
        first_row: Callable[[str], Sequence[Any] | None],
        expected: Callable[[str], int],
    ) -> None:
        """`first_row` answers a SELECT, `expected` says how many rows the server expects of it."""
        self._selection = selection
        self._first_row = first_row
        self._expected = expected

    def edges(self, *, rows: int) -> list[Key]:
        """The keys at which ranges of about `rows` rows meet, in order."""
        first, last = self._key(WHOLE), self._key(WHOLE, last=True)
        if first is None or last is None:
            return []
        whole = _Piece(first, last, None, 0)
        whole = whole._replace(expected=self._count(whole.span))
        rows = max(rows, -(-whole.expected // RANGES_MAX))
        if whole.expected <= rows and self._key(WHOLE, skip=rows) is not None:
            # The server knows nothing of a table that was filled just now.
            whole = whole._replace(expected=rows + 1, lopsided=_LOPSIDED_TIMES_MAX)
        left, done = [whole], list[_Piece]()
        while left:
            piece = left.pop()
            halves = self._halves(piece, rows) if piece.expected > rows else None
            if halves is None:
                done.append(piece)
            else:
                left += reversed(halves)
        return _joined([(piece.first, piece.expected) for piece in done], rows=rows)

    def _halves(self, piece: _Piece, rows: int) -> list[_Piece] | None:
        """Two pieces of it; None if it has no more rows than are wanted, whatever was expected."""
        middle = None if piece.lopsided >= _LOPSIDED_TIMES_MAX else self._guessed(piece)
        halves = None if middle is None else self._parted(piece, middle)
        if halves is not None:
            both = [self._count(half.span) for half in halves]
            # What is expected of both is at odds with the whole at times (of BIGINT UNSIGNED).
            if sum(both) * _AT_ODDS >= piece.expected:
                times = piece.lopsided + 1 if min(both) * _LOPSIDED < max(both) else 0
                return [
                    half._replace(expected=count, lopsided=times)
                    for half, count in zip(halves, both, strict=True)
                ]
        middle = self._key(piece.span, skip=rows)
        halves = None if middle is None else self._parted(piece, middle)
        if halves is None:
            return None
        lower, upper = halves
        return [
            lower._replace(expected=rows),
            upper._replace(expected=rows + 1, lopsided=_LOPSIDED_TIMES_MAX),  # and so on
        ]

    def _parted(self, piece: _Piece, middle: Key) -> list[_Piece] | None:
        """What is before a key of it, and the rest; None if nothing is before it any more."""
        below = self._key(Span(start=piece.first, stop=middle), last=True)
        if below is None:
            return None
        return [
            piece._replace(last=below, stop=middle),
            piece._replace(first=middle),
        ]

    def _guessed(self, piece: _Piece) -> Key | None:
        """A key of the piece behind its first one, about in its middle."""
        place = between(piece.first, piece.last, self._selection.key)
        if place is None:
            return None
        return self._key(Span(after=piece.first, start=place, stop=piece.stop))

    def _key(self, span: Span, *, last: bool = False, skip: int = 0) -> Key | None:
        row = self._first_row(self._selection.key_in(span, last=last, skip=skip))
        return None if row is None else tuple(str(value) for value in row)

    def _count(self, span: Span) -> int:
        return self._expected(self._selection.counted(span))


def expected_rows(connection: Connected, statement: str) -> int:
    """How many rows the server expects of a SELECT."""
    form = "" if is_mariadb(connection) else "FORMAT=TRADITIONAL "
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {form}{statement}")
        names = [name for name, *_ in cursor.description]
        (row,) = cursor.fetchall()
    return int(row[names.index("rows")] or 0)


def _joined(pieces: Sequence[tuple[Key, int]], *, rows: int) -> list[Key]:
    """Where pieces begin, but for the first; neighbours that are small become one. Pure."""
    edges: list[Key] = []
    room = 0
    for first, expected in pieces:
        if expected > room:
            edges.append(first)
            room = rows
        room -= expected
    return edges[1:]


# --- guesses: pure --------------------------------------------------------------------------------


def between(low: Key, high: Key, columns: Sequence[ColumnFacts]) -> Key | None:
    """A place that may be about in the middle of two keys, maybe of the first columns alone.

    None if there is no guess. It may be outside of the two, or no key at all.
    """
    for at, (one, other, column) in enumerate(zip(low, high, columns, strict=True)):
        if one != other:
            middle = _middle(one, other, column)
            return None if middle is None else (*low[:at], middle)
    return None


def _middle(low: str, high: str, column: ColumnFacts) -> str | None:
    kind = column.type
    if kind in _NUMBERS:
        return str((int(low) + int(high) + 1) // 2)
    if kind == "decimal":
        return f"{(Decimal(low) + Decimal(high)) / 2:f}"
    if kind in _BYTES:
        return _middle_bytes(bytes.fromhex(low), bytes.fromhex(high)).hex().upper()
    if kind in _TEXTS and column.charset in _OF_ASCII:
        return _middle_text(bytes.fromhex(low), bytes.fromhex(high))
    return None


def _middle_bytes(low: bytes, high: bytes) -> bytes:
    head = _alike(low, high)
    one, other = (
        int.from_bytes(text[head : head + _DIGITS].ljust(_DIGITS, b"\0")) for text in (low, high)
    )
    return low[:head] + ((one + other + 1) // 2).to_bytes(_DIGITS)


def _middle_text(low: bytes, high: bytes) -> str | None:
    """As letters and digits go: other characters count as the least of them."""
    head = _alike(low, high)
    ends = [text[head : head + _DIGITS] for text in (low, high)]
    if not all(end.isascii() for end in ends):
        return None
    one, other = (_number(end.decode().lower()) for end in ends)
    middle = (one + other + 1) // 2
    digits = [_ALPHABET[middle // 36**place % 36] for place in reversed(range(_DIGITS))]
    text = "".join(digits).encode()
    capital = b"".join(ends).isupper()
    return (low[:head] + (text.upper() if capital else text)).hex().upper()


def _number(text: str) -> int:
    number = 0
    for at in range(_DIGITS):
        digit = _ALPHABET.find(text[at]) if at < len(text) else 0
        number = number * 36 + max(digit, 0)
    return number


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes two begin with alike."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))
