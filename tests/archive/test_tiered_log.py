"""A log and its archive as one: what was trimmed is told as if it had been kept."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from msgspec import structs

from penstock.archive import writing
from penstock.archive.reading import Archive
from penstock.errors import (
    ArchiveDamagedError,
    ArchiveForeignError,
    ArchiveGoneError,
    TrimmedError,
)
from penstock.event import Commit, Operation
from penstock.log import LmdbLog
from penstock.log.tiered import TieredLog
from penstock.ports import Bounds, LogReader
from penstock.progress import Progress
from penstock.serve.captures.service import CaptureService
from penstock.testing.contracts.capturing import changed, committed, told
from tests.archive.logs import archiver, fill, log_config
from tests.captures import graphql
from tests.captures.sockets import captured_by, configured, get

pytestmark = pytest.mark.slow

Entry = tuple[int, int, int, bytes]


class Both(NamedTuple):
    """A log of which all was archived, and nothing trimmed yet."""

    log: LmdbLog
    past: TieredLog
    folder: Path


@pytest.fixture
async def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Both]:
    monkeypatch.setattr(writing, "_GROUP_BYTES", 9_000)
    async with LmdbLog(log_config(tmp_path)) as log:
        past = TieredLog(log, str(tmp_path / "archive"), folder=tmp_path / "log")
        yield Both(log, past, tmp_path)
        await past.close()


async def entries(log: LogReader, *, after: int = 0, bytes_max: int = 1) -> list[Entry]:
    """All that follows, as it is sent: sequence, commit, ordinal, and the very bytes."""
    found: list[Entry] = []
    head = (await log.bounds()).head
    while after < head:
        for block in await log.read(after=after, bytes_max=bytes_max):
            assert block.first_sequence + block.start == after + 1
            for i in range(block.start, block.stop):
                sequence = block.first_sequence + i
                found.append((sequence, block.commit(i), block.ordinal(i), bytes(block.message(i))))
            after = block.last_sequence
    return found


async def test_every_entry_is_the_same_wherever_retention_stands(both: Both) -> None:
    work = archiver(both.log, both.folder)
    for seed in range(3):
        await fill(both.log, seed=seed, commits=15)
        if seed < 2:
            work.step()
    bounds = await both.log.bounds()
    whole = await entries(both.log)
    checks = [await both.log.check_at(sequence) for sequence in range(bounds.head + 2)]
    archived = work.archived
    assert archived is not None
    for trimmed in (1, 40, archived.until // 2, archived.until - 1, archived.until):
        await both.log.trim(trimmed)
        live = await both.log.bounds()
        assert live.trimmed
        assert await both.past.bounds() == structs.replace(live, trimmed=0, trimmed_check=0)
        for after, size in ((0, 1), (7, 40_000), (live.trimmed - 1, 1 << 20), (live.trimmed, 1)):
            assert await entries(both.past, after=after, bytes_max=size) == whole[after:]
        assert [await both.past.check_at(one) for one in range(bounds.head + 2)] == checks
        (one, *_) = await both.past.read(after=3, until=5)
        assert (one.first_sequence + one.start, one.last_sequence) == (4, 5)
    assert await both.past.sources() == await both.log.sources()
    assert not await both.past.wait(after=bounds.head, timeout_seconds=0)


async def test_pages_of_a_range_read_none_of_its_checks_again(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page proves what is before it, and begins where the one before it ended."""
    work = archiver(both.log, both.folder)
    await fill(both.log, seed=1, commits=40)
    work.step()
    archived = work.archived
    assert archived is not None
    await both.log.trim(archived.until)
    archive: Any = Archive
    rows, read = archive._rows, list[int]()

    def counted(self: Any, after: int, until: int, columns: tuple[str, ...]) -> Any:
        if columns == ("check", "commit"):
            read.append(after)
        return rows(self, after, until, columns)

    monkeypatch.setattr(archive, "_rows", counted)
    assert len(await entries(both.past)) > 100
    assert not read


# --- who asks over HTTP ---------------------------------------------------------------------------


def history() -> list[Commit]:
    """Of seven documents: some are removed and come again, and one update says a part."""
    found: list[Commit] = [committed(told(0, "started"))]
    for at in range(1, 90):
        operation = Operation.DELETE if at % 13 == 0 else Operation.INSERT
        part = b'{"updatedFields":{"part":%d},"removedFields":[],"truncatedArrays":[]}' % at
        if at % 5 == 0 and at % 13:
            event = changed(at, key=at % 7, operation=Operation.UPDATE, update=part)
        else:
            event = changed(at, key=at % 7, operation=operation)
        found.append(committed(event, *(changed(at, key=100 + n, ordinal=n + 1) for n in range(3))))
    return found


HISTORY = """query { history(catalog: "shop", %s) {
    pageInfo { startCursor endCursor hasNextPage }
    captures { ... on Capture { version index operation entityType } }
} }"""


async def over_rest(address: str, edges: list[str]) -> list[tuple[str, int, Any]]:
    """Pages in both directions and documents as they were."""
    pages = "/rest/shop/changes?limit=11"
    documents = "/rest/shop.db/entities/orders"
    paths = [
        "/rest/shop/changes?limit=7",
        "/rest/shop/changes?limit=7&before=now",
        "/rest/shop.db/changes?limit=50&sinceVersion=4",
        "/rest/shop.db/changes?limit=9&since=beginning&content=body",
        *(f"{pages}&{side}={quote(edge)}" for edge in edges for side in ("after", "before")),
        *(
            f"{documents}/{key}?asOf={version}"
            for key in (1, 3, 101, 999)
            for version in (2, 9, 30, 31, 60, 80)
        ),
        f"{documents}/2?asOf=2023-11-14T22:13:50Z",
    ]
    found: list[tuple[str, int, Any]] = []
    for path in paths:
        async with get(address, path) as answer:
            whole = "content-length" in answer.headers
            body = await answer.body() if whole else await answer.json()
            found.append((path, answer.status, body))
    return found


async def over_graphql(address: str, edges: list[str]) -> list[tuple[str, Any]]:
    """Pages in both directions."""
    asked = ("first: 5", "last: 4", f'first: 6, after: "{edges[0]}"')
    return [(one, await graphql.asked(address, HISTORY % one)) for one in asked]


async def test_pages_and_documents_are_what_they_were_before_retention(both: Both) -> None:
    """Of the same service, asked the same before and after: history, pages, times, GraphQL."""
    for commit in history():
        await both.log.append([commit])
    archiver(both.log, both.folder).step()
    blocks = await both.log.read(after=0, bytes_max=1 << 30)
    markers = [str(block.progress(i)) for block in blocks for i in range(block.start, block.stop)]
    edges = [markers[at] for at in (0, 4, 120, 300)]
    config = configured()
    asked = CaptureService(both.log, lambda: config, past=both.past)
    alone = CaptureService(both.log, lambda: config)
    async with (
        captured_by(asked) as address,
        graphql.graphql_server(asked) as queries,
        captured_by(alone) as bare,
    ):
        rest, pages = await over_rest(address, edges), await over_graphql(queries, edges)
        assert {status for _, status, _ in rest} == {200, 404, 410}  # 999 was never there
        assert not [answer for _, answer in pages if "errors" in answer]
        await both.log.trim(200)
        assert await over_rest(address, edges) == rest
        assert await over_graphql(queries, edges) == pages
        # Without the archive the same is gone.
        async with get(bare, f"/rest/shop/changes?after={quote(edges[1])}") as answer:
            assert answer.status == 410


# --- archives that do not help --------------------------------------------------------------------


async def test_without_anything_archived_it_is_the_log_alone(both: Both) -> None:
    await fill(both.log)
    await both.log.trim(20)
    assert await both.past.bounds() == await both.log.bounds()
    assert await both.past.check_at(3) is None
    with pytest.raises(TrimmedError):
        await both.past.read(after=3)


async def test_what_neither_has_is_trimmed(both: Both) -> None:
    """The archive ends before the log begins: between them entries are lost."""
    await fill(both.log, seed=0)
    archiver(both.log, both.folder).step()
    await fill(both.log, seed=1)
    live = await both.log.bounds()
    await both.log.trim(live.head - 5)
    assert await both.past.bounds() == await both.log.bounds()
    with pytest.raises(TrimmedError):
        await both.past.read(after=3)


async def test_what_came_before_the_archive_is_trimmed_and_its_beginning_named(both: Both) -> None:
    await fill(both.log, seed=0)
    await both.log.trim(30)
    began = await both.log.bounds()
    archiver(both.log, both.folder).step()
    await both.log.trim(began.head)
    assert (await both.past.bounds()).trimmed == began.trimmed
    with pytest.raises(TrimmedError) as refused:
        await both.past.read(after=began.trimmed - 1)
    oldest = Progress(began.log_id, began.trimmed, began.trimmed_check)
    assert refused.value.oldest == str(oldest)
    assert await both.past.read(after=began.trimmed)


async def test_another_logs_archive_is_refused(both: Both, tmp_path: Path) -> None:
    async with LmdbLog(log_config(tmp_path / "other")) as other:
        await fill(other, seed=5)
        archiver(other, both.folder).step()
    await fill(both.log)
    await both.log.trim(20)
    with pytest.raises(ArchiveForeignError):
        await both.past.bounds()


async def test_an_archive_that_goes_on_while_it_is_opened_is_the_logs_all_the_same(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's end is asked for first; what is archived by the time it is opened goes beyond."""
    await fill(both.log, seed=0)
    archiver(both.log, both.folder).step()
    await both.log.trim(30)
    before, bounds = await both.log.bounds(), both.log.bounds
    await fill(both.log, seed=1)
    archiver(both.log, both.folder).step()
    answers = [before]

    async def answered() -> Bounds:
        return answers.pop() if answers else await bounds()

    monkeypatch.setattr(both.log, "bounds", answered)
    assert (await both.past.bounds()).trimmed == 0
    assert not answers


async def test_a_file_that_was_altered_is_refused_and_the_log_still_answers(both: Both) -> None:
    await fill(both.log)
    archiver(both.log, both.folder).step()
    await both.log.trim(20)
    trimmed = (await both.log.bounds()).trimmed
    await both.past.bounds()
    for path in (both.folder / "archive" / "data").iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    fresh = TieredLog(both.log, str(both.folder / "archive"), folder=both.folder / "log")
    with pytest.raises(ArchiveDamagedError):
        await fresh.read(after=3)
    assert await fresh.read(after=trimmed)
    await fresh.close()


async def test_an_archive_whose_disk_is_not_there_is_missed(both: Both) -> None:
    """What is older than the log was TRIMMED then, as if it had never been."""
    await fill(both.log)
    archiver(both.log, both.folder).step()
    await both.log.trim(20)
    (both.folder / "archive").rename(both.folder / "unmounted")
    with pytest.raises(ArchiveGoneError):
        await both.past.read(after=3)
    with pytest.raises(ArchiveGoneError):
        await both.past.bounds()
    (both.folder / "unmounted").rename(both.folder / "archive")
    assert (await both.past.bounds()).trimmed == 0


async def refused(asked: CaptureService, address: str) -> tuple[int, str | None, str, str]:
    """How a page is refused: its status, retry-after and code; and the code in GraphQL."""
    path = "/rest/shop/changes"
    async with get(address, path) as answer:
        said = (await answer.body())["error"]
        later = answer.headers.get("retry-after")
    async with graphql.graphql_server(asked) as queries:
        (error,) = (await graphql.asked(queries, HISTORY % "first: 5"))["errors"]
    return answer.status, later, said["code"], error["extensions"]["code"]


async def test_an_archive_that_cannot_be_read_is_no_defect_of_the_service(both: Both) -> None:
    """503, with retry-after if it may come back by itself."""
    for commit in history():
        await both.log.append([commit])
    archiver(both.log, both.folder).step()
    await both.log.trim(200)
    config = configured()
    asked = CaptureService(both.log, lambda: config, past=both.past)
    folder, away = both.folder / "archive", both.folder / "away"
    async with captured_by(asked) as address:
        folder.rename(away)
        folder.write_bytes(b"")
        code = "archive.unavailable"
        assert await refused(asked, address) == (503, "1", code, code)
        folder.unlink()
        away.rename(folder)
        for path in (folder / "data").iterdir():
            path.write_bytes(b"x" * path.stat().st_size)
        code = "archive.damaged"
        assert await refused(asked, address) == (503, None, code, code)


async def test_many_who_read_at_once_get_each_their_own(both: Both) -> None:
    """An archive belongs to one thread."""
    await fill(both.log, commits=60)
    whole = await entries(both.log)
    archiver(both.log, both.folder, range_bytes=3_000).step()
    await both.log.trim(len(whole) - 50)
    starts = range(0, len(whole) - 60, 9)
    found = await asyncio.gather(*(entries(both.past, after=at, bytes_max=9_000) for at in starts))
    assert found == [whole[at:] for at in starts]
