"""What the log held is in the archive: whole, once, and the same to the byte."""

# The published types of pyarrow are partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import asyncio
import errno
import hashlib
import itertools
import os
import shutil
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.archive import writing
from penstock.archive.config import ArchiveConfig
from penstock.archive.manifest import Manifest
from penstock.archive.place import Place
from penstock.archive.planning import End, cuts
from penstock.archive.writing import Archiver
from penstock.cli import archiving
from penstock.errors import (
    ArchiveDamagedError,
    ArchiveError,
    ArchiveForeignError,
    ArchiveGoneError,
    ArchiveUnavailableError,
    ConfigError,
)
from penstock.event import Commit
from penstock.log import LmdbLog, LmdbLogReader
from penstock.log.maintenance import backup
from penstock.log.restoring import restore
from penstock.testing.contracts.entries import changes, read_all
from tests import waiting
from tests.archive.logs import archived_rows, archiver, event, fill, live_rows, log_config, opened
from tests.log.unchained import unchain

pytestmark = pytest.mark.slow


@pytest.fixture
async def log(tmp_path: Path) -> AsyncGenerator[LmdbLog]:
    async with LmdbLog(log_config(tmp_path)) as opened:
        yield opened


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a range has several."""
    monkeypatch.setattr(writing, "_GROUP_BYTES", 9_000)


def files(folder: Path) -> list[str]:
    root = folder / "archive"
    return sorted(str(one.relative_to(root)) for one in root.rglob("*") if one.is_file())


async def test_every_column_of_every_entry_is_archived_as_the_log_has_it(
    log: LmdbLog, tmp_path: Path
) -> None:
    work = archiver(log, tmp_path)
    for seed in range(3):
        await fill(log, seed=seed)
        assert work.step()
        assert not work.step()
    archive, head = opened(tmp_path), log.bounds_now().head
    assert archive.manifest.until == head
    assert archived_rows(archive, 0, head).equals(live_rows(log, 0, head))
    ranges = archive.manifest.ranges
    assert len(ranges) > 3
    assert max(len(one.groups) for one in ranges) > 1
    for one, other in pairwise(ranges):
        assert (one.until, one.until_check) == (other.after, other.after_check)
    for sequence in range(0, head + 1, 61):
        expected = 0 if sequence == 0 else log.check_at_now(sequence)
        assert archive.check_at(sequence) == expected
        for until in (sequence, sequence + 1, sequence + 50, head):
            if sequence <= until <= head:
                found = archived_rows(archive, sequence, until)
                assert found.equals(live_rows(log, sequence, until))
        for target in (sequence + 1, sequence + 30):
            end = log.commit_end(after=sequence, events_max=1)
            if sequence == 0 or live_rows(log, sequence - 1, sequence)["ends_commit"][0].as_py():
                end = log.commit_end(after=sequence, events_max=target - sequence)
                assert target > head or archive.commit_end(after=sequence, target=target) == end


async def test_what_a_dead_writer_left_is_removed_and_what_it_finished_stays(
    log: LmdbLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(log)
    archiver(log, tmp_path).step()
    before = files(tmp_path)
    await fill(log, seed=1)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Place, "publish", die)
        with pytest.raises(KeyboardInterrupt):
            archiver(log, tmp_path).step()
    (tmp_path / "archive" / "manifest-000000000099.json.unfinished").write_text("{")
    assert len(files(tmp_path)) == len(before) + 2
    assert opened(tmp_path).manifest.until < log.bounds_now().head
    archiver(log, tmp_path).step()
    manifest = opened(tmp_path).manifest
    data = [name for name in files(tmp_path) if name.startswith("data/")]
    assert data == sorted(one.name for one in manifest.ranges)
    assert len(files(tmp_path)) == len(data) + 1
    assert manifest.until == log.bounds_now().head


@pytest.mark.parametrize("step", ["write", "fsync", "link"])
def test_an_attempt_that_fails_leaves_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A full disk: each attempt would keep some more of it."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write(place: Place) -> None:
        with place.writing(f"data/{1:020d}-{10:020d}.parquet") as sink:
            sink.write(b"some of it")
            if step == "write":
                full()

    place = Place(str(tmp_path / "archive"))
    place.make()
    if step != "write":
        monkeypatch.setattr(os, step, full)
    with pytest.raises(ArchiveUnavailableError, match="No space left"):
        write(place)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArchiveUnavailableError, match="No space left"):
        place.publish(Manifest(log_id=1, begin=0, begin_check=0), 1)
    assert files(tmp_path) == []


async def test_files_of_others_in_the_same_folder_stay(log: LmdbLog, tmp_path: Path) -> None:
    data = tmp_path / "archive" / "data"
    data.mkdir(parents=True)
    theirs = [
        data / "customers.parquet",
        data / "00000000000000000001-part.parquet",
        tmp_path / "archive" / "letter.unfinished",
    ]
    for one in theirs:
        one.write_text("theirs")
    await fill(log)
    assert archiver(log, tmp_path).step()
    assert not archiver(log, tmp_path).step()
    assert [one.read_text() for one in theirs] == ["theirs"] * len(theirs)
    assert opened(tmp_path).manifest.until == log.bounds_now().head


async def test_an_archive_that_lost_its_manifest_is_refused_and_keeps_its_files(
    log: LmdbLog, tmp_path: Path
) -> None:
    await fill(log)
    archiver(log, tmp_path).step()
    (manifest,) = (tmp_path / "archive").glob("manifest-*")
    kept = manifest.read_bytes()
    manifest.unlink()
    before = files(tmp_path)
    with pytest.raises(ArchiveDamagedError, match="manifest"):
        archiver(log, tmp_path).step()
    assert files(tmp_path) == before
    manifest.write_bytes(kept)
    await fill(log, seed=1)
    assert archiver(log, tmp_path).step()
    assert opened(tmp_path).manifest.until == log.bounds_now().head


async def test_no_other_archive_begins_where_the_disk_of_one_is_gone(
    log: LmdbLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = archiver(log, tmp_path)
    await fill(log)
    work.step()

    def refuse(*_: object) -> None:
        raise ArchiveUnavailableError("here", OSError("stale"))

    await fill(log, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(Place, "publish", refuse)
        with pytest.raises(ArchiveUnavailableError):
            work.step()
    (tmp_path / "archive").rename(tmp_path / "unmounted")
    for one in (work, fresh := archiver(log, tmp_path)):
        with pytest.raises(ArchiveGoneError, match="mounted"):
            one.step()
    assert not (tmp_path / "archive").exists()
    hold = fresh.hold()
    assert hold is not None
    assert hold.sequence == 0
    (tmp_path / "unmounted").rename(tmp_path / "archive")
    assert fresh.step()
    head = log.bounds_now().head
    assert archived_rows(opened(tmp_path), 0, head).equals(live_rows(log, 0, head))


async def test_another_archive_begins_where_one_was_once_the_note_of_that_is_removed(
    log: LmdbLog, tmp_path: Path
) -> None:
    await fill(log)
    archiver(log, tmp_path).step()
    shutil.rmtree(tmp_path / "archive")
    with pytest.raises(ArchiveGoneError) as raised:
        archiver(log, tmp_path).step()
    (note,) = (tmp_path / "log" / "archives").iterdir()
    assert str(note) in str(raised.value)
    note.unlink()
    assert archiver(log, tmp_path).step()


async def test_a_log_that_was_put_back_and_went_on_does_not_go_on_with_its_archive(
    tmp_path: Path,
) -> None:
    """Its id is the same, and once it has grown its numbers are: what it had instead of what was
    archived would be in neither."""
    async with LmdbLog(log_config(tmp_path)) as log:
        await fill(log, commits=5)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    async with LmdbLog(log_config(tmp_path)) as log:
        await fill(log, seed=1)
        work = archiver(log, tmp_path)
        work.step()
        assert work.archived is not None
        until = work.archived.until
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "copy").rename(tmp_path / "log")
    async with LmdbLog(log_config(tmp_path)) as log:
        seed = 2
        while log.bounds_now().head <= until:
            await fill(log, seed=seed)
            seed += 1
        before = sorted(tmp_path.joinpath("archive").rglob("*"))
        for _ in range(2):
            with pytest.raises(ArchiveForeignError, match=f"entry {until} is not the one"):
                archiver(log, tmp_path).step()
        assert sorted(tmp_path.joinpath("archive").rglob("*")) == before


async def test_a_log_of_many_small_commits_is_counted_some_ranges_at_a_time(
    log: LmdbLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it took more memory than capture may have, and nothing was archived before."""
    for number in range(3_000):
        await log.append([Commit(source="a", position=str(number), events=(event(number),))])
    work = archiver(log, tmp_path, range_bytes=20_000)
    known: list[list[End]] = []

    def cutting(ends: list[End], *, range_bytes: int) -> list[int]:
        known.append(list(ends))
        return cuts(ends, range_bytes=range_bytes)

    monkeypatch.setattr(writing, "cuts", cutting)
    assert work.step()
    head = log.bounds_now().head
    assert max(len(ends) for ends in known) < 1_000
    assert known[0][-1].sequence < head // 2
    assert archived_rows(opened(tmp_path), 0, head).equals(live_rows(log, 0, head))


async def test_who_was_taken_over_from_writes_no_manifest_over_that_of_the_other(
    log: LmdbLog, tmp_path: Path
) -> None:
    await fill(log)
    old = archiver(log, tmp_path)
    assert old.step()
    other = tmp_path / "other"
    restore(opened(tmp_path), other / "log")
    async with LmdbLog(log_config(other)) as heir:
        await fill(heir, seed=1)
        assert archiver(heir, tmp_path).step()
        taken = opened(tmp_path).manifest
        assert taken.log_id == heir.bounds_now().log_id
        await fill(log, seed=1)
        files_before = {
            name: (tmp_path / "archive" / name).read_bytes() for name in files(tmp_path)
        }
        with pytest.raises(ArchiveForeignError):
            old.step()
        with pytest.raises(ArchiveForeignError):
            old.step()
        assert files(tmp_path) == list(files_before)
        for name, data in files_before.items():
            assert (tmp_path / "archive" / name).read_bytes() == data
        await fill(heir, seed=3)
        assert archiver(heir, tmp_path).step()
        head = heir.bounds_now().head
        assert archived_rows(opened(tmp_path), 0, head).equals(live_rows(heir, 0, head))


async def test_a_step_that_fails_changes_nothing_and_the_next_one_does_it(
    log: LmdbLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(log)
    work = archiver(log, tmp_path)
    (tmp_path / "archive").write_text("a file where the folder should be")
    for _ in range(2):
        with pytest.raises(ArchiveUnavailableError, match="archive"):
            work.step()
    assert work.archived is None
    hold = work.hold()
    assert hold is not None
    assert hold.sequence == 0
    (tmp_path / "archive").unlink()
    assert work.step()
    hold = work.hold()
    assert hold is not None
    assert hold.sequence == log.bounds_now().head


async def test_retention_waits_for_the_archive_as_long_as_it_may(tmp_path: Path) -> None:
    """By the steady clock: the other one may be set meanwhile."""
    now = 1_000_000
    seconds = 0.0
    async with LmdbLog(log_config(tmp_path, retention_events=10)) as log:
        config, where = ArchiveConfig(range_age=10, hold=60), str(tmp_path / "archive")
        work = Archiver(log, config, where, now_ms=lambda: now, steady_seconds=lambda: seconds)
        log.held_by(work.hold)

        async def trimmed(position: str) -> int:
            for number in range(30):
                events = changes("s", f"{position}.{number}", 2)
                await log.append([Commit(source="s", position=position, events=events)])
            return (await log.bounds()).trimmed

        assert await trimmed("1") == 0
        now = 1 << 50  # whatever waits is old by now
        assert work.step()
        archived = work.archived
        assert archived is not None
        assert archived.until == log.bounds_now().head == 60
        assert 0 < await trimmed("2") <= 60
        seconds += 69.9
        assert await trimmed("3") <= 60
        seconds += 0.1
        beyond = await trimmed("4")
        assert beyond > 60
        # What was lost is said, and the archive goes on behind it.
        assert work.step()
        found = work.archived
        assert found is not None
        assert found.lost == beyond - 60
        archive = opened(tmp_path)
        head = log.bounds_now().head
        assert (archive.manifest.begin, archive.manifest.until) == (beyond, head)
        assert archive.check_at(beyond) == log.check_at_now(beyond)
        assert archived_rows(archive, beyond, head).equals(live_rows(log, beyond, head))
        restored = restore(archive, tmp_path / "restored")
        assert (restored.trimmed, restored.head) == (beyond, head)
        assert "TRIMMED" in " ".join(restored.warnings)


async def test_a_log_that_keeps_less_than_a_range_is_archived_before_it_is_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "LOOK_SECONDS", 0.005)
    monkeypatch.setattr(writing, "_GROUP_BYTES", 8 << 20)
    limits = log_config(tmp_path, retention_bytes=2 << 20)
    config = ArchiveConfig(path=str(tmp_path / "archive"))
    assert limits.retention_bytes is not None
    assert config.range_bytes > limits.retention_bytes
    async with LmdbLog(limits, trims=False) as log:
        work = archiving.Archiving(log, config, limits)
        log.begin_trimming()
        running = asyncio.create_task(work.run())
        for number in range(40):
            events = changes("a", str(number), 50, bytes_=2000)
            await log.append([Commit(source="a", position=str(number), events=events)])
            await asyncio.sleep(0.03)
        await waiting.until(lambda: log.bounds_now().trimmed, task=running)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await work.close()
        status = work.status()
        assert status is not None
        assert log.bounds_now().trimmed > 0
        assert status["lost"] == 0
        assert status["until"] >= log.bounds_now().trimmed


async def test_status_shows_no_secret_of_the_url(tmp_path: Path) -> None:
    limits = log_config(tmp_path)
    async with LmdbLog(limits, trims=False) as log:
        work = archiving.Archiving(log, ArchiveConfig(path="s3://KEY:quiet@bucket/x"), limits)
        status = work.status()
    assert status is not None
    assert status["path"] == "s3://****@bucket/x"


async def test_an_archive_that_begins_late_begins_where_the_log_does(
    log: LmdbLog, tmp_path: Path
) -> None:
    await fill(log)
    await log.trim(33)
    assert archiver(log, tmp_path).step()
    archive, head = opened(tmp_path), log.bounds_now().head
    assert (archive.manifest.begin, archive.check_at(33)) == (33, log.check_at_now(33))
    assert archived_rows(archive, 33, head).equals(live_rows(log, 33, head))
    assert archive.check_at(32) is None


# --- whose it is --------------------------------------------------------------------------------


async def test_an_archive_of_another_log_is_refused_by_name(tmp_path: Path) -> None:
    before: list[str] = []
    for name in ("one", "other"):
        async with LmdbLog(log_config(tmp_path / name)) as log:
            await fill(log)
            work = archiver(log, tmp_path)
            if name == "one":
                work.step()
                before = files(tmp_path)
                continue
            with pytest.raises(ArchiveForeignError, match="is of log"):
                work.step()
            assert files(tmp_path) == before


async def test_a_restored_log_goes_on_with_the_archive_only_where_the_two_agree(
    tmp_path: Path,
) -> None:
    async with LmdbLog(log_config(tmp_path)) as log:
        await fill(log)
        archiver(log, tmp_path).step()
        backup(log.path, tmp_path / "same" / "log")
        shutil.copytree(tmp_path / "archive", tmp_path / "same" / "archive")
        await fill(log, seed=1)
        archiver(log, tmp_path).step()
    async with LmdbLog(log_config(tmp_path / "same")) as log:
        await fill(log, seed=2)
        archiver(log, tmp_path / "same").step()
        archive, bounds = opened(tmp_path / "same"), log.bounds_now()
        assert archive.manifest.log_id == bounds.log_id
        assert archive.manifest.ancestors == bounds.ancestors
        assert archived_rows(archive, 0, bounds.head).equals(live_rows(log, 0, bounds.head))
        with pytest.raises(ArchiveForeignError, match="shares its entries up to"):
            archiver(log, tmp_path).step()


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "other"])
async def test_a_file_that_is_not_what_was_written_is_refused_by_name(
    log: LmdbLog, tmp_path: Path, damage: str
) -> None:
    await fill(log)
    archiver(log, tmp_path).step()
    archive, head = opened(tmp_path), log.bounds_now().head
    one, other = archive.manifest.ranges[1:3]
    path = tmp_path / "archive" / one.name
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(data[:-1])
    elif damage == "flipped":
        data[len(data) // 3] ^= 0x10
        path.write_bytes(data)
    else:
        # Sound in itself, and of the same length as far as the manifest knows.
        replaced = tmp_path / "archive" / other.name
        data = bytearray(replaced.read_bytes())
        path.write_bytes(data)
        ranges = list(archive.manifest.ranges)
        ranges[1] = msgspec.structs.replace(one, bytes=len(data))
        archive.manifest = msgspec.structs.replace(archive.manifest, ranges=tuple(ranges))
    with pytest.raises(ArchiveDamagedError, match=one.name):
        archived_rows(archive, 0, head)
    with pytest.raises(ArchiveDamagedError, match=one.name):
        restore(archive, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


async def test_an_entry_that_is_not_what_its_check_says_is_not_restored(
    log: LmdbLog, tmp_path: Path
) -> None:
    """A file may have its digest, and yet have been written by something that erred."""
    await fill(log)
    archiver(log, tmp_path).step()
    archive = opened(tmp_path)
    one = archive.manifest.ranges[1]
    path = tmp_path / "archive" / one.name
    with pq.ParquetFile(path) as file:
        groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    times = groups[0].column("timestamp").to_numpy().copy()
    times[0] += 1
    at = groups[0].schema.get_field_index("timestamp")
    groups[0] = groups[0].set_column(at, "timestamp", pa.array(times))
    with pq.ParquetWriter(path, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)
    data = path.read_bytes()
    altered = msgspec.structs.replace(one, bytes=len(data), digest=hashlib.sha256(data).hexdigest())
    ranges = (archive.manifest.ranges[0], altered, *archive.manifest.ranges[2:])
    archive.manifest = msgspec.structs.replace(archive.manifest, ranges=ranges)
    with pytest.raises(ArchiveDamagedError, match=one.name):
        restore(archive, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


async def test_a_damaged_entry_is_not_archived_and_said(log: LmdbLog, tmp_path: Path) -> None:
    """What retention then keeps is the only sound copy of the others."""
    from penstock.errors import LogCorruptError
    from penstock.wire import Block, verify_checks

    await log.append([Commit(source="s", position="1", events=changes("s", "1", 3))])
    (block,) = log.read_now(after=0)
    data = bytearray(block.data)
    data[-3] ^= 1
    with pytest.raises(LogCorruptError, match="entry 3"):
        verify_checks(Block(bytes(data), log_id=1, first_sequence=1))
    verify_checks(Block(bytes(data), log_id=1, first_sequence=1).narrow(after=0, until=2))


def test_what_is_no_archive_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no archive"):
        opened(tmp_path)
    with pytest.raises(ConfigError, match="nosuch"):
        Place("nosuch://bucket/folder")


# --- restoring ----------------------------------------------------------------------------------


@pytest.mark.parametrize("range_bytes", [20_000, 20_000_000])
async def test_every_marker_is_what_it_was_from_whatever_layout_its_entry_is(
    tmp_path: Path, range_bytes: int
) -> None:
    """The older layout's markers prove their entry, and those that follow all before it too."""
    async with LmdbLog(log_config(tmp_path)) as log:
        await fill(log, seed=0)
    unchain(tmp_path / "log")
    async with LmdbLog(log_config(tmp_path)) as log:
        await fill(log, seed=1)
        head = (await log.bounds()).head
        archiver(log, tmp_path, range_bytes=range_bytes).step()
        checks = [await log.check_at(at) for at in range(head + 1)]
    archive = opened(tmp_path)
    assert archive.manifest.until == head
    assert [archive.check_at(at) for at in range(0, head + 1, 7)] == checks[::7]
    restore(archive, tmp_path / "restored")
    async with LmdbLogReader(tmp_path / "restored") as again:
        assert [await again.check_at(at) for at in range(head + 1)] == checks


async def test_entries_that_do_not_come_to_the_check_of_their_range_are_not_restored(
    log: LmdbLog, tmp_path: Path
) -> None:
    """Each is what its own check says, and together they are another history."""
    await fill(log)
    archiver(log, tmp_path, range_bytes=20_000_000).step()
    archive = opened(tmp_path)
    (one,) = archive.manifest.ranges
    other = msgspec.structs.replace(one, until_check=one.until_check ^ 1)
    archive.manifest = msgspec.structs.replace(archive.manifest, ranges=(other,))
    with pytest.raises(ArchiveDamagedError, match="not those that its check says"):
        restore(archive, tmp_path / "restored")


async def test_a_restored_log_says_what_the_archived_one_said(log: LmdbLog, tmp_path: Path) -> None:
    work = archiver(log, tmp_path)
    for seed in range(2):
        await fill(log, seed=seed)
        work.step()
    entries, bounds, sources = await read_all(log), await log.bounds(), await log.sources()
    restoring, checking = list[tuple[int, int]](), list[tuple[int, int]]()
    made = restore(
        opened(tmp_path),
        tmp_path / "restored",
        on_restored=lambda done, total: restoring.append((done, total)),
        on_checked=lambda done, total: checking.append((done, total)),
    )
    assert (made.head, made.head_commit, made.repeated) == (bounds.head, bounds.head_commit, 0)
    for told in (restoring, checking):
        assert told == sorted(told)
        assert {total for _, total in told} == {bounds.head}
        assert told[0][0] < told[-1][0] == bounds.head
    assert made.warnings == []
    with pytest.raises(ConfigError):
        restore(opened(tmp_path), tmp_path / "restored")
    async with LmdbLog(log_config(tmp_path).model_copy(update={"path": tmp_path / "restored"})) as (
        again
    ):
        assert await again.sources() == sources
        after = await again.bounds()
        assert after.log_id != bounds.log_id
        assert [(one.log_id, one.head) for one in after.ancestors] == [(bounds.log_id, bounds.head)]
        assert live_rows(again, 0, bounds.head).equals(live_rows(log, 0, bounds.head))
        assert [msgspec.structs.replace(one, progress="") for one in await read_all(again)] == [
            msgspec.structs.replace(one, progress="") for one in entries
        ]
        await fill(again, seed=5)
        assert (await again.bounds()).head > bounds.head


async def test_an_archive_of_which_all_lies_before_a_loss_is_not_said_to_be_empty(
    log: LmdbLog, tmp_path: Path
) -> None:
    """Until the next range there is nothing to restore, and years of files."""
    await fill(log, seed=0)
    archiver(log, tmp_path).step()
    files = len(opened(tmp_path).manifest.ranges)
    await fill(log, seed=1)
    head = log.bounds_now().head
    await log.trim(head - 5)
    trimmed = log.bounds_now().trimmed
    await fill(log, seed=2, commits=1)
    assert not Archiver(log, ArchiveConfig(), str(tmp_path / "archive")).step()
    with pytest.raises(ArchiveError, match=f"all {files} files .* ends at entry {trimmed};"):
        restore(opened(tmp_path), tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    archiver(log, tmp_path).step()
    assert restore(opened(tmp_path), tmp_path / "restored").trimmed == trimmed


async def test_the_sources_stand_where_the_archive_ends(log: LmdbLog, tmp_path: Path) -> None:
    """Invariant 1, for a log that is made anew: nothing archived is behind them, and nothing that
    is not archived is before."""
    work = archiver(log, tmp_path, range_bytes=3_000)
    await fill(log)
    work.step()
    archive = opened(tmp_path)
    assert archive.manifest.standing.sequence == archive.manifest.until
    assert list(archive.manifest.standing.sources) == await log.sources()
    # Cut short: the ranges that are there are not all of what the sources have sent.
    await fill(log, seed=1)
    real, told = Place.publish, 0

    def once(place: Place, manifest: object, number: int) -> None:
        nonlocal told
        told += 1
        real(place, manifest, number)  # type: ignore[arg-type]
        if told == 2:
            work.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Place, "publish", once)
        work.step()
    cut = opened(tmp_path).manifest
    assert archive.manifest.until < cut.until < log.bounds_now().head
    assert cut.standing == archive.manifest.standing
    made = restore(opened(tmp_path), tmp_path / "restored")
    assert made.repeated == cut.until - archive.manifest.until
    assert "once more" in made.warnings[0]


async def test_a_source_that_came_after_the_others_stood_is_named(
    log: LmdbLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would begin as a new one, though the log has entries of it."""
    await log.append([Commit(source="a", position="1", events=changes("a", "1", 5))])
    archiver(log, tmp_path).step()
    for number in range(10):
        events = changes("new", str(number), 200)
        await log.append([Commit(source="new", position=str(number), events=events)])
    work = archiver(log, tmp_path, range_bytes=30_000)
    writing_file = Place.writing
    written: list[str] = []

    def die(place: Place, name: str) -> object:
        written.append(name)
        if len(written) == 3:
            raise KeyboardInterrupt
        return writing_file(place, name)

    with monkeypatch.context() as patch:
        patch.setattr(Place, "writing", die)
        with pytest.raises(KeyboardInterrupt):
            work.step()
    made = restore(opened(tmp_path), tmp_path / "restored")
    assert (made.sources, made.unplaced) == (1, ("new",))
    assert any("entries of new" in one for one in made.warnings)


async def test_a_quiet_source_moves_in_the_archive_too(log: LmdbLog, tmp_path: Path) -> None:
    """Invariant 5."""
    now = 1_000
    config = ArchiveConfig(range_age=10)
    work = Archiver(log, config, str(tmp_path / "archive"), now_ms=lambda: now)
    await log.append([Commit(source="s", position="1", events=changes("s", "1", 3))])
    now = 1 << 50
    work.step()
    await log.append([Commit(source="s", position="2")])
    now += 9_999
    work.step()
    assert opened(tmp_path).manifest.standing.sources[0].position == "1"
    now += 1
    work.step()
    assert opened(tmp_path).manifest.standing.sources[0].position == "2"


async def test_archiving_on_a_thread_ends_when_told(log: LmdbLog, tmp_path: Path) -> None:
    await fill(log)
    work = archiver(log, tmp_path)
    work.stop()
    assert not await asyncio.to_thread(work.step)
    assert opened(tmp_path).manifest.ranges == ()


# --- two services -------------------------------------------------------------------------------


@pytest.mark.parametrize("published", [1, 2])
def test_a_manifest_never_takes_the_place_of_another_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: int
) -> None:
    """Nor that of one which was removed since, where nobody would read it."""
    first, second = Place(str(tmp_path)), Place(str(tmp_path))
    first.make()
    ours, theirs = (Manifest(log_id=1, begin=0, begin_check=0, updated_at=at) for at in (1, 2))
    looked = Place.require_last

    def interrupted(place: Place, number: int) -> None:
        looked(place, number)
        if place is first and number == 0:
            for their_number in range(published):
                second.publish(theirs, their_number + 1)

    monkeypatch.setattr(Place, "require_last", interrupted)
    with pytest.raises(ArchiveForeignError, match="another service"):
        first.publish(ours, 1)
    assert Place(str(tmp_path)).newest() == (published, theirs)
    assert [one.name for one in tmp_path.glob("manifest*")] == [f"manifest-{published:012d}.json"]


@pytest.mark.parametrize("turn", range(4))
async def test_of_two_that_publish_at_one_moment_one_is_told_and_has_changed_nothing(
    log: LmdbLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    """The other one comes between a look and the step that follows it: at the first manifest, at
    a range's file, and at the manifest that names it."""
    await fill(log)
    first, second = archiver(log, tmp_path), archiver(log, tmp_path)
    looked, calls = Place.require_last, itertools.count()

    def interrupted(place: Place, number: int) -> None:
        looked(place, number)
        if next(calls) == turn:
            assert second.step()

    with monkeypatch.context() as patch:
        patch.setattr(Place, "require_last", interrupted)
        with pytest.raises(ArchiveForeignError, match="another service"):
            first.step()
    head = log.bounds_now().head
    before = {one for one in files(tmp_path) if one.endswith("parquet")}
    assert archived_rows(opened(tmp_path), 0, head).equals(live_rows(log, 0, head))
    await fill(log, seed=7)
    assert first.step()
    head = log.bounds_now().head
    assert archived_rows(opened(tmp_path), 0, head).equals(live_rows(log, 0, head))
    assert before <= set(files(tmp_path))
    assert not [one for one in files(tmp_path) if "unfinished" in one]


async def test_what_another_service_is_about_to_name_is_not_removed_from_under_it(
    log: LmdbLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest would name a file that is not there."""
    await fill(log)
    first, second = archiver(log, tmp_path), archiver(log, tmp_path)
    publish, calls = Place.publish, itertools.count()

    def late(place: Place, manifest: Manifest, number: int) -> None:
        if next(calls) == 1:  # the range's file is there, and nothing names it
            opens: Any = second
            opens._opened(log.bounds_now())  # and there it dies
        publish(place, manifest, number)

    monkeypatch.setattr(Place, "publish", late)
    with pytest.raises(ArchiveForeignError, match="another service"):
        first.step()
    assert second.step()
    head = log.bounds_now().head
    assert archived_rows(opened(tmp_path), 0, head).equals(live_rows(log, 0, head))


async def test_a_manifest_that_was_written_over_is_noticed_before_the_next_range(
    log: LmdbLog, tmp_path: Path
) -> None:
    """As by another service in an object store, which lets it."""
    await fill(log)
    work = archiver(log, tmp_path)
    assert work.step()
    (manifest,) = (tmp_path / "archive").glob("manifest-*.json")
    manifest.write_bytes(manifest.read_bytes() + b" ")
    await fill(log, seed=9)
    before = files(tmp_path)
    with pytest.raises(ArchiveForeignError, match="another service"):
        work.step()
    assert files(tmp_path) == before
    assert work.step(), "the next one takes what is there"
