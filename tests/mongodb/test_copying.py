"""What a copy says of itself, and what may be asked of it. No server."""

# Decisions that have no door of their own are asked where they are made.
# pyright: reportPrivateUsage=false

from typing import Any

import msgspec
import pytest

from penstock.capture.copies import CopyDesk
from penstock.errors import RequestError
from penstock.event import SystemEvent
from penstock.sources.mongodb.again import named, with_collections
from penstock.sources.mongodb.cursor import Patience
from penstock.sources.mongodb.namespaces import Namespaces
from penstock.sources.mongodb.pace import Pace
from penstock.sources.mongodb.positions import Copying, MongoPosition, Server, Token
from penstock.sources.mongodb.session import Session
from tests.mongodb.support import config

TOKEN = Token("82000000010000000029296E04")


async def announced(copying: Copying) -> tuple[dict[str, Any], Copying]:
    """What is said when the copy is announced, and the copy after it."""
    session = Session(
        "shop",
        config("mongodb://localhost", database="shop"),
        client=None,  # type: ignore[arg-type]
        deployment=None,  # type: ignore[arg-type]
        patience=Patience(1),
        pace=Pace(documents_max=1, seconds=1),
        position=MongoPosition(Server("rs0"), TOKEN, copying),
        desk=CopyDesk(),
    )
    (event,) = (await session._copy()).events
    assert isinstance(event, SystemEvent)
    assert session.position.copying is not None
    return msgspec.json.decode(event.description), session.position.copying


async def test_a_copy_that_was_announced_before_says_so() -> None:
    """Whoever missed its beginning must not take this for it."""
    first, copying = await announced(with_collections(None, [("shop", "a")], TOKEN))
    assert "again" not in first
    second, _ = await announced(with_collections(copying, [("shop", "b")], TOKEN))
    assert second["again"] is True
    assert second["snapshot"] == first["snapshot"]


def test_letters_are_not_copied() -> None:
    """They are not the source's, so a copy would tell every one of them as deleted."""
    letters = ("shop", "penstock_dead_letters")
    with pytest.raises(RequestError, match="Nothing was copied"):
        named(
            "shop",
            ["penstock_dead_letters"],
            namespaces=Namespaces(database="shop", include=(), exclude=()),
            there={letters},
            known={letters},
        )
