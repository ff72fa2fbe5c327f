"""Tables read by ranges, in tests."""

from msgspec import structs

from penstock.event import ChangeEvent
from penstock.sources.mysql import MysqlSource
from penstock.sources.mysql.positions import parse_position
from penstock.testing.contracts.ranges import rows_of
from tests.mysql.support import source_of
from tests_support.servers import SqlServer


def scoped(position: str, source: MysqlSource) -> str:
    """The position of a source that captures what `source` does."""
    return structs.replace(parse_position(position), scope=source.config.scope).text()


async def by_ranges(source: MysqlSource, position: str, *, rows: int) -> list[ChangeEvent]:
    """Every row of what is captured, range by range, the last range first."""
    position = scoped(position, source)
    try:
        listing = await source.ranges("", "", rows=rows, position=position)
        return [
            event
            for part in reversed(listing.ranges)
            for event in await rows_of(source, part, position)
        ]
    finally:
        await source.close()


def reading(server: SqlServer, database: str, **options: object) -> MysqlSource:
    """A source that is read a few rows at a time."""
    return source_of(
        server, include=[f"{database}.*"], **{"snapshot_chunk_documents": 3, **options}
    )
