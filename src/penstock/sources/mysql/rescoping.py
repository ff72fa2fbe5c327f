"""What is said, and copied, where a source is to capture something else than it did."""

from functools import partial

import structlog
from msgspec import json, structs, to_builtins

from penstock.event import AnyEvent
from penstock.sources.mysql.asking import Asking
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import seconds_now, tables
from penstock.sources.mysql.copying import Name, begun_anew, with_tables, without
from penstock.sources.mysql.described import described, keyed_anew
from penstock.sources.mysql.events import Teller
from penstock.sources.mysql.positions import MysqlPosition
from penstock.sources.mysql.scope import Scope
from penstock.sources.mysql.shapes import without_keys

logger = structlog.get_logger(__name__)


def rescoped(
    position: MysqlPosition,
    source: str,
    config: MysqlSourceConfig,
    *,
    teller: Teller,
    asking: Asking,
) -> tuple[list[AnyEvent], MysqlPosition]:
    """What is said of a scope that is not that of the position, and the position with ours.

    The stream goes on where it was: changes of tables that are new to the scope are captured from
    there on. What they held before is copied if `start` says so.
    """
    before, after = position.scope, config.scope
    if before == after:
        return [], position
    # A statement may wait for the stream that begins here, and has its table locked. For its name
    # alone nobody has to wait: MariaDB lists it, with a warning of what else it cannot say.
    unheard: list[Name] | None = None
    names = asking.unless_locked(lambda by: tables(by, Scope()), unheard)
    there = asking.again(lambda by: tables(by, Scope())) if names is None else names
    added = [one for one in there if one in after and one not in before]
    removed = [one for one in there if one in before and one not in after]
    anew: list[Name] = []
    if before.columns != after.columns:
        anew = keyed_anew(asking.again(lambda by: described(by, after)), before, after)
    copied = [*added, *anew] if config.start == "snapshot" else []
    identity = f"{position.gtids}:{json.encode((before, after)).decode()}"
    tell = partial(teller.system, position=position.gtids, seconds=position.at)
    facts_: dict[str, object] = {
        "before": to_builtins(before),
        "after": to_builtins(after),
        "added": [".".join(one) for one in added],
        "removed": [".".join(one) for one in removed],
        "copied": bool(copied),
        "since": position.gtids,
    }
    events: list[AnyEvent] = [tell("scope_changed", identity, facts=facts_)]
    for table in removed:
        gap: dict[str, object] = {"from": position.gtids, "to": None, "reason": "scope"}
        events.append(tell("gap", f"scope:{identity}", facts=gap, table=table))
    for table in anew:
        # Their rows are known by other keys from here on; a copy alone ends the old ones.
        gap = {"from": position.gtids, "to": None, "reason": "columns"}
        events.append(tell("gap", f"columns:{identity}", facts=gap, table=table))
    if before.columns != after.columns:
        logger.warning(
            "columns are captured by other rules from here on; what was told stays as it was",
            source=source,
            keyed_anew=[".".join(one) for one in anew],
        )
    if added and not copied:
        logger.warning(
            "tables are captured that were not; what they held before is not copied",
            source=source,
            tables=[".".join(one) for one in added],
        )
    copying = without(position.copying, after)
    if set(anew).intersection(copying.covers if copying is not None else ()):
        copying = begun_anew(copying)
    shapes = without_keys(position.shapes, anew)
    if copied:
        copying = with_tables(copying, copied, seconds=asking.again(seconds_now))
    elif added and copying is not None:
        copying = structs.replace(copying, whole=False)
    return events, structs.replace(position, scope=after, copying=copying, shapes=shapes)
