"""What a session makes of single events, without a server."""

# Decisions that have no door of their own are asked where they are made.
# pyright: reportPrivateUsage=false

from typing import Any, cast

import bson
from bson import Int64, Timestamp

from penstock.event import Commit
from penstock.sources.mongodb.documents import OPTIONS
from penstock.sources.mongodb.normalise import raw_token
from penstock.sources.mongodb.positions import MongoPosition, Server, Token, parse_position
from penstock.sources.mongodb.session import Session
from tests.mongodb.support import config


def token_of(time: int) -> str:
    return f"82{time:08X}{1:08X}" + "AB" * 30


def raw(time: int, operation: str, **fields: Any) -> bytes:
    event = {
        "_id": {"_data": token_of(time)},
        "operationType": operation,
        "clusterTime": Timestamp(time, 1),
        "ns": {"db": "shop", "coll": "unfollowed"},
        **fields,
    }
    return bson.encode(event, codec_options=OPTIONS)


def session(**options: Any) -> Session:
    nothing = cast("Any", None)
    return Session(
        "shop",
        config("mongodb://nowhere", database="shop", **options),
        client=nothing,
        deployment=nothing,
        patience=nothing,
        pace=nothing,
        position=MongoPosition(server=Server("rs"), token=Token(token_of(1))),
        desk=nothing,
    )


async def test_a_copy_that_a_rename_begins_is_not_told_of_by_the_position_before_it() -> None:
    """S10: a restart in between reads the rename again, and only then is there something to copy.

    The transaction is still open when the rename comes: nothing before it said that it had ended.
    """
    opened = session(include=["shop.orders"])
    row = {"_id": 1}
    written = raw(
        5,
        "insert",
        ns={"db": "shop", "coll": "orders"},
        documentKey=row,
        fullDocument=row,
        txnNumber=Int64(3),
        lsid={"id": b"session", "uid": b"user"},
    )
    renamed = raw(6, "rename", to={"db": "shop", "coll": "orders"})
    assert opened._take(written, None) == []
    transaction, rename = opened._take(renamed, None)
    assert isinstance(transaction, Commit)
    before = parse_position(transaction.position)
    assert (before.token.data, before.copying) == (raw_token(written), None)
    assert isinstance(rename, Commit)
    after = parse_position(rename.position)
    assert after.copying is not None
    assert (after.token.data, after.copying.snapshot) == (raw_token(renamed), token_of(6))
    assert after.copying.pending == (("shop", "orders"),)
