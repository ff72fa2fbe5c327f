"""An archive elsewhere: in a bucket, and on a file system whose files are seen while they grow."""

# The published types of pyarrow are partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from penstock.archive.config import ArchiveConfig
from penstock.archive.manifest import Manifest
from penstock.archive.place import Place, shown
from penstock.archive.reading import Archive
from penstock.archive.writing import Archiver
from penstock.errors import (
    ArchiveDamagedError,
    ArchiveForeignError,
    ArchiveUnavailableError,
    ConfigError,
)
from penstock.log import LmdbLog
from tests.archive.bucket import Bucket
from tests.archive.logs import archived_rows, fill, live_rows, log_config

DATA = f"data/{1:020d}-{10:020d}.parquet"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with Bucket() as opened:
        yield opened


def manifest(at: int = 0) -> Manifest:
    return Manifest(log_id=1, begin=0, begin_check=0, updated_at=at)


def archiver(log: LmdbLog, url: str) -> Archiver:
    return Archiver(log, ArchiveConfig(range_age=0.000_001, range_bytes=20_000), url)


@pytest.mark.slow
async def test_an_archive_in_a_bucket_is_read_as_it_was_written(
    bucket: Bucket, tmp_path: Path
) -> None:
    """It takes no move, which Azure without hierarchical names does not have."""
    url = bucket.url("archive")
    async with LmdbLog(log_config(tmp_path)) as log:
        work = archiver(log, url)
        for seed in range(2):
            await fill(log, seed=seed)
            assert work.step()
        archive, head = Archive.open(url), log.bounds_now().head
        assert archive.manifest.until == head
        assert archived_rows(archive, 0, head).equals(live_rows(log, 0, head))
        ranges = archive.manifest.ranges
        assert len(ranges) > 1
    files = {key for key in bucket.objects if not key.endswith("/")}
    shown = [key for key in files if "manifest" in key]
    assert len(shown) == 1
    assert files == {*shown, *(f"archive/{one.name}" for one in ranges)}
    assert not [key for key in bucket.written if "unfinished" in key]


@pytest.mark.slow
async def test_who_publishes_over_another_one_in_a_bucket_is_told_of_it(
    bucket: Bucket, tmp_path: Path
) -> None:
    url = bucket.url("archive")
    async with LmdbLog(log_config(tmp_path)) as log:
        first, second = archiver(log, url), archiver(log, url)
        await fill(log)
        assert first.step()
        assert not second.step()
        await fill(log, seed=1)
        assert second.step()
        await fill(log, seed=2)
        with pytest.raises(ArchiveForeignError, match="another service"):
            first.step()
        assert first.step()
        head = log.bounds_now().head
        assert archived_rows(Archive.open(url), 0, head).equals(live_rows(log, 0, head))


def test_a_manifest_that_is_still_empty_in_a_bucket_is_none(bucket: Bucket) -> None:
    """Azure shows an empty object until what is written is whole."""
    place = Place(bucket.url("archive"))
    place.make()
    bucket.objects["archive/manifest-000000000001.json"] = b""
    assert place.newest() is None
    place.publish(manifest(1), 1)
    bucket.objects["archive/manifest-000000000002.json"] = b""
    assert Place(bucket.url("archive")).newest() == (1, manifest(1))
    place.publish(manifest(2), 2)
    assert Place(bucket.url("archive")).newest() == (2, manifest(2))
    assert "archive/manifest-000000000001.json" not in bucket.objects


def test_a_bucket_on_this_machine_is_reached_without_a_proxy_of_the_environment(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    place = Place(bucket.url("archive"))
    place.make()
    place.publish(manifest(1), 1)
    assert place.newest() == (1, manifest(1))


def test_an_empty_manifest_on_a_disk_is_a_damage(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    place.make()
    (tmp_path / "manifest-000000000001.json").touch()
    with pytest.raises(ArchiveDamagedError):
        place.newest()


class Watched:
    """A file system whose streams fail in the midst, and that keeps what it was asked to move."""

    def __init__(self, under: Any) -> None:
        self._under = under
        self.moved: list[tuple[str, str]] = []
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._under, name)

    def move(self, at: str, to: str) -> None:
        self.moved.append((at, to))
        self._under.move(at, to)

    def open_output_stream(self, path: str) -> Any:
        stream = self._under.open_output_stream(path)
        if self.fails:
            stream.write(b"{")
            stream.close()
            raise OSError("the connection is gone")
        return stream


def test_where_a_file_is_seen_while_it_grows_a_manifest_is_written_beside_and_moved() -> None:
    """As in HDFS."""
    place: Any = Place("mock:///archive")
    watched = place._fs = Watched(place._fs)
    place.make()
    place.publish(manifest(1), 1)
    with place.writing(DATA) as sink:
        sink.write(b"rows")
    watched.fails = True
    with pytest.raises(ArchiveUnavailableError, match="the connection is gone"):
        place.publish(manifest(2), 2)
    assert place.newest() == (1, manifest(1))
    (left, name) = sorted(place.left_behind(manifest(1)), reverse=True)
    assert name == DATA
    assert left.startswith("manifest-000000000002.json.")
    place.remove([left])
    watched.fails = False
    place.publish(manifest(2), 2)
    assert place.newest() == (2, manifest(2))
    assert [to for _, to in watched.moved] == [
        f"archive/manifest-{number:012d}.json" for number in (1, 2)
    ]
    assert all(at.endswith(".unfinished") for at, _ in watched.moved)
    with place.open(DATA, size=4) as stream:
        assert stream.read() == b"rows"


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("s3://AKIA:quiet@bucket/a?region=eu", "s3://****@bucket/a"),
        ("s3://AKIA:qui?et@bucket/a", "s3://****@bucket/a"),
        ("s3://AKIA:qui/et@bucket/a", "s3://****@bucket/a"),
        ("abfss://container@account.dfs.core.windows.net/a", None),
        ("gs://bucket/a?endpoint_override=localhost", "gs://bucket/a"),
        ("s3://AKIA:quiet@bucket/a?endpoint_override=a@b", "s3://****@bucket/a"),
        ("s3://bucket/a?endpoint_override=a@b", "s3://bucket/a"),
        ("ghp://quiet@host/a", "ghp://****@host/a"),
        ("/srv/archive", None),
    ],
)
def test_a_secret_in_a_url_is_not_shown(url: str, seen: str | None) -> None:
    assert shown(url) == (seen or url)


@pytest.mark.parametrize(
    "url",
    ["s3://AKIA:qui/et@bucket/a", "s3://AKIA:quiet@bucket/a?bogus=1", "s9://AKIA:quiet@bucket/a"],
)
def test_a_url_that_is_refused_is_told_without_its_secret(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Place(url)
    assert "qui" not in str(refused.value)
    assert "AKIA" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.slow
def test_errors_name_a_file_of_a_bucket_without_its_secret(bucket: Bucket) -> None:
    bucket.objects["archive/manifest-000000000001.json"] = b"?"
    with pytest.raises(ArchiveDamagedError) as damaged:
        Place(bucket.url("archive")).newest()
    assert "s3://****@bucket/archive/manifest-000000000001.json" in str(damaged.value)
    assert "any:any" not in str(damaged.value)


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A folder that fsspec reads and pyarrow does not."""
    yield "memory://archive"
    fsspec.filesystem("memory").rm("/archive", recursive=True)


@pytest.mark.slow
async def test_an_archive_that_only_fsspec_reads_is_as_any_other(
    elsewhere: str, tmp_path: Path
) -> None:
    async with LmdbLog(log_config(tmp_path)) as log:
        work = archiver(log, elsewhere)
        for seed in range(2):
            await fill(log, seed=seed)
            assert work.step()
        archive, head = Archive.open(elsewhere), log.bounds_now().head
        assert archive.manifest.until == head
        assert archived_rows(archive, 0, head).equals(live_rows(log, 0, head))
    place = Place(elsewhere)
    found = place.newest()
    assert found is not None
    assert place.left_behind(found[1]) == []
    other = Place(elsewhere)
    other.publish(manifest(at=1), found[0] + 1)
    with pytest.raises(ArchiveForeignError):
        place.publish(manifest(at=2), found[0] + 1)


def test_what_a_library_behind_fsspec_raises_says_where_the_archive_is(
    elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have errors of their own, which are none of the system's."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no such account at https://h/x?sig=quiet")

    Place(elsewhere).make()
    monkeypatch.setattr(MemoryFileSystem, "find", refuse)
    monkeypatch.setattr(MemoryFileSystem, "info", refuse)
    with pytest.raises(ArchiveUnavailableError, match="memory://archive cannot be") as away:
        Place(elsewhere).newest()
    assert "no such account at https://h/x?****" in str(away.value)
    monkeypatch.setattr(MemoryFileSystem, "__init__", refuse)
    MemoryFileSystem.clear_instance_cache()
    with pytest.raises(ArchiveUnavailableError, match="no such account") as refused:
        Place("memory://any:quiet@archive")
    assert "quiet" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OSError, RuntimeError])
async def test_what_fails_in_the_midst_of_a_file_may_pass_and_shows_no_secret(
    elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    async with LmdbLog(log_config(tmp_path)) as log:
        await fill(log)
        archiver(log, elsewhere).step()
    archive = Archive.open(elsewhere)

    def refuse(*_: object) -> bytes:
        raise kind("reset by https://h/x?sig=quiet")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFile, "read", refuse)
        with pytest.raises(ArchiveUnavailableError, match=r"https://h/x\?\*\*\*\*") as away:
            archived_rows(archive, 0, 3)
    assert away.value.transient
    assert archived_rows(archive, 0, 3).num_rows == 3


def test_where_nothing_reads_a_url_it_is_said_what_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"az://c/a: .*adlfs"):
        Place("az://c/a")
    with pytest.raises(ConfigError, match="Protocol not known: s9"):
        Place("s9://c/a")
    with pytest.raises(ConfigError, match="missing 2 required"):
        Place("github://c/a")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[fsspec\]'"):
        Place("sftp://h/a")
