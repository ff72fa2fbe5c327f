"""A Zero source keeps what every source promises, over an endpoint in the test."""

from collections.abc import AsyncGenerator

import pytest

from penstock.ports import ChangeSource
from penstock.testing.contracts.source import SourceContract
from penstock.zero.lexi import lexi_version
from tests.sources_zero.support import endpoint, item, source
from tests.zero.scripted import ScriptedEndpoint, transaction


class TestZeroSource(SourceContract):
    endpoint: ScriptedEndpoint
    written: int

    @pytest.fixture(autouse=True)
    async def _running(self) -> AsyncGenerator[None]:
        self.written = 1
        async with endpoint(item("before")).running() as self.endpoint:
            yield

    def open_source(self) -> ChangeSource:
        return source(self.endpoint.url, start="now")

    async def write(self, rows: int) -> None:
        self.written += 1
        mark = lexi_version(self.written)
        changes = [item(f"{self.written}-{number}", n=number) for number in range(rows)]
        await self.endpoint.say(*transaction(mark, *changes))
