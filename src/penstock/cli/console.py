"""The console that commands draw on for people."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from penstock.harmless import harmless, harmless_lines


class Screen(Console):
    """A console on which nothing that is drawn steers the terminal but rich itself: names, ids and
    messages of others come into everything that is shown. Plain text, without markup, stays one
    line: what others wrote begins no line of its own."""

    def print(self, *objects: Any, markup: bool | None = None, **how: Any) -> None:
        """As rich does it, but for the line ends in a text without markup."""
        if markup is False:
            objects = tuple(harmless(one) if isinstance(one, str) else one for one in objects)
        super().print(*objects, markup=markup, **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As rich does it, with control characters in texts written as escapes."""
        for one in super().render(renderable, options):
            if one.control or one.text.isprintable():
                yield one
            else:
                yield Segment(harmless_lines(one.text), one.style)
