"""What is below /rest, in OpenAPI 3.1: GET /rest/openapi.json.

Written by hand: the paths are few, and half of what they mean is in the schemas of what they send.
WebSockets, which OpenAPI does not know, are the GET that opens one, with the schemas of the
messages. A test holds the routes, the parameters and real answers against it.
"""

from typing import Any, Final

import msgspec

from penstock import __version__
from penstock.serve.captures.protocol import SUBPROTOCOL
from penstock.subscribe.captures import Area, Container, Content
from penstock.subscribe.captures.envelopes import ENVELOPES

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_MARKER: Final[Schema] = {
    "type": "string",
    "description": "A place of the log: opaque, and sent back as it came.",
}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: list[str], /, **properties: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": properties}


def _or_many(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "array", "items": schema}, {"type": "null"}]}


def _only(kind: str) -> Schema:
    return {"const": kind}


_SITE: Final = _object(
    [],
    catalog=_or_many(_TEXT),
    entityType=_or_many(_TEXT),
    collection=_or_many(_TEXT),
    entityPrimaryKey={"description": "A value, an object for the key as it is, or a list of them."},
    operation=_or_many(_TEXT),
    containerType=_or_many({"enum": list(Container)}),
    containerName=_or_many(_TEXT),
    fields=_or_many(_TEXT),
) | {"additionalProperties": False, "description": "Where a change must be. Absent: anywhere."}

_SINCE: Final[Schema] = {
    "description": "Where to begin; absent: now. To go on from what was read give its progress: it "
    "alone proves that the log is still the same one.",
    "anyOf": [
        {"enum": ["now", "beginning", None]},
        _MARKER,
        _object(
            [],
            version=_COUNT,
            index=_COUNT,
            transactionId={"type": ["integer", "string"]},
            progress=_MARKER,
            timestamp={"type": ["integer", "string"]},
        )
        | {"additionalProperties": False},
    ],
}

_REQUEST_FIELDS: Final[dict[str, Schema]] = {
    "id": {"type": "string", "pattern": "^[!-~]{1,256}$"},
    "criteria": {"type": ["array", "null"], "items": _ref("Criterion")},
    "content": {"enum": [*Content, None]},
    "beforeImages": {"type": ["boolean", "null"]},
    "since": _SINCE,
    "sinceVersion": _COUNT,
    "sinceIndex": _COUNT,
    "completeAfter": _COUNT,
    "scope": {"type": "object", "description": "One criterion, with its content and since."},
}
_REQUEST: Final = _object([], **_REQUEST_FIELDS) | {"additionalProperties": False}

_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_ENVELOPE: Final[Schema] = {"enum": list(ENVELOPES)}
_OF_SUBSCRIPTION: Final[dict[str, Schema]] = {"credit": _COUNT, "envelope": _ENVELOPE}
_CAPTURED: Final = [_ref(one) for one in ("Capture", "Transaction", "CloudEvent", "DebeziumEvent")]

_PLACE: Final[dict[str, Schema]] = {
    "requestIds": {"type": "array", "items": _TEXT, "minItems": 1},
    "progress": _MARKER,
    "version": _COUNT,
    "index": _COUNT,
    "area": {"enum": list(Area)},
    "operation": _TEXT,
    "source": _TEXT,
    "timestamp": {"type": "integer"},
    "transaction": _TEXT,
}
_PLACED: Final = [name for name in _PLACE if name != "transaction"]

_SCHEMAS: Final[dict[str, Schema]] = {
    "CaptureRequest": _REQUEST,
    "Criterion": _object([], area={"enum": [*Area, "any", "*", None]}, site=_ref("Site")),
    "Site": _SITE,
    "Capture": _object(
        [*_PLACED, "id", "catalog"],
        **_PLACE,
        id=_TEXT,
        mutation={"enum": ["UPSERT", "REMOVE"]},
        catalog=_TEXT,
        tenant=_TEXT,
        entityType=_TEXT,
        entityPrimaryKey={"type": "object"},
        documentId=_TEXT,
        schemaVersion=_COUNT,
        snapshot={"type": "boolean"},
        body={"type": "object"},
    )
    | {"additionalProperties": False},
    "Transaction": _object(
        [*_PLACED, "mutation", "mutationCount", "matched"],
        **_PLACE,
        mutation=_only("TRANSACTION"),
        mutationCount=_COUNT,
        matched={"type": "object", "additionalProperties": _COUNT},
        digest={"type": "string", "pattern": "^[0-9a-f]{16}$"},
    )
    | {"additionalProperties": False},
    "CloudEvent": _object(
        ["specversion", "id", "source", "type", "time", "progress", "version"],
        specversion=_only("1.0"),
        id=_TEXT,
        source={"type": "string", "format": "uri-reference"},
        type={"type": "string", "pattern": "^penstock\\."},
        time={"type": "string", "format": "date-time"},
        subject=_TEXT,
        datacontenttype=_only("application/json"),
        requestids={"type": "string", "description": "With spaces between them."},
        progress=_MARKER,
        version=_TEXT,
        index=_TEXT,
        transaction=_TEXT,
        data={"type": "object"},
    )
    | {"additionalProperties": False},
    "DebeziumEvent": {
        "anyOf": [
            _object(
                ["requestIds", "op", "source", "ts_ms", "transaction", "progress", "id"],
                requestIds=_TEXTS,
                op={"enum": ["c", "u", "d", "r", "m"]},
                source={"type": "object"},
                ts_ms={"type": "integer"},
                transaction={"type": ["object", "null"]},
                before={"type": ["object", "string", "null"]},
                after={"type": ["object", "string", "null"]},
                key={"type": "object"},
                progress=_MARKER,
                id=_TEXT,
            ),
            _object(
                ["requestIds", "status", "id", "ts_ms", "progress"],
                requestIds=_TEXTS,
                status={"enum": ["BEGIN", "END"]},
                id=_TEXT,
                ts_ms={"type": "integer"},
                event_count={"type": ["integer", "null"]},
                matched={"type": "object", "additionalProperties": _COUNT},
                progress=_MARKER,
            ),
        ],
    },
    "Confirmed": _object(
        ["id", "progress", "version"],
        id=_TEXT,
        progress=_MARKER,
        version=_COUNT,
        waiting={"type": "boolean"},
    ),
    "Maintenance": _object(
        ["positions", "timestamp", "intervalMs"],
        progress=_MARKER,
        positions={"type": "object", "additionalProperties": _MARKER},
        timestamp={"type": "integer"},
        intervalMs=_COUNT,
    ),
    "Finished": _object(["id"], id=_TEXT),
    "Error": _object(
        ["code", "message"], code=_TEXT, message=_TEXT, oldest=_MARKER, after=_MARKER, id=_TEXT
    ),
    "Refusal": _object(["error"], error=_ref("Error")),
    "Page": _object(
        ["catalog", "after", "until", "next", "previous", "last", "changes"],
        catalog=_TEXT,
        after=_MARKER,
        until=_MARKER,
        next={"type": "string", "format": "uri-reference"},
        previous={"type": ["string", "null"], "format": "uri-reference"},
        last={"type": "boolean", "description": "Nothing lies behind it yet: ask `next` later."},
        changes={"type": "array", "items": {"anyOf": _CAPTURED}},
    )
    | {"additionalProperties": False},
    "Document": _object(
        ["catalog", "entityType", "progress", "settled"],
        catalog=_TEXT,
        entityType=_TEXT,
        entityPrimaryKey={"type": "object"},
        progress=_MARKER,
        version=_COUNT,
        changedIn=_COUNT,
        settled={"type": "boolean", "description": "False: changes of that time may still come."},
        fullDocument={"type": "object"},
        error=_ref("Error"),
    )
    | {"additionalProperties": False},
    "ClientMessage": {
        "description": "What a client sends on a WebSocket.",
        "oneOf": [
            _object(["type"], type={"enum": ["connection_init", "ping", "pong"]}),
            _object(["type", "id"], type=_only("complete"), id=_TEXT),
            _object(
                ["type", "id", "payload"],
                type=_only("subscribe"),
                id=_TEXT,
                payload={
                    "anyOf": [
                        _object([], **_REQUEST_FIELDS, **_OF_SUBSCRIPTION)
                        | {"additionalProperties": False},
                        _object(
                            ["requests"],
                            requests={"type": "array", "items": _ref("CaptureRequest")},
                            **_OF_SUBSCRIPTION,
                        ),
                    ]
                },
            ),
            _object(
                ["type", "id", "payload"],
                type={"enum": ["extend", "change", "limit", "request"]},
                id=_TEXT,
                payload=_object(
                    [],
                    requests={"type": "array", "items": _ref("CaptureRequest")},
                    request=_ref("CaptureRequest"),
                    requestIds={"type": "array", "items": _TEXT},
                    all={"type": "boolean"},
                    n=_COUNT,
                ),
            ),
        ],
    },
    "ServerMessage": {
        "description": "What a client gets on a WebSocket.",
        "oneOf": [
            _object(["type"], type={"enum": ["connection_ack", "pong", "ping"]}),
            _object(["type", "id"], type=_only("complete"), id=_TEXT),
            _object(
                ["type", "id", "payload"], type=_only("error"), id=_TEXT, payload=_ref("Error")
            ),
            _object(
                ["type", "id", "payload"],
                type=_only("next"),
                id=_TEXT,
                payload=_object(
                    ["data"],
                    data={
                        "anyOf": [
                            *_CAPTURED,
                            _object(["confirmed"], confirmed=_ref("Confirmed")),
                            _object(["maintenance"], maintenance=_ref("Maintenance")),
                            _object(["finished"], finished=_ref("Finished")),
                            _object(["refused"], refused={"type": "object"}),
                        ]
                    },
                    error=_ref("Error"),
                ),
            ),
        ],
    },
}

_CATALOG: Final[Schema] = {
    "name": "catalog",
    "in": "path",
    "required": True,
    "description": "A source, or source.database.",
    "schema": _TEXT,
}


def _parameter(name: str, schema: Schema, description: str = "") -> Schema:
    return {"name": name, "in": "query", "schema": schema, "description": description}


_ASKED: Final = [
    _parameter("envelope", _ENVELOPE, "How captures are written; absent: ours."),
    _parameter("request", _TEXTS, "A whole CaptureRequest, as JSON; then none of the others."),
    _parameter("id", _TEXT, "The request's id."),
    _parameter("area", {"type": "array", "items": {"enum": [*Area, "any"]}}, "Repeat for more."),
    _parameter("catalog", _TEXTS, "Narrower than the path's."),
    _parameter("entityType", _TEXTS, "Collections or tables."),
    _parameter("entityPrimaryKey", _TEXTS, "JSON, or text: the text 5 is %225%22."),
    _parameter("operation", _TEXTS),
    _parameter("containerType", {"type": "array", "items": {"enum": list(Container)}}),
    _parameter("fields", _TEXTS, "Of which one must be touched."),
    _parameter("content", {"enum": list(Content)}),
    _parameter("beforeImages", {"type": "boolean"}),
    _parameter(
        "since",
        _TEXT,
        "A marker, `now` or `beginning`. A marker alone proves that the log is still the one that "
        "was read.",
    ),
    _parameter("sinceVersion", _COUNT, "Inclusive."),
    _parameter("sinceIndex", _COUNT, "With sinceVersion, inclusive."),
    _parameter("sinceTransaction", _TEXT, "Exclusive: a version, or the source's own name of one."),
    _parameter("sinceTimestamp", _TEXT, "Unix milliseconds, or ISO 8601 with its zone; inclusive."),
]


_SECURITY: Final[Schema] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "ticket": {
        "type": "apiKey",
        "in": "query",
        "name": "ticket",
        "description": "For browsers: from POST /ticket, and good once.",
    },
    "certificate": {"type": "mutualTLS"},
}
"""Where [access] is on; else nobody is asked."""


def _json(name: str, description: str) -> Schema:
    content = {"application/json": {"schema": _ref(name)}}
    return {"description": description, "content": content}


_REFUSED: Final[dict[str, Schema]] = {
    "400": _json("Refusal", "It cannot be meant."),
    "401": _json("Refusal", "Nobody known: no token, or one that does not hold any more."),
    "403": _json("Refusal", "Not allowed."),
    "409": _json("Refusal", "It lies ahead of the log, or is of another one."),
    "410": _json("Refusal", "What it asks for is not kept: `oldest` is the oldest marker."),
    "429": _json("Refusal", "More often, or at more places at once, than one client may."),
    "503": _json(
        "Refusal",
        "Too many subscriptions, the service stops, or its archive is away: try again. Or the "
        "archive is not what it must be: `message` says what to mend.",
    ),
}


def _get(name: str, summary: str, parameters: list[Schema], responses: dict[str, Schema]) -> Schema:
    said = {"operationId": name, "summary": summary, "responses": {**responses, **_REFUSED}}
    return {"get": {**said, **({"parameters": parameters} if parameters else {})}}


def _socket(name: str, parameters: list[Schema]) -> Schema:
    summary = (
        f"A WebSocket of the subprotocol {SUBPROTOCOL}: ClientMessage and ServerMessage, as text."
    )
    opened = {"description": "Switching protocols."}
    return _get(name, summary, parameters, {"101": opened})


def document() -> Schema:
    """The whole description."""
    _stream: Schema = {
        "description": "Events confirmed, capture, transaction, maintenance, finished and error; "
        "`data` is the schema of that name, `id` a marker.",
        "content": {"text/event-stream": {"schema": _TEXT}},
    }
    place = [
        _parameter("after", _MARKER, "The page behind this place."),
        _parameter("before", _MARKER, "The page up to this place, or to `now`."),
        _parameter("limit", {"type": "integer", "minimum": 1, "default": 100}),
    ]
    last_event: Schema = {
        "name": "Last-Event-ID",
        "in": "header",
        "schema": _MARKER,
        "description": "Resume behind this event; goes before any other start.",
    }
    entity = [
        _CATALOG,
        {"name": "entityType", "in": "path", "required": True, "schema": _TEXT},
        {
            "name": "key",
            "in": "path",
            "required": True,
            "description": "JSON, or text: the text 5 is %225%22.",
            "schema": _TEXT,
        },
        _parameter("asOf", _TEXT, "A version, ISO 8601 with its zone, or a marker. Absent: now."),
    ]
    page = _json("Page", "A page, oldest first. It never splits a transaction.")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock capture subscriptions",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/rest/openapi.json": _get(
                "describe",
                "This description.",
                [],
                {"200": {"description": "It.", "content": {"application/json": {"schema": {}}}}},
            ),
            "/rest/{catalog}/changes": _get(
                "changes", "History, a page at a time.", [_CATALOG, *place, *_ASKED], {"200": page}
            ),
            "/rest/{catalog}/entities/{entityType}/{key}": _get(
                "document",
                "A document as it was.",
                entity,
                {
                    "200": _json("Document", "What it was."),
                    "404": _json("Document", "It was not there."),
                },
            ),
            "/rest/{catalog}/events": _get(
                "events",
                "Follow changes as server-sent events.",
                [_CATALOG, last_event, *_ASKED, _parameter("completeAfter", _COUNT)],
                {"200": _stream},
            ),
            "/rest/system/change-captures": _socket("followSystem", []),
            "/rest/{catalog}/change-captures": _socket("followCatalog", [_CATALOG]),
        },
        "components": {"schemas": _SCHEMAS, "securitySchemes": _SECURITY},
        "security": [{}, *({name: []} for name in _SECURITY)],
    }


def document_json() -> bytes:
    """`document`, encoded."""
    return msgspec.json.encode(document())
