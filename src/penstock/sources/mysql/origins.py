"""What events say of where they come from: file, offset, session, statement, and who. Pure.

The names are those of docs/reference/fields.md. What the rows of one binlog event have in common
is encoded once, and is one object for them all; a statement's text goes with the first row that is
told of it, and the others say which one that is.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from penstock.sources.mysql.redaction import comments, redacted

Statements = Literal["full", "redacted", "off"]
_encode: Final = msgspec.json.Encoder().encode
_READ_MAX: Final = 16
"""Times what is kept of a statement: so much of it is looked at to leave its values out."""


class OriginRules(Struct, frozen=True, kw_only=True):
    """What a source tells of statements."""

    statements: Statements = "full"
    bytes_max: int = 8 << 10
    """Of a statement's text, in UTF-8."""
    actor: re.Pattern[str] | None = None
    """Finds who wrote it in a comment: its first group."""

    @property
    def wants_text(self) -> bool:
        """Whether the server is to send the texts."""
        return self.statements != "off" or self.actor is not None

    def shown(self, text: str) -> str | None:
        """What may be told of a statement, however long; None for nothing."""
        if self.statements == "redacted":
            return redacted(text)
        return text if self.statements == "full" else None

    def cut(self, text: str) -> tuple[str, int] | None:
        """What is kept of a statement, and its true length in bytes; None for nothing."""
        if self.statements == "off":
            return None
        most = self.bytes_max
        if self.statements == "full" and len(text) <= most and text.isascii():
            return text, 0
        length = len(text) if text.isascii() else len(text.encode())
        seen = text
        if self.statements == "redacted":
            # A text is cut within a value only, and is hidden from there.
            seen = redacted(text[: most * _READ_MAX])
        kept = seen.encode()[:most].decode(errors="ignore")
        whole = len(text) <= most * _READ_MAX and len(kept) == len(seen)
        return kept, 0 if whole else length

    def who(self, text: str) -> str | None:
        """Who wrote a statement, as one of its comments says."""
        if self.actor is None or self.actor.search(text) is None:
            return None
        for comment in comments(text):
            found = self.actor.search(comment)
            if found is not None:
                return found[1]
        return None


DEFAULT_RULES: Final = OriginRules()


def origin_rules(
    *, statements: Statements, bytes_max: int, actor: str | None, hides_columns: bool
) -> OriginRules:
    """The rules of a source. A statement has the values of all columns of all of its tables, so a
    source that hides any column (`hides_columns`) tells no statement with its values (A26)."""
    if hides_columns and statements == "full":
        statements = "redacted"
    pattern = None if actor is None else re.compile(actor)
    return OriginRules(statements=statements, bytes_max=bytes_max, actor=pattern)


@lru_cache(maxsize=64)
def _file(name: str) -> bytes:
    """The name of a binlog, in JSON."""
    return _encode(name)


class Origin:
    """Where the events of one transaction come from."""

    __slots__ = (
        "_actor",
        "_file",
        "_head",
        "_offset",
        "_rest",
        "_rules",
        "_said_at",
        "_statement",
        "_thread",
    )

    def __init__(self, rules: OriginRules, file: str, offset: int) -> None:
        """`file` is the binlog, and `offset` where in it the transaction begins."""
        self._rules = rules
        self._file = _file(file)
        self._offset = offset
        self._thread = b""
        self._statement: Callable[[], str] | None = None
        """The text of the statement, until it is told."""
        self._actor = b""
        self._said_at: int | None = None
        """The number of the event that has the statement's text."""
        self._head = b""
        """Of the binlog event that is read, and without its end."""
        self._rest: Raw | None = None
        """Of all events that do not have the statement's text; None until there is one."""

    def by(self, thread: int) -> None:
        """What follows was written by this session; 0 where that is not said."""
        self._thread = b',"thread":%d' % thread if thread else b""

    def elsewhere(self, file: str, offset: int, thread: int) -> None:
        """What follows was written before this transaction, by that session: with another one,
        which begins in `file` at `offset`."""
        self._file, self._offset = _file(file), offset
        self.by(thread)

    def stated(self, text: Callable[[], str]) -> None:
        """What follows is of a statement; its `text` is asked for only if something is told."""
        self._statement = text if self._rules.wants_text else None
        self._said_at = None
        self._actor = b""

    def ends(self) -> None:
        """The statement ends: what follows is not of it."""
        self._statement = self._said_at = None
        self._actor = b""

    def at(self, offset: int) -> None:
        """What follows is of the binlog event at `offset`; 0: of one that does not say where."""
        self._head = b'{"file":%b,"offset":%d%b' % (
            self._file,
            offset or self._offset,
            self._thread,
        )
        self._rest = None

    def of(self, number: int) -> Raw:
        """What the event of that number, in the transaction, says."""
        rest = self._rest
        if rest is not None:
            return rest
        if self._statement is not None:
            return self._first(number, self._statement())
        said = b"" if self._said_at is None else b',"statementAt":%d' % self._said_at
        rest = self._rest = Raw(b"%b%b%b}" % (self._head, self._actor, said))
        return rest

    def here(self) -> Raw:
        """The place alone, for what is told beside the rows that are read."""
        return Raw(self._head + b"}")

    def _first(self, number: int, text: str) -> Raw:
        self._statement = None
        who = self._rules.who(text)
        self._actor = b"" if who is None else b',"actor":%b' % _encode(who)
        kept = self._rules.cut(text)
        if kept is None:
            return self.of(number)
        shown, length = kept
        first = b'%b%b,"statement":%b' % (self._head, self._actor, _encode(shown))
        if length:
            first += b',"statementBytes":%d' % length
        self._said_at = number
        return Raw(first + b"}")


def moved(origin: Raw, *, to: Raw | None = None, source: Raw | None = None) -> Raw:
    """`origin` of one half of an update that changed the key, with the key of the other half."""
    name, key = (b"movedTo", to) if to is not None else (b"movedFrom", source)
    assert key is not None
    return Raw(b'%b,"%b":%b}' % (bytes(origin)[:-1], name, bytes(key)))


def masked(origin: Raw, names: Sequence[str]) -> Raw:
    """`origin` of an update, with the columns that changed and are told alike."""
    return Raw(b'%b,"masked":%b}' % (bytes(origin)[:-1], _encode(names)))
