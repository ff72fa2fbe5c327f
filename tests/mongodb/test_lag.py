"""A quiet source is not behind: its server says up to which time it has nothing more."""

import time

from penstock.event import Commit
from tests.mongodb.support import source
from tests_support.servers import MongoReplicaSet

IDLE_SECONDS_MAX = 30
"""An idle primary writes to its oplog every ten seconds, which is what its tokens tell of."""


async def test_a_heartbeat_says_up_to_which_time_of_the_server_all_was_told(
    mongo: MongoReplicaSet, mongo_database: str
) -> None:
    async with source(mongo.uri, database=mongo_database, heartbeat_seconds=0.1) as opened:
        changes = opened.changes(position=None)
        beat = await anext(changes)
        while beat.events or not isinstance(beat, Commit) or beat.as_of_ms is None:
            beat = await anext(changes)
        assert abs(time.time() - beat.as_of_ms / 1000) < IDLE_SECONDS_MAX
