"""A log that does not grow itself, for tests of what does."""

import pyarrow as pa

from penstock.event import AnyEvent
from tests.spark.tables import Entries


class NewestEntries(Entries):
    """A log of which the last commit alone is left."""

    def commit(self, *events: AnyEvent) -> None:
        self._blocks.clear()
        super().commit(*events)

    def table(self, after: int = 0, until: int | None = None) -> pa.Table:
        assert until in {None, self.head}
        whole = pa.Table.from_batches(self._blocks)
        return whole.slice(whole.num_rows - (self.head - after))
