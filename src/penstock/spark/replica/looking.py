"""What a replica holds at one moment, its place and its rejects among it, read slice by slice."""

from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Protocol

from penstock.spark.replica.anew import Anew
from penstock.spark.replica.beside import Found
from penstock.spark.replica.known import Known
from penstock.spark.replica.place import Place


class MomentLostError(Exception):
    """The server does not give any more what it held at that moment. It is looked at again."""


class Look(Protocol):
    """A replica at one moment."""

    @property
    def place(self) -> Place | None:
        """Where the pipeline stood; None: it never ran."""
        ...

    @property
    def known(self) -> Known:
        """What its tables were for, and which rows lacked a change."""
        ...

    @property
    def gaps(self) -> frozenset[int]:
        """The sequences of the events at which the pipeline noted a gap."""
        ...

    def rows(self, name: str) -> Generator[list[Found]]:
        """The rows of a table, some at a time; none where it is not the pipeline's.

        Raises MomentLostError, PipelineError for a column that cannot be read.
        """
        ...

    def lasted(self) -> bool:
        """Whether all that was read is of that moment."""
        ...


class Side(Protocol):
    """A replica, and what the log makes of it."""

    @property
    def anew(self) -> Anew: ...

    def look(self, *, pinned: bool) -> AbstractContextManager[Look]:
        """Look at the replica, which changes and locks no row; what is made of the log has the
        columns of its tables from then on. `pinned`: the server keeps that moment, if it can.

        Raises what the destination's calls do.
        """
        ...
