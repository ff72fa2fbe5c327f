"""How much happened, minute by minute: counted by MongoDB, and no record is sent for it."""

from typing import Any, Final

from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from msgspec import structs

from penstock.audit.filters import Filters, conditions
from penstock.audit.plans import BY_PLACE, by_time
from penstock.audit.querying import Querier
from penstock.errors import TrailSlowError

COUNT_SECONDS: Final = 5.0
Counts = dict[int, dict[str, int]]


def counts_of(
    querier: Querier, filters: Filters, *, since_ms: int, after: int, until: int
) -> Counts | None:
    """By the minute since 1970 and by operation, the records at `after` < place <= `until` that
    are not older than `since_ms`; None if that cannot be counted in COUNT_SECONDS.
    """
    asked = conditions(filters)
    times: dict[str, Any] = dict(asked.pop("ts", {}))
    begin = max(int(times.get("$gte", DatetimeMS(since_ms))), since_ms)
    match = {
        **asked,
        "ts": times | {"$gte": DatetimeMS(begin)},
        "at": {"$gt": Int64(after), "$lte": Int64(until)},
    }
    minute = {"$floor": {"$divide": [{"$toLong": "$ts"}, 60_000]}}
    pipeline = [
        {"$match": match},
        {"$group": {"_id": {"minute": minute, "op": "$op"}, "count": {"$sum": 1}}},
    ]
    # What was added since is little by its places, and the window is little by its times.
    index = by_time(structs.replace(filters, since_ms=begin))
    if index is not None and after:
        index = BY_PLACE
    try:
        found = querier.aggregate(pipeline, index=index, seconds=COUNT_SECONDS)
    except TrailSlowError:
        return None
    counts: Counts = {}
    for one in found:
        counts.setdefault(int(one["_id"]["minute"]), {})[one["_id"]["op"]] = int(one["count"])
    return counts
