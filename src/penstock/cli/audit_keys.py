"""Keys of a terminal: bytes to names, and a terminal that hands out each as it is pressed."""

import codecs
import os
import re
import select
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_SEQUENCE: Final = re.compile(rb"\x1b(?:\[\[[A-E]|\[[0-9;]*[ -/]*[@-Z\\-~]|O[@-~])")
_BEGUN: Final = re.compile(rb"\x1b(?:\[\[?[0-9;]*[ -/]*|O)?")
_NAMES: Final = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[Z": "up",
    b"\x1b[11~": "f1",
    b"\x1b[[A": "f1",
    b"\x1bOP": "f1",
    b"\x1b[15~": "f5",
    b"\x1b[[E": "f5",
    b"\x1b[20~": "f9",
    b"\x1b[21~": "f10",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOH": "home",
    b"\x1bOF": "end",
}
"""As xterm, its kin and the Linux console send them: their terminfo entries."""
_CONTROLS: Final = {"\r": "enter", "\n": "enter", "\t": "down", "\x7f": "delete", "\x08": "delete"}
_CLEAR: Final = "\x15"
ESCAPE_SECONDS: Final = 0.05
"""An escape that nothing follows for so long is the key of that name."""


class Keys:
    """Names of keys from what a terminal sends, in pieces of any size. Pure.

    A printable character is its own name; what is not known has none.
    """

    def __init__(self) -> None:
        self._left = b""
        self._text = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def pending(self) -> bool:
        """Whether what came may be the beginning of more."""
        return bool(self._left)

    def feed(self, data: bytes) -> list[str]:
        """The keys that are complete."""
        left, keys = self._left + data, list[str]()
        while left:
            at = left.find(b"\x1b")
            if at != 0:
                keys += self._typed(left if at < 0 else left[:at])
                left = b"" if at < 0 else left[at:]
                continue
            found = _SEQUENCE.match(left)
            if found is None:
                if _BEGUN.fullmatch(left):
                    break
                keys.append("escape")
                left = left[1:]
                continue
            name = _NAMES.get(found[0])
            keys += [] if name is None else [name]
            left = left[found.end() :]
        self._left = left
        return keys

    def settle(self) -> list[str]:
        """Nothing follows: an escape was the key."""
        left, self._left = self._left, b""
        return ["escape"] if left else []

    def _typed(self, data: bytes) -> list[str]:
        return [
            "clear" if one == _CLEAR else _CONTROLS.get(one, one)
            for one in self._text.decode(data)
            if one in _CONTROLS or one == _CLEAR or one.isprintable()
        ]


@contextmanager
def each_key(fd: int) -> Generator[None]:
    """Have the terminal hand out each key at once, and not show it, for the time of the block."""
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def read_keys(fd: int, keys: Keys, *, seconds: float) -> list[str] | None:
    """The keys that were pressed, waiting at most so long for one. None: the terminal is gone."""
    wait = ESCAPE_SECONDS if keys.pending else seconds
    ready, _, _ = select.select([fd], [], [], wait)
    if not ready:
        return keys.settle() if keys.pending else []
    try:
        data = os.read(fd, 4096)
    except OSError:
        return None
    return keys.feed(data) if data else None
