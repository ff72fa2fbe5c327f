"""A shop with secrets, and those who ask it for captures."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from penstock.event import Operation
from penstock.extjson import encode
from tests.access.support import Service, service
from tests.captures.sockets import REST
from tests.subscribe.events import change, commit, schema

SECRET = "s3cr3t-value"
OLD = "0ld-secret"
IMAGE = "image-before"
TEXT = "ALTER-TABLE-text"
ALL_OF_IT = {"id": "a", "since": "beginning", "content": "body", "beforeImages": True}
"""A request of everything."""


def events() -> list[Any]:
    """A transaction of two collections; one whose key is secret; an update with its image before;
    a change of shape; and another source."""
    insert = change(1, key=1, document={"_id": 1, "at": 1, "ssn": SECRET, "card": {"no": SECRET}})
    keyed = change(3, key=3, document={"_id": 3, "ssn": SECRET, "at": 3})
    keyed = altered(
        keyed,
        event_id=SECRET,
        key=encode({"ssn": SECRET, "_id": 3}),
        document_id=SECRET,
        position=SECRET,
    )
    update = altered(
        change(4, key=1, operation=Operation.UPDATE, document={"_id": 1, "at": 4, "ssn": SECRET}),
        update_description=encode(
            {"updatedFields": {"at": 4, "ssn": SECRET}, "removedFields": ["card.no"]}
        ),
        full_document_before_change=encode({"_id": 1, "at": 1, "ssn": OLD, "was": IMAGE}),
    )
    shape = altered(schema(5, "modify"), description=encode({"statement": TEXT}))
    return [
        commit(insert, change(2, ordinal=1, collection="lines")),
        commit(keyed),
        commit(update),
        commit(shape),
        commit(change(1, source="crm")),
    ]


def altered(event: Any, **fields: Any) -> Any:
    from msgspec import structs

    return structs.replace(event, **fields)


@asynccontextmanager
async def shop(
    folder: Path, *, captures: dict[str, Any] | None = None, **access: Any
) -> AsyncGenerator[Service]:
    serve = {"captures": {"maintenance_interval": 0.02, **(captures or {})}}
    async with service(folder, serve=serve, flights=False, **access) as at:
        await at.log.append(events())
        await at.caught_up()
        yield at


def headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def socket(
    served: Service, token: str | None, query: str = "", **more: Any
) -> AsyncGenerator[ClientConnection]:
    address = f"ws://{served.http}/rest/system/change-captures{query}"
    async with connect(
        address, subprotocols=[REST], additional_headers=headers(token), **more
    ) as connection:
        try:
            yield connection
        finally:
            connection.transport.abort()
