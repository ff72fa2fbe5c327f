"""How many documents a copy asks for at a time: what the line carries in a while. Pure."""

from typing import Final

_GROWTH: Final = 2
_CUT: Final = 4


class Pace:
    """The size of the next chunk, from how long the ones before it took.

    A chunk that is not here in time is read again from its beginning, so a line that is too slow
    for it would never get anywhere.
    """

    def __init__(self, *, documents_max: int, seconds: float) -> None:
        """`seconds` is how long a chunk should take at most."""
        self._documents_max, self._seconds = documents_max, seconds
        self.documents = documents_max
        """Of the next chunk, at most."""

    def took(self, documents: int, *, seconds: float) -> None:
        """So many came in that time."""
        if documents:
            fit = int(documents * self._seconds / max(seconds, 1e-6))
            grown = _GROWTH * self.documents
            self.documents = max(1, min(fit, grown, self._documents_max))

    def failed(self) -> None:
        """They did not come in time."""
        self.documents = max(1, self.documents // _CUT)
