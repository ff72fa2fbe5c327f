"""A log whose retention passes a reader in the midst of a batch."""

from penstock.wire import Block
from tests.flight.blocks import BlockLog, insert


class OvertakingLog(BlockLog):
    """Removes all that it held when it is read as often as it is told to, and goes on by one."""

    def __init__(self) -> None:
        super().__init__()
        self._left: int | None = None
        self._before = False

    def overtake(self, *, reads: int, before: bool = False) -> None:
        """With the read of that number from now on: `before` it is answered, or behind that."""
        self._left, self._before = reads, before

    def read_now(
        self, *, after: int, until: int | None = None, bytes_max: int = 1 << 20
    ) -> list[Block]:
        due = self._left == 1
        self._left = None if self._left is None or due else self._left - 1
        if due and self._before:
            self._move_on()
        found = super().read_now(after=after, until=until, bytes_max=bytes_max)
        if due and not self._before:
            self._move_on()
        return found

    def _move_on(self) -> None:
        self.append([[insert(1_000)]])
        self.trim(self.head)
