"""What would keep a trail from being written, or from lasting, each with its fix."""

from collections.abc import Iterator
from typing import Any

from pymongo.errors import OperationFailure, PyMongoError

from penstock.audit.config import TrailConfig
from penstock.audit.sealing import OTHER_KEY, USE_ITS_KEY, key_fits
from penstock.audit.trail import Document, Trail
from penstock.checks import Check, Level
from penstock.errors import AuditError

_ACTIONS = frozenset({"find", "insert", "update", "remove", "createIndex", "createCollection"})
_PENDING_MAX = 100


def doctor(source: str, pipeline: str, config: TrailConfig) -> list[Check]:
    """Every check; blocks. Raises ConfigError for a uri that is none."""
    trail = Trail(source, config)
    try:
        return list(_looked(trail, pipeline))
    except PyMongoError as error:
        what, remedy = trail.cause(error)
        return [Check(name="reachable", level=Level.ERROR, detail=what, fix=remedy)]
    finally:
        trail.close()


def _looked(trail: Trail, pipeline: str) -> Iterator[Check]:
    yield _transactions(trail)
    yield from _durable(trail)
    yield _rights(trail)
    yield _head(trail, pipeline)
    yield _pending(trail)


def _transactions(trail: Trail) -> Check:
    if trail.has_transactions():
        return Check(
            name="transactions", level=Level.OK, detail="records and place are written in one"
        )
    return Check(
        name="transactions",
        level=Level.WARNING,
        detail="this server is in no replica set and has none, so every batch is staged: twice the "
        "writes, nothing is lost by it",
        fix="make it a replica set, of one member at least (rs.initiate())",
    )


def _durable(trail: Trail) -> Iterator[Check]:
    """Whether w: majority with a journal is what it says (A21)."""
    try:
        found = trail.client.admin.command("replSetGetConfig")["config"]
    except OperationFailure as error:
        if error.code in {76, 8}:  # NoReplicationEnabled
            return
        yield Check(
            name="durable",
            level=Level.WARNING,
            detail="records are written with w: majority and j: true; what the replica set is "
            "like, this user may not see",
            fix="grant clusterMonitor to have it looked at",
        )
        return
    members: list[Document] = found["members"]
    keeping = [one for one in members if not one.get("arbiterOnly") and one.get("votes", 1)]
    journalled = found.get("writeConcernMajorityJournalDefault", True)
    yield Check(
        name="journal",
        level=Level.OK if journalled else Level.ERROR,
        detail="a majority's answer means that it is in its journals"
        if journalled
        else "members may answer before a write is in their journal",
        fix="" if journalled else "set writeConcernMajorityJournalDefault to true",
    )
    yield Check(
        name="copies",
        level=Level.OK if len(keeping) >= 3 else Level.WARNING,
        detail=f"{len(keeping)} members keep the trail",
        fix="" if len(keeping) >= 3 else "with three members, no single disk's loss is the trail's",
    )


def _rights(trail: Trail) -> Check:
    status = trail.client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
    if not status["authenticatedUsers"]:
        return Check(
            name="rights",
            level=Level.WARNING,
            detail="everybody may write to this MongoDB",
            fix="turn on access control: a trail that everybody may alter proves little",
        )
    allowed: set[str] = set()
    for privilege in status["authenticatedUserPrivileges"]:
        resource: dict[str, Any] = privilege["resource"]
        if resource.get("anyResource") or (
            resource.get("db") in {"", trail.config.database} and not resource.get("collection")
        ):
            allowed |= set(privilege["actions"])
    missing = sorted(_ACTIONS - allowed)
    return Check(
        name="rights",
        level=Level.ERROR if missing else Level.OK,
        detail=f"this user may not {', '.join(missing)} in {trail.config.database}"
        if missing
        else f"this user may write to {trail.config.database}",
        fix=f"as an administrator, run in mongosh: {trail.grant()}" if missing else "",
    )


def _head(trail: Trail, pipeline: str) -> Check:
    try:
        head = trail.head()
    except AuditError as error:
        return Check.failed("head", error)
    if head is None:
        return Check(
            name="head", level=Level.OK, detail="there is no trail yet; the pipeline begins one"
        )
    if head.pipeline != pipeline:
        return Check(
            name="head",
            level=Level.ERROR,
            detail=f"the trail is written by pipeline {head.pipeline}",
            fix="give this pipeline another database or other collections",
        )
    sealed = trail.config.seal_key is not None
    if head.sealed != sealed:
        return Check(
            name="head",
            level=Level.ERROR,
            detail="the trail was begun " + ("with" if head.sealed else "without") + " a seal_key",
            fix="set the key with which it was begun" if head.sealed else "remove seal_key",
        )
    if not key_fits(trail, lambda act: act(), last=head.batch, ends=head.hash):
        return Check(name="head", level=Level.ERROR, detail=OTHER_KEY, fix=USE_ITS_KEY)
    return Check(
        name="head", level=Level.OK, detail=f"{head.at:,} records in {head.batch:,} batches"
    )


def _pending(trail: Trail) -> Check:
    pending = trail.staging.count_documents({"source": trail.source, "status": "pending"})
    return Check(
        name="pending",
        level=Level.OK if pending <= _PENDING_MAX else Level.WARNING,
        detail=f"{pending:,} staged parts wait",
        fix=""
        if pending <= _PENDING_MAX
        else "see that the pipeline runs: a large commit is on "
        "its way, or one was left by a driver that died",
    )
