"""Whether a store can be captured, and what to do where it cannot."""

import asyncio

from penstock import kv, store
from penstock.checks import Check, Level
from penstock.errors import PenstockError
from penstock.sources.store.config import StoreSourceConfig
from penstock.sources.store.copying import followed, unfollowed, unmatched
from penstock.sources.store.fit import require_images, require_same
from penstock.sources.store.positions import parse_position
from penstock.store import View


async def doctor(
    name: str, config: StoreSourceConfig, *, position: str | None = None
) -> list[Check]:
    """Look at everything that capture needs, without changing anything.

    `position` is the source's own in the log: whether the store is still the one that it is of, and
    holds what follows it. Raises nothing for a store that is unfit or not there: that is a check
    that is not ok.
    """
    return await asyncio.to_thread(_looked, name, config, position)


def _looked(name: str, config: StoreSourceConfig, position: str | None) -> list[Check]:
    checks: list[Check] = []
    try:
        if not kv.exists(config.path):
            detail = f"there is no store at {config.path}"
            fix = "set path, or have the application make it: capture waits for it"
            return [Check(name="store", level=Level.WARNING, detail=detail, fix=fix)]
        with store.open(config.path, read_only=True, sweep_seconds=None) as db, db.view() as view:
            checks.append(Check(name="store", level=Level.OK, detail=f"the store {view.store_id}"))
            checks += _tables(name, config, view)
            if position is not None:
                checks.append(_position(name, config, view, position))
    except PenstockError as error:
        last = "store" if not checks else checks[-1].name
        checks.append(Check.failed(last, error))
    return checks


def _tables(name: str, config: StoreSourceConfig, view: View) -> list[Check]:
    scope = config.scope
    there, without = followed(view, scope), unfollowed(view, scope)
    checks = [
        Check(name="tables", level=Level.OK, detail=f"captured: {', '.join(there) or 'none yet'}")
    ]
    try:
        require_images(name, view, scope, config.tenant)
    except PenstockError as error:
        checks = [Check.failed("tables", error)]
    checks += Check.names(unmatched(view, scope))
    if without:
        checks.append(
            Check(
                name="streams",
                level=Level.WARNING,
                detail=f"not captured, for they have no change stream: {', '.join(without)}",
                fix="enable_stream for each, or leave them out with exclude",
            )
        )
    return checks


def _position(name: str, config: StoreSourceConfig, view: View, text: str) -> Check:
    try:
        known = parse_position(text)
        require_same(name, view, known)
    except PenstockError as error:
        return Check.failed("position", error)
    missing = view.missing(
        after=known.sequence, known=known.known, tables=config.scope.__contains__
    )
    if missing:
        tables = ", ".join(sorted({one.table for one in missing}))
        return Check(
            name="position",
            level=Level.ERROR,
            detail=f"retention removed changes that follow it, of: {tables}",
            fix="set on_position_lost = 'snapshot' to copy these tables, then run penstock reload",
        )
    behind = view.sequence - known.sequence
    return Check(
        name="position", level=Level.OK, detail=f"{behind} records behind, all of them held"
    )
