"""The index of captured streams where the log, its files or another process are in its way."""

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.clocks import SystemClock
from penstock.errors import LogError, LogLockedError
from penstock.log.memory import MemoryLog
from penstock.serve.dynamodb.captured.index import CapturedIndex, CapturedLog
from penstock.serve.dynamodb.config import CapturedConfig
from tests.serve.dynamodb.captured import captured, until
from tests.serve.dynamodb.test_captured import TABLE, life


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
        until(lambda: service.post(target, request)[0] == 500)
        _, body, _ = service.post(target, request)
        assert "does not go on: the log cannot be read" in body["message"]
        log.unreadable = False
        until(lambda: service.post(target, request)[0] == 200)


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
