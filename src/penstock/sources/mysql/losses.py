"""What becomes of a position behind which the server no longer holds what follows. Pure."""

from typing import Literal, NamedTuple

from msgspec import structs

from penstock.sources.mysql.copying import begun_anew, everything
from penstock.sources.mysql.positions import MysqlPosition, version_of


class Loss(NamedTuple):
    """What is said of a loss, and where it goes on from."""

    facts: dict[str, object] | None
    """Of the gap, or of its end where the log has the gap already; None: it was said."""
    position: MysqlPosition
    halts: bool


def loss_of(
    known: MysqlPosition, *, until: str, why: str, mode: Literal["halt", "snapshot", "gap"]
) -> Loss:
    """A loss of what is between `known` and the server's last transactions, `until`.

    Where capture stops, the gap's `to` is not known and the position stands, with a note that the
    gap was said. If it goes on later, in another mode, both ends are said. A copy that was under
    way begins anew: what it has told proves nothing of what is there.
    """
    halts = mode == "halt"
    said = {"from": known.gtids, "to": None if halts else until, "reason": "purged", "detail": why}
    copying = begun_anew(known.copying)
    if halts:
        position = structs.replace(known, gap_said=True, copying=copying)
        return Loss(None if known.gap_said else dict(said), position, halts=True)
    if mode == "snapshot":
        copying = everything(seconds=known.at)
    # Behind other transactions, of which no more is known.
    position = structs.replace(
        known,
        gtids=until,
        last="",
        moment=0,
        binlog=None,
        file="",
        offset=0,
        at=0,
        gap_said=False,
        copying=copying,
        shapes=(),
        since=None,
        since_at=0,
        version=version_of(known.flavour, None),
    )
    return Loss(dict(said), position, halts=False)
