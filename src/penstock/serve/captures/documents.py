"""One document as it was: GET /rest/{catalog}/entities/{entityType}/{key}?asOf=...

200 with the document; 404 where it is known not to have been there; 410 where that cannot be told
any more; 409 for what has not come yet.
"""

import time
from typing import Any

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import RequestError
from penstock.ports import LogReader
from penstock.serve.captures.query import OPEN, key_of, one_of
from penstock.serve.captures.service import CaptureService
from penstock.subscribe.captures.asof import AsOf, as_of
from penstock.subscribe.captures.past import Address, Past, PastOf
from penstock.subscribe.scope import Scope


async def document(request: Request, service: CaptureService, scope: Scope) -> Response:
    """The answer to a GET. Raises what refuses it."""
    query, path = request.query_params, request.path_params
    unknown = sorted(set(query) - {"asOf"} - OPEN)
    if unknown:
        raise RequestError(
            f"{unknown[0][:64]} is no parameter of a document. Nothing was sent. There is asOf: a "
            f"version, a time with its zone, or a marker."
        )
    source, _, database = path["catalog"].partition(".")
    if not database:
        raise RequestError(
            f"{source} is a source with several catalogs. Nothing was sent. Write "
            f"{source}.DATABASE."
        )
    address = Address(source, database, path["entityType"], key_of(path["key"]))
    bytes_max = service.config.scan_bytes_max
    moment = await as_of(
        await service.seeking(),
        one_of(query, "asOf"),
        # Of a source of which nothing is shown, no more is told than of one that is not there.
        source=source if scope.allows_source(source) else "",
        now_ms=time.time_ns() // 1_000_000,
        bytes_max=bytes_max,
    )
    past = PastOf(service.past, address, rows=service.rows, bytes_max=bytes_max, scope=scope)
    found = await past.at(moment.place)
    said = await _said(service.past, path, moment, found)
    return Response(
        msgspec.json.encode(said),
        status_code=404 if found.document is None else 200,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


async def _said(log: LogReader, path: dict[str, Any], moment: AsOf, found: Past) -> dict[str, Any]:
    said: dict[str, Any] = {
        "catalog": path["catalog"],
        "entityType": path["entityType"],
        "progress": str(moment.place),
        "settled": moment.settled,
    }
    for name, sequence in (("version", moment.place.sequence), ("changedIn", found.changed)):
        version = await _version(log, sequence)
        if version:
            said[name] = version
    if found.key is not None:
        said["entityPrimaryKey"] = Raw(found.key)
    if found.document is None:
        message = "The document was not there: it was removed before, or comes into being later."
        return {**said, "error": {"code": "history.absent", "message": message}}
    return {**said, "fullDocument": Raw(found.document)}


async def _version(log: LogReader, sequence: int) -> int:
    """The commit of an entry; 0 if it is not kept any more."""
    bounds = await log.bounds()
    if not bounds.trimmed < sequence <= bounds.head:
        return 0
    (block, *_) = await log.read(after=sequence - 1, until=sequence, bytes_max=1)
    return block.commit(block.start)
