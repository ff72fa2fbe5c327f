"""What `penstock status` says of the shards of Zero."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.table import Table

from penstock.cli import output
from penstock.harmless import harmless

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.serve.consumers import ConsumersStatus

_STYLES = {"streaming": "green", "copying": "yellow", "waiting": "yellow", "stopped": "bold red"}


class ShardReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """A shard of Zero."""

    shard: str
    who: str
    publications: tuple[str, ...]
    state: str
    """`away`, `waiting`, `copying`, `streaming` or `stopped`; of a serve process that is down, all
    are away but those that are stopped."""
    watermark: str
    acknowledged: str
    lag_commits: int
    rows: int
    seen_at_ms: int
    code: str
    message: str
    gaps: tuple[str, ...]
    """Its sources of which rows may be missing or wrong, until they are copied again."""


def shard_reports(
    status: "ConsumersStatus | None",
    head_commit: int,
    incomplete: Collection[str],
    serving: bool,
) -> list[ShardReport]:
    """The shards that the serve process knew last; `incomplete` are the sources of which rows may
    be missing or wrong."""
    return [
        ShardReport(
            shard=one.shard,
            who=one.who,
            publications=one.publications,
            state=one.state if serving or one.state == "stopped" else "away",
            watermark=one.watermark,
            acknowledged=one.acknowledged,
            lag_commits=max(0, head_commit - one.commit),
            rows=one.rows,
            seen_at_ms=one.seen_at,
            code=one.code,
            message=one.message,
            gaps=tuple(name for name in one.sources if name in incomplete),
        )
        for one in (() if status is None else status.shards)
    ]


def print_shards(console: "Console", shards: Sequence[ShardReport], now_ms: int) -> None:
    """For people."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("shard", "who", "state", "watermark", "acknowledged", "lag", "seen"):
        table.add_column(column, no_wrap=True)
    for one in shards:
        table.add_row(
            output.cell(one.shard),
            output.cell(one.who or "-"),
            f"[{_STYLES.get(one.state, 'dim')}]{one.state}[/]",
            output.cell(one.watermark or "-"),
            output.cell(one.acknowledged or "-"),
            f"{one.lag_commits:,} commits",
            output.ago(one.seen_at_ms, now_ms),
        )
    console.print(table)
    for one in shards:
        if one.message:
            console.print(
                harmless(f"{one.shard}: {one.message}"),
                style=_STYLES.get(one.state, ""),
                markup=False,
            )
        if one.gaps:
            console.print(
                f"{harmless(one.shard)}: rows of {harmless(', '.join(one.gaps))} may be missing or "
                f"wrong until they are copied: see `penstock snapshot`.",
                style="yellow",
                markup=False,
            )
