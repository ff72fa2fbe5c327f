"""Fills the indexes that UpdateTable begins, in a thread of its own: neither reads nor writes wait.

An index that was begun is finished, if not by this process then by the next one that serves the
store: DescribeTable says CREATING until then.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from penstock.errors import PenstockError
from penstock.store import Index, Store
from penstock.store.errors import IndexNotFoundError
from penstock.store.indexes import Filling

_log = structlog.get_logger()

_PAUSE_SECONDS: Final = 0.001
"""Between two steps: whoever waits to write has his turn."""


class IndexMaker:
    """Makes indexes, one at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1, "dynamodb-indexes")
        with store.view() as view:
            unfinished = [
                Filling(table.name, index)
                for table in view.tables()
                for index in table.indexes
                if not index.ready and index.kept
            ]
        for filling in unfinished:
            self._thread.submit(self._fill, filling)

    def make(self, table: str, index: Index) -> None:
        """Begin an index; it is filled once this has returned. Raises as `Store.begin_index`."""
        filling = self._store.begin_index(table, index)
        if filling is not None:
            self._thread.submit(self._fill, filling)

    def close(self) -> None:
        """Stop after the step that is under way."""
        self._stopping.set()
        self._thread.shutdown()

    def _fill(self, filling: Filling) -> None:
        left: Filling | None = filling
        try:
            while left is not None and not self._stopping.wait(_PAUSE_SECONDS):
                left = self._store.fill_index(left)
        except IndexNotFoundError:
            return  # it was dropped meanwhile
        except PenstockError as error:
            _log.error(
                "a DynamoDB index is not finished; start the endpoint again, or delete the index",
                table=filling.table,
                index=filling.index.name,
                error=str(error),
            )
