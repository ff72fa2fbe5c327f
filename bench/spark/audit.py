"""Every change as a record of an audit trail: a MongoDB on the same machine, and the same cores.

The log's changes have no before images, so no record says which columns changed. Trails of both
images, their writer beside `insert_many`, and the lag of a trail are bench/audit's.
"""

from contextlib import closing
from typing import Final

from bench.spark.stage import Figure, Given, agree, configured, piped
from penstock.audit.config import TrailConfig
from penstock.audit.trail import Trail
from tests_support.servers import MongoReplicaSet

WHAT: Final = "audit (MongoDB)"


def measure(given: Given) -> list[Figure]:
    with MongoReplicaSet() as mongo:
        said = {"to": "audit", "uri": mongo.uri, "database": "bench"}
        # The pipeline's own size of a batch, unless a smaller one is asked for.
        given = given._replace(batch=min(given.batch, 100_000))
        figure = piped(given, WHAT, **said)
        config = configured(given, **said)
        assert isinstance(config, TrailConfig)
        with closing(Trail("shop", config)) as trail:
            pipeline = [{"$group": {"_id": "$op", "count": {"$sum": 1}}}]
            found = {one["_id"]: one["count"] for one in trail.raw_records.aggregate(pipeline)}
    expected = given.orders.counts(figure.changes)
    agree("the trail's records", [found.get(one, 0) for one in "iud"], expected)
    agree("the sum of its records", sum(found.values()), figure.changes)
    return [figure]
