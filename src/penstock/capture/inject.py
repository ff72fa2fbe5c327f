"""Commits that others add to what a source says, in their place behind it.

They go through the source's own pump, between two of its appends: so nothing of the source is on
its way into the log meanwhile, whoever adds something can know all that came before, and the
position never moves back.
"""

from typing import Protocol

from penstock.event import Commit


class Injector(Protocol):
    """Somebody who may have something to add. Asked by one pump at a time for each source."""

    async def next(self, source: str, position: str) -> list[Commit] | None:
        """What goes into the log now, behind everything that the source has said.

        Empty: it is looking, and should be asked again as soon as the source leaves time. None:
        there is nothing, or nothing yet. `position` is the durable one of the source; every commit
        has it. What was returned and not appended must come again.
        """
        ...

    def asks_again(self, source: str) -> float | None:
        """In how many seconds `next` should be asked again if the source says nothing until then;
        None: nothing is due that another word of the source would not bring up."""
        ...
