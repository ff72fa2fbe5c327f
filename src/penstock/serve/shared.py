"""Messages made once for all readers that pass the same place."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from penstock.wire import Block

SHARED_BYTES_MAX: Final = 16 << 20


class SharedMessages:
    """The messages of the blocks sent last, for readers of one event loop.

    Most readers are near the head, each at the same blocks as the others; slicing a message costs
    more than anything else that is done for it. What a filter leaves of a block is not kept.
    """

    def __init__(self, bytes_max: int = SHARED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.kept_bytes = 0
        self._kept: OrderedDict[tuple[int, int, int], list[bytes]] = OrderedDict()

    def messages(self, block: Block, entries: Sequence[int]) -> list[bytes]:
        """`Block.messages`, perhaps made before. Not to be changed."""
        if not isinstance(entries, range):
            return list(block.messages(entries))
        # A log never has two entries at one sequence, so this names the content.
        first = block.first_sequence + entries.start
        key = (block.log_id, first, len(entries))
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        made = list(block.messages(entries))
        self._kept[key] = made
        self.kept_bytes += sum(map(len, made))
        while self.kept_bytes > self._bytes_max:
            _, dropped = self._kept.popitem(last=False)
            self.kept_bytes -= sum(map(len, dropped))
        return made
