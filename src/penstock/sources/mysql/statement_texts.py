"""Statements as text, by the character set of the session that wrote them.

The server itself says what the characters of a set are: Python's codecs differ from it in many. A
statement is divided into characters first, as the server does, because the second byte of one may
be a backslash or a quote (gbk, sjis, big5, ...), which then is neither.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Final

from penstock.mysql_sql.tokens import plain_comments, spaced
from penstock.sources.mysql.binlog import Query
from penstock.sources.mysql.charsets import CODECS, latin1

UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"
"""In place of bytes that are no character of the set."""
Characters = Callable[[str, Collection[bytes]], Mapping[bytes, str]]
"""What each of these bytes is in a character set, as one character; UNREADABLE if it is none."""

_SJIS: Final = rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]"
_EUC: Final = rb"\x8e[\xa1-\xdf]|\x8f[\xa1-\xfe]{2}|[\xa1-\xfe]{2}"
_OF_BYTES: Final[Mapping[str, bytes]] = {
    "big5": rb"[\xa1-\xf9][\x40-\x7e\xa1-\xfe]",
    "cp932": _SJIS,
    "sjis": _SJIS,
    "eucjpms": _EUC,
    "ujis": _EUC,
    "euckr": rb"[\x81-\xfe][\x41-\x5a\x61-\x7a\x81-\xfe]",
    "gb2312": rb"[\xa1-\xf7][\xa1-\xfe]",
    "gbk": rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]",
    "gb18030": rb"[\x81-\xfe](?:[\x40-\x7e\x80-\xfe]|[\x30-\x39][\x81-\xfe][\x30-\x39])",
}
"""The characters of more than one byte, of sets that have some."""
_NOT_OF_ASCII: Final = frozenset({"swe7"})
"""Sets in which bytes below 0x80 are other characters than ASCII's."""


class StatementTexts:
    """Decodes the statements of one source."""

    def __init__(
        self, charset_of: Callable[[int], str], characters: Characters, *, of_mysql: bool
    ) -> None:
        """`charset_of` names the character set of a collation, empty where the server knows none.
        `of_mysql`: the server runs no comments of MariaDB."""
        self._charset_of = charset_of
        self._characters = characters
        self._of_mysql = of_mysql

    def of_rows(self, data: bytes, collation: int) -> str:
        """The statement of rows. MariaDB does not say the character set: `collation` is 0 then,
        and it is taken for utf8mb4."""
        return self._decoded(data, collation)[0]

    def of(self, said: Query) -> tuple[str, bool]:
        """A statement as its readers split it, and whether its characters are known. Bytes that are
        none, as those of a literal in another set, are UNREADABLE."""
        text, known = said.text, True
        if not text.isascii():
            data = text.encode(errors="surrogateescape")
            text, known, one_byte = self._decoded(data, said.collation)
            if one_byte:
                text = spaced(text, said.modes)
        return (plain_comments(text, said.modes) if self._of_mysql else text), known

    def _decoded(self, data: bytes, collation: int) -> tuple[str, bool, bool]:
        """A text, whether it is known what its characters are, and whether each is one byte."""
        charset = self._charset_of(collation) if collation and not data.isascii() else ""
        if charset == "latin1":
            return latin1(data), True, True
        if charset in {"", "binary"} or charset in _NOT_OF_ASCII or charset in CODECS:
            text = data.decode(CODECS.get(charset, "utf-8"), "replace")
            is_strange = charset in _NOT_OF_ASCII or (not charset and bool(collation))
            return text, not (is_strange and UNREADABLE in text), False
        pieces = _pieces(charset).findall(data)
        known = self._characters(charset, {one for one in pieces if one[0] > 0x7F})
        text = "".join(one.decode("ascii") if one[0] < 0x80 else known[one] for one in pieces)
        return text, True, charset not in _OF_BYTES


@cache
def _pieces(charset: str) -> re.Pattern[bytes]:
    characters = _OF_BYTES.get(charset)
    return re.compile(
        rb"[\x00-\x7f]+|" + (characters + rb"|" if characters else b"") + rb"[\x80-\xff]"
    )
