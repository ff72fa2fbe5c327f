"""Words that others chose, as they are shown: they may steer a terminal or turn a line around."""

import re
from typing import Final

_CONTROL: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_WITHIN_LINES: Final = re.compile(_CONTROL.pattern.replace(r"\x00-\x1f", r"\x00-\x09\x0b-\x1f"))
_PLAIN: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def harmless(text: str) -> str:
    """`text` on one line, with what is no printable character written as an escape."""
    return _CONTROL.sub(lambda found: _escape(found[0]), text)


def harmless_lines(text: str) -> str:
    """As `harmless`, but lines stay lines."""
    return _WITHIN_LINES.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    return _PLAIN.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
