"""Our own collections in a MongoDB: places, what collections are for, and rejects."""

import time
from typing import Any

from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from pymongo.client_session import ClientSession

from penstock.progress import parse_progress
from penstock.spark.replica.destination import PLACES, REJECTS, TABLES
from penstock.spark.replica.known import Known
from penstock.spark.replica.place import Place, Stream
from penstock.spark.table.rejects import GAP

Document = dict[str, Any]


def place_of(database: Any, pipeline: str, session: ClientSession | None) -> Place | None:
    """Where a pipeline stands."""
    found = database[PLACES].find_one({"_id": pipeline}, session=session)
    if found is None:
        return None
    return Place(
        pipeline=pipeline,
        source=found["source"],
        collections=tuple(found["collections"]),
        epoch=int(found["epoch"]),
        progress=parse_progress(found["progress"]),
    )


def streams_of(database: Any, session: ClientSession | None) -> dict[str, tuple[str, Stream]]:
    """What collections are for, as in `Known`."""
    return {
        one["_id"]: (one["pipeline"], Stream(one["database"], one["collection"]))
        for one in database[TABLES].find({}, session=session)
    }


def known_of(database: Any, pipeline: str, session: ClientSession | None) -> Known:
    """What collections are for, and which documents lack a change."""
    stale: dict[str, dict[str, int]] = {}
    which = {"pipeline": pipeline, "healed": None, "key": {"$ne": None}}
    for one in database[REJECTS].find(which, session=session).sort("sequence", 1):
        stale.setdefault(one["table"], {})[one["key"]] = int(one["sequence"])
    return Known(streams=streams_of(database, session), stale=stale)


def gaps_of(database: Any, pipeline: str, session: ClientSession | None) -> frozenset[int]:
    """The sequences of the events at which a pipeline noted a gap."""
    which = {"pipeline": pipeline, "reason": {"$regex": f"^{GAP}"}}
    return frozenset(int(one["sequence"]) for one in database[REJECTS].find(which, session=session))


def document_of(place: Place) -> Document:
    """A place, as it is written."""
    return {
        "source": place.source,
        "collections": list(place.collections),
        "epoch": Int64(place.epoch),
        "progress": str(place.progress),
        "sequence": Int64(place.progress.sequence),
        "written": DatetimeMS(int(time.time() * 1000)),
    }
