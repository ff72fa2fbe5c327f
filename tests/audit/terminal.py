"""A command in a real pseudo-terminal: keys go in, and what is on the screen is read."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Generator
from contextlib import contextmanager

from tests.waiting import wait_until

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]")
HOME = "\x1b[H"
F1, F5, F9, F10 = "\x1bOP", "\x1b[15~", "\x1b[20~", "\x1b[21~"
DOWN, UP, ESCAPE, ENTER, CLEAR = "\x1b[B", "\x1b[A", "\x1b", "\r", "\x15"


_SETTLED = 0.05
"""A picture is whole when nothing follows for so many seconds."""


class Terminal:
    """A program whose whole screen is drawn anew each time."""

    def __init__(self, command: list[str], *, width: int, height: int) -> None:
        self._master, slave = pty.openpty()
        self.resize(width, height, tell=False)
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment | {"TERM": "xterm-256color"},
            start_new_session=True,
        )
        self.settings = termios.tcgetattr(slave)
        self._slave = slave
        # A character of several bytes may come in two reads: "→" is drawn once, and waited for.
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self.written = ""

    def resize(self, width: int, height: int, *, tell: bool = True) -> None:
        size = struct.pack("HHHH", height, width, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        if tell:
            self.process.send_signal(signal.SIGWINCH)

    def press(self, *keys: str) -> None:
        os.write(self._master, "".join(keys).encode())

    def read(self, *, seconds: float = 0.1) -> bool:
        """What was written since, if anything comes soon; whether anything did."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        if ready:
            self.written += self._text.decode(os.read(self._master, 1 << 16))
        return bool(ready)

    @property
    def screen(self) -> list[str]:
        """The lines of the last picture, so far as it came."""
        pictures = self.written.split(HOME)
        return [line.rstrip() for line in _CONTROL.sub("", pictures[-1]).splitlines()]

    def until(self, shows: Callable[[list[str]], bool]) -> list[str]:
        """Wait until the screen is as it should."""

        def settled() -> bool:
            # Once more when nothing follows: half of a picture may be as it should, and end early.
            if shows(self.screen) and not self.read(seconds=_SETTLED) and shows(self.screen):
                return True
            self.read()
            return False

        ended = self.process.poll
        wait_until(settled, unless=lambda: ended() is not None, diagnose=self._picture)
        return self.screen

    def _picture(self) -> str:
        return "\n".join(["the screen is:", *self.screen, repr(self.written[-3000:])])

    def shows(self, *texts: str) -> list[str]:
        """Wait until all of these are on the screen."""
        return self.until(lambda lines: all(any(text in line for line in lines) for text in texts))

    def ended(self) -> int:
        """Wait for the end; its exit code."""

        def is_over() -> bool:
            self.read()
            return self.process.poll() is not None

        wait_until(is_over, diagnose=self._picture)
        # All that is left, in however many pieces the terminal hands it out.
        while self.read(seconds=0):
            continue
        return self.process.returncode

    def restored(self) -> bool:
        """Whether the terminal is as it was before."""
        return termios.tcgetattr(self._slave) == self.settings

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._slave)
        os.close(self._master)


@contextmanager
def terminal(*arguments: str, width: int = 120, height: int = 30) -> Generator[Terminal]:
    """`penstock` with these arguments."""
    command = [sys.executable, "-m", "penstock.cli", *arguments]
    made = Terminal(command, width=width, height=height)
    try:
        yield made
    finally:
        made.close()
