"""The log as the simplest thing that could be right, and random histories to compare it on."""

from hypothesis import strategies as st
from msgspec import Struct

from penstock.event import Commit, Fragment
from penstock.testing.contracts.entries import Seen, changes

SOURCES = ("a", "b", "c")


class Step(Struct, frozen=True):
    """Something that a source does: `rows` more events, and perhaps the end of its commit."""

    source: str
    rows: int
    bytes_: int
    ends: bool


class Abandon(Struct, frozen=True):
    """A source starts over: what it staged is dropped."""

    source: str


Batch = list[Step]

_steps = st.builds(
    Step,
    source=st.sampled_from(SOURCES),
    rows=st.integers(0, 6),
    # Small ones share a block; three of the middle ones fill one; a large one is one.
    bytes_=st.sampled_from([20, 300, 30_000, 90_000]),
    ends=st.booleans(),
)
histories: st.SearchStrategy[list[Batch | Abandon]] = st.lists(
    st.lists(_steps, min_size=1, max_size=5) | st.builds(Abandon, st.sampled_from(SOURCES)),
    max_size=8,
)
"""What happens to a log: batches of steps, and sources that start over."""


class Model:
    """A list of entries, a dict of positions, and what each source has staged."""

    def __init__(self) -> None:
        self.entries: list[Seen] = []
        self.positions: dict[str, str] = {}
        self.commits = 0
        self._staged: dict[str, int] = {}
        self._numbers: dict[str, int] = dict.fromkeys(SOURCES, 0)

    def batch(self, steps: Batch) -> list[Commit | Fragment]:
        """Play `steps`; returns what to append."""
        return [self._step(step) for step in steps]

    def abandon(self, source: str) -> None:
        self._staged.pop(source, None)

    def _step(self, step: Step) -> Commit | Fragment:
        source, start = step.source, self._staged.get(step.source, 0)
        position = str(self._numbers[source] + 1)
        events = changes(source, position, step.rows, start=start, bytes_=step.bytes_)
        rows = start + step.rows
        if not step.ends:
            self._staged[source] = rows
            return Fragment(source=source, events=events)
        self._staged.pop(source, None)
        self._numbers[source] += 1
        self.positions[source] = position
        if rows:
            self.commits += 1
            for ordinal in range(rows):
                self.entries.append(
                    Seen(
                        len(self.entries) + 1,
                        self.commits,
                        ordinal,
                        rows,
                        ordinal == rows - 1,
                        source,
                        f"{source}/{position}/{ordinal}",
                    )
                )
        return Commit(source=source, position=position, events=events)
