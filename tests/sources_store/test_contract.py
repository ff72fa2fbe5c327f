"""A store as a source keeps what every source promises."""

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.ports import ChangeSource
from penstock.testing.contracts.copies import CopyContract
from tests.sources_store.support import make, source_of
from tests.store.support import opened


class TestStore(CopyContract):
    @pytest.fixture(autouse=True)
    def _upstream(self, tmp_path: Path) -> Iterator[None]:
        self.path, self.numbers = tmp_path, count()
        with opened(tmp_path) as self.db:
            make(self.db, "a")
            yield

    def open_source(self) -> ChangeSource:
        return source_of(self.path)

    async def write(self, rows: int) -> None:
        puts = [("a", {"id": next(self.numbers)}) for _ in range(rows)]
        await asyncio.to_thread(self.db.write_batch, puts=puts)
