"""The index of captured streams where the log, its files or another process are in its way."""

from pathlib import Path

from penstock.errors import LogError
from penstock.log.memory import MemoryLog
from tests.serve.dynamodb.captured import captured, until
from tests.serve.dynamodb.test_captured import TABLE, life


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
