"""Rejects that wait for a replay, and how one is told that it is settled."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.spark.table.delta import text
from penstock.spark.table.lake import KeptTable
from penstock.spark.table.rejects import REPLAYED, SUPERSEDED, VIEW_STEP
from penstock.spark.table.stamp import Stamp
from penstock.spark.transform.fate import Replayed

_NAMED_MAX: Final = 500


def pending_in(pipeline: str, rejects: KeptTable) -> list[dict[str, Any]]:
    """The rows of the rejects table that are not settled, by sequence."""
    rows: list[dict[str, Any]] = [
        row for batch in rejects.scan(f"pipeline = {text(pipeline)}") for row in batch.to_pylist()
    ]
    return sorted(
        (row for row in rows if row.get("state") is None), key=lambda row: int(row["sequence"])
    )


def outcome(one: Mapping[str, Any], state: str, reason: str = "") -> Replayed:
    """What became of a row of the rejects table."""
    return Replayed(
        sequence=one["sequence"],
        database=one["database"],
        collection=one["collection"],
        key=one["key"],
        state=state,
        reason=reason,
    )


def mark(
    rejects: KeptTable,
    settled: Sequence[Replayed],
    *,
    pipeline: str,
    log_id: int | None,
    of_view: bool = False,
) -> None:
    """Have the rejects say what became of them; those that are left say nothing.

    Of one change there may be two: its table refused it, and once it was there a view's query. Only
    those of the view are marked, or only those of its tables.
    """
    view = text(VIEW_STEP)
    steps = f"step = {view}" if of_view else f"(step IS NULL OR step <> {view})"
    waiting = f"pipeline = {text(pipeline)} AND state IS NULL AND {steps}"
    for state in (REPLAYED, SUPERSEDED):
        of_state = [one for one in settled if one.state == state]
        for start in range(0, len(of_state), _NAMED_MAX):
            some = of_state[start : start + _NAMED_MAX]
            rejects.relabel(
                f"{waiting} AND ({' OR '.join(map(_is_it, some))})",
                {"state": text(state)},
                unmoved(pipeline, log_id=log_id, at=max(one.sequence for one in some)),
            )


def unmoved(pipeline: str, *, log_id: int | None, at: int) -> Stamp:
    """Of a commit to a table that is as far as `at`, and is no further with it."""
    return Stamp(pipeline=pipeline, log_id=log_id, after=at, until=at, batch=-1)


def _is_it(one: Replayed) -> str:
    # Rows that a first load rejected share the sequence at which their tables were.
    said = [_is(name, getattr(one, name)) for name in ("key", "database", "collection")]
    return f"(sequence = {one.sequence} AND {' AND '.join(said)})"


def _is(name: str, value: str | None) -> str:
    return f"{name} IS NULL" if value is None else f"{name} = {text(value)}"
