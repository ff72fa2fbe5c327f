"""Whether a MongoDB can be captured, and what to do where it cannot."""

from datetime import UTC, datetime
from typing import Any

from pymongo.errors import OperationFailure, PyMongoError

from penstock.checks import Check, Level
from penstock.errors import PenstockError
from penstock.event import ClusterTime
from penstock.mongo_causes import UNAUTHORIZED, code_name, lacks
from penstock.sources.mongodb.config import MongoSourceConfig
from penstock.sources.mongodb.cursor import ChangeCursor, Patience, pipeline_of
from penstock.sources.mongodb.deployment import (
    Client,
    Deployment,
    connect,
    describe,
    grant_command,
    obstacle,
)
from penstock.sources.mongodb.failures import translated
from penstock.sources.mongodb.positions import parse_position
from penstock.sources.mongodb.snapshot import collections, unmatched

VERSION_TESTED = (6, 0)


async def doctor(
    name: str, config: MongoSourceConfig, *, position: str | None = None
) -> list[Check]:
    """Look at everything that capture needs, without changing anything.

    `position` is the source's own in the log: whether the server still holds what follows it.
    Raises nothing for a server that is unfit or away: that is a check that is not ok.
    """
    checks: list[Check] = []
    try:
        client = connect(name, config)
    except PenstockError as error:
        return [Check.failed("connection", error)]
    try:
        await _examine(checks, name, config, client, position)
    except PyMongoError as error:
        said = translated(name, config, error, client)
        checks.append(Check.failed("connection", said))
    except PenstockError as error:
        checks.append(Check.failed("connection", error))
    finally:
        await client.close()
    return checks


async def _examine(
    checks: list[Check],
    name: str,
    config: MongoSourceConfig,
    client: Client,
    position: str | None,
) -> None:
    """Append check after check, so that a failure leaves what was found before it."""
    deployment = await describe(client)
    checks.append(
        Check(name="connection", level=Level.OK, detail=f"reached {deployment.server.name}")
    )
    checks.append(_replica_set(deployment))
    if not checks[-1].ok:
        return
    checks.append(_version(deployment))
    privileges = await _privileges(name, config, client, deployment)
    checks.append(privileges)
    oplog = await _oplog(client, position)
    checks += [_identity(deployment), oplog or _unread_oplog()]
    if privileges.ok and (oplog is None or deployment.server.id is None):
        # Told once: one command grants all of it.
        checks[-3] = Check(
            name="privileges",
            level=Level.WARNING,
            detail=f"{privileges.detail}; what follows it may not see",
            fix=f"as an administrator, run in mongosh: {grant_command(config)}",
        )
    if privileges.level is not Level.ERROR:
        checks += Check.names(await unmatched(client, config))
    if privileges.ok:
        checks.append(await _images(config, client, deployment))


def _replica_set(deployment: Deployment) -> Check:
    unfit = obstacle(deployment)
    if unfit is None:
        return Check(name="replica set", level=Level.OK, detail="a replica set")
    why, remedy = unfit
    return Check(name="replica set", level=Level.ERROR, detail=why, fix=remedy)


def _version(deployment: Deployment) -> Check:
    version = ".".join(map(str, deployment.version))
    tested = deployment.version >= VERSION_TESTED
    lacks = "" if tested else "; no pre-images, no DDL events, and not tested by us"
    splits = "" if deployment.splits_large_events else "; events over 16 MiB stop capture"
    return Check(
        name="version",
        level=Level.WARNING if lacks or splits else Level.OK,
        detail=f"MongoDB {version}{lacks}{splits}",
        fix="" if not lacks and not splits else "use MongoDB 6.0.9 or later",
    )


async def _privileges(
    name: str, config: MongoSourceConfig, client: Client, deployment: Deployment
) -> Check:
    cursor = ChangeCursor(client, config, source=name, patience=Patience(config.deadline_seconds))
    try:
        await cursor.open(pipeline_of(config, deployment))
        copied = await collections(client, config)
    except OperationFailure as error:
        if error.code != UNAUTHORIZED:
            return Check.failed("privileges", translated(name, config, error, client))
        return Check(
            name="privileges",
            level=Level.ERROR,
            detail=f"cannot read changes: {lacks(config.address)} ({code_name(error)})",
            fix=f"as an administrator, run in mongosh: {grant_command(config)}",
        )
    finally:
        await cursor.close()
    return Check(
        name="privileges",
        level=Level.OK,
        detail=f"can read changes; {len(copied)} collections are captured now",
    )


def _identity(deployment: Deployment) -> Check:
    known = deployment.server.id is not None
    return Check(
        name="identity",
        level=Level.OK if known else Level.WARNING,
        detail=f"the deployment is {deployment.server}"
        + ("" if known else "; another server of the same name could not be told from it"),
    )


def _unread_oplog() -> Check:
    return Check(
        name="oplog",
        level=Level.WARNING,
        detail="cannot be read, so the time to loss is not known, nor whether the server's disk "
        "went back while nothing changed",
    )


async def _oplog(client: Client, position: str | None) -> Check | None:
    """None where it may not be read."""
    oplog = client["local"]["oplog.rs"]
    try:
        oldest = await oplog.find_one({}, {"ts": 1}, sort=[("$natural", 1)])
        newest = await oplog.find_one({}, {"ts": 1}, sort=[("$natural", -1)])
    except OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise
        return None
    if oldest is None or newest is None:
        return Check(name="oplog", level=Level.ERROR, detail="empty", fix="run rs.initiate()")
    first, last = _time(oldest), _time(newest)
    hours = (last.t - first.t) / 3600
    detail = f"holds {hours:.1f} hours, since {datetime.fromtimestamp(first.t, UTC):%F %T} UTC"
    if position is None:
        return Check(name="oplog", level=Level.OK, detail=detail)
    ours = parse_position(position).token.time
    if ours < first:
        return Check(
            name="oplog",
            level=Level.ERROR,
            detail=f"{detail}; the source's position is older, so changes after it are lost",
            fix="set on_position_lost to 'snapshot' or 'gap', and enlarge the oplog with "
            "db.adminCommand({replSetResizeOplog: 1, size: MEGABYTES})",
        )
    left = (ours.t - first.t) / 3600
    return Check(
        name="oplog",
        level=Level.OK,
        detail=f"{detail}; the source's position is {left:.1f} hours of changes from loss",
    )


def _time(entry: dict[str, Any]) -> ClusterTime:
    return ClusterTime(entry["ts"].time, entry["ts"].inc)


async def _images(config: MongoSourceConfig, client: Client, deployment: Deployment) -> Check:
    if not deployment.has_images:
        return Check(
            name="pre- and post-images", level=Level.OK, detail="not known to this version"
        )
    lacking: list[str] = []
    captured = await collections(client, config)
    for database in sorted({database for database, _ in captured}):
        async for found in await client[database].list_collections():
            enabled = found["options"].get("changeStreamPreAndPostImages", {}).get("enabled")
            if (database, found["name"]) in captured and not enabled:
                lacking.append(f"{database}.{found['name']}")
    settings = (config.full_document, config.full_document_before_change)
    required = config.needs_before_images or "required" in settings
    with_images = len(captured) - len(lacking)
    first = lacking[0].partition(".")[2] if lacking else ""
    return Check(
        name="pre- and post-images",
        level=Level.ERROR if required and lacking else Level.OK,
        detail=f"stored for {with_images} of {len(captured)} collections"
        + (f"; required, but not for {', '.join(lacking[:5])}" if required and lacking else ""),
        fix=f'for each: db.runCommand({{collMod: "{first}", changeStreamPreAndPostImages: '
        "{enabled: true}})"
        if required and lacking
        else "",
    )
