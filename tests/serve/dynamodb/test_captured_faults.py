"""The index of captured streams where the log, its files or another process are in its way."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.clocks import SystemClock
from penstock.errors import LogError, LogLockedError
from penstock.kv import MAP_BYTES, open_env
from penstock.log.config import LogConfig
from penstock.log.lmdb import LmdbLog
from penstock.log.memory import MemoryLog
from penstock.serve.dynamodb.captured.index import CapturedIndex, CapturedLog
from penstock.serve.dynamodb.config import CapturedConfig
from tests.serve.dynamodb.captured import captured
from tests.serve.dynamodb.changes import told
from tests.serve.dynamodb.test_captured import TABLE, life, names
from tests.subscribe.events import commit
from tests.waiting import wait_until


def opened(folder: Path, log: CapturedLog, **config: Any) -> CapturedIndex:
    """The index in the folder that `captured` serves."""
    settings = CapturedConfig.model_validate({"address": "127.0.0.1:0", **config})
    return CapturedIndex(log, folder / "index", settings, clock=SystemClock())


class UnreadableLog(MemoryLog):
    """A log that can be unreadable for a while."""

    unreadable = False

    def commit_end(self, *, after: int, events_max: int) -> int:
        if self.unreadable:
            raise LogError("the log cannot be read")
        return super().commit_end(after=after, events_max=events_max)


@pytest.mark.slow
def test_what_kept_the_index_from_going_on_is_told_until_it_goes_on_though_nothing_happens(
    tmp_path: Path,
) -> None:
    log = UnreadableLog()
    with captured(tmp_path, log=log) as service:
        service.append(*life())
        arn = service.arn_of(TABLE)
        shard = service.shards(arn)[0]["ShardId"]
        request = {"ShardIterator": service.iterator(arn, shard, "LATEST")}
        target = "DynamoDBStreams_20120810.GetRecords"
        log.unreadable = True
        wait_until(lambda: service.post(target, request)[0] == 500)
        _, body, _ = service.post(target, request)
        assert "does not go on: the log cannot be read" in body["message"]
        log.unreadable = False
        wait_until(lambda: service.post(target, request)[0] == 200)


def test_an_index_has_one_writer_who_is_named_to_the_next(tmp_path: Path) -> None:
    """Two serve processes would number streams alike, and each undo what the other has told."""
    with captured(tmp_path, log=MemoryLog()) as service:
        service.append(*life())
        arns = service.arns(TABLE)
        with pytest.raises(LogLockedError, match=f"process {os.getpid()} serves the DynamoDB"):
            opened(tmp_path, MemoryLog(), view="KEYS_ONLY")
        assert service.arns(TABLE) == arns
        assert service.describe(arns[0])["StreamStatus"] == "ENABLED"
    opened(tmp_path, MemoryLog()).close()


@pytest.mark.slow
def test_p7_files_of_a_log_that_were_put_back_by_hand_begin_every_stream_anew(
    tmp_path: Path,
) -> None:
    """P7, F10: it says that it is the same log, but has another entry where the index stands."""
    path, copy = tmp_path / "log", tmp_path / "copy"

    async def write(*positions: int) -> None:
        async with LmdbLog(LogConfig(path=path)) as log:
            await log.append([commit(told(n, {"_id": str(n)})) for n in positions])

    asyncio.run(write(1))
    shutil.copytree(path, copy)
    asyncio.run(write(2))
    with captured(tmp_path) as service:
        service.settled()
        arn = service.arn_of(TABLE)
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    asyncio.run(write(7, 8))
    with captured(tmp_path) as service:
        service.settled()
        assert arn not in service.arns(TABLE)
        assert names(service.read(service.arn_of(TABLE))) == ["INSERT 1", "INSERT 7", "INSERT 8"]


@pytest.mark.parametrize(
    ("name", "key", "written", "text"),
    [
        (b"meta", b"read", {"format": 9, "sequence": "elsewhere"}, "has format 9; this Penstock"),
        (b"meta", b"read", {"format": 1, "sequence": "no number"}, "is damaged"),
        (b"streams", b"8 bytes!", {"number": 1}, "is damaged"),
    ],
)
def test_an_index_that_cannot_be_read_is_told_with_what_to_do(
    tmp_path: Path, name: bytes, key: bytes, written: dict[str, object], text: str
) -> None:
    opened(tmp_path, MemoryLog()).close()
    env = open_env(tmp_path / "index", map_bytes=MAP_BYTES, create=False)
    assert env.databases((name,), create=False)
    with env.write() as txn:
        txn.put(key, msgspec.msgpack.encode(written), db=env[name])
    env.close()
    with pytest.raises(LogError, match=text) as caught:
        opened(tmp_path, MemoryLog())
    assert "remove the folder: all streams begin anew then" in str(caught.value)


def test_a_damaged_file_of_the_index_is_told_with_what_to_do(tmp_path: Path) -> None:
    opened(tmp_path, MemoryLog()).close()
    (tmp_path / "index" / "data.mdb").write_bytes(b"no pages of LMDB" * 4096)
    with pytest.raises(LogError, match="is damaged") as caught:
        opened(tmp_path, MemoryLog())
    assert "remove the folder: all streams begin anew then" in str(caught.value)
