"""Changes that a view cannot show wait for one that can, and are never out of reach."""

from pathlib import Path
from typing import Any

import pytest

from tests.serve.dynamodb.captured import captured
from tests.serve.dynamodb.changes import said, told
from tests.serve.dynamodb.test_captured import TABLE, names
from tests.subscribe.events import commit, schema


@pytest.mark.slow
def test_who_stood_at_a_change_that_was_refused_comes_to_the_end_of_the_stream(
    tmp_path: Path,
) -> None:
    """The place is kept: under another view the stream ends, and the next has the change."""
    gone = commit(told(2, None, None, key={"_id": "k"}))
    with captured(tmp_path, view="NEW_AND_OLD_IMAGES") as service:
        service.append(commit(told(1, {"_id": "k"})), gone)
        (arn,) = service.arns(TABLE)
        shard = service.shards(arn)[0]["ShardId"]
        page = service.streams.get_records(ShardIterator=service.iterator(arn, shard))
        standing = page["NextShardIterator"]
    with captured(tmp_path, view="NEW_IMAGE") as service:
        end = service.streams.get_records(ShardIterator=standing)
        assert (end["Records"], "NextShardIterator" in end) == ([], False)
        assert names(service.read(service.arn_of(TABLE))) == ["REMOVE k"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending",
    [
        said(4, "gap", **{"from": "1", "to": "2", "reason": "trimmed"}),
        schema(4, "drop"),
        told(4, {"_id": "k", "r": 1}, key={"_id": "k", "r": 1}),
    ],
    ids=["gap", "drop", "key"],
)
def test_changes_that_wait_for_a_view_are_not_lost_where_their_stream_ends(
    tmp_path: Path, ending: Any
) -> None:
    """What a gap, a drop or another key ends is a stream of its own, until a view can show it."""
    gone = commit(told(2, None, None, key={"_id": "k"}))
    both = "NEW_AND_OLD_IMAGES"
    with captured(tmp_path, view=both) as service:
        service.append(commit(told(1, {"_id": "k"})), gone, commit(told(3, {"_id": "l"})))
        service.append(commit(ending), commit(told(5, {"_id": "m"})))
        first, waiting, *_ = service.arns(TABLE)
        assert names(service.read(first)) == ["INSERT k"]
        iterator = service.iterator(waiting, service.shards(waiting)[0]["ShardId"])
        name, text = service.refused("GetRecords", ShardIterator=iterator)
        assert (name, f"{both} needs" in text) == ("ValidationException", True)
    with captured(tmp_path, view="OLD_IMAGE") as service:  # which cannot show it either
        iterator = service.iterator(waiting, service.shards(waiting)[0]["ShardId"])
        assert service.refused("GetRecords", ShardIterator=iterator)[0] == "ValidationException"
    with captured(tmp_path, view="KEYS_ONLY") as service:
        found = [one for arn in service.arns(TABLE) for one in names(service.read(arn))]
        assert found[:3] == ["INSERT k", "REMOVE k", "INSERT l"]
        assert found[-1] == "INSERT m"
        assert service.describe(waiting)["StreamStatus"] == "DISABLED"
        assert service.arn_of(TABLE) not in {first, waiting}


@pytest.mark.slow
def test_a_view_that_shows_some_of_what_waited_is_refused_at_the_next_change(
    tmp_path: Path,
) -> None:
    """And the view after that begins there: every change is in one stream or another."""
    one: dict[str, object] = {"_id": "k", "n": 1}
    two: dict[str, object] = {"_id": "k", "n": 2}
    with captured(tmp_path, view="NEW_AND_OLD_IMAGES") as service:
        service.append(commit(told(1, one)))
        service.append(commit(told(2, None, None, key={"_id": "k"})), commit(told(3, one)))
        service.append(commit(told(4, two, one, as_of_event=False)), commit(told(5, one)))
    with captured(tmp_path, view="NEW_IMAGE") as service:
        arn = service.arn_of(TABLE)
        iterator = service.iterator(arn, service.shards(arn)[0]["ShardId"])
        page = service.streams.get_records(ShardIterator=iterator)
        assert names(page["Records"]) == ["REMOVE k", "INSERT k"]
        standing = page["NextShardIterator"]
        assert service.refused("GetRecords", ShardIterator=standing)[0] == "ValidationException"
    with captured(tmp_path) as service:  # the best that there is
        assert service.streams.get_records(ShardIterator=standing)["Records"] == []
        found = [names(service.read(arn)) for arn in service.arns(TABLE)]
        assert found == [["INSERT k"], ["REMOVE k", "INSERT k"], ["MODIFY k", "INSERT k"]]
